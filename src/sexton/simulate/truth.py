"""What a compacted partition has to mean: every batch as it was when it was committed, and what it folds to.

The judge's own reading of Kafka's log format: nothing here is shared with the code that compacts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from sexton.records.batch import Batch, ControlType, Record


class Newest(NamedTuple):
    """The newest committed record of a key."""

    offset: int
    value: bytes | None


class Retention(NamedTuple):
    """Of a topic whose log start moves by itself. -1: not for this reason."""

    ms: int
    bytes: int


@dataclass(slots=True)
class Fold:
    """What a read_committed consumer ends up with, up to an offset."""

    values: dict[bytes, Newest] = field(default_factory=dict)
    tombstones: dict[bytes, Newest] = field(default_factory=dict)
    """Keys whose newest record is one."""
    stable_offset: int = 0
    """Where the first transaction begins that is open; the given offset if there is none."""


def fold(batches: Iterable[Batch], below: int, log_start: int = 0, stable_below: int | None = None) -> Fold:
    """Of the batches that begin below an offset, and of their records from the log's start on. `stable_below` says what
    such a log no longer shows by itself: a transaction that is open, and began before the start."""
    waiting: dict[int, list[Batch]] = {}
    decided: list[Batch] = []
    for batch in batches:
        if batch.base_offset >= below:
            break
        if batch.is_control:
            if batch.control_type is not ControlType.UNKNOWN:
                of_it = waiting.pop(batch.producer_id, [])
                decided += of_it if batch.control_type is ControlType.COMMIT else []
        elif batch.is_transactional and batch.records:
            waiting.setdefault(batch.producer_id, []).append(batch)
        else:
            decided.append(batch)
    known = below if stable_below is None else min(below, stable_below)
    stable_offset = min((of_it[0].base_offset for of_it in waiting.values()), default=known)
    stable_offset = min(stable_offset, known)
    result = Fold(stable_offset=stable_offset)
    newest: dict[bytes, Record] = {}
    for batch in decided:
        for record in batch.records:
            if record.key is not None and log_start <= record.offset < stable_offset:
                before = newest.get(record.key)
                if before is None or before.offset < record.offset:
                    newest[record.key] = record
    for key, record in newest.items():
        place = result.values if record.value is not None else result.tombstones
        place[key] = Newest(record.offset, record.value)
    return result


class Truth:
    """One partition's committed batches, from its first offset on, without a gap: but for what had been compacted in
    the log of a leader that was forced on it, which is the truth from then on. That log ended at `gaps_below`."""

    def __init__(self, generation: int = 0, gaps_below: int = 0) -> None:
        self.generation = generation
        self.gaps_below = gaps_below
        self.batches: list[Batch] = []
        self.records: dict[int, Record] = {}
        self.markers: dict[int, Batch] = {}
        self.end_offset = 0
        self.start_offset = 0
        """The highest at which a replica in sync has started: copies of what lies below it may come and go."""
        self._folds: dict[tuple[int, int], Fold] = {}

    def add(self, batch: Batch) -> None:
        assert self.may_add(batch), f"{batch.base_offset} does not follow {self.end_offset}"
        self.batches.append(batch)
        self.end_offset = batch.next_offset
        if batch.is_control:
            self.markers[batch.base_offset] = batch
        else:
            self.records.update((record.offset, record) for record in batch.records)

    def may_add(self, batch: Batch) -> bool:
        return batch.base_offset == self.end_offset or self.end_offset < batch.base_offset <= self.gaps_below

    def agreed_end(self, batches: Iterable[Batch], start_offset: int) -> int:
        """Up to where a log, compacted or not, holds nothing else than this, if it holds anything."""
        end = min(start_offset, self.end_offset)
        for batch in batches:
            if batch.base_offset >= self.end_offset:
                return self.end_offset
            known = [self.records.get(record.offset) for record in batch.records]
            is_same = batch.is_control or all(
                one is not None and (one.key, one.value) == (record.key, record.value)
                for one, record in zip(known, batch.records, strict=True)
            )
            if not is_same or (batch.is_control and batch.records and batch.base_offset not in self.markers):
                return min(batch.base_offset, self.end_offset)
            end = min(batch.next_offset, self.end_offset)
        return end

    def cut(self, offset: int) -> None:
        """What lies there and above is lost."""
        self.batches = [batch for batch in self.batches if batch.last_offset < offset]
        self.records = {at: record for at, record in self.records.items() if at < offset}
        self.markers = {at: marker for at, marker in self.markers.items() if at < offset}
        self.end_offset = offset
        self.start_offset = min(self.start_offset, offset)
        self._folds.clear()

    def fold(self, below: int, log_start: int = 0) -> Fold:
        found = self._folds.get((below, log_start))
        if found is None:
            if len(self._folds) > 8:
                self._folds.clear()
            found = self._folds[below, log_start] = fold(self.batches, below, log_start)
        return found

    def size_bytes_from(self, offset: int) -> int:
        return sum(batch.size_bytes for batch in self.batches if batch.last_offset >= offset)


def difference(truth: Fold, other: Fold) -> str | None:
    """Evidence that two folds are not the same."""
    for key in sorted(truth.values.keys() | other.values.keys()):
        expected, found = truth.values.get(key), other.values.get(key)
        if expected != found:
            return f"{key!r} should be {_told(expected, truth, key)}, but is {_told(found, other, key)}"
    return None


def _told(newest: Newest | None, of: Fold, key: bytes) -> str:
    if newest is not None:
        return f"{(newest.value or b'').rstrip(bytes(1))!r}@{newest.offset}"
    deleted = of.tombstones.get(key)
    return "absent" if deleted is None else f"deleted@{deleted.offset}"
