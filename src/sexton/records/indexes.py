"""The three index files beside a segment, as NumPy arrays.

    .index      8 bytes an entry   relative offset int32, position int32: offsets to places in the .log
    .timeindex  12 bytes an entry  timestamp int64, relative offset int32: times to offsets
    .txnindex   34 bytes an entry  version int16, then producer id, first, last and last stable offset int64:
                                   the aborted transactions whose marker lies in this segment

All numbers are big-endian and a relative offset counts from the segment's base offset, so a segment spans
at most 2^31 offsets. These functions turn entries into bytes, bytes into entries, and say what is wrong
with bytes. Which batches deserve an entry is decided elsewhere.

What an entry promises
----------------------
*Offset index.* Entry (o, p): a batch starts at p, and every batch before p ends below o. A reader that
wants offset x takes the last entry with o <= x and walks the log from p. Kafka writes o = the last offset
of the batch at p. Releases up to 4.0, when they appended several batches at once, wrote the last offset of
the last one and the start of the first, which keeps the promise. Both columns strictly increase. No entry
points at position 0: without an entry a reader starts there anyway. The file may be empty, and is for a
segment smaller than `index.interval.bytes` (4096).

*Time index.* Entry (t, o): t is the largest timestamp up to and including the batch that ends at o, and
every earlier batch stays below t. A search for the first record at or after time x starts at the last entry
with t <= x. Timestamps strictly increase, offsets never decrease. **The last entry of a segment that is no
longer appended to must be the segment's largest batch timestamp and the last offset of the first batch that
has it:** a broker never looks into the log for it. Too small, and time-based searches skip the segment and
retention deletes it early; too large, and retention keeps it. The file is empty only if the log is, or if
no batch has a timestamp; then a broker goes by the modification time of the .log file instead.

*Transaction index.* One entry per ABORT marker in the segment (none if the transaction had no record in
this partition), in order of the marker's offset, which is `last_offset`; `first_offset` may lie in an
earlier segment. A search stops at the first entry whose `last_stable_offset` reaches its upper bound, so
that column never decreases and is at most `last_offset` + 1. No file is the same as an empty one.

What a broker does on start (Kafka 4.0, and 4.3 where tried)
------------------------------------------------------------
- It does **not** check .index or .timeindex of a segment it believes flushed, that is: after a clean
  shutdown all of them, otherwise those below the recovery point. (Checks of size, first and last entry
  exist; the dump tool and tiered storage call them.) A wrong index is used as it is.
- The log end is found by walking from the last entry of the last segment's .index. If that entry names an
  offset or a position past the log, the broker takes the segment for empty and hands out its offsets again;
  if the position is inside a batch, either that or the log fails to load. The same walk over .log.swap
  files decides which older segments they replace.
- No .index: an error is logged if the segment counted as flushed, and all three are rebuilt from the log.
- No .timeindex: an empty one is made, silently, and stays empty for a closed segment (see above).
- .txnindex with an entry whose last offset is below the base offset: a warning, and all three are rebuilt.
  With a version it does not know (it looks at the first of the two bytes only): the log fails to load. With
  an incomplete entry at its end: silently ignored, until the next append makes everything after it
  unreadable.
- An index without a .log: a warning, and it is deleted.
- Without a clean shutdown, every segment from the one that holds the recovery point on is rebuilt from its
  log.

Preallocation: while a segment is active its .index and .timeindex are `segment.index.bytes` (10 MiB) long,
with zeros behind the last entry, and are cut to size when it is rolled or the broker stops. A broker that
opens a file takes all of it for entries, so what we write is never padded.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sexton.types import INT32_MAX, NO_TIMESTAMP

OFFSET_ENTRY: Final = np.dtype([("relative_offset", ">i4"), ("position", ">i4")])
TIME_ENTRY: Final = np.dtype([("timestamp_ms", ">i8"), ("relative_offset", ">i4")])
TRANSACTION_ENTRY: Final = np.dtype(
    [
        ("version", ">i2"),
        ("producer_id", ">i8"),
        ("first_offset", ">i8"),
        ("last_offset", ">i8"),
        ("last_stable_offset", ">i8"),
    ]
)

TRANSACTION_ENTRY_VERSION: Final = 0

Buffer = bytes | bytearray | memoryview
Entries = npt.NDArray[np.void]
Longs = npt.NDArray[np.int64]


def make_offset_entries(base_offset: int, offsets: npt.ArrayLike, positions: npt.ArrayLike) -> Entries:
    """Makes entries from absolute offsets. Raises OverflowError if one does not fit: the caller chose a wrong base
    offset."""
    relative, position = _relative(base_offset, offsets), _longs(positions)
    _require_int32(position, "position")
    entries = np.empty(_common_length(relative, position), OFFSET_ENTRY)
    entries["relative_offset"], entries["position"] = relative, position
    return entries


def make_time_entries(base_offset: int, timestamps_ms: npt.ArrayLike, offsets: npt.ArrayLike) -> Entries:
    timestamp_ms, relative = _longs(timestamps_ms), _relative(base_offset, offsets)
    entries = np.empty(_common_length(timestamp_ms, relative), TIME_ENTRY)
    entries["timestamp_ms"], entries["relative_offset"] = timestamp_ms, relative
    return entries


def make_transaction_entries(
    producer_ids: npt.ArrayLike,
    first_offsets: npt.ArrayLike,
    last_offsets: npt.ArrayLike,
    last_stable_offsets: npt.ArrayLike,
) -> Entries:
    columns = [_longs(c) for c in (producer_ids, first_offsets, last_offsets, last_stable_offsets)]
    entries = np.empty(_common_length(*columns), TRANSACTION_ENTRY)
    entries["version"] = TRANSACTION_ENTRY_VERSION
    names = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    for name, column in zip(names, columns, strict=True):
        entries[name] = column
    return entries


def encode(entries: Entries) -> bytes:
    """Returns the file's content, exactly as long as its entries."""
    if entries.dtype not in (OFFSET_ENTRY, TIME_ENTRY, TRANSACTION_ENTRY):
        raise TypeError(f"{entries.dtype} is not the layout of an index entry")
    return entries.tobytes()


def decode_offset_index(data: Buffer) -> Entries:
    """Returns all entries of the file, without preallocated zeros and unchecked: `check_offset_index` checks them."""
    return _entries(data, OFFSET_ENTRY, _used_count(data, OFFSET_ENTRY.itemsize))


def decode_time_index(data: Buffer) -> Entries:
    """Like `decode_offset_index`.

    An entry (time 0, base offset), which a clock that starts at 0 can produce, is all zeros too. It is accepted when it
    is the whole file, for only a file that was cut to size is that short.
    """
    return _entries(data, TIME_ENTRY, _used_count(data, TIME_ENTRY.itemsize))


def decode_transaction_index(data: Buffer) -> Entries:
    """Returns every whole entry. This file is never preallocated, so zeros are an entry like any other."""
    return _entries(data, TRANSACTION_ENTRY, len(data) // TRANSACTION_ENTRY.itemsize)


class IndexFault(Enum):
    """What can be wrong with an index."""

    SIZE_NOT_MULTIPLE = "size is not a multiple of the entry size"
    NOT_CUT_TO_SIZE = "zeros after the last entry of a segment that is closed"
    OFFSET_OUT_OF_RANGE = "offset outside the segment"
    OFFSETS_OUT_OF_ORDER = "offset not above the one before"
    POSITION_OUT_OF_RANGE = "position outside the log file"
    POSITIONS_OUT_OF_ORDER = "position not above the one before"
    TIMESTAMP_NEGATIVE = "timestamp below zero"
    TIMESTAMPS_OUT_OF_ORDER = "timestamp not above the one before"
    LAST_TIMESTAMP_MISSING = "no entry although the segment has a largest timestamp"
    LAST_TIMESTAMP_WRONG = "last timestamp is not the segment's largest"
    LAST_TIMESTAMP_TOO_LATE = "last entry points past the batch with the largest timestamp"
    UNKNOWN_VERSION = "entry of an unknown version"
    FIRST_OFFSET_OUT_OF_RANGE = "first offset is negative or above the last"
    STABLE_OFFSET_OUT_OF_RANGE = "last stable offset is negative or past the marker"
    STABLE_OFFSETS_OUT_OF_ORDER = "last stable offset below the one before"


@dataclass(frozen=True, slots=True)
class IndexProblem:
    """One fault, at the first entry that has it. `entry` is -1 if it concerns the whole file."""

    fault: IndexFault
    entry: int
    count: int
    found: str

    def __str__(self) -> str:
        where = "file" if self.entry < 0 else f"entry {self.entry}"
        more = f", and {self.count - 1} more" if self.count > 1 else ""
        return f"{where}: {self.fault.value} ({self.found}{more})"


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """Facts from a walk over the log's batch headers, with which its indexes are compared.

    `next_offset` is the last batch's last offset + 1, or the base offset of an empty log. `max_timestamp_offset` is the
    last offset of the first batch that has `max_timestamp_ms`. A segment is `closed` when it is no longer appended to:
    it has been rolled, or its broker was shut down cleanly.
    """

    base_offset: int
    next_offset: int
    log_size_bytes: int
    max_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_offset: int = -1
    closed: bool = True


def check_offset_index(data: Buffer, facts: SegmentFacts) -> tuple[IndexProblem, ...]:
    """Stricter than a broker, which uses what it finds. No problem means that every lookup is right, except that
    positions are not compared with the actual starts of batches."""
    entries = decode_offset_index(data)
    problems = _Problems(entries)
    problems.file_size(data, facts.closed)
    relative, position = _longs(entries["relative_offset"]), _longs(entries["position"])
    span = facts.next_offset - facts.base_offset
    problems.where(IndexFault.OFFSET_OUT_OF_RANGE, (relative < 0) | (relative >= span))
    problems.where(IndexFault.OFFSETS_OUT_OF_ORDER, _not_above_previous(relative))
    problems.where(IndexFault.POSITION_OUT_OF_RANGE, (position < 0) | (position >= facts.log_size_bytes))
    problems.where(IndexFault.POSITIONS_OUT_OF_ORDER, _not_above_previous(position))
    return tuple(problems.found)


def check_time_index(data: Buffer, facts: SegmentFacts) -> tuple[IndexProblem, ...]:
    """The last entry of an open segment may lag behind the log; that of a closed one may not.

    Older brokers wrote the offset of the record itself, or of another record of its batch. It is only a place to start
    searching from, so an offset before the end of the right batch is accepted too.
    """
    entries = decode_time_index(data)
    problems = _Problems(entries)
    problems.file_size(data, facts.closed)
    timestamp_ms, relative = _longs(entries["timestamp_ms"]), _longs(entries["relative_offset"])
    span = facts.next_offset - facts.base_offset
    problems.where(IndexFault.TIMESTAMP_NEGATIVE, timestamp_ms < 0)
    problems.where(IndexFault.TIMESTAMPS_OUT_OF_ORDER, _not_above_previous(timestamp_ms))
    problems.where(IndexFault.OFFSET_OUT_OF_RANGE, (relative < 0) | (relative >= span))
    problems.where(IndexFault.OFFSETS_OUT_OF_ORDER, _below_previous(relative))
    if len(entries) == 0:
        if facts.closed and facts.max_timestamp_ms >= 0:
            found = f"largest timestamp {facts.max_timestamp_ms}"
            problems.add(IndexFault.LAST_TIMESTAMP_MISSING, -1, 1, found)
        return tuple(problems.found)
    last_ms, last_entry = int(timestamp_ms[-1]), len(entries) - 1
    if last_ms > facts.max_timestamp_ms or (facts.closed and last_ms < facts.max_timestamp_ms):
        found = f"{last_ms}, the log says {facts.max_timestamp_ms}"
        problems.add(IndexFault.LAST_TIMESTAMP_WRONG, last_entry, 1, found)
    last_offset = facts.base_offset + int(relative[-1])
    if last_ms == facts.max_timestamp_ms and last_offset > facts.max_timestamp_offset:
        found = f"offset {last_offset}, the log says {facts.max_timestamp_offset}"
        problems.add(IndexFault.LAST_TIMESTAMP_TOO_LATE, last_entry, 1, found)
    return tuple(problems.found)


def check_transaction_index(data: Buffer, facts: SegmentFacts) -> tuple[IndexProblem, ...]:
    """A fault here is worse than in the others: those cost time, this one returns aborted records to consumers."""
    entries = decode_transaction_index(data)
    problems = _Problems(entries)
    problems.file_size(data, closed=False)
    first, last = _longs(entries["first_offset"]), _longs(entries["last_offset"])
    stable = _longs(entries["last_stable_offset"])
    problems.where(IndexFault.UNKNOWN_VERSION, entries["version"] != TRANSACTION_ENTRY_VERSION)
    outside = (last < facts.base_offset) | (last >= facts.next_offset)
    problems.where(IndexFault.OFFSET_OUT_OF_RANGE, outside)
    problems.where(IndexFault.OFFSETS_OUT_OF_ORDER, _not_above_previous(last))
    problems.where(IndexFault.FIRST_OFFSET_OUT_OF_RANGE, (first < 0) | (first > last))
    # Written without "last + 1", which overflows on a corrupt entry.
    problems.where(IndexFault.STABLE_OFFSET_OUT_OF_RANGE, (stable < 0) | ((stable > 0) & (stable - 1 > last)))
    problems.where(IndexFault.STABLE_OFFSETS_OUT_OF_ORDER, _below_previous(stable))
    return tuple(problems.found)


class _Problems:
    """Collects at most one problem per fault, so that a file of garbage gives a short list."""

    def __init__(self, entries: Entries) -> None:
        self.entries = entries
        self.found: list[IndexProblem] = []

    def add(self, fault: IndexFault, entry: int, count: int, found: str) -> None:
        self.found.append(IndexProblem(fault, entry, count, found))

    def where(self, fault: IndexFault, bad: npt.NDArray[np.bool_]) -> None:
        if bad.any():
            first = int(bad.argmax())
            self.add(fault, first, int(bad.sum()), str(self.entries[first]))

    def file_size(self, data: Buffer, closed: bool) -> None:
        size_bytes, entry_bytes = len(data), self.entries.dtype.itemsize
        if size_bytes % entry_bytes:
            self.add(IndexFault.SIZE_NOT_MULTIPLE, -1, 1, f"{size_bytes} bytes in entries of {entry_bytes}")
        unused_count = size_bytes // entry_bytes - len(self.entries)
        if closed and unused_count:
            self.add(IndexFault.NOT_CUT_TO_SIZE, -1, 1, f"{unused_count} unused entries")


def _entries(data: Buffer, layout: np.dtype[Any], count: int) -> Entries:
    entries: Entries = np.frombuffer(data, layout, count) if count else np.empty(0, layout)
    return entries


def _used_count(data: Buffer, entry_bytes: int) -> int:
    """Returns the number of entries before the preallocated zeros at the end of the file."""
    whole_count = len(data) // entry_bytes
    if whole_count <= 1 and len(data) == whole_count * entry_bytes:
        return whole_count
    used_bytes = len(bytes(data[: whole_count * entry_bytes]).rstrip(b"\0"))
    return -(-used_bytes // entry_bytes)


def _longs(column: npt.ArrayLike) -> Longs:
    return np.asarray(column).astype(np.int64)


def _relative(base_offset: int, offsets: npt.ArrayLike) -> Longs:
    relative = _longs(offsets) - base_offset
    _require_int32(relative, f"offset relative to {base_offset}")
    return relative


def _require_int32(column: Longs, what: str) -> None:
    bad = (column < 0) | (column > INT32_MAX)
    if bad.any():
        raise OverflowError(f"{what} is {column[bad.argmax()]}, which an index entry cannot hold")


def _common_length(*columns: Longs) -> int:
    lengths = {len(column) for column in columns}
    if len(lengths) != 1:
        raise ValueError(f"columns of different lengths: {sorted(lengths)}")
    return lengths.pop()


def _not_above_previous(column: Longs) -> npt.NDArray[np.bool_]:
    return np.concatenate(([False], column[1:] <= column[:-1]))[: len(column)]


def _below_previous(column: Longs) -> npt.NDArray[np.bool_]:
    return np.concatenate(([False], column[1:] < column[:-1]))[: len(column)]
