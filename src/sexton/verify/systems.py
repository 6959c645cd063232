"""The systems that a run can be of: Sexton, Apache Kafka, or a cluster that exists already.

The first two are clusters of three brokers on this machine, of which faults can take any. Of a cluster that exists only
topics with our prefix are touched, and nothing is broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sexton.errors import SextonError
from sexton.harness import jars
from sexton.harness.brokers import SextonCluster
from sexton.harness.cluster import Cluster
from sexton.harness.compactor import CompactorProcess
from sexton.harness.kafka import BROKER_JVM_OPTIONS, KafkaCluster
from sexton.verify import probes

SEXTON: Final = "sexton"
INDEPENDENT: Final = "sexton-independent"
KAFKA_PREFIX: Final = "kafka-"

NODES: Final = 3
TOPIC_PREFIX: Final = "sexton-verify-"
KAFKA_HEAP: Final = "384m"

_COMMON: Final = {
    "auto.create.topics.enable": "false",
    "log.cleaner.backoff.ms": "500",
    "replica.lag.time.max.ms": "3000",
}
_SEXTON: Final = {
    **_COMMON,
    "broker.lease.ms": "3000",
    "broker.lease.renew.ms": "500",
    "log.retention.check.interval.ms": "500",
}
_KAFKA: Final = {
    **_COMMON,
    "broker.heartbeat.interval.ms": "500",
    "broker.session.timeout.ms": "3000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
"""Whoever is away is noticed in seconds, so that much can happen in a minute. Kafka looks for transactions that timed
out every ten seconds by default."""


class UnknownSystemError(SextonError):
    exit_code = 64


@dataclass(frozen=True, slots=True)
class System:
    name: str
    bootstrap: str
    replication: int
    cluster: Cluster[Any] | None = None
    """None: it is not ours, and no fault touches it."""
    topic_settings: Mapping[str, str] = field(default_factory=dict)


def check_name(name: str) -> str:
    if name in (SEXTON, INDEPENDENT):
        return name
    version = name.removeprefix(KAFKA_PREFIX)
    if version == name or not jars.VERSION_PATTERN.fullmatch(version):
        known = f"{SEXTON}, {INDEPENDENT} and {KAFKA_PREFIX}VERSION, as in {KAFKA_PREFIX}{jars.DEFAULT_VERSION}"
        raise UnknownSystemError(f"there is no system {name}", "", f"Known are {known}")
    return name


@contextmanager
def running(name: str, directory: Path, *, is_compacting: bool) -> Iterator[System]:
    """Brokers' logs stay in the directory. A compactor is started only where there is something to compact: it is a
    Spark of its own."""
    with ExitStack() as stack:
        if name.startswith(KAFKA_PREFIX):
            cluster: Cluster[Any] = KafkaCluster(
                name.removeprefix(KAFKA_PREFIX),
                NODES,
                directory,
                _KAFKA,
                heap=KAFKA_HEAP,
                jvm_options=BROKER_JVM_OPTIONS,
                keep=True,
            )
            stack.enter_context(cluster)
            yield System(name, cluster.bootstrap, NODES, cluster)
            return
        ours = SextonCluster(NODES, directory, _SEXTON, keep=True)
        stack.enter_context(ours)
        if is_compacting:
            stack.enter_context(CompactorProcess(ours.metastore_url, directory, "--nice", "0"))
        coordination = {"compaction.coordination": "independent"} if name == INDEPENDENT else {}
        yield System(name, ours.bootstrap, NODES, ours, coordination)


def existing(bootstrap: str) -> System:
    return System(bootstrap, bootstrap, min(NODES, probes.brokers_count(bootstrap)))
