"""The committed offsets of the groups of one coordinator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sexton.coordinators.groups.records import OffsetValue
from sexton.types import NO_TIMESTAMP


@dataclass(slots=True)
class OffsetStore:
    """Offsets by group, topic and partition. Kept apart from the groups: offsets outlive a change of protocol, and a
    group that only commits exists because of them."""

    _groups: dict[str, dict[str, dict[int, OffsetValue]]] = field(default_factory=dict)
    _groups_of_topic: dict[str, dict[str, None]] = field(default_factory=dict)

    def get(self, group: str, topic: str, partition: int) -> OffsetValue | None:
        return self._groups.get(group, {}).get(topic, {}).get(partition)

    def put(self, group: str, topic: str, partition: int, value: OffsetValue) -> None:
        self._groups.setdefault(group, {}).setdefault(topic, {})[partition] = value
        self._groups_of_topic.setdefault(topic, {})[group] = None

    def remove(self, group: str, topic: str, partition: int) -> None:
        topics = self._groups.get(group, {})
        partitions = topics.get(topic)
        if partitions is None:
            return
        partitions.pop(partition, None)
        if not partitions:
            del topics[topic]
            groups = self._groups_of_topic[topic]
            del groups[group]
            if not groups:
                del self._groups_of_topic[topic]
        if not topics:
            del self._groups[group]

    def count_of(self, group: str) -> int:
        return sum(map(len, self._groups.get(group, {}).values()))

    def has_any(self, group: str) -> bool:
        return group in self._groups

    def topics(self) -> list[str]:
        """Returns the topics for which any group has an offset."""
        return list(self._groups_of_topic)

    def groups_of(self, topic: str) -> list[str]:
        return list(self._groups_of_topic.get(topic, {}))

    def topics_of(self, group: str) -> list[str]:
        return list(self._groups.get(group, {}))

    def partitions_of(self, group: str, topic: str) -> Iterator[tuple[int, OffsetValue]]:
        yield from sorted(self._groups.get(group, {}).get(topic, {}).items())

    def all_of(self, group: str) -> list[tuple[str, int, OffsetValue]]:
        return [(topic, *entry) for topic in self.topics_of(group) for entry in self.partitions_of(group, topic)]


def is_expired(value: OffsetValue, base_ms: int, now_ms: int, retention_ms: int) -> bool:
    """`base_ms` is the time from which the retention counts: the commit, or when the group lost its last member."""
    if value.expire_timestamp_ms != NO_TIMESTAMP:
        return now_ms >= value.expire_timestamp_ms
    return now_ms - base_ms >= retention_ms
