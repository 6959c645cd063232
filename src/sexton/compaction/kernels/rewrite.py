"""Copies the records that survive.

A batch keeps its base offset, and its base timestamp unless a delete horizon replaces it, so a surviving record is
copied byte for byte; only when the base timestamp changes is the record's timestamp delta written again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sexton.compaction.rules import Action
from sexton.jit import kernel
from sexton.records.kernels.keys import DEAD, FLAG_BITS, TOMBSTONE
from sexton.records.kernels.primitives import (
    Bytes,
    copy_bytes,
    crc32c,
    read_varint,
    write_big_endian,
    write_varint,
)
from sexton.records.kernels.scan import Table

Longs = npt.NDArray[np.int64]

OUTCOME = np.dtype(
    [
        ("action", np.int16),
        ("attributes", np.int16),
        ("drops_tombstones", np.int16),
        ("padding", np.int16),
        ("kept_count", np.int32),
        ("base_timestamp", np.int64),
        ("list_start", np.int64),
        ("list_end", np.int64),
    ]
)
"""The decision about a batch: see ``rules.Action``; ``attributes`` and ``base_timestamp`` are the new ones.
``codes[list_start:list_end]`` are the listed records within it."""

HEADER_BYTES = 61
INT64_MIN = -(2**63)
MAX_VARINT_GROWTH_BYTES = 16
"""How much longer a record can get when its timestamp delta (and so its length) is written again."""


@kernel
def _keeps(code: int, found: bool, lists_survivors: bool, drops_tombstones: bool) -> bool:
    """Whether a record stays. Lists contain a chunk's survivors, or, in a clean chunk, the dead records and the
    tombstones."""
    if not found:
        return not lists_survivors
    if code & DEAD:
        return False
    return not (drops_tombstones and code & TOMBSTONE)


@kernel
def copy_kept_records(
    data: Bytes,
    start: int,
    end: int,
    batch: Table,
    outcome: Table,
    codes: Longs,
    lists_survivors: bool,
    out: Bytes,
    position: int,
) -> tuple[int, int, int]:
    """Writes the kept records of one batch; returns the position after them, their newest timestamp and their count.

    The position is -1 if the batch cannot be parsed.
    """
    base_offset = batch.base_offset
    if batch.attributes & 0x20:  # markers are never listed; one that is rewritten stays
        lists_survivors = False
    shift = batch.base_timestamp - outcome.base_timestamp
    listed = outcome.list_start
    newest_ms = np.int64(INT64_MIN)
    kept_count = 0
    cursor = start
    pending_start = -1  # adjacent kept records are copied at once
    for _ in range(batch.record_count):
        record_start = cursor
        length, body = read_varint(data, cursor, end)
        if body < 0 or length < 5 or length > end - body:  # compared without a sum, which may overflow
            return -1, 0, 0
        record_end = body + length
        timestamp_delta, after_timestamp = read_varint(data, body + 1, record_end)
        if after_timestamp < 0:
            return -1, 0, 0
        offset_delta, _ = read_varint(data, after_timestamp, record_end)
        offset = base_offset + offset_delta
        while listed < outcome.list_end and (codes[listed] >> FLAG_BITS) < offset:
            listed += 1
        found = listed < outcome.list_end and (codes[listed] >> FLAG_BITS) == offset
        code = codes[listed] if found else np.int64(0)
        if _keeps(code, found, lists_survivors, outcome.drops_tombstones != 0):
            kept_count += 1
            newest_ms = max(newest_ms, batch.base_timestamp + timestamp_delta)
            if shift != 0:
                position = _copy_shifted(
                    data, body, after_timestamp, record_end, timestamp_delta + shift, out, position
                )
            elif pending_start < 0:
                pending_start = record_start
        elif pending_start >= 0:
            copy_bytes(data, pending_start, out, position, record_start - pending_start)
            position += record_start - pending_start
            pending_start = -1
        cursor = record_end
    if pending_start >= 0:
        copy_bytes(data, pending_start, out, position, cursor - pending_start)
        position += cursor - pending_start
    return position, newest_ms if kept_count else np.int64(-1), kept_count


@kernel
def _copy_shifted(
    data: Bytes,
    body: int,
    after_timestamp: int,
    record_end: int,
    timestamp_delta: int,
    out: Bytes,
    position: int,
) -> int:
    """Writes one record with another timestamp delta, and therefore perhaps another length."""
    size_of_delta = write_varint(out, position, timestamp_delta) - position  # written to measure it, overwritten next
    rest = record_end - after_timestamp
    position = write_varint(out, position, 1 + size_of_delta + rest)
    out[position] = data[body]  # attributes
    position = write_varint(out, position + 1, timestamp_delta)
    copy_bytes(data, after_timestamp, out, position, rest)
    return position + rest


@kernel
def write_header(out: Bytes, position: int, end: int, batch: Table, outcome: Table, max_timestamp: int) -> None:
    """Writes the header of a batch whose records lie in ``out[position + 61:end]``, with its CRC."""
    write_big_endian(out, position, batch.base_offset, 8)
    write_big_endian(out, position + 8, end - position - 12, 4)
    write_big_endian(out, position + 12, batch.leader_epoch, 4)
    out[position + 16] = 2
    write_big_endian(out, position + 21, outcome.attributes, 2)
    write_big_endian(out, position + 23, batch.last_offset - batch.base_offset, 4)
    write_big_endian(out, position + 27, outcome.base_timestamp, 8)
    write_big_endian(out, position + 35, max_timestamp, 8)
    write_big_endian(out, position + 43, batch.producer_id, 8)
    write_big_endian(out, position + 51, batch.producer_epoch, 2)
    write_big_endian(out, position + 53, batch.base_sequence, 4)
    write_big_endian(out, position + 57, outcome.kept_count, 4)
    write_big_endian(out, position + 17, crc32c(out, position + 21, end), 4)


@kernel
def write_batches(
    data: Bytes,
    table: Table,
    outcomes: Table,
    first: int,
    codes: Longs,
    lists_survivors: bool,
    out: Bytes,
    position: int,
) -> tuple[int, int, int]:
    """Writes batches from ``first`` on whose records need no codec, until one cannot be written or ``out`` is full.

    Returns the next batch, the position in ``out``, and a status: 0, or 1 if the next batch does not fit, 2 if it needs
    a codec, 3 if it cannot be parsed. Dropped batches are skipped.
    """
    for index in range(first, len(table)):
        batch = table[index]
        outcome = outcomes[index]
        action = outcome.action
        if action == Action.DROP:
            continue
        start = batch.position
        end = start + batch.size
        growth = MAX_VARINT_GROWTH_BYTES * batch.record_count if action == Action.REWRITE else 0
        if position + batch.size + growth > len(out):
            return index, position, 1
        if action == Action.COPY:
            copy_bytes(data, start, out, position, batch.size)
            position += batch.size
        elif action == Action.PATCH:
            copy_bytes(data, start, out, position, batch.size)
            write_header(out, position, position + batch.size, batch, outcome, batch.max_timestamp)
            position += batch.size
        elif action == Action.EMPTY:
            write_header(out, position, position + HEADER_BYTES, batch, outcome, batch.max_timestamp)
            position += HEADER_BYTES
        elif batch.attributes & 7:
            return index, position, 2
        else:
            next_position, newest_ms, kept = copy_kept_records(
                data,
                start + HEADER_BYTES,
                end,
                batch,
                outcome,
                codes,
                lists_survivors,
                out,
                position + HEADER_BYTES,
            )
            if next_position < 0 or kept != outcome.kept_count:
                return index, position, 3
            max_timestamp = batch.max_timestamp if batch.attributes & 8 else newest_ms
            write_header(out, position, next_position, batch, outcome, max_timestamp)
            position = next_position
    return len(table), position, 0
