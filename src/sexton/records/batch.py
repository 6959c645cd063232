"""Record batch v2: the one format of records on the network, on disk and in objects.

A batch is a header (`header.py`) and then its records, together compressed or not. A record says where it stands
relative to its batch (offset and timestamp deltas as zigzag varints), which is why a surviving record can be copied
byte for byte as long as its batch keeps base offset and base timestamp.

This module is the plain reference: one Python object per record, easy to check against the specification. The
kernels in ``records/kernels`` do the same over NumPy buffers, and one suite of tests covers both.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum

from sexton.errors import CorruptLogError, UnsupportedFormatError
from sexton.records import codecs, header
from sexton.records.header import (
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    FRONT_BYTES,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    OLDEST_LENGTH_MIN,
    TRANSACTIONAL,
    Head,
)
from sexton.records.varint import read_varint, write_varint
from sexton.types import NO_PRODUCER_ID, NO_SEQUENCE, NO_TIMESTAMP, LeaderEpoch, ProducerEpoch, ProducerId

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
    head = Head(
        position=0,
        size_bytes=HEADER_BYTES + len(payload),
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        leader_epoch=LeaderEpoch(batch.leader_epoch),
        magic=MAGIC,
        crc=0,
        attributes=attributes,
        base_timestamp_ms=batch.base_timestamp_ms,
        max_timestamp_ms=batch.max_timestamp_ms,
        producer_id=ProducerId(batch.producer_id),
        producer_epoch=ProducerEpoch(batch.producer_epoch),
        base_sequence=batch.base_sequence,
        record_count=len(batch.records),
    )
    return header.encode(head, payload)


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
    if position + FRONT_BYTES > len(data):
        raise _truncated(where)
    size_bytes = header.size_at(data, position)
    length = size_bytes - LOG_OVERHEAD_BYTES
    if length >= OLDEST_LENGTH_MIN:  # shorter is no format, above all the zeros that a power failure leaves
        check_magic(header.magic_at(data, position), where)
    if size_bytes < HEADER_BYTES:
        raise CorruptLogError(f"the batch says it is {length} bytes long", where, WHAT_TO_DO_WITH_A_CORRUPT_BATCH)
    if position + size_bytes > len(data):
        raise _truncated(where)
    head = header.unpack(data, position)
    if fault := header.why_impossible(head):
        raise CorruptLogError(fault, where, WHAT_TO_DO_WITH_A_CORRUPT_BATCH)
    return Batch(
        base_offset=head.base_offset,
        last_offset=head.last_offset,
        attributes=head.attributes,
        base_timestamp_ms=head.base_timestamp_ms,
        max_timestamp_ms=head.max_timestamp_ms,
        producer_id=head.producer_id,
        producer_epoch=head.producer_epoch,
        base_sequence=head.base_sequence,
        leader_epoch=head.leader_epoch,
        record_count=head.record_count,
        size_bytes=size_bytes,
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
    batch = decode_header(data, position, place)
    where = f"{place} at byte {position}"
    view = memoryview(data)[position : position + batch.size_bytes]
    if check_crc and not header.has_valid_crc(view, header.unpack(view)):
        raise CorruptLogError("the CRC does not match", where, WHAT_TO_DO_WITH_A_CORRUPT_BATCH)
    body = codecs.decompress(batch.codec, view[HEADER_BYTES:], where)
    records = tuple(read_records(body, batch, where))
    return replace(batch, records=records)


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
    for one in record.headers:
        name = one.name.encode(errors="surrogateescape")
        write_varint(body, len(name))
        body += name
        write_varint(body, -1 if one.value is None else len(one.value))
        body += one.value or b""
    write_varint(out, len(body))
    out += body


def read_records(body: bytes | memoryview, batch: Batch, where: str) -> Iterator[Record]:
    """Yields the records in the uncompressed body of a batch. Raises CorruptLogError."""
    position = 0
    previous_offset = batch.base_offset - 1
    for index in range(batch.record_count):
        try:
            record, position = _read_record(body, position, batch)
        except (IndexError, ValueError) as error:
            raise CorruptLogError(
                f"record {index} of the batch cannot be parsed ({error})",
                where,
                WHAT_TO_DO_WITH_A_CORRUPT_BATCH,
            ) from error
        if not previous_offset < record.offset <= batch.last_offset:
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


def _read_record(body: bytes | memoryview, position: int, batch: Batch) -> tuple[Record, int]:
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
    timestamp_ms = batch.max_timestamp_ms if batch.is_log_append_time else batch.base_timestamp_ms + timestamp_delta
    return Record(batch.base_offset + offset_delta, timestamp_ms, key, value, tuple(headers)), end


def _read_bytes(body: bytes | memoryview, position: int, end: int) -> tuple[bytes | None, int]:
    length, position = read_varint(body, position)
    if length < -1 or (length > 0 and position + length > end):
        raise ValueError(f"length {length}")
    if length == -1:
        return None, position
    return bytes(body[position : position + length]), position + length
