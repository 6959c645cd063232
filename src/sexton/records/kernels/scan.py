"""Scans batch headers without touching records.

A scan fills a table, one row per batch (``BATCH``), from a buffer of whole batches. All other kernels and all
vectorised decisions start from that table.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sexton.errors import CorruptLogError
from sexton.jit import kernel
from sexton.records.batch import WHAT_TO_DO_WITH_A_CORRUPT_BATCH, check_magic
from sexton.records.header import BATCH_OFFSET_MAX, OLDEST_LENGTH_MIN
from sexton.records.kernels.primitives import (
    Bytes,
    crc32c,
    read_i16,
    read_i32,
    read_i64,
    read_u32,
    read_varint,
)

BATCH = np.dtype(
    [
        ("position", np.int64),
        ("base_offset", np.int64),
        ("last_offset", np.int64),
        ("base_timestamp", np.int64),
        ("max_timestamp", np.int64),
        ("producer_id", np.int64),
        ("size", np.int32),
        ("base_sequence", np.int32),
        ("leader_epoch", np.int32),
        ("record_count", np.int32),
        ("attributes", np.int16),
        ("producer_epoch", np.int16),
        ("control_type", np.int16),
        ("padding", np.int16),
    ]
)
"""A batch header as a row. ``control_type`` is -1 unless it is a marker; positions are in the buffer."""

Table = npt.NDArray[np.void]

ROWS_PER_STEP = 1 << 16
"""Number of rows that a scan returns at once: 5.5 MB, small enough for the cache to keep what comes next."""


class ScanStop(IntEnum):
    """Why a scan ended."""

    DONE = 0
    TABLE_FULL = 1
    CUT_OFF = 2
    BAD_MAGIC = 3
    BAD_LENGTH = 4
    BAD_CRC = 5
    BAD_HEADER = 6
    OUT_OF_ORDER = 7


@kernel
def _control_type(data: Bytes, position: int, end: int) -> int:
    """Returns COMMIT or ABORT from the first record's key; -1 if there is none."""
    _, position = read_varint(data, position, end)  # length
    if position < 0 or position >= end:
        return -1
    _, position = read_varint(data, position + 1, end)  # after attributes: timestamp delta
    if position < 0:
        return -1
    _, position = read_varint(data, position, end)  # offset delta
    if position < 0:
        return -1
    key_size, position = read_varint(data, position, end)
    if position < 0 or key_size < 4 or position + 4 > end:
        return -1
    kind = read_i16(data, position + 2)
    return kind if kind in (0, 1) else -1


@kernel
def _scan(
    data: Bytes, start: int, end: int, table: Table, check_crc: bool, previous_offset: int
) -> tuple[int, int, int]:
    """Returns the number of rows filled, the position after them, and why it stopped (a ``ScanStop``)."""
    position = start
    row = 0
    while position < end:
        if row == len(table):
            return row, position, 1
        if position + 17 > end:
            return row, position, 2
        length = read_i32(data, position + 8)
        if length < OLDEST_LENGTH_MIN:  # above all zeros left by a power failure, which look like magic 0
            return row, position, 4
        if data[position + 16] != 2:
            return row, position, 3
        if length < 49:
            return row, position, 4
        next_position = position + 12 + length
        if next_position > end:
            return row, position, 2
        base_offset = read_i64(data, position)
        delta = read_i32(data, position + 23)
        count = read_i32(data, position + 57)
        has_room = count <= length or (data[position + 22] & 7) != 0  # an uncompressed record takes more than a byte
        is_offset = base_offset >= 0 and base_offset <= BATCH_OFFSET_MAX - delta
        if delta < 0 or count < 0 or count > delta + 1 or not has_room or not is_offset:
            return row, position, 6
        if base_offset <= previous_offset:
            return row, position, 7
        if check_crc and crc32c(data, position + 21, next_position) != read_u32(data, position + 17):
            return row, position, 5
        attributes = read_i16(data, position + 21)
        entry = table[row]
        entry.position = position
        entry.size = 12 + length
        entry.base_offset = base_offset
        entry.last_offset = base_offset + delta
        entry.leader_epoch = read_i32(data, position + 12)
        entry.attributes = attributes
        entry.base_timestamp = read_i64(data, position + 27)
        entry.max_timestamp = read_i64(data, position + 35)
        entry.producer_id = read_i64(data, position + 43)
        entry.producer_epoch = read_i16(data, position + 51)
        entry.base_sequence = read_i32(data, position + 53)
        entry.record_count = count
        entry.control_type = -1
        if attributes & 0x27 == 0x20 and count > 0:  # a marker is never compressed
            entry.control_type = _control_type(data, position + 61, next_position)
        previous_offset = base_offset + delta
        position = next_position
        row += 1
    return row, position, 0


def scan(
    data: Bytes,
    start: int,
    end: int,
    place: str,
    *,
    check_crc: bool,
    previous_offset: int = -1,
    rows_per_step: int = ROWS_PER_STEP,
) -> Iterator[Table]:
    """Yields tables of the batches in ``data[start:end]``, in order; each is overwritten by the next, so copy what you
    keep.

    ``previous_offset`` is the last offset before ``start``: offsets must rise.
    """
    if end > len(data):
        raise CorruptLogError(
            f"the file is {len(data)} bytes long, and a moment ago it was longer than {end - 1}",
            place,
            "Nothing was changed. Something else writes to this log: stop it, then try again",
        )
    table = np.zeros(min(rows_per_step, max(1, (end - start) // 61)), dtype=BATCH)
    position = start
    while position < end:
        rows, position, stop = _scan(data, position, end, table, check_crc, previous_offset)
        if rows:
            previous_offset = int(table[rows - 1]["last_offset"])
            yield table[:rows]
        if stop > ScanStop.TABLE_FULL:
            raise scan_error(data, position, ScanStop(stop), place)


def scan_whole(data: Bytes, start: int, end: int, place: str, *, check_crc: bool, previous_offset: int = -1) -> Table:
    """Returns one table of everything in ``data[start:end]``."""
    parts = [
        part.copy() for part in scan(data, start, end, place, check_crc=check_crc, previous_offset=previous_offset)
    ]
    return np.concatenate(parts) if parts else np.zeros(0, dtype=BATCH)


def scan_error(data: Bytes, position: int, stop: ScanStop, place: str) -> Exception:
    """Returns the error for a scan that stopped."""
    where = f"{place} at byte {position}"
    if stop == ScanStop.BAD_MAGIC:
        try:
            check_magic(int(data[position + 16].astype(np.int8)), where)
        except Exception as error:
            return error
    what = {
        ScanStop.CUT_OFF: "the batch is cut off",
        ScanStop.BAD_LENGTH: "the batch's length is impossible",
        ScanStop.BAD_CRC: "the CRC does not match",
        ScanStop.BAD_HEADER: "the batch's offsets or record count are impossible",
        ScanStop.OUT_OF_ORDER: "the batch's offset is not above the one before it",
    }[stop]
    remedy = WHAT_TO_DO_WITH_A_CORRUPT_BATCH
    if stop in (ScanStop.CUT_OFF, ScanStop.BAD_LENGTH):
        remedy = "If this is the newest segment's end, start the broker once: it cuts a torn write off. " + remedy
    return CorruptLogError(what, where, remedy)
