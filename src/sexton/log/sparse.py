"""A segment's offset and time index in memory: 20 bytes for every `index.interval.bytes` of the log.

The active segment's index is only in memory until the segment is closed; a crash loses nothing, because recovery scans
that segment anyway. A closed segment's index is read from its files at the first lookup. What entries guarantee, and
when Kafka writes one, is in `records.indexes`.
"""

from __future__ import annotations

import operator
import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from typing import Final

from sexton.types import NO_TIMESTAMP

OFFSET_ENTRY_BYTES: Final = 8
TIME_ENTRY_BYTES: Final = 12

_TIME_ENTRY: Final = struct.Struct(">qi")

_IS_LITTLE: Final = sys.byteorder == "little"


class SparseIndex:
    __slots__ = ("base_offset", "offsets", "positions", "time_offsets", "times")

    def __init__(self, base_offset: int) -> None:
        self.base_offset = base_offset
        self.offsets = array("q")
        self.positions = array("q")
        self.times = array("q")
        self.time_offsets = array("q")

    # Lookups

    def position_before(self, offset: int) -> int:
        """Position from which to scan for `offset`: every batch before it ends below `offset`."""
        at = bisect_right(self.offsets, offset)
        return self.positions[at - 1] if at else 0

    def boundary_before(self, position: int) -> int:
        """Position of the last indexed batch that starts at or before `position`."""
        at = bisect_right(self.positions, position)
        return self.positions[at - 1] if at else 0

    def offset_before_time(self, timestamp_ms: int) -> int:
        """Offset from which to scan for the first record with this timestamp or a later one: all batches before the one
        with this offset are older."""
        at = bisect_right(self.times, timestamp_ms)
        return self.time_offsets[at - 1] if at else self.base_offset

    def newest_time_below(self, offset: int) -> tuple[int, int]:
        """The last time entry (timestamp, offset) that covers only batches below `offset`."""
        at = bisect_left(self.time_offsets, offset)
        return (self.times[at - 1], self.time_offsets[at - 1]) if at else (NO_TIMESTAMP, self.base_offset - 1)

    # Adding and removing entries

    def add(self, offset: int, position: int) -> None:
        self.offsets.append(offset)
        self.positions.append(position)

    def add_time(self, timestamp_ms: int, offset: int) -> None:
        """Adds an entry only if its timestamp is higher than the last one: timestamps in the index are strictly
        rising."""
        if timestamp_ms >= 0 and (not self.times or timestamp_ms > self.times[-1]):
            self.times.append(timestamp_ms)
            self.time_offsets.append(offset)

    def cut(self, offset: int, position: int) -> None:
        """Keeps the entries of batches below both `offset` and `position`."""
        count = min(bisect_left(self.offsets, offset), bisect_left(self.positions, position))
        del self.offsets[count:], self.positions[count:]
        count = bisect_left(self.time_offsets, offset)
        del self.times[count:], self.time_offsets[count:]

    # Files

    def encode_offsets(self) -> bytes:
        entries = array("i", bytes(OFFSET_ENTRY_BYTES * len(self.offsets)))
        entries[0::2] = array("i", [offset - self.base_offset for offset in self.offsets])
        entries[1::2] = array("i", self.positions)
        return _big_endian(entries)

    def encode_times(self) -> bytes:
        out = bytearray()
        for timestamp_ms, offset in zip(self.times, self.time_offsets, strict=True):
            out += timestamp_ms.to_bytes(8, "big") + (offset - self.base_offset).to_bytes(4, "big")
        return bytes(out)

    def load(self, offset_data: bytes, time_data: bytes, end_offset: int, size_bytes: int) -> bool:
        """Returns False, and loads nothing, if the files cannot belong to a segment with this end offset and size.

        Zeros at the end are space that Kafka preallocates in the segment that it appends to.
        """
        entries = array("i")
        entries.frombytes(_whole(offset_data, OFFSET_ENTRY_BYTES))
        if _IS_LITTLE:
            entries.byteswap()
        offsets, positions = entries[0::2], entries[1::2]
        times, time_offsets = array("q"), array("q")
        for timestamp_ms, relative in _TIME_ENTRY.iter_unpack(_whole(time_data, TIME_ENTRY_BYTES)):
            times.append(timestamp_ms)
            time_offsets.append(relative + self.base_offset)
        span = end_offset - self.base_offset
        is_true = (
            len(offset_data) % OFFSET_ENTRY_BYTES == 0
            and len(time_data) % TIME_ENTRY_BYTES == 0
            and _rises(offsets, 0, span)
            and _rises(positions, 1, size_bytes)
            and _rises(times, 0, 1 << 63)
            and (not time_offsets or self.base_offset <= time_offsets[0] <= time_offsets[-1] < end_offset)
            and all(map(operator.le, time_offsets, time_offsets[1:]))
        )
        if is_true:
            self.offsets = array("q", [offset + self.base_offset for offset in offsets])
            self.positions = array("q", positions)
            self.times, self.time_offsets = times, time_offsets
        return is_true


def _rises(values: array[int], low: int, end: int) -> bool:
    if not values:
        return True
    return values[0] >= low and values[-1] < end and all(map(operator.lt, values, values[1:]))


def _whole(data: bytes, entry_bytes: int) -> bytes:
    """Cuts off incomplete entries and preallocated space. An entry (time 0, base offset), which a clock that starts at
    0 can produce, is all zeros too: it counts when it is the whole file, for only a file that was cut to size is that
    short."""
    size = len(data) // entry_bytes * entry_bytes
    if size <= entry_bytes:
        return data[:size]
    used = len(data[:size].rstrip(b"\0"))
    return data[: -(-used // entry_bytes) * entry_bytes]


def _big_endian(values: array[int]) -> bytes:
    if _IS_LITTLE:
        values.byteswap()
    return values.tobytes()
