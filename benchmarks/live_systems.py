"""Both systems while they compact: how compaction is switched on, when a partition is done, and what it cost."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType

from benchmarks.broker_systems import CLOCK_TICKS, KAFKA_HEAP, Cluster, pids
from sexton.harness.brokers import SextonCluster
from sexton.harness.compactor import CompactorProcess
from sexton.harness.kafka import BROKER_JVM_OPTIONS, KafkaCluster
from sexton.harness.processes import HOST, Port

LOOK_MS: Final = 1_000
"""How often either system looks for partitions that are due."""

DEFAULT_LOOK_MS: Final = 15_000

NEVER, SOON = "1.0", "0.05"
"""Of min.cleanable.dirty.ratio: no ratio is above 1."""


@dataclass
class Live:
    """A cluster that can compact."""

    name: str
    cluster: Cluster
    admin_ports: Mapping[int, int] = field(default_factory=dict)
    compactor: CompactorProcess | None = None

    def compacted_offset(self, node_id: int, topic: str, partition: int) -> int:
        """As it lies on the node's disk; asking costs the brokers nothing."""
        if self.name == "sexton":
            path = self.cluster.partition_dir(node_id, topic, partition) / "compaction-watermarks"
            lines = path.read_text().splitlines() if path.exists() else []
            return next((int(line.split()[1]) for line in lines if line.startswith("mcco ")), 0)
        return self._kafka_offsets(node_id).get((topic, partition), 0)

    def done(self, node_id: int, topic: str, partitions: list[int]) -> list[int]:
        """Those of them that have been compacted."""
        if self.name == "sexton":
            return [each for each in partitions if self.compacted_offset(node_id, topic, each) > 0]
        offsets = self._kafka_offsets(node_id)
        return [each for each in partitions if offsets.get((topic, each), 0) > 0]

    def _kafka_offsets(self, node_id: int) -> dict[tuple[str, int], int]:
        path = self.cluster.log_dir(node_id) / "cleaner-offset-checkpoint"
        lines = path.read_text().splitlines()[2:] if path.exists() else []
        rows = [line.rsplit(" ", 2) for line in lines]
        return {(topic, int(partition)): int(offset) for topic, partition, offset in rows}

    def set_topic(self, topic: str, name: str, value: str) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap, "log_level": 0})
        entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)

    def size_bytes(self, topic: str) -> int:
        """Of all replicas."""
        found = 0
        for node_id in self.cluster.node_ids:
            for directory in self.cluster.log_dir(node_id).glob(f"{topic}-*"):
                found += sum(path.stat().st_size for path in directory.glob("*.log"))
        return found

    def compactor_cpu_s(self) -> float:
        return 0.0 if self.compactor is None else tree_cpu_seconds(self.compactor.pid)

    def brokers_cpu_s(self) -> float:
        return sum(tree_cpu_seconds(pid) for pid in pids(self.cluster))

    def replication_bytes(self) -> int:
        """What brokers have told each other by ReplicaFetch: only Sexton says."""
        found = 0
        for port in self.admin_ports.values():
            with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=60) as answer:
                for line in answer.read().decode().splitlines():
                    name, _, value = line.rpartition(" ")
                    if name in _REPLICATION:
                        found += int(float(value))
        return found


_REPLICATION: Final = (
    'sexton_request_bytes_total{api="replica_fetch"}',
    'sexton_response_bytes_total{api="replica_fetch"}',
)


@contextmanager
def running(
    name: str, nodes: int, directory: Path, *, compacts: bool, look_ms: int = LOOK_MS, flushes: bool = False
) -> Iterator[Live]:
    """A fresh cluster. One that does not compact has Kafka's cleaner off, or no compactor. Only Sexton can flush before
    it acknowledges: its default."""
    settings = {"log.cleaner.backoff.ms": look_ms, "offsets.topic.replication.factor": 1}
    if name == "kafka":
        own = {**settings, "log.cleaner.enable": compacts}
        kafka = KafkaCluster(
            nodes=nodes, base_dir=directory, heap=KAFKA_HEAP, settings=own, jvm_options=BROKER_JVM_OPTIONS
        )
        live = Live(name, kafka)
    else:
        ports = {node_id: Port() for node_id in range(1, nodes + 1)}
        listeners = {each: {"admin.listener": f"http://{HOST}:{port.number}"} for each, port in ports.items()}
        cluster = SextonCluster(nodes, directory, {**settings, "log.flush.before.ack": flushes}, listeners)
        live = Live(name, cluster, {each: port.number for each, port in ports.items()})
    live.cluster.start()
    try:
        if compacts and isinstance(live.cluster, SextonCluster):
            live.compactor = CompactorProcess(live.cluster.metastore_url, directory)
        yield live
    finally:
        if live.compactor is not None:
            live.compactor.stop()
        live.cluster.close()


def tree_cpu_seconds(pid: int) -> float:
    """Of a process and all that it has started, those that ended and were waited for included."""
    parents: dict[int, list[int]] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdecimal():
            try:
                fields = (path / "stat").read_text().rsplit(") ", 1)[1].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(path.name))
            used[int(path.name)] = sum(map(int, fields[11:15]))
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        total += used.get(one, 0)
        waiting += parents.get(one, [])
    return total / CLOCK_TICKS


def seconds_until_compacted(live: Live, topic: str, partitions: int, replicas: int, limit_s: float) -> list[float]:
    """Of each replica, from now on, in order. What is not done within the limit is not in the list."""
    started_s = time.monotonic()
    waiting = {node_id: list(range(partitions)) for node_id in live.cluster.node_ids}
    expected, found = partitions * replicas, list[float]()
    while len(found) < expected and time.monotonic() - started_s < limit_s:
        for node_id, each in waiting.items():
            done = live.done(node_id, topic, each)
            found += [time.monotonic() - started_s] * len(done)
            waiting[node_id] = sorted(set(each) - set(done))
        time.sleep(0.25)
    return found
