"""What leveling and compaction have made of a cloud partition, read from its objects (rules C5 and C7; 1, 2, 3, 5, 8).

One `LeveledLog` a partition knows every batch as it was committed (`truth`), and what became of each transaction. After
every change of the partition's extents it holds L1 against that:

- a record of L1 is one that was committed, with the same key, value and time at the same offset, and of no aborted
  transaction; nothing in L1 is transactional or a marker, and the last batch of each extent reaches its end (C7);
- of a topic that is not compacted everything is there: from the log start up to the leveled offset (rule 1);
- of a compacted one only superseded records are gone, and tombstones whose delete horizon has passed (rules 3 and 5).
  A tombstone stays after the commit that gave it its horizon for as long as a leader may still use the map of before
  (C8): who has read the value in the old map finds the tombstone in the next. Below the cleaned offset each key has one
  record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sexton.ports.cloud import CloudPartitionRow, Extent, Level, ObjectId
from sexton.records.batch import Batch, ControlType
from sexton.records.header import DELETE_HORIZON
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.truth import Truth

HORIZON_MS_MIN: Final = 20_000
CLOCKS_MS: Final = 10_000
"""By how much the clocks of two compactors differ at most: a second at first each, and four parts in a hundred of a run
of a few minutes."""

VIEW_AGE_MS: Final = 10_000
"""How old a leader's map of L1 may be (`cloud.view.age.max.ms`)."""

Place = tuple[ObjectId, int]
"""An object, and where in it a run begins."""


@dataclass(frozen=True, slots=True)
class Topic:
    """What its settings promise."""

    is_compacted: bool = False
    delete_retention_ms: int = 86_400_000


@dataclass(slots=True)
class LeveledLog:
    truth: Truth = field(default_factory=Truth)
    aborted: set[int] = field(default_factory=set)
    """Offsets of records of aborted transactions."""
    _open: dict[int, list[int]] = field(default_factory=dict)
    _known: dict[Place, Sequence[int]] = field(default_factory=dict)
    """Offsets of the records of each run of L1 that was read."""
    _horizons_ms: dict[int, tuple[int, int]] = field(default_factory=dict)
    """By offset of a tombstone: its horizon, and when it was seen first."""
    _seen: tuple[object, ...] = ()

    _committed_ms: dict[int, int] = field(default_factory=dict)
    """When each tombstone was committed, by its offset."""

    def add(self, batch: Batch, now_ms: int) -> None:
        """The next batch is committed."""
        self.truth.add(batch)
        self._committed_ms |= {record.offset: now_ms for record in batch.records if record.value is None}
        if not batch.is_transactional:
            return
        if not batch.is_control:
            self._open.setdefault(batch.producer_id, []).extend(record.offset for record in batch.records)
        elif batch.control_type is not ControlType.UNKNOWN:
            ended = self._open.pop(batch.producer_id, [])
            if batch.control_type is ControlType.ABORT:
                self.aborted.update(ended)

    def check(
        self,
        where: str,
        row: CloudPartitionRow,
        extents: Iterable[Extent],
        topic: Topic,
        read: Callable[[Extent], Iterable[Batch]],
        now_ms: int,
    ) -> None:
        """Raises SimulationFailure. Costs nothing where L1 is as it was seen last."""
        leveled = [extent for extent in extents if extent.level is Level.L1]
        state = row.leveled_offset, row.start_offset, row.cleaned_offset, [_place(extent) for extent in leveled]
        if state == self._seen:
            return
        self._seen = state
        places = {_place(extent): extent for extent in leveled}
        self._known = {place: offsets for place, offsets in self._known.items() if place in places}
        for place, extent in places.items():
            if place not in self._known:
                self._known[place] = self._read(f"{where}@{extent.base_offset}", extent, read(extent), topic, now_ms)
        found = {offset for offsets in self._known.values() for offset in offsets if offset >= row.start_offset}
        expected = {
            offset
            for offset in self.truth.records
            if row.start_offset <= offset < row.leveled_offset and offset not in self.aborted
        }
        self._check_missing(where, expected, expected - found, topic, now_ms)
        if topic.is_compacted:
            self._check_one_a_key(where, found, row.cleaned_offset)

    def _read(self, where: str, extent: Extent, batches: Iterable[Batch], topic: Topic, now_ms: int) -> Sequence[int]:
        next_offset = extent.base_offset
        offsets: list[int] = []
        for batch in batches:
            if batch.is_transactional or batch.is_control:
                raise SimulationFailure("C7", f"{where}: the batch at {batch.base_offset} is not settled")
            if batch.base_offset < next_offset:
                raise SimulationFailure("C5", f"{where}: a batch at {batch.base_offset} after {next_offset}")
            next_offset = batch.next_offset
            for record in batch.records:
                original = self.truth.records.get(record.offset)
                same = original is not None and (original.key, original.value) == (record.key, record.value)
                if not same or original is None or original.timestamp_ms != record.timestamp_ms:
                    raise SimulationFailure("rule 2", f"{where}: {record} is not {original}, which was committed")
                if record.offset in self.aborted:
                    raise SimulationFailure("rule 8", f"{where}: {record} is of an aborted transaction")
                offsets.append(record.offset)
            if batch.attributes & DELETE_HORIZON:
                self._learn_horizon(where, batch, topic, now_ms)
        if next_offset != extent.end_offset:
            raise SimulationFailure("C7", f"{where}: its batches end at {next_offset}, it at {extent.end_offset}")
        return offsets

    def _learn_horizon(self, where: str, batch: Batch, topic: Topic, now_ms: int) -> None:
        horizon_ms = batch.base_timestamp_ms
        for record in batch.records:
            if record.value is not None or record.offset in self._horizons_ms:
                continue
            self._horizons_ms[record.offset] = horizon_ms, now_ms
            earliest_ms = self._committed_ms[record.offset] + max(HORIZON_MS_MIN, topic.delete_retention_ms) - CLOCKS_MS
            if horizon_ms < earliest_ms:
                raise SimulationFailure("C8", f"{where}: {record} may go at {horizon_ms}, before {earliest_ms}")

    def _check_missing(self, where: str, expected: set[int], missing: set[int], topic: Topic, now_ms: int) -> None:
        if not missing:
            return
        records = self.truth.records
        if not topic.is_compacted:
            raise SimulationFailure("rule 1", f"{where}: leveled without {records[min(missing)]}")
        newest: Mapping[bytes | None, int] = {records[offset].key: offset for offset in sorted(expected)}
        for offset in sorted(missing):
            record = records[offset]
            if record.key is None or newest[record.key] == offset:
                if record.key is None or record.value is not None:
                    raise SimulationFailure("rule 3", f"{where}: {record} is the newest of its key, and gone")
                horizon_ms, seen_ms = self._horizons_ms.get(offset, (None, 0))
                if horizon_ms is None or horizon_ms > now_ms + CLOCKS_MS:
                    raise SimulationFailure(
                        "rule 5", f"{where}: {record} is gone, its horizon is {horizon_ms}, and it is {now_ms} now"
                    )
                if now_ms - seen_ms < VIEW_AGE_MS:
                    raise SimulationFailure(
                        "C8", f"{where}: {record} is gone {now_ms - seen_ms} ms after it was told that it would go"
                    )

    def _check_one_a_key(self, where: str, found: set[int], cleaned_offset: int) -> None:
        seen: dict[bytes | None, int] = {}
        for offset in sorted(found):
            if offset >= cleaned_offset:
                break
            key = self.truth.records[offset].key
            if key is not None and key in seen:
                raise SimulationFailure(
                    "rule 4", f"{where}: {key!r} is at {seen[key]} and {offset}, cleaned up to {cleaned_offset}"
                )
            seen[key] = offset


def _place(extent: Extent) -> Place:
    assert extent.object_id is not None
    return extent.object_id, extent.position
