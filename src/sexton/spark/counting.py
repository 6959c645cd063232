"""What a pass over a log counts beside keys: records and their bytes, by whether consumers see them.

Batches of a transaction count by its marker. A task sees the markers of its own stretch alone; what they leave open is
told by producer (`Undecided`), and whoever knows all markers, or what the broker lists as aborted, decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sexton.compaction.transactions import TransactionIndex
from sexton.records.batch import ControlType
from sexton.records.header import CODEC_MASK, CONTROL
from sexton.records.kernels.columns import Records
from sexton.records.kernels.scan import Table
from sexton.spark.traces import Traces

RECORD_OVERHEAD_BYTES = 6
"""Of a small record, before its key: where it begins is not known if others of its batch were left out."""

Longs = npt.NDArray[np.int64]
Markers = npt.NDArray[np.void]


@dataclass(slots=True)
class Counted:
    """Records of some batches."""

    record_count: int = 0
    keyless_count: int = 0
    tombstone_count: int = 0
    size_bytes: int = 0
    """Of the batches, as they are stored."""

    def look(self, records: Records) -> None:
        has_key = records["key_size"] >= 0
        self.record_count += len(records)
        self.keyless_count += len(records) - int(has_key.sum())
        self.tombstone_count += int((has_key & (records["value_size"] < 0)).sum())

    def add(self, other: Counted) -> None:
        self.record_count += other.record_count
        self.keyless_count += other.keyless_count
        self.tombstone_count += other.tombstone_count
        self.size_bytes += other.size_bytes


@dataclass(frozen=True, slots=True)
class Undecided:
    """Batches of one transaction whose marker a task has not seen. `offset` is the last one's."""

    producer_id: int
    offset: int
    counted: Counted


@dataclass(slots=True)
class Counts:
    """Of a stretch. Below where consumers stop, unless it says otherwise."""

    committed: Counted = field(default_factory=Counted)
    aborted: Counted = field(default_factory=Counted)
    undecided: list[Undecided] = field(default_factory=list)
    above: Counted = field(default_factory=Counted)
    """At or above where consumers stop."""
    control_count: int = 0
    present_count: int = 0
    """Offsets that have a record: markers and aborted records, too."""
    batch_count: int = 0
    codecs: dict[int, int] = field(default_factory=dict)
    """Bytes of data batches by codec."""
    traces: Traces = field(default_factory=Traces)

    def look(self, table: Table, previous_offset: int) -> None:
        """At headers."""
        is_control = (table["attributes"] & CONTROL) != 0
        self.batch_count += len(table)
        self.control_count += int(table["record_count"][is_control].sum(dtype=np.int64))
        self.present_count += int(table["record_count"].sum(dtype=np.int64))
        for codec in np.unique(table["attributes"][~is_control] & CODEC_MASK).tolist():
            has_it = ~is_control & ((table["attributes"] & CODEC_MASK) == codec)
            self.codecs[codec] = self.codecs.get(codec, 0) + int(table["size"][has_it].sum(dtype=np.int64))
        self.traces.look(table, previous_offset)

    def undecided_of(self, producer_id: int, offset: int) -> Counted:
        self.undecided.append(Undecided(producer_id, offset, Counted()))
        return self.undecided[-1].counted

    def add(self, later: Counts) -> None:
        """Without the traces: those of parts that are not adjacent say nothing together."""
        for mine, other in (
            (self.committed, later.committed),
            (self.aborted, later.aborted),
            (self.above, later.above),
        ):
            mine.add(other)
        self.undecided += later.undecided
        self.control_count += later.control_count
        self.present_count += later.present_count
        self.batch_count += later.batch_count
        for codec, size_bytes in later.codecs.items():
            self.codecs[codec] = self.codecs.get(codec, 0) + size_bytes

    def decide(self, markers: Markers, listed: Iterable[tuple[int, int]] | None = None) -> None:
        """By all markers of the log; or by those of the stretch and what the broker lists as aborted (producer id,
        first offset), if that is all there is."""
        index = TransactionIndex(markers)
        claims = None if listed is None else sorted(listed)
        for each in self.undecided:
            outcome = _outcome(index, each)
            if outcome == ControlType.UNKNOWN and claims is not None:
                outcome = ControlType.ABORT if _is_listed(each, claims, markers) else ControlType.COMMIT
            into = {ControlType.COMMIT: self.committed, ControlType.ABORT: self.aborted}.get(outcome, self.above)
            into.add(each.counted)
        self.undecided.clear()


def _outcome(index: TransactionIndex, each: Undecided) -> ControlType:
    (found,) = index.next_marker(_one(each.producer_id), _one(each.offset)).tolist()
    return ControlType.UNKNOWN if found < 0 else ControlType(int(index.markers["control_type"][found]))


def _is_listed(each: Undecided, claims: Sequence[tuple[int, int]], markers: Markers) -> bool:
    """The list has all aborted transactions that overlap what was read. One that began before the producer's last
    marker is over."""
    before = markers["offset"][(markers["producer_id"] == each.producer_id) & (markers["offset"] < each.offset)]
    over = int(before.max(initial=-1))
    return any(producer == each.producer_id and over < first <= each.offset for producer, first in claims)


def _one(value: int) -> Longs:
    return np.array([value], dtype=np.int64)


def stored_sizes(records: Records, table: Table, starts: Longs, ends: Longs, from_offset: int) -> Longs:
    """How many stored bytes fall to each record: its part of its batch, header and compression included. Records below
    an offset were left out."""
    if len(records) == 0:
        return np.zeros(0, dtype=np.int64)
    batch = records["batch"]
    before = np.empty(len(records), dtype=np.int64)
    before[0], before[1:] = starts[batch[0]], records["end"][:-1]
    is_first = np.ones(len(records), dtype=np.bool_)
    is_first[1:] = batch[1:] != batch[:-1]
    before[is_first] = starts[batch[is_first]]
    plain = records["end"] - before
    is_clipped = is_first & (table["base_offset"][batch] < from_offset)
    plain = np.where(is_clipped, records["end"] - records["key_start"] + RECORD_OVERHEAD_BYTES, plain)
    packing = table["size"] / np.maximum(ends - starts, 1)
    # Sums are rounded, not each size: of small records the errors would add up.
    ends_of_records = np.rint(np.cumsum(plain * packing[batch])).astype(np.int64)
    sizes: Longs = np.diff(ends_of_records, prepend=0)
    return sizes
