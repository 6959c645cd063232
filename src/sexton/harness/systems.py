"""The systems that are shown and tested, by name: clusters of a few brokers that notice within seconds who is away.

`kafka-VERSION` is Apache Kafka in that version; any other name is Sexton, in whatever manner its topics are set to.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sexton.harness import jars
from sexton.harness.brokers import SextonCluster
from sexton.harness.errors import HarnessError
from sexton.harness.kafka import BROKER_JVM_OPTIONS, KafkaCluster
from sexton.harness.properties import Settings

KAFKA_PREFIX: Final = "kafka-"
KAFKA_HEAP: Final = "384m"
NODES: Final = 3

COMMON_SETTINGS: Final[Settings] = {
    "log.cleaner.backoff.ms": 500,
    "replica.lag.time.max.ms": 3000,
}
_SEXTON: Final[Settings] = {
    **COMMON_SETTINGS,
    "broker.lease.ms": 3000,
    "broker.lease.renew.ms": 500,
    "log.retention.check.interval.ms": 500,
}
_KAFKA: Final[Settings] = {
    **COMMON_SETTINGS,
    "broker.heartbeat.interval.ms": 500,
    "broker.session.timeout.ms": 3000,
    "producer.id.expiration.check.interval.ms": 500,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 1000,
}
"""Kafka looks for transactions that timed out every ten seconds by default."""


class UnknownSystemError(HarnessError):
    exit_code = 64


def kafka_version(name: str) -> str | None:
    """None: it is none of Apache Kafka."""
    version = name.removeprefix(KAFKA_PREFIX)
    return version if version != name and jars.VERSION_PATTERN.fullmatch(version) else None


def cluster_of(
    name: str, directory: Path, settings: Settings, *, keep: bool, nodes: int = NODES, controllers: int = 0
) -> KafkaCluster | SextonCluster:
    """Starts nothing. The settings go on top of those that all have. `controllers` are processes of Kafka's that are
    nothing else; 0: they are in its brokers."""
    version = kafka_version(name)
    if version is None:
        return SextonCluster(nodes, directory, {**_SEXTON, **settings}, keep=keep)
    return KafkaCluster(
        version,
        nodes,
        directory,
        {**_KAFKA, **settings},
        heap=KAFKA_HEAP,
        jvm_options=BROKER_JVM_OPTIONS,
        controllers=controllers,
        keep=keep,
    )
