"""What a leader accepts, what it stamps, and what it refuses with which of Kafka's errors."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from sexton.log.log import Log
from sexton.log.types import Appended
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Batch, Record, decode, encode, make_batch
from sexton.records.header import CONTROL, DELETE_HORIZON, LOG_APPEND_TIME
from sexton.settings.topic import TopicConfig
from tests.log.helpers import EPOCH, NOW_MS, content, lead, open_log, plain, read_all, records, with_log


def refused(path: Path, batch: bytes, **settings: Any) -> ErrorCode:
    async def work(log: Log) -> ErrorCode:
        with pytest.raises(KafkaError) as caught:
            log.append_as_leader(batch, EPOCH, NOW_MS)
        assert log.end_offset == 0
        assert log.size_bytes == 0
        assert "orders-0" in caught.value.message
        return caught.value.code

    return with_log(path, work, **settings)


def appended(path: Path, batch: bytes, **settings: Any) -> tuple[Appended, Batch]:
    async def work(log: Log) -> tuple[Appended, Batch]:
        lead(log, plain(b"first", b"second"))
        result = log.append_as_leader(batch, EPOCH, NOW_MS)
        return result, decode(content(log.read(2, 1 << 20, log.end_offset, min_one=True).parts))

    return with_log(path, work, **settings)


def test_a_leader_stamps_offset_and_epoch_and_nothing_else(tmp_path: Path) -> None:
    result, batch = appended(tmp_path, plain(b"a", b"b", b"c"))
    assert result == Appended(2, 4, -1, 0)
    assert (batch.base_offset, batch.last_offset, batch.leader_epoch) == (2, 4, EPOCH)
    assert [record.value for record in batch.records] == [b"a", b"b", b"c"]
    assert [record.timestamp_ms for record in batch.records] == [NOW_MS, NOW_MS + 1, NOW_MS + 2]


def test_log_append_time_replaces_the_producers_and_the_crc_follows(tmp_path: Path) -> None:
    result, batch = appended(tmp_path, plain(b"a", b"b", time_ms=5), message_timestamp_type="LogAppendTime")
    assert result.log_append_time_ms == NOW_MS
    assert batch.is_log_append_time
    assert {record.timestamp_ms for record in batch.records} == {NOW_MS}


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(tmp_path: Path, buffer: Any) -> None:
    _, batch = appended(tmp_path, buffer(plain(b"a")))
    assert batch.records[0].value == b"a"


@pytest.mark.parametrize("codec", [1, 2, 3, 4])
def test_packed_batches_pass_unopened(tmp_path: Path, codec: int) -> None:
    _, batch = appended(tmp_path, plain(b"a" * 100, b"b", attributes=codec))
    assert [record.value for record in batch.records] == [b"a" * 100, b"b"]


async def test_every_cut_of_a_batch_is_corrupt(tmp_path: Path) -> None:
    whole = plain(b"a")
    log = await open_log(tmp_path)
    for size in range(len(whole)):
        with pytest.raises(KafkaError) as caught:
            log.append_as_leader(whole[:size], EPOCH, NOW_MS)
        assert caught.value.code is ErrorCode.corrupt_message
    assert log.end_offset == 0


async def test_every_flipped_bit_below_the_crc_is_noticed(tmp_path: Path) -> None:
    whole = plain(b"a")
    log = await open_log(tmp_path)
    for at in range(17, len(whole)):
        bad = bytearray(whole)
        bad[at] ^= 1 << at % 8
        with pytest.raises(KafkaError):
            log.append_as_leader(bad, EPOCH, NOW_MS)
    assert log.end_offset == 0


def old_message(magic: int) -> bytes:
    body = bytes([magic, 0]) + (b"\0" * 8 if magic else b"") + b"\xff\xff\xff\xff" + struct.pack(">i", 1) + b"v"
    return struct.pack(">qiI", 0, len(body) + 4, 0) + body


@pytest.mark.parametrize("magic", [0, 1])
def test_formats_from_before_kafka_0_11_are_refused(tmp_path: Path, magic: int) -> None:
    padded = old_message(magic) + b"\0" * 40
    assert refused(tmp_path, padded) is ErrorCode.unsupported_for_message_format


def test_two_batches_in_one_request_are_invalid(tmp_path: Path) -> None:
    assert refused(tmp_path, plain(b"a") + plain(b"b")) is ErrorCode.invalid_record


def test_a_batch_larger_than_max_message_bytes_is_too_large(tmp_path: Path) -> None:
    batch = plain(b"a" * 1000)
    assert refused(tmp_path, batch, max_message_bytes=len(batch) - 1) is ErrorCode.message_too_large


async def test_what_a_broker_writes_itself_is_taken_whatever_clients_may_send(tmp_path: Path) -> None:
    batch = plain(b"a" * 5_000)
    log = await open_log(tmp_path, max_message_bytes=1_000, segment_bytes=2_000)
    log.append_as_leader(batch, EPOCH, NOW_MS, from_client=False)
    assert log.end_offset == 1
    with pytest.raises(KafkaError):
        log.append_as_leader(batch, EPOCH, NOW_MS)


def test_a_batch_as_large_as_max_message_bytes_is_not(tmp_path: Path) -> None:
    batch = plain(b"a" * 1000)
    appended(tmp_path, batch, max_message_bytes=len(batch))


def test_a_batch_larger_than_a_segment_is_too_large(tmp_path: Path) -> None:
    assert refused(tmp_path, plain(b"a" * 1000), segment_bytes=500) is ErrorCode.record_list_too_large


@pytest.mark.parametrize(
    "fields",
    [
        {"base_offset": 5, "last_offset": 5},
        {"last_offset": 1},
        {"attributes": CONTROL},
        {"attributes": DELETE_HORIZON},
        {"producer_id": 7, "producer_epoch": 0, "base_sequence": -1},
    ],
)
def test_a_header_that_no_client_may_send_is_invalid(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert refused(tmp_path, plain(b"a", **fields)) is ErrorCode.invalid_record


def test_a_codec_that_nobody_knows_is_invalid(tmp_path: Path) -> None:
    bad = bytearray(plain(b"a"))
    bad[22] |= 7
    bad[17:21] = struct.pack(">I", crc32c(bytes(bad[21:])))
    assert refused(tmp_path, bytes(bad)) is ErrorCode.invalid_record


def test_an_empty_batch_is_invalid(tmp_path: Path) -> None:
    empty = encode(Batch(0, 0, leader_epoch=-1))
    assert refused(tmp_path, empty) is ErrorCode.invalid_record


# Times


def test_a_producer_may_not_claim_log_append_time(tmp_path: Path) -> None:
    batch = plain(b"a", attributes=LOG_APPEND_TIME)
    assert refused(tmp_path, batch) is ErrorCode.invalid_timestamp
    assert refused(tmp_path, batch, message_timestamp_type="LogAppendTime") is ErrorCode.invalid_timestamp


def test_times_too_far_ahead_or_behind_are_refused(tmp_path: Path) -> None:
    late = plain(b"a", time_ms=NOW_MS + 1001)
    assert refused(tmp_path, late, message_timestamp_after_max_ms=1000) is ErrorCode.invalid_timestamp
    early = plain(b"a", time_ms=NOW_MS - 1001)
    assert refused(tmp_path, early, message_timestamp_before_max_ms=1000) is ErrorCode.invalid_timestamp


def test_times_within_the_bounds_and_no_time_at_all_are_fine(tmp_path: Path) -> None:
    settings = {"message_timestamp_after_max_ms": 1000, "message_timestamp_before_max_ms": 1000}
    for time_ms in (NOW_MS + 1000, NOW_MS - 1000, -1):
        appended(tmp_path / str(time_ms), plain(b"a", time_ms=time_ms), **settings)


def test_bounds_do_not_matter_where_the_broker_sets_the_time(tmp_path: Path) -> None:
    settings = {"message_timestamp_before_max_ms": 1000, "message_timestamp_type": "LogAppendTime"}
    appended(tmp_path, plain(b"a", time_ms=1), **settings)


# Keys


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
def test_a_compacted_topic_refuses_a_record_without_a_key(tmp_path: Path, codec: int) -> None:
    made = [*records(b"a", b"b"), Record(2, NOW_MS, None, b"c")]
    batch = encode(make_batch(made, leader_epoch=-1, attributes=codec))
    assert refused(tmp_path, batch, cleanup_policy=frozenset({"compact"})) is ErrorCode.invalid_record


@pytest.mark.parametrize("codec", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("key", [b"", b"k", b"k" * 300])
def test_a_compacted_topic_takes_records_with_keys_and_tombstones(tmp_path: Path, codec: int, key: bytes) -> None:
    batch = plain(b"a", None, b"b" * 300, key=key, attributes=codec)
    appended(tmp_path, batch, cleanup_policy=frozenset({"compact", "delete"}))


def test_a_compacted_topic_refuses_records_that_cannot_be_read(tmp_path: Path) -> None:
    compacted = frozenset({"compact"})
    for body in (b"", b"\x80", b"\xff" * 12, b"\x20\x00\x00", b"\x0e\x00\x00\x00\x02k\x00\x00trailing"):
        size = 49 + len(body)
        after_crc = struct.pack(">hiqqqhii", 0, 0, NOW_MS, NOW_MS, -1, -1, -1, 1) + body
        batch = struct.pack(">qiibI", 0, size, -1, 2, crc32c(after_crc)) + after_crc
        assert refused(tmp_path, batch, cleanup_policy=compacted) is ErrorCode.invalid_record


async def test_a_topic_that_becomes_compacted_refuses_from_then_on(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    lead(log, plain(b"a", key=None))
    log.reconfigure(TopicConfig(cleanup_policy=frozenset({"compact"})))
    with pytest.raises(KafkaError):
        lead(log, plain(b"a", key=None))
    assert len(read_all(log)) == 1
