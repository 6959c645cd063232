"""What a leader finds inside a client's batch, and what it makes of it: keys, times, and the topic's own codec."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from crc32c import crc32c

from sexton.errors import UnsupportedFormatError
from sexton.log.checks import Rules
from sexton.log.inside import FAULTS_MAX, validated
from sexton.protocol.errors import ErrorCode, KafkaError, RecordsError
from sexton.records.batch import Header, Record, decode, encode, make_batch
from sexton.records.codecs import Codec
from sexton.records.header import LOG_APPEND_TIME, TRANSACTIONAL, unpack
from sexton.settings.topic import TopicConfig
from tests.log.helpers import NOW_MS

NAMES = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
TEXT = b"the quick brown fox jumps over the lazy dog, and then the %d other dogs, and so on and on"


def rules(**settings: Any) -> Rules:
    return Rules.of("orders-0", TopicConfig(**settings))


def record(index: int, key: bytes | None = b"key", value: bytes = b"value", time_ms: int = NOW_MS) -> Record:
    return Record(index, time_ms, key, value, (Header("header", b"x"),))


def batch(*records: Record, **fields: int) -> bytes:
    return encode(make_batch(records, leader_epoch=-1, **fields))


def texts(count: int = 400, **fields: int) -> bytes:
    return batch(*[record(index, value=TEXT % (index * index)) for index in range(count)], **fields)


def refusal(records: bytes, asked: Rules) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        validated(records, asked, NOW_MS)
    return caught.value


def blamed(records: bytes, asked: Rules) -> tuple[ErrorCode, list[int]]:
    error = refusal(records, asked)
    assert isinstance(error, RecordsError)
    assert all(f"record {fault.record} " in fault.message for fault in error.faults)
    return error.code, [fault.record for fault in error.faults]


# --- the topic's codec ---


@pytest.mark.parametrize(("sent", "wanted"), list(product(Codec, NAMES)))
def test_a_batch_gets_the_codec_of_its_topic_and_is_the_same_otherwise(sent: int, wanted: str) -> None:
    made = texts(attributes=sent | TRANSACTIONAL, producer_id=7, producer_epoch=3, base_sequence=11)
    asked = rules(compression_type=wanted)
    assert asked.must_unpack(made) == (sent != NAMES[wanted])
    found = validated(made, asked, NOW_MS)
    before, after = decode(made), decode(bytes(found))  # which checks the CRC
    assert after.codec == NAMES[wanted]
    same_codec = replace(after, attributes=before.attributes, size_bytes=before.size_bytes)
    assert same_codec == before
    assert (bytes(found) == made) == (sent == NAMES[wanted])


@pytest.mark.parametrize("sent", Codec)
def test_a_topic_that_leaves_it_to_producers_takes_batches_as_they_are(sent: int) -> None:
    made = texts(attributes=sent)
    asked = rules()
    assert not asked.look_inside
    assert not asked.must_unpack(made)
    assert validated(made, asked, NOW_MS) is made


@pytest.mark.parametrize(
    ("codec", "fast", "small"),
    [("gzip", 1, 9), ("gzip", 1, -1), ("zstd", 1, 19), ("zstd", -100, 3), ("lz4", 9, 12)],
)
def test_the_level_says_how_hard_it_is_compressed(codec: str, fast: int, small: int) -> None:
    sizes = []
    for level in (fast, small):
        asked = rules(compression_type=codec, **{f"compression_{codec}_level": level})
        found = validated(texts(2_000), asked, NOW_MS)
        assert decode(bytes(found)).records == decode(texts(2_000)).records
        sizes.append(len(found))
    assert sizes[0] > sizes[1]


def test_the_level_of_a_batch_that_has_the_codec_already_is_its_producers_affair() -> None:
    made = texts(attributes=Codec.ZSTD)
    assert validated(made, rules(compression_type="zstd", compression_zstd_level=19), NOW_MS) is made


def test_a_batch_that_is_too_large_once_it_is_uncompressed_is_refused() -> None:
    made = texts(2_000, attributes=Codec.ZSTD)
    plain_size = len(texts(2_000))
    asked = rules(compression_type="uncompressed", max_message_bytes=plain_size - 1)
    assert len(made) < plain_size - 1
    assert refusal(made, asked).code is ErrorCode.message_too_large
    assert len(validated(made, asked._replace(batch_bytes_max=plain_size), NOW_MS)) == plain_size


def test_a_batch_that_is_too_large_as_it_came_is_refused_however_small_it_would_become() -> None:
    made = texts(2_000)
    assert refusal(made, rules(compression_type="zstd", max_message_bytes=len(made) - 1)).code is (
        ErrorCode.message_too_large
    )


@pytest.mark.parametrize("sent", [codec for codec in Codec if codec is not Codec.NONE])
def test_bytes_that_no_codec_wrote_are_an_invalid_record(sent: int) -> None:
    made = texts(attributes=Codec.NONE)
    broken = encode_with_codec(made, sent)
    assert refusal(broken, rules(compression_type="uncompressed")).code is ErrorCode.invalid_record


def encode_with_codec(made: bytes, codec: int) -> bytes:
    """Plain records under a header that says they are compressed."""
    out = bytearray(made)
    out[22] |= codec
    out[17:21] = crc32c(memoryview(out)[21:]).to_bytes(4, "big")
    return bytes(out)


def test_a_batch_that_unfolds_beyond_all_bounds_is_refused() -> None:
    bomb = batch(record(0, value=bytes(129 << 20)), attributes=Codec.ZSTD)
    assert len(bomb) < 1 << 20
    error = refusal(bomb, rules(compression_type="lz4"))
    assert error.code is ErrorCode.invalid_record
    assert "unfolds" in error.message


def test_whoever_allows_less_hears_that_it_is_more() -> None:
    with pytest.raises(UnsupportedFormatError):
        validated(texts(attributes=Codec.ZSTD), rules(compression_type="lz4"), NOW_MS, 1_000)


def test_a_walk_is_short_where_few_records_lie_there_plain() -> None:
    asked = rules(cleanup_policy=frozenset({"compact"}))
    assert asked.is_short_walk(texts(400), 400)
    assert not asked.is_short_walk(texts(401), 400)
    assert not asked.is_short_walk(texts(4, attributes=Codec.LZ4), 400)
    assert not asked._replace(codec=Codec.LZ4).is_short_walk(texts(4), 400)


# --- the records to blame ---


@pytest.mark.parametrize("sent", Codec)
def test_records_without_a_key_are_named_all_of_them(sent: int) -> None:
    keys = [b"a", None, b"", None, b"c"]
    made = batch(*[record(index, key) for index, key in enumerate(keys)], attributes=sent)
    assert blamed(made, rules(cleanup_policy=frozenset({"compact"}))) == (ErrorCode.invalid_record, [1, 3])


def test_records_whose_time_is_out_of_range_are_named_and_others_are_not() -> None:
    times = [NOW_MS, NOW_MS + 1_001, NOW_MS + 1_000, NOW_MS - 2_001, NOW_MS - 2_000]
    made = batch(*[record(index, time_ms=time_ms) for index, time_ms in enumerate(times)])
    asked = rules(message_timestamp_after_max_ms=1_000, message_timestamp_before_max_ms=2_000)
    assert blamed(made, asked) == (ErrorCode.invalid_timestamp, [1, 3])


def test_a_bad_time_counts_for_more_than_a_missing_key() -> None:
    made = batch(record(0, None), record(1, time_ms=NOW_MS + 10**9))
    assert blamed(made, rules(cleanup_policy=frozenset({"compact"}))) == (ErrorCode.invalid_timestamp, [0, 1])


def test_no_producer_sets_the_time_of_the_append() -> None:
    made = batch(record(0), record(1), attributes=LOG_APPEND_TIME)
    for kind in ("CreateTime", "LogAppendTime"):
        asked = rules(message_timestamp_type=kind)
        assert asked.has_bad_time(unpack(made), NOW_MS)
        assert blamed(made, asked) == (ErrorCode.invalid_timestamp, [0, 1])


def test_a_topic_that_stamps_times_does_not_look_at_the_producers() -> None:
    made = batch(record(0, time_ms=NOW_MS + 10**9))
    assert validated(made, rules(message_timestamp_type="LogAppendTime"), NOW_MS) is made


def test_records_without_a_time_are_not_too_old() -> None:
    made = batch(record(0, time_ms=-1))
    assert validated(made, rules(message_timestamp_before_max_ms=1), NOW_MS) is made


def test_no_answer_names_more_records_than_it_can_hold() -> None:
    count = FAULTS_MAX + 10
    made = batch(*[record(index, None, b"") for index in range(count)])
    error = refusal(made, rules(cleanup_policy=frozenset({"compact"})))
    assert isinstance(error, RecordsError)
    assert len(error.faults) == FAULTS_MAX
    assert f"{count - 1} more" in error.message


def test_a_count_that_promises_more_records_than_there_are_is_an_invalid_record() -> None:
    made = bytearray(batch(record(0, None), record(1, None)))
    made[23:27] = (10**9 - 1).to_bytes(4, "big")
    made[57:61] = (10**9).to_bytes(4, "big")
    made[17:21] = crc32c(memoryview(made)[21:]).to_bytes(4, "big")
    error = refusal(bytes(made), rules(cleanup_policy=frozenset({"compact"})))
    assert (error.code, isinstance(error, RecordsError)) == (ErrorCode.invalid_record, False)
