"""What aiokafka and kafka-python have in common: the one began as a copy of the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sexton.verify.clients.base import CREATE_TIME, LOG_APPEND_TIME, Message, Place, Record

TIMESTAMP_TYPES: Final = (CREATE_TIME, LOG_APPEND_TIME)

POLL_RECORDS_MAX: Final = 500


def records_of(polled: Iterable[Any]) -> list[Record]:
    return [Record(each.topic, each.partition, each.offset, each.value) for each in polled]


def messages_of(polled: Iterable[Any]) -> list[Message]:
    return [
        Message(
            topic=each.topic,
            offset=each.offset,
            partition=each.partition,
            key=each.key,
            value=each.value,
            headers=list(map(tuple, each.headers)),
            timestamp_ms=each.timestamp,
            timestamp_type=TIMESTAMP_TYPES[each.timestamp_type],
        )
        for each in polled
    ]


class Moves:
    """Is told by a client of what its group gives it and takes from it. Each has a class of its own for who listens,
    and calls the same methods."""

    def __init__(self) -> None:
        self._places: set[Place] = set()

    def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._places.update((each.topic, each.partition) for each in assigned)

    def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self.on_partitions_assigned(revoked)

    def on_partitions_lost(self, lost: Iterable[Any]) -> None:
        self.on_partitions_assigned(lost)

    def take(self) -> list[Place]:
        found, self._places = sorted(self._places), set()
        return found
