"""A world for scripts, in memory: three logs, one of which can be away, and compaction that asks nobody, or waits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from sexton.records.batch import Batch, ControlType, Record, make_batch, make_marker
from sexton.reproduce.world import AWAY, BROKERS, FILLER_KEY, FIRST_LEADER, Sight

PRODUCER_ID = 7
PLAIN_ID = 1


@dataclass(frozen=True)
class Entry:
    offset: int
    key: str = ""
    value: str | None = None
    is_transactional: bool = False
    marker: ControlType | None = None

    def batch(self) -> Batch:
        if self.marker is not None:
            return make_marker(self.offset, self.marker, PRODUCER_ID, 0, 0)
        record = Record(self.offset, 0, self.key.encode(), None if self.value is None else self.value.encode())
        return make_batch([record], producer_id=PRODUCER_ID if self.is_transactional else PLAIN_ID)


@dataclass
class Topic:
    logs: dict[int, list[Entry]] = field(default_factory=lambda: {broker: [] for broker in BROKERS})
    leader: int = FIRST_LEADER
    next_offset: int = 0
    looks_count: int = 0


@dataclass(frozen=True)
class Fate:
    """How each transactional record ended, as one log has it; and what it makes of its transactions."""

    committed: frozenset[int]
    aborted_offsets: tuple[int, ...]
    open_offset: int | None


def fate_of(log: Sequence[Entry]) -> Fate:
    """A marker ends whatever its producer has open, as in Kafka."""
    committed: set[int] = set()
    aborted: list[int] = []
    pending: list[int] = []
    for entry in log:
        if entry.is_transactional:
            pending.append(entry.offset)
        elif entry.marker is not None and pending:
            if entry.marker is ControlType.COMMIT:
                committed.update(pending)
            else:
                aborted.append(pending[0])
            pending = []
    return Fate(frozenset(committed), tuple(aborted), pending[0] if pending else None)


class FakeWorld:
    def __init__(self, *, forgets: bool, fails_at: str = "", forgets_markers_of_what_is_left: bool = False) -> None:
        """`forgets`: compaction takes tombstones and markers though a replica is away. `fails_at` names a topic whose
        transactions, or whose writes, end in a TimeoutError. A COMMIT marker stays, as in Kafka, while a record of its
        transaction is left, unless `forgets_markers_of_what_is_left`."""
        self._forgets = forgets
        self._forgets_markers_of_what_is_left = forgets_markers_of_what_is_left
        self._fails_at = fails_at
        self._topics: dict[str, Topic] = {}
        self.is_away = False
        self.kills_count = 0

    # What scripts call

    async def make_topic(self, topic: str) -> None:
        self._topics[topic] = Topic()
        self._append(topic, Entry(0, FILLER_KEY, "0"))

    async def write(self, topic: str, key: str, value: str | None) -> int:
        if topic == self._fails_at:
            raise TimeoutError
        return self._append(topic, Entry(0, key, value))

    async def write_in_transaction(self, topic: str, key: str, value: str | None) -> int:
        return self._append(topic, Entry(0, key, value, is_transactional=True))

    async def end_transaction(self, topic: str, *, is_committed: bool) -> None:
        self._append(topic, Entry(0, marker=ControlType.COMMIT if is_committed else ControlType.ABORT))

    async def kill(self, broker_id: int) -> None:
        assert broker_id == AWAY
        self.is_away = True
        self.kills_count += 1

    async def bring_back(self, broker_id: int) -> None:
        assert self.is_away
        self.is_away = False
        for topic in self._topics.values():
            mine, others = topic.logs[broker_id], topic.logs[topic.leader]
            end = mine[-1].offset + 1 if mine else 0
            mine += [entry for entry in others if entry.offset >= end]

    async def in_sync(self, topic: str) -> frozenset[int]:
        return frozenset(BROKERS) - ({AWAY} if self.is_away else set())

    async def leader(self, topic: str) -> int:
        return self._topics[topic].leader

    async def move_leadership(self, topic: str, broker_id: int) -> None:
        self._topics[topic].leader = broker_id

    async def log(self, topic: str) -> Sequence[Batch]:
        """Compaction goes over it at every second look."""
        known = self._topics[topic]
        self._append(topic, Entry(0, FILLER_KEY, "more"))
        known.looks_count += 1
        if known.looks_count % 2 == 0:
            for broker in BROKERS:
                if not (broker == AWAY and self.is_away):
                    known.logs[broker] = self._compacted(known.logs[broker])
        await asyncio.sleep(0.1)
        return [entry.batch() for entry in known.logs[known.leader]]

    async def producer_id(self, topic: str) -> int:
        return PRODUCER_ID

    async def read(self, topic: str, until_key: str, until_value: str, patience_s: float) -> Sight:
        known = self._topics[topic]
        log = known.logs[known.leader]
        fate = fate_of(log)
        stable = known.next_offset if fate.open_offset is None else fate.open_offset
        fold: dict[str, str | None] = {}
        for entry in log:
            is_seen = entry.marker is None and (not entry.is_transactional or entry.offset in fate.committed)
            if is_seen and entry.offset < stable and entry.key != FILLER_KEY:
                fold[entry.key] = entry.value
        seen = {key: value for key, value in fold.items() if value is not None}
        return Sight(known.leader, seen, known.next_offset, stable, fate.aborted_offsets, fate.open_offset)

    # Inside

    def _append(self, topic: str, entry: Entry) -> int:
        known = self._topics[topic]
        placed = Entry(known.next_offset, entry.key, entry.value, entry.is_transactional, entry.marker)
        known.next_offset += 1
        for broker, log in known.logs.items():
            if not (broker == AWAY and self.is_away):
                log.append(placed)
        return placed.offset

    def _compacted(self, log: Sequence[Entry]) -> list[Entry]:
        fate = fate_of(log)
        decided = [e for e in log if e.marker is None and (not e.is_transactional or e.offset in fate.committed)]
        newest = {entry.key: entry.offset for entry in decided}
        is_open = fate.open_offset is not None
        kept: list[Entry] = []
        for entry in log:
            if entry.marker is not None:
                is_ending = bool(kept) and kept[-1].is_transactional and not self._forgets_markers_of_what_is_left
                stays = not self._forgets or is_open or is_ending
            elif entry.is_transactional and entry.offset not in fate.committed:
                stays = is_open and entry.offset >= (fate.open_offset or 0)
            else:
                is_newest = newest.get(entry.key) == entry.offset
                stays = is_newest and (entry.value is not None or not self._forgets)
            if stays:
                kept.append(entry)
        return kept
