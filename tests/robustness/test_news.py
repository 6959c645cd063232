"""What a client has changed through one broker, it finds at every other, however seldom those look for changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic

from sexton.harness.brokers import SextonCluster

pytestmark = pytest.mark.cluster

SELDOM_MS = 20_000


@pytest.fixture
def admins(tmp_path: Path) -> Iterator[list[AdminClient]]:
    """A client of each broker, which asks no other."""
    with SextonCluster(3, tmp_path / "cluster", {"metadata.poll.ms": SELDOM_MS}) as cluster:
        yield [AdminClient({"bootstrap.servers": address, "log_level": 0}) for address in cluster.bootstrap.split(",")]


def partitions_counts(admins: list[AdminClient], topic: str) -> list[int]:
    return [len(admin.list_topics(topic, timeout=10).topics[topic].partitions) for admin in admins]


def test_a_change_is_known_to_all_brokers_when_it_is_answered(admins: list[AdminClient]) -> None:
    for number, admin in enumerate(admins):
        topic = f"topic-{number}"
        admin.create_topics([NewTopic(topic, 2, 3)])[topic].result(10)
        assert partitions_counts(admins, topic) == [2, 2, 2]
        admin.create_partitions([NewPartitions(topic, 4)])[topic].result(10)
        assert partitions_counts(admins, topic) == [4, 4, 4]
        entry = ConfigEntry("retention.ms", "12345", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource("topic", topic, incremental_configs=[entry])
        (altered,) = admin.incremental_alter_configs([resource]).values()
        altered.result(10)
        for other in admins:
            (described,) = other.describe_configs([ConfigResource("topic", topic)]).values()
            assert described.result(10)["retention.ms"].value == "12345"
        admin.delete_topics([topic])[topic].result(10)
        assert all(topic not in other.list_topics(timeout=10).topics for other in admins)
