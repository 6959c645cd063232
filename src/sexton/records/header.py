"""A batch's header: the 61 bytes that say all that a log needs to know about a batch.

    baseOffset i64 | batchLength i32 | partitionLeaderEpoch i32 | magic i8 | crc u32 | attributes i16 |
    lastOffsetDelta i32 | baseTimestamp i64 | maxTimestamp i64 | producerId i64 | producerEpoch i16 |
    baseSequence i32 | recordCount i32

The CRC-32C covers everything from the attributes on, so a leader may set base offset and leader epoch without touching
it. When the delete-horizon attribute is set, baseTimestamp *is* the horizon (KIP-534).

Where a field lies is known here and in the kernels (`records/kernels/scan.py`), nowhere else. A `Head` costs a third of
a microsecond more than the bare tuple, so code that looks at each batch of each request, and at one field only, has a
function here that reads that one.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from crc32c import crc32c

from sexton.types import LeaderEpoch, ProducerEpoch, ProducerId

Buffer = bytes | bytearray | memoryview

_HEADER: Final = struct.Struct(">qiibIhiqqqhii")
_FRONT: Final = struct.Struct(">qii")
"""Base offset, length, leader epoch: all that a leader changes of a batch that keeps its timestamps."""
_TIMED_FRONT: Final = struct.Struct(">qiibIhiqq")
"""The header up to and including the max timestamp."""
_BASE_OFFSET: Final = struct.Struct(">q")
_LENGTH: Final = struct.Struct(">i")
_MAGIC: Final = struct.Struct(">b")
_COUNT: Final = struct.Struct(">i")
_CRC: Final = struct.Struct(">I")

HEADER_BYTES: Final = _HEADER.size  # 61
LOG_OVERHEAD_BYTES: Final = 12
"""Base offset and length, which batchLength does not count."""
LENGTH_MIN: Final = HEADER_BYTES - LOG_OVERHEAD_BYTES
"""The smallest batchLength: that of a batch without records."""
OLDEST_LENGTH_MIN: Final = 14
"""The smallest length of a message in format v0: CRC, magic, attributes, and two lengths."""
FRONT_BYTES: Final = 17
"""Up to and including the magic byte: what all formats have in common."""

_LENGTH_POSITION: Final = 8
MAGIC_POSITION: Final = 16
_CRC_POSITION: Final = 17
ATTRIBUTES_POSITION: Final = 21
"""Where the CRC's cover begins."""
_COUNT_POSITION: Final = 57

MAGIC: Final = 2

CODEC_MASK: Final = 0x07
LOG_APPEND_TIME: Final = 0x08
TRANSACTIONAL: Final = 0x10
CONTROL: Final = 0x20
DELETE_HORIZON: Final = 0x40

BATCH_OFFSET_MAX: Final = 2**61 - 1
"""Two bits less than Kafka's: the index entries of compaction (`kernels/keys.py`) keep two flags below the offset. No
log gets near either limit."""


class Head(NamedTuple):
    """A batch header with its position in the file."""

    position: int
    size_bytes: int
    base_offset: int
    last_offset: int
    leader_epoch: LeaderEpoch
    magic: int
    crc: int
    attributes: int
    base_timestamp_ms: int
    max_timestamp_ms: int
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    base_sequence: int
    record_count: int


_unpack: Final = _HEADER.unpack_from
_pack_front: Final = _FRONT.pack
_new: Final = tuple.__new__  # without the argument parsing of Head(), which takes as long again as all the rest


def unpack(data: Buffer, at: int = 0, position: int = 0) -> Head:
    """The header at `at`, which lies at `position` of its file, whatever it says. There must be HEADER_BYTES."""
    base_offset, length, leader_epoch, magic, crc, attributes, delta, base_ts, max_ts, pid, epoch, sequence, count = (
        _unpack(data, at)
    )
    return _new(
        Head,
        (
            position,
            LOG_OVERHEAD_BYTES + length,
            base_offset,
            base_offset + delta,
            leader_epoch,
            magic,
            crc,
            attributes,
            base_ts,
            max_ts,
            pid,
            epoch,
            sequence,
            count,
        ),
    )


def head_at(data: Buffer, at: int, position: int) -> Head | str:
    """The header at `at`, which lies at `position` of its file; or a text that says what is wrong with it."""
    if at + HEADER_BYTES > len(data):
        return "the batch is cut off"
    head = unpack(data, at, position)
    if head.size_bytes < HEADER_BYTES:
        return f"the batch says it is {head.size_bytes - LOG_OVERHEAD_BYTES} bytes long"
    magic = head.magic
    if magic != MAGIC:
        return (
            f"message format v{magic} is not supported" if magic in (0, 1) else f"magic byte {magic} is no known format"
        )
    return why_impossible(head) or head


def why_impossible(head: Head) -> str:
    """What is wrong with the offsets and the record count; "" if nothing is."""
    base_offset, last_offset, count = head.base_offset, head.last_offset, head.record_count
    if 0 <= base_offset <= last_offset <= BATCH_OFFSET_MAX and 0 <= count <= last_offset - base_offset + 1:
        return ""
    delta = last_offset - base_offset
    return f"base offset {base_offset}, last offset delta {delta} and record count {count} cannot be right"


def has_valid_crc(batch: Buffer, head: Head) -> bool:
    return bool(crc32c(batch[ATTRIBUTES_POSITION:]) == head.crc)


# ---- single fields ----

span_at: Final = struct.Struct(">qi11xi").unpack_from
"""Base offset, length and last offset delta of the batch at a place, whatever they say. There must be HEADER_BYTES."""


def size_at(data: Buffer, at: int = 0) -> int:
    """Size of the batch at `at`, in any format. There must be LOG_OVERHEAD_BYTES."""
    return LOG_OVERHEAD_BYTES + int(_LENGTH.unpack_from(data, at + _LENGTH_POSITION)[0])


def base_offset_at(data: Buffer, at: int = 0) -> int:
    return int(_BASE_OFFSET.unpack_from(data, at)[0])


def magic_at(data: Buffer, at: int = 0) -> int:
    return int(_MAGIC.unpack_from(data, at + MAGIC_POSITION)[0])


def attribute_bits(batch: Buffer) -> int:
    """The attributes in use, all of which are in the low byte."""
    return batch[ATTRIBUTES_POSITION + 1]


def record_count(batch: Buffer) -> int:
    return int(_COUNT.unpack_from(batch, _COUNT_POSITION)[0])


# ---- changed headers ----


def with_offset(batch: memoryview, head: Head, base_offset: int, leader_epoch: LeaderEpoch) -> tuple[Buffer, Buffer]:
    """The batch, in two parts, as a leader appends it."""
    return _pack_front(base_offset, head.size_bytes - LOG_OVERHEAD_BYTES, leader_epoch), batch[MAGIC_POSITION:]


def with_offset_and_time(
    batch: memoryview, head: Head, base_offset: int, leader_epoch: LeaderEpoch, log_append_time_ms: int
) -> tuple[Buffer, Buffer]:
    """The same for a topic with LogAppendTime: the CRC is computed again."""
    front = bytearray(
        _TIMED_FRONT.pack(
            base_offset,
            head.size_bytes - LOG_OVERHEAD_BYTES,
            leader_epoch,
            head.magic,
            0,
            head.attributes | LOG_APPEND_TIME,
            head.last_offset - head.base_offset,
            head.base_timestamp_ms,
            log_append_time_ms,
        )
    )
    rest = batch[_TIMED_FRONT.size :]
    _CRC.pack_into(front, _CRC_POSITION, crc32c(rest, crc32c(front[ATTRIBUTES_POSITION:])))
    return front, rest


def encode(head: Head, body: Buffer) -> bytes:
    """A batch with this header and these records, as they are. Length and CRC are computed."""
    out = bytearray(
        _HEADER.pack(
            head.base_offset,
            LENGTH_MIN + len(body),
            head.leader_epoch,
            head.magic,
            0,
            head.attributes,
            head.last_offset - head.base_offset,
            head.base_timestamp_ms,
            head.max_timestamp_ms,
            head.producer_id,
            head.producer_epoch,
            head.base_sequence,
            head.record_count,
        )
    )
    out += body
    _CRC.pack_into(out, _CRC_POSITION, crc32c(memoryview(out)[ATTRIBUTES_POSITION:]))
    return bytes(out)
