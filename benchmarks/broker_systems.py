"""The two systems side by side: how each is started, and what its brokers cost while they work."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient

from sexton.harness.brokers import SextonCluster
from sexton.harness.kafka import BROKER_JVM_OPTIONS, KafkaCluster
from sexton.harness.properties import Settings

Cluster = KafkaCluster | SextonCluster

KAFKA_HEAP: Final = "1g"
CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
LED_TIMEOUT_S: Final = 60


@dataclass(frozen=True)
class System:
    """Kafka or Sexton, with the settings that make them promise the same."""

    name: str

    def start(self, nodes: int, flushes: bool, directory: Path) -> Cluster:
        """Flushing before the acknowledgement is Sexton's default and a topic's setting in Kafka (`topic_config`);
        not flushing is Kafka's default and a broker's setting in Sexton."""
        cluster: Cluster
        if self.name == "kafka":
            cluster = KafkaCluster(nodes=nodes, base_dir=directory, heap=KAFKA_HEAP, jvm_options=BROKER_JVM_OPTIONS)
        else:
            cluster = SextonCluster(nodes, directory, {"log.flush.before.ack": flushes})
        cluster.start()
        return cluster

    def topic_config(self, flushes: bool) -> Settings:
        return {"flush.messages": 1} if flushes and self.name == "kafka" else {}


KAFKA, SEXTON = System("kafka"), System("sexton")


@dataclass
class Cost:
    """What all brokers of a cluster took: CPU seconds meanwhile, resident memory at the end."""

    cpu_s: float = 0.0
    memory_bytes: int = 0


@contextmanager
def measured(cluster: Cluster) -> Iterator[Cost]:
    cost = Cost()
    before_s = sum(map(cpu_seconds, pids(cluster)))
    yield cost
    cost.cpu_s = sum(map(cpu_seconds, pids(cluster))) - before_s
    cost.memory_bytes = sum(map(resident_bytes, pids(cluster)))


def pids(cluster: Cluster) -> list[int]:
    return [cluster.pid(node_id) for node_id in cluster.node_ids]


def cpu_seconds(pid: int) -> float:
    """User and system time of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES


def create_topic(cluster: Cluster, topic: str, partitions: int, replicas: int, config: Settings) -> None:
    """Returns when every partition has a leader and all its replicas in sync."""
    cluster.create_topic(topic, partitions, replicas, config)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    deadline_s = time.monotonic() + LED_TIMEOUT_S
    while True:
        found = admin.list_topics(topic, timeout=10).topics[topic].partitions
        if len(found) == partitions and all(each.leader > 0 and len(each.isrs) == replicas for each in found.values()):
            return
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{topic} has not all its leaders after {LED_TIMEOUT_S} s")
        time.sleep(0.1)


@dataclass
class Results:
    """All runs of one line on one system. What is printed is the median."""

    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Per unit of work: a gigabyte, or 10,000 requests."""
    memory_bytes: list[int] = field(default_factory=list)

    def add(self, rate: float, p50_ms: float, p99_ms: float, cpu_s: float, memory_bytes: int) -> None:
        self.rates.append(rate)
        self.p50_ms.append(p50_ms)
        self.p99_ms.append(p99_ms)
        self.cpu_s.append(cpu_s)
        self.memory_bytes.append(memory_bytes)

    def median(self, name: str) -> float:
        values = getattr(self, name)
        return float(statistics.median(values)) if values else float("nan")


def ratio(kafka: Results, sexton: Results, name: str) -> str:
    if not kafka.rates or not sexton.rates or not kafka.median(name):
        return ""
    return f"{sexton.median(name) / kafka.median(name):.2f}x"


def pair(kafka: Results, sexton: Results, name: str, shape: str, unit: float = 1.0) -> str:
    values = [each.median(name) / unit if each.rates else 0.0 for each in (kafka, sexton)]
    return " / ".join(format(value, shape) if value else "-" for value in values) if any(values) else ""
