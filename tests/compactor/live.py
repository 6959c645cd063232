"""A compactor beside real brokers, and what lies in each of their logs."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Producer

from sexton.adapters.clock import SystemClock
from sexton.adapters.files import FileDisk
from sexton.adapters.metastore import open_metastore
from sexton.adapters.sockets import SocketNetwork
from sexton.compaction.reference import fold_by_key
from sexton.compactor.brokers import Brokers
from sexton.compactor.engine import Engine
from sexton.compactor.engines.reference import ReferenceEngine
from sexton.compactor.schedule import Limits
from sexton.compactor.worker import Compactor
from sexton.errors import SextonError
from sexton.harness.brokers import ENVIRONMENT, SextonCluster
from sexton.protocol.private import PrivateApi
from sexton.records.batch import Batch, decode_all

NODES = (1, 2, 3)
SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "broker.lease.ms": "3000",
    "broker.lease.renew.ms": "500",
    "replica.lag.time.max.ms": "3000",
}
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "4000",
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


async def compact(metastore_url: str, make_engine: Callable[[], Engine]) -> None:
    """Until it is cancelled."""
    metastore = open_metastore(metastore_url)
    brokers = Brokers(SocketNetwork(), metastore, "compactor")
    engine = make_engine()
    compactor = Compactor(
        metastore=metastore,
        brokers=brokers,
        engine=engine,
        clock=SystemClock(),
        rng=random.Random(),  # one after the other on one cluster must not give the same ids
        limits=Limits(),
    )
    try:
        await compactor.run()
    finally:
        brokers.close()
        await engine.close()
        await metastore.close()


class RunningCompactor:
    """In a thread of this process, with an event loop of its own."""

    def __init__(self, cluster: SextonCluster, engine: Callable[[], Engine] | None = None) -> None:
        self._cluster = cluster
        self._make_engine = engine or (lambda: ReferenceEngine(lambda broker_id: FileDisk()))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._task: asyncio.Task[None] | None = None
        self.failure: BaseException | None = None

    def _run(self) -> None:
        self._task = self._loop.create_task(compact(self._cluster.metastore_url, self._make_engine))
        try:
            self._loop.run_until_complete(self._task)
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self.failure = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._loop.call_soon_threadsafe(self._task.cancel)
        self._thread.join(timeout=60)
        if kind is None and self.failure is not None:
            raise self.failure


def sexton(bootstrap: str, *arguments: str) -> Any:
    """What `sexton compaction` tells a program."""
    command = [sys.executable, "-m", "sexton.cli.main", "compaction", *arguments, "--json"]
    environment = {**ENVIRONMENT, "SEXTON_BOOTSTRAP": bootstrap}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


def batches_of(cluster: SextonCluster, node_id: int, topic: str, partition: int = 0) -> list[Batch]:
    return batches_in(cluster.partition_dir(node_id, topic, partition))


def batches_in(directory: Path) -> list[Batch]:
    """Of a replica, from its files. Some may be swapped for others while they are read: then once more. In the middle
    of a swap there is a moment without the old ones or the new ones; a running broker holds them open."""
    for _ in range(200):
        before = files_in(directory)
        with suppress(FileNotFoundError):
            found = [one for path in sorted(directory.glob("*.log")) for one in decode_all(path.read_bytes())]
            if files_in(directory) == before and not any(name.endswith(".swap") for name in before):
                return found
        time.sleep(0.05)
    raise AssertionError(f"{directory} does not hold still")


def files_in(directory: Path) -> dict[str, int]:
    """Which is which: a new file of an old name is another one."""
    return {entry.name: entry.inode() for entry in os.scandir(directory) if ".log" in entry.name}


def fold_of(cluster: SextonCluster, node_id: int, topic: str) -> dict[bytes, bytes | None]:
    return {key: record.value for key, record in fold_by_key(batches_of(cluster, node_id, topic)).items()}


def tombstones_of(cluster: SextonCluster, node_id: int, topic: str, key_prefix: bytes = b"") -> int:
    return sum(
        record.is_tombstone and (record.key or b"").startswith(key_prefix)
        for batch in batches_of(cluster, node_id, topic)
        for record in batch.records
    )


def status_of(cluster: SextonCluster, topic: str) -> Mapping[int, Mapping[str, Any]]:
    """Of each broker that answers: its replica of the topic's only partition."""
    return {one["broker"]: one for one in statuses(cluster, topic)}


def statuses(cluster: SextonCluster, topic: str) -> list[Mapping[str, Any]]:
    """Of all replicas on brokers that answer."""

    async def ask() -> list[Mapping[str, Any]]:
        metastore = open_metastore(cluster.metastore_url)
        brokers = Brokers(SocketNetwork(), metastore, "test")
        found: list[Mapping[str, Any]] = []
        try:
            for node_id in (1, 2, 3):
                with suppress(SextonError):
                    answer = await brokers.ask(node_id, PrivateApi.COMPACTION_STATUS, {})
                    found += [{"broker": node_id, **one} for one in answer["replicas"] if one["topic"] == topic]
        finally:
            brokers.close()
            await metastore.close()
        return found

    return asyncio.run(ask())


def wait_until(
    what: str, is_true: Callable[[], bool], timeout_s: float = 60, tell: Callable[[], object] = lambda: ""
) -> None:
    """`tell` says more if it takes too long."""
    deadline_s = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what} {tell()}"
        time.sleep(0.2)


class Writer:
    """Knows what a fold must say."""

    def __init__(self, bootstrap: str, **settings: object) -> None:
        self._rng = random.Random(1)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "linger.ms": 0,
                "batch.num.messages": 5,
                "enable.idempotence": True,
                **settings,
            }
        )
        self.expected: dict[bytes, bytes | None] = {}

    def write(self, count: int, *, keys_count: int = 20, deletes: float = 0.3) -> None:
        for _ in range(count):
            key = b"key %d" % self._rng.randrange(keys_count)
            self.put(key, None if self._rng.random() < deletes else b"%030d" % self._rng.randrange(10**9))
        self.flush()

    def put(self, key: bytes, value: bytes | None) -> None:
        self._producer.produce("t", value, key, partition=0)
        self.expected.pop(key, None)
        if value is not None:
            self.expected[key] = value

    def flush(self) -> None:
        assert self._producer.flush(60) == 0


def check_folds(cluster: SextonCluster, writer: Writer, nodes: tuple[int, ...] = NODES) -> None:
    wait_until(
        "all replicas fold to what was written",
        lambda: all(fold_of(cluster, node, "t") == writer.expected for node in nodes),
    )


def mcco(cluster: SextonCluster) -> dict[int, int]:
    return {node: one["mcco"] for node, one in status_of(cluster, "t").items()}
