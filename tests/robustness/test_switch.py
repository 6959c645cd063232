"""A local topic becomes a cloud topic under clients that go on, while its leader is killed: nothing is lost or doubled.

Real brokers, a real folder as the store, librdkafka's clients, and the command that people use.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, Producer, TopicPartition

from sexton.adapters.metastore import open_metastore
from sexton.harness.brokers import ENVIRONMENT, SextonCluster
from sexton.ports.metastore import PartitionRow, Storage
from tests.robustness.conftest import wait_until

pytestmark = pytest.mark.cluster

PARTITIONS_COUNT = 2
BEFORE_COUNT = 12_000
"""Records of each partition before the switch, of a kilobyte: a copy of many objects, so that it can be interrupted."""
L0_BYTES = 64 * 1024
MOVED_S = 120
"""A bound for a busy machine; it is seconds, of which most go until another broker leads."""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SextonCluster]:
    settings: dict[str, str | int | float | bool] = {
        "cloud.store.url": f"file://{tmp_path}/objects",
        "cloud.linger.ms": 5,
        "cloud.l0.bytes": L0_BYTES,
        "min.insync.replicas": 2,
    }
    with SextonCluster(3, tmp_path / "cluster", settings) as running:
        yield running


def rows_of(cluster: SextonCluster, topic: str) -> list[PartitionRow]:
    async def read() -> list[PartitionRow]:
        metastore = open_metastore(cluster.metastore_url)
        try:
            found = await metastore.read_changes(0)
        finally:
            await metastore.close()
        (topic_id,) = [one.topic_id for one in found.topics if one.name == topic]
        return [row for row in found.partitions if row.topic_id == topic_id]

    return asyncio.run(read())


def set_mode(cluster: SextonCluster, topic: str, mode: str) -> tuple[int, str]:
    """As people do. Returns the exit code, and what was printed."""
    change = ("config", "set", "--topic", topic, f"storage.mode={mode}", "--bootstrap-server", cluster.bootstrap)
    command = [sys.executable, "-m", "sexton.cli.main", *change]
    done = subprocess.run(command, env=dict(ENVIRONMENT), capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


class Writer:
    """Numbers, in order, to each partition, until it is told to stop."""

    def __init__(self, cluster: SextonCluster, topic: str) -> None:
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "log_level": 0, "enable.idempotence": True, "linger.ms": 2}
        )
        self.offsets: dict[int, list[int]] = {number: [] for number in range(PARTITIONS_COUNT)}
        """Where each number came to lie."""
        self.errors: list[str] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def write(self, number: int, padding: bytes = b"") -> None:
        for partition in self.offsets:
            self._producer.produce(
                self._topic, b"%d " % number + padding, partition=partition, on_delivery=self._delivered
            )
        self._producer.poll(0)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0

    def _delivered(self, error: Any, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            self.offsets[partition].append(offset)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        for number in itertools.count(BEFORE_COUNT):
            if self._is_over.is_set():
                break
            self.write(number)
            time.sleep(0.002)
        self.flush()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(90)
        assert not self._thread.is_alive()


class Reader:
    """The only member of a group."""

    def __init__(self, cluster: SextonCluster, topic: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": cluster.bootstrap,
                "log_level": 0,
                "group.id": "readers",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                "isolation.level": "read_uncommitted",
            }
        )
        self._consumer.subscribe([topic])
        self.found: dict[tuple[int, int], bytes] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_over.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                take(self.found, message)

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        self._consumer.close()


def take(found: dict[tuple[int, int], bytes], message: Message) -> None:
    """An offset has one value for life, whoever serves it."""
    partition, offset, value = message.partition(), message.offset(), message.value()
    assert partition is not None
    assert offset is not None
    assert isinstance(value, bytes)
    head = value[:20].rstrip(b"x")
    assert found.setdefault((partition, offset), head) == head


def committed(cluster: SextonCluster, topic: str, partition: int) -> list[tuple[int, bytes]]:
    """All that read_committed shows, in order."""
    consumer = Consumer(
        {"bootstrap.servers": cluster.bootstrap, "group.id": "checks", "enable.auto.commit": False, "log_level": 0}
    )
    try:
        place = TopicPartition(topic, partition, OFFSET_BEGINNING)
        _, end = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)
        consumer.assign([place])
        found: dict[tuple[int, int], bytes] = {}
        until_s = time.monotonic() + 60
        while consumer.position([place])[0].offset < end:
            assert time.monotonic() < until_s
            message = consumer.poll(0.5)
            if message is not None and message.error() is None:
                take(found, message)
        return [(offset, value) for (_, offset), value in sorted(found.items())]
    finally:
        consumer.close()


@pytest.mark.timeout(600)
def test_clients_go_on_over_the_move_of_their_topic_and_the_death_of_its_leader(cluster: SextonCluster) -> None:
    topic = "orders"
    cluster.create_topic(topic, PARTITIONS_COUNT, 3)
    writer = Writer(cluster, topic)
    for number in range(BEFORE_COUNT):
        writer.write(number, b"x" * 1_000)
        if number % 500 == 0:
            writer.flush()
    writer.flush()
    transactional = Producer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "log_level": 0,
            "transactional.id": "over-the-move",
            "transaction.timeout.ms": 180_000,
        }
    )
    transactional.init_transactions(60)
    for outcome in ("aborted", "open"):
        transactional.begin_transaction()
        for number in range(20):
            transactional.produce(topic, f"{outcome} {number}".encode(), partition=number % PARTITIONS_COUNT)
        assert transactional.flush(60) == 0
        if outcome == "aborted":
            transactional.abort_transaction(60)
    reader = Reader(cluster, topic)
    writer.start()
    wait_until(lambda: len(reader.found) > 100)

    victim = rows_of(cluster, topic)[0].leader
    with ThreadPoolExecutor(1) as beside:  # on a busy machine all may be moved before the command has ended
        beside.submit(set_mode, cluster, topic, "cloud")
        wait_until(lambda: any(row.storage is Storage.MOVING for row in rows_of(cluster, topic)), pause_s=0.002)
        cluster.kill_node(victim)
    left = [row.partition for row in rows_of(cluster, topic) if not row.is_cloud]
    wait_until(lambda: all(row.is_cloud for row in rows_of(cluster, topic)), MOVED_S)
    assert left, "the leader was to die in the middle"
    for number in range(20, 30):
        transactional.produce(topic, f"open {number}".encode(), partition=number % PARTITIONS_COUNT)
    transactional.commit_transaction(90)
    gone = [cluster.partition_dir(node, topic, part) for node in cluster.node_ids for part in range(PARTITIONS_COUNT)]
    wait_until(lambda: not any(path.exists() for path in gone if f"node-{victim}/" not in str(path)))
    kept = [part for part in left if cluster.partition_dir(victim, topic, part).exists()]
    assert kept == left, "who is down deletes nothing"
    cluster.start_node(victim)
    wait_until(lambda: not any(path.exists() for path in gone))

    time.sleep(1)
    writer.stop()
    assert writer.errors == []
    wait_until(lambda: len(reader.found) >= sum(len(one) for one in writer.offsets.values()) + 50, MOVED_S)
    reader.stop()
    for partition in range(PARTITIONS_COUNT):
        found = committed(cluster, topic, partition)
        numbers = [value for _, value in found if value[:1].isdigit()]
        assert numbers == [b"%d " % number for number in range(len(numbers))]
        assert [offset for offset, value in found if value[:1].isdigit()] == writer.offsets[partition]
        in_transaction = [value for _, value in found if not value[:1].isdigit()]
        assert in_transaction == [b"open %d" % number for number in range(30) if number % PARTITIONS_COUNT == partition]
        assert all(reader.found[partition, offset] == value for offset, value in found)
    code, told = set_mode(cluster, topic, "local")
    assert code != 0
    assert "there is no way back" in told
