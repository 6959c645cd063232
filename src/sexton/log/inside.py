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

from collections.abc import Iterator
from typing import Final

from sexton.errors import CorruptLogError, UnsupportedFormatError
from sexton.log.checks import TOO_FAR, Rules, check_client_batch, check_frame
from sexton.ports.disk import Buffer
from sexton.protocol.errors import ErrorCode, KafkaError, RecordFault, RecordsError
from sexton.records import codecs, header
from sexton.records.header import CODEC_MASK, HEADER_BYTES, LOG_APPEND_TIME, Head, attribute_bits
from sexton.records.varint import read_varint

UNFOLDED_BYTES_MAX: Final = 128 << 20
"""The most bytes that a batch may decompress to on a broker: a hundred times what most topics accept. Kafka sets no
limit."""

FAULTS_MAX: Final = 1_000
"""The most records that one response names. A client that sends more bad ones learns of the rest when it sends them
again."""


def is_zstd(records: Buffer) -> bool:
    return len(records) >= HEADER_BYTES and attribute_bits(records) & CODEC_MASK == codecs.Codec.ZSTD


def validated(records: Buffer, rules: Rules, now_ms: int, unfolded_bytes_max: int = UNFOLDED_BYTES_MAX) -> Buffer:
    """The batch as it may be appended. Raises the error to send to the client; and UnsupportedFormatError if it
    decompresses to more than `unfolded_bytes_max`, where the caller allows less than UNFOLDED_BYTES_MAX."""
    view = memoryview(records)
    place = rules.place
    head = check_frame(view, place, rules.batch_bytes_max)
    check_client_batch(head, place)
    codec = head.attributes & CODEC_MASK
    is_late = rules.has_bad_time(head, now_ms)
    is_another = rules.codec is not None and rules.codec != codec
    if not (rules.needs_keys or is_late or is_another):
        return records
    try:
        plain = codecs.decompress(codec, view[HEADER_BYTES:], place, unfolded_bytes_max)
        if is_late or (rules.needs_keys and first_keyless(plain, head.record_count) is not None):
            _check_records(plain, head, rules, now_ms)
    except UnsupportedFormatError as error:
        if unfolded_bytes_max < UNFOLDED_BYTES_MAX:
            raise
        raise KafkaError(ErrorCode.invalid_record, f"{place}: the records cannot be read ({error})") from error
    except (CorruptLogError, IndexError, ValueError) as error:
        raise KafkaError(ErrorCode.invalid_record, f"{place}: the records cannot be read ({error})") from error
    return _compressed(plain, head, rules) if is_another else records


def _compressed(plain: bytes, head: Head, rules: Rules) -> bytes:
    """The same batch with the topic's codec. Raises if it becomes too large."""
    assert rules.codec is not None
    packed = codecs.compress(rules.codec, plain, rules.level)
    if HEADER_BYTES + len(packed) > rules.batch_bytes_max:
        raise KafkaError(
            ErrorCode.message_too_large,
            f"{rules.place}: the batch has {HEADER_BYTES + len(packed)} bytes, compressed as compression.type asks; "
            f"max.message.bytes is {rules.batch_bytes_max}",
        )
    return header.encode(head._replace(attributes=head.attributes & ~CODEC_MASK | rules.codec), packed)


def _check_records(plain: bytes, head: Head, rules: Rules, now_ms: int) -> None:
    """Raises with all records at fault. If one has a bad timestamp, that is the error code, as in Kafka."""
    faults: list[RecordFault] = []
    count, code = 0, ErrorCode.invalid_record
    for index, has_key, timestamp_ms in _walk(plain, head):
        what = ""
        if rules.needs_keys and not has_key:
            what = "has no key, and the topic is compacted"
        elif what := _bad_time(timestamp_ms, head.attributes, rules, now_ms):
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
    return f"has time {timestamp_ms} at time {now_ms}: {TOO_FAR}"


def _walk(plain: bytes, head: Head) -> Iterator[tuple[int, bool, int]]:
    """Each record's index, whether it has a key, and its timestamp. Raises IndexError or ValueError if malformed."""
    at = 0
    for index in range(head.record_count):
        length, at = read_varint(plain, at)
        end = at + length
        if length <= 0 or end > len(plain):
            raise ValueError(f"record {index} is {length} bytes long")
        timestamp_delta, at = read_varint(plain, at + 1)
        _, at = read_varint(plain, at)
        key_bytes, at = read_varint(plain, at)
        if at > end:
            raise ValueError(f"record {index} is too short")
        yield index, key_bytes >= 0, head.base_timestamp_ms + timestamp_delta
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
