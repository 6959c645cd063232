"""A batch's header: the 61 bytes that say all that a log needs to know about a batch (`batch.py` has the layout)."""

from __future__ import annotations

from typing import Final, NamedTuple

from crc32c import crc32c

from sexton.records.batch import ATTRIBUTES_POSITION, BATCH_OFFSET_MAX, HEADER, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC

Buffer = bytes | bytearray | memoryview

LENGTH_MIN: Final = HEADER_BYTES - LOG_OVERHEAD_BYTES
"""The smallest batchLength: that of a batch without records."""


class Head(NamedTuple):
    """A batch header with its position in the file."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    leader_epoch: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int


def head_at(data: Buffer, at: int, position: int) -> Head | str:
    """The header at `at`, which lies at `position` of its file; or a text that says what is wrong with it."""
    if at + HEADER_BYTES > len(data):
        return "the batch is cut off"
    base_offset, length, leader_epoch, magic, _, attributes, delta, base_ts, max_ts, pid, epoch, sequence, count = (
        HEADER.unpack_from(data, at)
    )
    if length < LENGTH_MIN:
        return f"the batch says it is {length} bytes long"
    if magic != MAGIC:
        return (
            f"message format v{magic} is not supported" if magic in (0, 1) else f"magic byte {magic} is no known format"
        )
    if delta < 0 or not 0 <= count <= delta + 1 or not 0 <= base_offset <= BATCH_OFFSET_MAX - delta:
        return f"base offset {base_offset}, last offset delta {delta} and record count {count} cannot be right"
    return Head(
        position,
        LOG_OVERHEAD_BYTES + length,
        base_offset,
        base_offset + delta,
        leader_epoch,
        attributes,
        base_ts,
        max_ts,
        pid,
        epoch,
        sequence,
        count,
    )


def has_valid_crc(batch: Buffer) -> bool:
    stored = int.from_bytes(batch[17:21], "big")
    return bool(crc32c(batch[ATTRIBUTES_POSITION:]) == stored)
