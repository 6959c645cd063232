"""A cluster as people start it, with cloud topics that a transactional producer wrote: leveled and compacted by a real
compactor on Spark while every broker is down, then read back record for record."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql import SparkSession

from sexton.adapters.metastore import open_metastore
from sexton.cli.cluster_folder import ClusterFolder
from sexton.compactor.cloud import kafkalog
from sexton.harness.asking import create_topic
from sexton.harness.brokers import ENVIRONMENT
from sexton.harness.compactor import CompactorProcess
from sexton.harness.processes import Port
from sexton.ports.cloud import CloudPartitionRow
from sexton.ports.metastore import ConfigScope
from sexton.ports.work_queue import CloudWork, RunRow
from tests.cli.up import Up

pytestmark = [pytest.mark.cluster, pytest.mark.spark]

PARTITIONS = 2
TRANSACTIONS = 25
KEYS_COUNT = 20
TIMEOUT_S = 180
CLOUD = {"storage.mode": "cloud"}
COMPACTED = {**CLOUD, "cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}

Seen = tuple[int, int, bytes | None, bytes | None]
"""Partition, offset, key, value."""


@pytest.fixture
def port() -> Iterator[int]:
    taken = Port()
    yield taken.number
    taken.release()


class Cluster:
    def __init__(self, path: Path, port: int, *options: str) -> None:
        self._path = path
        self._port = port
        self._options = options
        self.bootstrap = f"127.0.0.1:{port}"
        self._up: Up | None = None

    def start(self) -> None:
        options = ("--port", self._port, "--brokers", 1, "--cloud", "folder", "--no-compactor", *self._options)
        self._up = Up(self._path, *options)
        self._up.wait_for("Ctrl-C stops")

    def stop(self) -> None:
        assert self._up is not None
        self._up.stop()

    def end(self) -> None:
        if self._up is not None:
            self._up.end()

    @property
    def urls(self) -> tuple[str, str]:
        known = ClusterFolder(self._path).recall()
        assert known is not None
        return known.metastore_url, known.store_url

    def ask(self, question: Callable[[Any], Any]) -> Any:
        async def go() -> Any:
            metastore = open_metastore(self.urls[0])
            try:
                return await question(metastore)
            finally:
                await metastore.close()

        return asyncio.run(go())

    def rows(self) -> list[CloudPartitionRow]:
        return list(self.ask(lambda metastore: metastore.read_cloud_partitions()))

    def runs(self) -> list[RunRow]:
        return list(self.ask(lambda metastore: metastore.read_runs(1000)))

    def set_level_ms(self, level_ms: int) -> None:
        changes = {"cloud.level.ms": str(level_ms)}
        self.ask(lambda metastore: metastore.change_settings(ConfigScope.BROKER, "", changes))

    def check_deep(self) -> dict[str, Any]:
        return self._sexton("cloud", "check", "--deep", "--dir", str(self._path))

    def why(self, one: Seen) -> str:
        place = (f"table:{one[0]}", "--offset", str(one[1]))
        return str(self._sexton("compaction", "why", *place, "--bootstrap-server", self.bootstrap)["because"])

    def _sexton(self, *words: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "sexton.cli.main", *words, "--json"],
            env={**os.environ, **ENVIRONMENT},
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT_S,
        )
        return dict(json.loads(done.stdout))


def write_transactions(bootstrap: str, topics: list[str], rng: random.Random) -> None:
    """Of two producers, so that transactions overlap; a third of them abort."""
    producers = [
        Producer({"bootstrap.servers": bootstrap, "transactional.id": f"tx-{number}", "linger.ms": 1})
        for number in range(2)
    ]
    for producer in producers:
        producer.init_transactions(30)
    for _ in range(TRANSACTIONS):
        for producer in producers:
            producer.begin_transaction()
            for _ in range(rng.randrange(1, 8)):
                key, value = b"k%d" % rng.randrange(KEYS_COUNT), rng.randbytes(rng.randrange(1, 300))
                for topic in topics:
                    content = None if rng.random() < 0.15 else value
                    producer.produce(topic, key=key, value=content, partition=rng.randrange(PARTITIONS))
        for producer in producers:
            producer.flush(30)
            if rng.random() < 0.33:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)


def read_committed(bootstrap: str, topic: str) -> list[Seen]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"g-{time.monotonic_ns()}",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
        seen: list[Seen] = []
        ended: set[int] = set()
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(ended) < PARTITIONS:
            assert time.monotonic() < deadline_s, "the consumer does not get to the end"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                ended.add(message.partition() or 0)
                continue
            seen.append((message.partition() or 0, message.offset() or 0, message.key(), message.value()))
        return sorted(seen, key=lambda one: one[:2])
    finally:
        consumer.close()


def newest(seen: list[Seen]) -> list[Seen]:
    """What compaction may leave: of each key the last record, tombstones included."""
    last = {(partition, key): offset for partition, offset, key, _ in seen}
    return [one for one in seen if last[one[0], one[2]] == one[1]]


def wait_until(what: str, condition: Callable[[], bool], log_path: Path) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline_s, f"{what}: {log_path.read_text()[-3000:]}"
        time.sleep(0.5)


def query(spark: SparkSession, cluster: Cluster, topic: str) -> list[Seen]:
    """As a read_committed consumer sees it, without one."""
    metastore_url, store_url = cluster.urls
    kafkalog.register(spark)
    source = spark.read.format("kafkalog").option("metastore", metastore_url).option("store", store_url)
    rows = source.option("isolation", "read_committed").load(f"cloud:{topic}").where("offset >= 0")
    found = rows.select("partition", "offset", "key", "value").collect()
    seen = [(row.partition, row.offset, _bytes(row.key), _bytes(row.value)) for row in found]
    return sorted(seen, key=lambda one: one[:2])


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def test_brokers_that_were_down_meanwhile_serve_what_a_compactor_made_of_their_topics(
    tmp_path: Path, port: int, spark: SparkSession
) -> None:
    rng = random.Random(7)
    cluster = Cluster(tmp_path / "cluster", port)
    try:
        cluster.start()
        create_topic(cluster.bootstrap, "table", PARTITIONS, 1, COMPACTED)
        create_topic(cluster.bootstrap, "events", PARTITIONS, 1, CLOUD)
        write_transactions(cluster.bootstrap, ["table", "events"], rng)
        before = {topic: read_committed(cluster.bootstrap, topic) for topic in ("table", "events")}
        last = next(one for one in reversed(newest(before["table"])) if one[3] is not None)
        assert cluster.why(last) == "it is in L0: the partition is leveled up to 0"
        cluster.set_level_ms(0)
        cluster.stop()
        metastore_url, store_url = cluster.urls
        with CompactorProcess(metastore_url, tmp_path, "--store", store_url, "--nice", "0") as compactor:
            wait_until("leveled", lambda: all(_is_leveled(row) for row in cluster.rows()), compactor.log_path)
            wait_until(
                "compacted", lambda: sum(_is_compacted(row) for row in cluster.rows()) == PARTITIONS, compactor.log_path
            )
        runs = cluster.runs()
        assert {run.outcome for run in runs} == {"committed"}
        assert {run.broker_id for run in runs} == {CloudWork.LEVEL, CloudWork.COMPACT}
        cluster.start()
        assert read_committed(cluster.bootstrap, "events") == before["events"]
        assert read_committed(cluster.bootstrap, "table") == newest(before["table"])
        assert len(before["table"]) > 2 * len(newest(before["table"])), "there was something to compact"
        assert cluster.why(last) == "it is the newest record of its key"
        assert cluster.check_deep()["is_right"]
        write_transactions(cluster.bootstrap, ["table", "events"], rng)
        after = read_committed(cluster.bootstrap, "events")
        for topic in ("events", "table"):
            assert query(spark, cluster, topic) == read_committed(cluster.bootstrap, topic), "of both levels"
        assert [one for one in after if one in set(before["events"])] == before["events"]
        cluster.stop()
    finally:
        cluster.end()


def _is_leveled(row: CloudPartitionRow) -> bool:
    return row.leveled_offset == row.end_offset > 0


def _is_compacted(row: CloudPartitionRow) -> bool:
    return row.cleaned_offset == row.end_offset
