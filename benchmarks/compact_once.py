"""What compacting three replicas costs beside compacting one: with followers that adopt, and with each on its own.

    python -m benchmarks.compact_once [--partitions N] [--megabytes N]

Three brokers, one compactor (`sexton compactor`) with Spark on this machine, warm: it has compacted a small topic
before. Then a topic that was written before becomes due. CPU seconds are those of the compactor with all its processes,
JVM and Python workers, and those of the brokers, until every replica is compacted.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from confluent_kafka import Producer
from rich.console import Console
from rich.table import Table
from tests.compactor.live import statuses

from sexton.client.admin import Admin, Resource
from sexton.client.client import Client
from sexton.harness.asking import ask
from sexton.harness.brokers import SextonCluster
from sexton.harness.compactor import CompactorProcess

NEVER_MS = str(10**12)
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": str(4 << 20),
    "min.compaction.lag.ms": NEVER_MS,
}
VALUE_BYTES = 100
UPDATES_PER_KEY = 10
TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    replicas_count: int
    adopts: bool


CASES = (
    Case("one replica", 1, True),
    Case("three replicas, two adopt", 3, True),
    Case("three replicas, each by itself", 3, False),
)


@dataclass(frozen=True, slots=True)
class Cost:
    compactor_cpu_s: float
    brokers_cpu_s: float
    seconds: float


def measure(case: Case, partitions_count: int, megabytes: int) -> Cost:
    settings = {
        "log.cleaner.backoff.ms": "500",
        "compaction.share": str(case.adopts).lower(),
        "compaction.share.max.bytes.per.second": str(1 << 40),
    }
    with SextonCluster(nodes=3, settings=settings) as cluster:
        for topic, lag_ms in (("warm", "0"), ("big", NEVER_MS)):
            cluster.create_topic(
                topic,
                partitions=partitions_count,
                replication_factor=case.replicas_count,
                config={**TOPIC_SETTINGS, "min.compaction.lag.ms": lag_ms},
            )
        write(cluster, "big", partitions_count, megabytes << 20)
        with (
            tempfile.TemporaryDirectory() as said,
            CompactorProcess(cluster.metastore_url, Path(said), "--master", "local[2]") as compactor,
        ):
            write(cluster, "warm", partitions_count, partitions_count * (5 << 20))
            wait_until_compacted(cluster, "warm", case.replicas_count * partitions_count)
            brokers = [cluster.pid(node) for node in (1, 2, 3)]
            before = cpu_seconds([compactor.pid]), cpu_seconds(brokers)
            started_s = time.monotonic()
            make_due(cluster, "big")
            wait_until_compacted(cluster, "big", case.replicas_count * partitions_count)
            seconds = time.monotonic() - started_s
            after = cpu_seconds([compactor.pid]), cpu_seconds(brokers)
    return Cost(after[0] - before[0], after[1] - before[1], seconds)


def write(cluster: SextonCluster, topic: str, partitions_count: int, size_bytes: int) -> None:
    rng = random.Random(1)
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "linger.ms": 20})
    count = size_bytes // (VALUE_BYTES + 20)
    for index in range(count):
        key = b"%012d" % rng.randrange(count // UPDATES_PER_KEY)
        while True:
            try:
                producer.produce(topic, rng.randbytes(VALUE_BYTES), key, partition=index % partitions_count)
                break
            except BufferError:
                producer.poll(0.1)
        if index % 1000 == 0:
            producer.poll(0)
    assert producer.flush(300) == 0


def make_due(cluster: SextonCluster, topic: str) -> None:
    async def change(client: Client) -> None:
        await Admin(client).change_settings(Resource.TOPIC, topic, {"min.compaction.lag.ms": "0"})

    ask(cluster.bootstrap, change)


def wait_until_compacted(cluster: SextonCluster, topic: str, replicas_count: int) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        found = statuses(cluster, topic)
        if len(found) == replicas_count and all(map(_is_done, found)):
            return
        assert time.monotonic() < deadline_s, f"{topic} is not compacted after {TIMEOUT_S} s: {found}"
        time.sleep(0.25)


def _is_done(replica: Mapping[str, int]) -> bool:
    return not replica["is_due"] and replica["mcco"] > 0


def cpu_seconds(pids: Sequence[int]) -> float:
    """Of the processes and all that they have started, also those that have ended."""
    total_s = 0.0
    for pid in pids:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            times = one.cpu_times()
            total_s += times.user + times.system + times.children_user + times.children_system
    return total_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--megabytes", type=int, default=150, help="of the topic, one replica")
    chosen = parser.parse_args()
    console = Console(stderr=True)
    table = Table("", "compactor's CPU s", "ratio", "brokers' CPU s", "seconds", title=f"{chosen.megabytes} MB")
    first: Cost | None = None
    for case in CASES:
        console.print(case.name)
        cost = measure(case, chosen.partitions, chosen.megabytes)
        first = first or cost
        ratio = cost.compactor_cpu_s / first.compactor_cpu_s
        table.add_row(
            case.name,
            f"{cost.compactor_cpu_s:.1f}",
            f"{ratio:.2f}x",
            f"{cost.brokers_cpu_s:.1f}",
            f"{cost.seconds:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
