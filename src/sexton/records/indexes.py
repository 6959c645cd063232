"""The three index files beside a segment, as NumPy arrays.

    .index      8 bytes an entry   relative offset int32, position int32: offsets to places in the .log
    .timeindex  12 bytes an entry  timestamp int64, relative offset int32: times to offsets
    .txnindex   34 bytes an entry  version int16, then producer id, first, last and last stable offset int64:
                                   the aborted transactions whose marker lies in this segment

All numbers are big-endian and a relative offset counts from the segment's base offset, so a segment spans
at most 2^31 offsets. Which batches deserve an entry is decided elsewhere; a broker reads the first two with
`log.sparse`.

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

from typing import Final

import numpy as np
import numpy.typing as npt

from sexton.types import INT32_MAX

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


def decode_transaction_index(data: Buffer) -> Entries:
    """Returns every whole entry. This file is never preallocated, so zeros are an entry like any other."""
    count = len(data) // TRANSACTION_ENTRY.itemsize
    return np.frombuffer(data, TRANSACTION_ENTRY, count) if count else np.empty(0, TRANSACTION_ENTRY)


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
