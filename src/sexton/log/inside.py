"""The checks and changes for which a leader unpacks a client's batch. Otherwise batches are appended as they are.

- A compacted topic accepts no record without a key: it could neither be superseded nor supersede another.
- The topic has a compression of its own (`compression.type`) and the batch has another. As in Kafka, a batch that is
  compressed as the topic asks stays as it is, whatever its level. The records' bytes stay the same in any case.
- A timestamp is out of range, and the response names the records at fault (KIP-467).

All of it depends on nothing but the bytes, the topic's `Rules` and the time, so it may be done in any thread.

Declared differences from Kafka, which unpacks every batch on the leader: the header's record count and max timestamp
are trusted; timestamps are checked one by one only if the header's base or max timestamp is out of range; batches that
brokers write themselves (markers, coordinators' state) are not changed; at most FAULTS_MAX records are named.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from crc32c import crc32c

from sexton.errors import CorruptLogError, UnsupportedFormatError
from sexton.log.batches import check_client_batch, check_frame
from sexton.ports.disk import Buffer
from sexton.protocol.errors import ErrorCode, KafkaError, RecordFault, RecordsError
from sexton.records import codecs
from sexton.records.batch import (
    ATTRIBUTES_POSITION,
    CODEC_MASK,
    HEADER,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
)
from sexton.records.varint import read_varint
from sexton.settings.topic import TopicConfig

UNFOLDED_BYTES_MAX: Final = 128 << 20
"""The most bytes that a batch may decompress to on a broker: a hundred times what most topics accept. Kafka sets no
limit."""

FAULTS_MAX: Final = 1_000
"""The most records that one response names. A client that sends more bad ones learns of the rest when it sends them
again."""

_TOO_FAR: Final = "further apart than message.timestamp.before.max.ms or message.timestamp.after.max.ms"
_CRC = struct.Struct(">I")
_CRC_POSITION = 17
_ATTRIBUTES_LOW_BYTE = 22

_CODECS: Final = {
    "uncompressed": codecs.Codec.NONE,
    "gzip": codecs.Codec.GZIP,
    "snappy": codecs.Codec.SNAPPY,
    "lz4": codecs.Codec.LZ4,
    "zstd": codecs.Codec.ZSTD,
}


def is_zstd(records: Buffer) -> bool:
    return len(records) >= HEADER_BYTES and records[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK == codecs.Codec.ZSTD


class Rules(NamedTuple):
    """What a topic requires of its batches."""

    place: str
    batch_bytes_max: int
    needs_keys: bool
    codec: int | None
    """Codec of `compression.type`; None to keep the producer's."""
    level: int | None
    before_max_ms: int
    after_max_ms: int
    stamps_time: bool

    @property
    def look_inside(self) -> bool:
        """Whether some batches with valid headers must be unpacked."""
        return self.needs_keys or self.codec is not None

    @staticmethod
    def of(place: str, config: TopicConfig) -> Rules:
        codec = _CODECS.get(config.compression_type)
        levels = {
            codecs.Codec.GZIP: config.compression_gzip_level,
            codecs.Codec.LZ4: config.compression_lz4_level,
            codecs.Codec.ZSTD: config.compression_zstd_level,
        }
        return Rules(
            place,
            config.max_message_bytes,
            config.compacts,
            codec,
            levels.get(codec) if codec is not None else None,
            config.message_timestamp_before_max_ms,
            config.message_timestamp_after_max_ms,
            config.message_timestamp_type == "LogAppendTime",
        )

    def must_unpack(self, records: Buffer) -> bool:
        """Whether this batch must be unpacked, decided by its header. A batch too short for a header is refused
        elsewhere."""
        if len(records) < HEADER_BYTES:
            return False
        return self.needs_keys or (self.codec is not None and records[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK != self.codec)

    def is_short_walk(self, records: Buffer, count_max: int) -> bool:
        """Whether keys are all there is to check, and the records are uncompressed and at most `count_max`, whatever
        their size."""
        if len(records) < HEADER_BYTES or records[_ATTRIBUTES_LOW_BYTE] & CODEC_MASK or self.codec:
            return False
        return int.from_bytes(records[HEADER_BYTES - 4 : HEADER_BYTES], "big") <= count_max

    def has_bad_time(self, fields: tuple[int, ...], now_ms: int) -> bool:
        """Whether the header's timestamps are out of range, or marked as LogAppendTime, which producers may not set."""
        attributes, base_ts, max_ts = fields[5], fields[7], fields[8]
        if attributes & LOG_APPEND_TIME:
            return True
        if self.stamps_time:
            return False
        too_old = base_ts >= 0 and now_ms - base_ts > self.before_max_ms
        return too_old or max_ts - now_ms > self.after_max_ms


def judged(records: Buffer, rules: Rules, now_ms: int, unfolded_bytes_max: int = UNFOLDED_BYTES_MAX) -> Buffer:
    """The batch as it may be appended. Raises the error to send to the client; and UnsupportedFormatError if it
    decompresses to more than `unfolded_bytes_max`, where the caller allows less than UNFOLDED_BYTES_MAX."""
    view = memoryview(records)
    place = rules.place
    fields = check_frame(view, place, rules.batch_bytes_max)
    check_client_batch(fields, place)
    codec = fields[5] & CODEC_MASK
    is_late = rules.has_bad_time(fields, now_ms)
    is_another = rules.codec is not None and rules.codec != codec
    if not (rules.needs_keys or is_late or is_another):
        return records
    try:
        plain = codecs.decompress(codec, view[HEADER_BYTES:], place, unfolded_bytes_max)
        if is_late or (rules.needs_keys and first_keyless(plain, fields[12]) is not None):
            _check_records(plain, fields, rules, now_ms)
    except UnsupportedFormatError as error:
        if unfolded_bytes_max < UNFOLDED_BYTES_MAX:
            raise
        raise KafkaError(ErrorCode.invalid_record, f"{place}: the records cannot be read ({error})") from error
    except (CorruptLogError, IndexError, ValueError) as error:
        raise KafkaError(ErrorCode.invalid_record, f"{place}: the records cannot be read ({error})") from error
    return _compressed(plain, fields, rules) if is_another else records


def bad_times(fields: tuple[int, ...], rules: Rules, now_ms: int) -> KafkaError:
    """The error as far as the header tells. `judged` names the records at fault, or finds none."""
    if fields[5] & LOG_APPEND_TIME:
        what = "LogAppendTime is not for producers to set"
    else:
        what = f"records of time {fields[7]} to {fields[8]} at time {now_ms}: {_TOO_FAR}"
    return KafkaError(ErrorCode.invalid_timestamp, f"{rules.place}: {what}")


def _compressed(plain: bytes, fields: tuple[int, ...], rules: Rules) -> bytes:
    """The same batch with the topic's codec. Raises if it becomes too large."""
    assert rules.codec is not None
    packed = codecs.compress(rules.codec, plain, rules.level)
    base_offset, _, leader_epoch, magic, _, attributes, *rest = fields
    length = HEADER_BYTES - LOG_OVERHEAD_BYTES + len(packed)
    attributes = attributes & ~CODEC_MASK | rules.codec
    out = bytearray(HEADER.pack(base_offset, length, leader_epoch, magic, 0, attributes, *rest))
    out += packed
    if len(out) > rules.batch_bytes_max:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"{rules.place}: the batch has {len(out)} bytes, compressed as compression.type asks; max.message.bytes is "
            f"{rules.batch_bytes_max}",
        )
    _CRC.pack_into(out, _CRC_POSITION, crc32c(memoryview(out)[ATTRIBUTES_POSITION:]))
    return bytes(out)


def _check_records(plain: bytes, fields: tuple[int, ...], rules: Rules, now_ms: int) -> None:
    """Raises with all records at fault. If one has a bad timestamp, that is the error code, as in Kafka."""
    faults: list[RecordFault] = []
    count, code = 0, ErrorCode.invalid_record
    for index, has_key, timestamp_ms in _walk(plain, fields):
        what = ""
        if rules.needs_keys and not has_key:
            what = "has no key, and the topic is compacted"
        elif what := _bad_time(timestamp_ms, fields[5], rules, now_ms):
            code = ErrorCode.invalid_timestamp
        if what:
            count += 1
            if len(faults) < FAULTS_MAX:
                faults.append(RecordFault(index, f"{rules.place}: record {index} {what}"))
    if faults:
        others = f", and so for {count - 1} more" if count > 1 else ""
        raise RecordsError(code, f"{faults[0].message}{others}", faults)


def _bad_time(timestamp_ms: int, attributes: int, rules: Rules, now_ms: int) -> str:
    if attributes & LOG_APPEND_TIME:
        return "has LogAppendTime, which is not for producers to set"
    if rules.stamps_time or timestamp_ms < 0:
        return ""
    if -rules.after_max_ms <= now_ms - timestamp_ms <= rules.before_max_ms:
        return ""
    return f"has time {timestamp_ms} at time {now_ms}: {_TOO_FAR}"


def _walk(plain: bytes, fields: tuple[int, ...]) -> Iterator[tuple[int, bool, int]]:
    """Each record's index, whether it has a key, and its timestamp. Raises IndexError or ValueError if malformed."""
    at = 0
    for index in range(fields[12]):
        length, at = read_varint(plain, at)
        end = at + length
        if length <= 0 or end > len(plain):
            raise ValueError(f"record {index} is {length} bytes long")
        timestamp_delta, at = read_varint(plain, at + 1)
        _, at = read_varint(plain, at)
        key_bytes, at = read_varint(plain, at)
        if at > end:
            raise ValueError(f"record {index} is too short")
        yield index, key_bytes >= 0, fields[7] + timestamp_delta
        at = end


def first_keyless(body: bytes, record_count: int) -> int | None:
    """The index of the first record without a key. Raises IndexError or ValueError if malformed.

    A loop over records in plain Python, so each step counts: of a varint only the end matters here, and record lengths
    of one and two bytes (below 8192) are decoded inline.
    """
    at = 0
    end = len(body)
    for index in range(record_count):
        length = body[at]
        if length < 0x80:
            at += 1
        elif body[at + 1] < 0x80:
            length = (length & 0x7F) | body[at + 1] << 7
            at += 2
        else:
            signed, at = read_varint(body, at)
            length = signed << 1 if signed >= 0 else 1
        record_end = at + (length >> 1)
        if length & 1 or record_end > end:  # zigzag: odd is negative
            raise ValueError(f"record {index} is {length} bytes long")
        at += 1
        while body[at] >= 0x80:  # timestamp delta
            at += 1
        at += 1
        while body[at] >= 0x80:  # offset delta
            at += 1
        if at + 2 > record_end:
            raise ValueError(f"record {index} is too short")
        if body[at + 1] & 1:  # the key's length is -1
            return index
        at = record_end
    if at != end:
        raise ValueError(f"{end - at} bytes follow the last record")
    return None
