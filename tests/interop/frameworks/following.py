"""A consumer that reads along while faults come and go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from sexton.verify.clients.base import Place


class Follower:
    """Reads what is committed, from the beginning, and keeps how often it has seen each value (a tombstone: empty)."""

    def __init__(self, bootstrap: str, places: Sequence[Place]) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "follow", "isolation.level": "read_committed", "log_level": 0}
        )
        self._consumer.assign([TopicPartition(*place, 0) for place in places])
        self.seen: dict[str, Counter[str]] = {topic: Counter() for topic, _ in places}

    def poll(self) -> None:
        messages: list[Any] = self._consumer.consume(1_000, 0.1)
        for message in messages:
            if message.error() is None:
                self.seen[message.topic()][(message.value() or b"").decode()] += 1

    def going_on(self, count: int) -> Callable[[], bool]:
        """Whether so many more have come since now, in each topic."""
        wanted = {topic: values.total() + count for topic, values in self.seen.items()}

        def is_reached() -> bool:
            self.poll()
            return all(self.seen[topic].total() >= count for topic, count in wanted.items())

        return is_reached

    def has_all(self, values: dict[str, set[str]]) -> Callable[[], bool]:
        """Whether these have been seen, by topic."""

        def is_reached() -> bool:
            self.poll()
            return all(wanted <= self.seen[topic].keys() for topic, wanted in values.items())

        return is_reached

    def close(self) -> None:
        self._consumer.close()
