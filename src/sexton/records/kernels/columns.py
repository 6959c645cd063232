"""Records as columns: the positions of each record's key, value and headers, and their bytes gathered into one buffer.

This is how a log becomes Arrow arrays without a Python object per record. The plain twin of the walk is
``records.batch.decode``; both refuse the same bytes.

Every length is compared with the bytes that are left (``size > end - position``), never added to a position first: a
length near 2^63 would wrap around and pass.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sexton.jit import kernel
from sexton.records.kernels.primitives import Bytes, copy_bytes, read_varint
from sexton.records.kernels.scan import Table

RECORD = np.dtype(
    [
        ("offset", np.int64),
        ("timestamp", np.int64),
        ("key_start", np.int64),
        ("value_start", np.int64),
        ("headers_start", np.int64),
        ("end", np.int64),
        ("key_size", np.int32),
        ("value_size", np.int32),
        ("header_count", np.int32),
        ("batch", np.int32),
    ]
)
"""A record as a row: sizes are -1 for null, starts are positions in the buffer, ``batch`` is its batch's row."""

HEADER = np.dtype(
    [("name_start", np.int64), ("value_start", np.int64), ("name_size", np.int32), ("value_size", np.int32)]
)

Records = npt.NDArray[np.void]
Headers = npt.NDArray[np.void]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]

NOTHING_BAD = -1

RECORD_BYTES_MIN = 7
"""Length, attributes, two deltas, key and value length, header count: a batch that claims more records is corrupt."""


@kernel
def _skip_bytes(data: Bytes, position: int, end: int, size_min: int) -> tuple[int, int, int]:
    """Returns size and start of a length-prefixed field, and the position after it; -1 if it is not inside ``end``."""
    size, start = read_varint(data, position, end)
    if start < 0 or size < size_min or size > end - start:
        return 0, 0, -1
    return size, start, start + max(size, 0)


@kernel
def _skip_headers(data: Bytes, position: int, end: int, count: int) -> int:
    for _ in range(count):
        _, _, position = _skip_bytes(data, position, end, 0)
        if position < 0:
            return -1
        _, _, position = _skip_bytes(data, position, end, -1)
        if position < 0:
            return -1
    return position


@kernel
def _read_deltas(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """Returns timestamp delta, offset delta and the position after them (-1: not inside ``end``). `position` is that of
    the attributes."""
    timestamp_delta, position = read_varint(data, position + 1, end)
    if position < 0:
        return 0, 0, -1
    offset_delta, position = read_varint(data, position, end)
    return timestamp_delta, offset_delta, position


@kernel
def walk_records(
    data: Bytes,
    starts: Longs,
    ends: Longs,
    table: Table,
    from_offset: int,
    to_offset: int,
    out: Records,
) -> tuple[int, int]:
    """Fills a row for each record with ``from_offset <= offset < to_offset``; ``data[starts[i]:ends[i]]`` is batch i's
    body.

    Returns the number of rows filled and the first batch that cannot be parsed. Every record is checked, wanted or not.
    ``out`` must have room for all.
    """
    filled = 0
    for batch in range(len(starts)):
        position, end = starts[batch], ends[batch]
        base_offset, last_offset = table[batch].base_offset, table[batch].last_offset
        by_append = (table[batch].attributes & 8) != 0
        previous = base_offset - 1
        for _ in range(table[batch].record_count):
            length, position = read_varint(data, position, end)
            if position < 0 or length < 1 or length > end - position:
                return filled, batch
            record_end = position + length
            timestamp_delta, offset_delta, position = _read_deltas(data, position, record_end)
            if position < 0 or offset_delta < 0 or offset_delta > last_offset - base_offset:
                return filled, batch
            offset = base_offset + offset_delta
            if offset <= previous:
                return filled, batch
            previous = offset
            key_size, key_start, position = _skip_bytes(data, position, record_end, -1)
            if position < 0:
                return filled, batch
            value_size, value_start, position = _skip_bytes(data, position, record_end, -1)
            if position < 0:
                return filled, batch
            header_count, headers_start = read_varint(data, position, record_end)
            if headers_start < 0 or header_count < 0 or header_count > record_end - headers_start:
                return filled, batch
            if _skip_headers(data, headers_start, record_end, header_count) != record_end:
                return filled, batch
            if from_offset <= offset < to_offset:
                row = out[filled]
                row.offset = offset
                row.timestamp = (
                    table[batch].max_timestamp if by_append else table[batch].base_timestamp + timestamp_delta
                )
                row.key_start, row.key_size = key_start, key_size
                row.value_start, row.value_size = value_start, value_size
                row.headers_start, row.header_count = headers_start, header_count
                row.end = record_end
                row.batch = batch
                filled += 1
            position = record_end
        if position != end:
            return filled, batch
    return filled, NOTHING_BAD


@kernel
def walk_headers(data: Bytes, records: Records, out: Headers) -> None:
    """Fills a row for each header, in order. Only for records that ``walk_records`` has checked."""
    filled = 0
    for index in range(len(records)):
        position = records[index].headers_start
        for _ in range(records[index].header_count):
            row = out[filled]
            row.name_size, row.name_start, position = _skip_bytes(data, position, len(data), 0)
            row.value_size, row.value_start, position = _skip_bytes(data, position, len(data), -1)
            filled += 1


@kernel
def gather(data: Bytes, starts: Longs, sizes: Ints, offsets: Ints, out: Bytes) -> None:
    """Copies ``data[starts[i]:starts[i] + sizes[i]]`` to ``out[offsets[i]:]``; nothing for a negative size."""
    for index in range(len(starts)):
        copy_bytes(data, starts[index], out, offsets[index], sizes[index])
