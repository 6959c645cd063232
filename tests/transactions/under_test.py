"""What a test may know about the brokers: where they are, and, if this run started them, their processes."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from sexton.harness.brokers import SextonCluster
from sexton.harness.kafka import KafkaCluster
from sexton.harness.properties import Settings
from tests.interop.clients import Client

WAIT_S: Final = 60.0
"""For what takes a moment; only a broken broker lets anyone wait so long."""

REPLICATION: Final = 3
OLD_KAFKA: Final = "3.9.2"
"""The last series without transaction version 2."""


@dataclass
class UnderTest:
    bootstrap: str
    kind: str
    """`sexton`, `kafka`, `kafka:VERSION`, or `given`."""
    running: KafkaCluster | SextonCluster | None = None
    replication: int = REPLICATION
    _prefix: str = field(default_factory=lambda: secrets.token_hex(4))
    _numbers: itertools.count[int] = field(default_factory=itertools.count)

    @property
    def is_sexton(self) -> bool:
        return isinstance(self.running, SextonCluster)

    @property
    def is_kafka_4(self) -> bool:
        return isinstance(self.running, KafkaCluster) and self.running.version.startswith("4")

    def is_out_of_reach(self, client: Client) -> bool:
        """Apache Kafka 4 no longer speaks with some (KIP-896)."""
        return client.broker_before_4 and self.is_kafka_4

    def describe_end(self) -> str:
        """How the logs of its brokers end, for errors."""
        nodes = [self.running.node(node_id) for node_id in self.running.node_ids] if self.running else []
        return "\n".join(node.describe_end() for node in nodes)

    def name(self, what: str) -> str:
        """That no other test uses."""
        return f"{what}-{self._prefix}-{next(self._numbers)}"

    def leaders(self, topic: str) -> dict[int, int]:
        """Partition to leader, as the cluster says now; -1 where there is none. Asked until a broker knows the topic:
        they hear of a new one one after the other."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})
        leaders: dict[int, int] = {}

        def is_known() -> bool:
            found = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
            leaders.update({number: partition.leader for number, partition in sorted(found.items())})
            return bool(leaders)

        wait_until(is_known, f"{topic} to be known")
        return leaders

    def topic(self, what: str = "topic", partitions: int = 1, config: Settings | None = None) -> str:
        """A new topic that has its leaders."""
        name = self.name(what)
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 2})
        values = {key: str(value) for key, value in (config or {}).items()}
        new = NewTopic(name, partitions, self.replication, config=values)
        for created in admin.create_topics([new], operation_timeout=WAIT_S).values():
            created.result(WAIT_S)
        wait_until(lambda: is_led(admin, name, partitions), f"leaders of {name}")
        return name


def is_led(admin: AdminClient, topic: str, partitions: int) -> bool:
    found = admin.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    return len(found) == partitions and all(each.leader > 0 for each in found.values())


def wait_until(reached: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline_s, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.05)
