"""What clients did, in the order in which they did it: what `testimony` makes a history of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from sexton.types import TopicPartition


class Given(NamedTuple):
    """A record that a consumer was given."""

    place: TopicPartition
    offset: int
    identity: bytes | None
    key: bytes | None
    is_tombstone: bool


@dataclass(slots=True)
class Look:
    """One poll of one consumer, or all that a fresh one read of a partition."""

    reader: str
    is_committed: bool
    """Whether a read_committed consumer read it."""
    is_table: bool = False
    """From the start of the log to the end that was asked for first."""
    is_shared: bool = False
    """By a member of a group: what it is assigned, and where it stands, may change at any time."""
    given: list[Given] = field(default_factory=list)
    positions: Mapping[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    """Before and after, where they differ."""


class Entry(NamedTuple):
    at_ns: int
    is_end: bool
    what: object
    """A Look, or a Write or Transaction of `history`."""


class Journal:
    def __init__(self, now_ns: Callable[[], int] = lambda: 0) -> None:
        self._now_ns = now_ns
        self.entries: list[Entry] = []

    def began(self, what: object) -> None:
        self.entries.append(Entry(self._now_ns(), False, what))

    def ended(self, what: object) -> None:
        self.entries.append(Entry(self._now_ns(), True, what))
