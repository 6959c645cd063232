"""Record batch v2: the one format of records on the network, on disk and in objects.

A batch is a 61-byte header and then its records, together compressed or not:

    baseOffset i64 | batchLength i32 | partitionLeaderEpoch i32 | magic i8 | crc u32 | attributes i16 |
    lastOffsetDelta i32 | baseTimestamp i64 | maxTimestamp i64 | producerId i64 | producerEpoch i16 |
    baseSequence i32 | recordCount i32

The CRC-32C covers everything from the attributes on, so a leader may stamp offset and epoch without touching
it. A record says where it stands relative to its batch (offset and timestamp deltas as zigzag varints), which is
why a surviving record can be copied byte for byte as long as its batch keeps base offset and base timestamp.

When the delete-horizon attribute is set, baseTimestamp *is* the horizon (KIP-534).

This module is the plain reference: one Python object per record, easy to check against the specification. The
kernels in ``records/kernels`` do the same over NumPy buffers, and one suite of tests covers both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

import crc32c

from sexton.errors import CorruptLogError, UnsupportedFormatError
from sexton.records import codecs
from sexton.records.varint import read_varint, write_varint
from sexton.types import NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP

HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size  # 61
LOG_OVERHEAD_BYTES = 12  # base offset and length, which batchLength does not count
ATTRIBUTES_POSITION = 21  # where the CRC's cover begins
MAGIC = 2
OLDEST_LENGTH_MIN = 14  # of a message in format v0: CRC, magic, attributes, and two lengths

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

BATCH_OFFSET_MAX = 2**61 - 1
"""Two bits less than Kafka's: the index entries of compaction (`kernels/keys.py`) keep two flags below the offset. No
log gets near either limit."""


WHAT_TO_DO_WITH_A_CORRUPT_BATCH = (
    "Nothing was changed. Restore this partition from another replica (stop the broker, move the directory "
    "away and let Kafka copy it again), or look at the bytes around it with `sexton log dump`"
)


class ControlType(IntEnum):
    """The type of a control batch. Only ABORT and COMMIT occur in a topic's partition."""

    UNKNOWN = -1
    ABORT = 0
    COMMIT = 1


@dataclass(frozen=True, slots=True)
class Header:
    name: str
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Record:
    """One record with its absolute offset and timestamp."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()

    @property
    def is_tombstone(self) -> bool:
        return self.value is None


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch's header fields; ``records`` only if they were decoded."""

    base_offset: int
    last_offset: int
    attributes: int = 0
    base_timestamp_ms: int = NO_TIMESTAMP
    max_timestamp_ms: int = NO_TIMESTAMP
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    base_sequence: int = NO_SEQUENCE
    leader_epoch: int = -1
    record_count: int = 0
    size_bytes: int = 0
    records: tuple[Record, ...] = field(default=(), repr=False)

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def next_offset(self) -> int:
        return self.last_offset + 1

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)

    @property
    def is_log_append_time(self) -> bool:
        return bool(self.attributes & LOG_APPEND_TIME)

    @property
    def delete_horizon_ms(self) -> int | None:
        return self.base_timestamp_ms if self.attributes & DELETE_HORIZON else None

    @property
    def control_type(self) -> ControlType:
        """COMMIT or ABORT, read from the marker's key; UNKNOWN for an empty control batch."""
        if not self.is_control or not self.records or self.records[0].key is None:
            return ControlType.UNKNOWN
        return control_type_of_key(self.records[0].key)


def control_type_of_key(key: bytes) -> ControlType:
    if len(key) < 4:
        return ControlType.UNKNOWN
    type_id = struct.unpack_from(">h", key, 2)[0]
    return ControlType(type_id) if type_id in (0, 1) else ControlType.UNKNOWN


def marker_key(control_type: ControlType) -> bytes:
    return struct.pack(">hh", 0, int(control_type))


def marker_value(coordinator_epoch: int) -> bytes:
    return struct.pack(">hi", 0, coordinator_epoch)


def encode(batch: Batch) -> bytes:
    """Encodes the batch, with CRC. Record deltas are computed from the header's base offset and timestamp."""
    body = bytearray()
    for record in batch.records:
        _write_record(body, batch, record)
    payload = codecs.compress(batch.codec, bytes(body)) if batch.records else b""
    # An empty batch has nothing to compress, so it has no codec.
    attributes = batch.attributes if batch.records else batch.attributes & ~CODEC_MASK
    after_crc = struct.pack(
        ">hiqqqhii",
        attributes,
        batch.last_offset - batch.base_offset,
        batch.base_timestamp_ms,
        batch.max_timestamp_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records),
    )
    crc = crc32c.crc32c(payload, crc32c.crc32c(after_crc))
    length = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(payload)
    front = struct.pack(">qiibI", batch.base_offset, length, batch.leader_epoch, MAGIC, crc)
    return front + after_crc + payload


def make_batch(records: Sequence[Record], **fields: int) -> Batch:
    """Makes a batch of records as a producer would; `fields` override the fields computed from them."""
    first, last = records[0], records[-1]
    defaults = {
        "base_offset": first.offset,
        "last_offset": last.offset,
        "base_timestamp_ms": first.timestamp_ms,
        "max_timestamp_ms": max(record.timestamp_ms for record in records),
        "leader_epoch": 0,
        "record_count": len(records),
    }
    return Batch(**{**defaults, **fields}, records=tuple(records))


def make_marker(
    offset: int,
    control_type: ControlType,
    producer_id: int,
    producer_epoch: int,
    timestamp_ms: int,
    **fields: int,
) -> Batch:
    """Makes a COMMIT or ABORT marker as a transaction coordinator writes it."""
    record = Record(offset, timestamp_ms, marker_key(control_type), marker_value(0))
    return make_batch(
        [record],
        attributes=TRANSACTIONAL | CONTROL,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        **fields,
    )


def decode_header(data: bytes | memoryview, position: int, place: str = "") -> Batch:
    """Decodes the header alone. Raises if there cannot be a whole v2 batch at ``position``."""
    where = f"{place} at byte {position}"
    if position + LOG_OVERHEAD_BYTES + 5 > len(data):
        raise _truncated(where)
    base_offset, length = struct.unpack_from(">qi", data, position)
    magic = struct.unpack_from(">b", data, position + 16)[0]
    if length >= OLDEST_LENGTH_MIN:  # shorter is no format, above all the zeros that a power failure leaves
        check_magic(magic, where)
    if length < HEADER_BYTES - LOG_OVERHEAD_BYTES:
        raise CorruptLogError(f"the batch says it is {length} bytes long", where, WHAT_TO_DO_WITH_A_CORRUPT_BATCH)
    if position + LOG_OVERHEAD_BYTES + length > len(data):
        raise _truncated(where)
    _, _, leader_epoch, _, _, attributes, delta, base_ts, max_ts, pid, epoch, sequence, count = HEADER.unpack_from(
        data, position
    )
    if delta < 0 or count < 0 or count > delta + 1 or not 0 <= base_offset <= BATCH_OFFSET_MAX - delta:
        raise CorruptLogError(
            f"base offset {base_offset}, last offset delta {delta} and record count {count} cannot be right",
            where,
            WHAT_TO_DO_WITH_A_CORRUPT_BATCH,
        )
    return Batch(
        base_offset=base_offset,
        last_offset=base_offset + delta,
        attributes=attributes,
        base_timestamp_ms=base_ts,
        max_timestamp_ms=max_ts,
        producer_id=pid,
        producer_epoch=epoch,
        base_sequence=sequence,
        leader_epoch=leader_epoch,
        record_count=count,
        size_bytes=LOG_OVERHEAD_BYTES + length,
    )


def check_magic(magic: int, where: str) -> None:
    if magic == MAGIC:
        return
    if magic in (0, 1):
        raise UnsupportedFormatError(
            f"message format v{magic} (before Kafka 0.11) is not supported",
            where,
            "Let a Kafka 3.x broker rewrite the topic (message.format.version 3.0 and a copy through a consumer "
            "and a producer), then try again",
        )
    raise CorruptLogError(f"magic byte {magic} is no known format", where, WHAT_TO_DO_WITH_A_CORRUPT_BATCH)


def decode(data: bytes | memoryview, position: int = 0, place: str = "", check_crc: bool = True) -> Batch:
    """Decodes one whole batch with its records."""
    header = decode_header(data, position, place)
    where = f"{place} at byte {position}"
    view = memoryview(data)[position : position + header.size_bytes]
    if check_crc:
        stored = struct.unpack_from(">I", view, 17)[0]
        if crc32c.crc32c(view[ATTRIBUTES_POSITION:]) != stored:
            raise CorruptLogError("the CRC does not match", where, WHAT_TO_DO_WITH_A_CORRUPT_BATCH)
    body = codecs.decompress(header.codec, view[HEADER_BYTES:], where)
    records = tuple(_read_records(body, header, where))
    return replace(header, records=records)


def decode_all(data: bytes | memoryview, place: str = "") -> Iterator[Batch]:
    """Yields every batch of a segment's bytes, in order."""
    position = 0
    while position < len(data):
        batch = decode(data, position, place)
        yield batch
        position += batch.size_bytes


def _truncated(where: str) -> CorruptLogError:
    return CorruptLogError(
        "the batch is cut off",
        where,
        "If this is the end of the newest segment, start the broker once: it truncates a torn write. "
        + WHAT_TO_DO_WITH_A_CORRUPT_BATCH,
    )


def _write_record(out: bytearray, batch: Batch, record: Record) -> None:
    body = bytearray(b"\x00")  # record attributes: none are defined
    write_varint(body, record.timestamp_ms - batch.base_timestamp_ms)
    write_varint(body, record.offset - batch.base_offset)
    for part in (record.key, record.value):
        write_varint(body, -1 if part is None else len(part))
        body += part or b""
    write_varint(body, len(record.headers))
    for header in record.headers:
        name = header.name.encode(errors="surrogateescape")
        write_varint(body, len(name))
        body += name
        write_varint(body, -1 if header.value is None else len(header.value))
        body += header.value or b""
    write_varint(out, len(body))
    out += body


def _read_records(body: bytes | memoryview, header: Batch, where: str) -> Iterator[Record]:
    position = 0
    previous_offset = header.base_offset - 1
    for index in range(header.record_count):
        try:
            record, position = _read_record(body, position, header)
        except (IndexError, ValueError) as error:
            raise CorruptLogError(
                f"record {index} of the batch cannot be parsed ({error})",
                where,
                WHAT_TO_DO_WITH_A_CORRUPT_BATCH,
            ) from error
        if not previous_offset < record.offset <= header.last_offset:
            raise CorruptLogError(
                f"record {index} has offset {record.offset}, outside its batch or out of order",
                where,
                WHAT_TO_DO_WITH_A_CORRUPT_BATCH,
            )
        previous_offset = record.offset
        yield record
    if position != len(body):
        raise CorruptLogError(
            f"{len(body) - position} bytes follow the last record", where, WHAT_TO_DO_WITH_A_CORRUPT_BATCH
        )


def _read_record(body: bytes | memoryview, position: int, header: Batch) -> tuple[Record, int]:
    length, position = read_varint(body, position)
    end = position + length
    if length < 0 or end > len(body):
        raise ValueError(f"length {length}")
    position += 1  # attributes
    timestamp_delta, position = read_varint(body, position)
    offset_delta, position = read_varint(body, position)
    key, position = _read_bytes(body, position, end)
    value, position = _read_bytes(body, position, end)
    header_count, position = read_varint(body, position)
    if header_count < 0 or header_count > end - position:
        raise ValueError(f"header count {header_count}")
    headers = []
    for _ in range(header_count):
        name, position = _read_bytes(body, position, end)
        if name is None:
            raise ValueError("a header without a name")
        value_of_header, position = _read_bytes(body, position, end)
        headers.append(Header(name.decode(errors="surrogateescape"), value_of_header))  # any bytes get past a broker
    if position != end:
        raise ValueError(f"the record ends at {position}, not at {end}")
    timestamp_ms = header.max_timestamp_ms if header.is_log_append_time else header.base_timestamp_ms + timestamp_delta
    return Record(header.base_offset + offset_delta, timestamp_ms, key, value, tuple(headers)), end


def _read_bytes(body: bytes | memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(body, position)
    if length < -1 or (length > 0 and position + length > end):
        raise ValueError(f"length {length}")
    if length == -1:
        return None, position
    return bytes(body[position : position + length]), position + length
