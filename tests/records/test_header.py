"""The batch header: every field where the reference codec and the kernels find it, whole or one at a time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from sexton.records import header
from sexton.records.batch import Batch, Record, decode, encode, make_batch
from sexton.records.header import (
    BATCH_OFFSET_MAX,
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    TRANSACTIONAL,
    Head,
)
from sexton.records.kernels import scan
from sexton.types import LeaderEpoch, ProducerEpoch, ProducerId

BATCH = make_batch(
    [Record(70, 1_000, b"a", b"b"), Record(72, 1_007, b"c", None)],
    attributes=TRANSACTIONAL,
    producer_id=2**40 + 5,
    producer_epoch=7,
    base_sequence=11,
    leader_epoch=13,
)
CONTENT = encode(BATCH)


def test_a_head_says_what_the_batch_was_made_of_and_where_it_lies() -> None:
    head = header.unpack(b"before" + CONTENT, 6, 4096)
    assert head == Head(
        position=4096,
        size_bytes=len(CONTENT),
        base_offset=70,
        last_offset=72,
        leader_epoch=LeaderEpoch(13),
        magic=MAGIC,
        crc=int.from_bytes(CONTENT[17:21], "big"),
        attributes=TRANSACTIONAL,
        base_timestamp_ms=1_000,
        max_timestamp_ms=1_007,
        producer_id=ProducerId(2**40 + 5),
        producer_epoch=ProducerEpoch(7),
        base_sequence=11,
        record_count=2,
    )
    assert header.head_at(CONTENT, 0, 0) == head._replace(position=0)
    assert header.has_valid_crc(CONTENT, head)


def test_any_61_bytes_are_read_as_the_kernels_read_them() -> None:
    """A head that is accepted is one that a scan accepts, and says the same."""
    rng = random.Random(4)
    accepted = 0
    for _ in range(2_000):
        data = bytearray(CONTENT)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(HEADER_BYTES)] ^= 1 << rng.randrange(8)
        head = header.head_at(bytes(data), 0, 0)
        if isinstance(head, str) or head.size_bytes != len(data) or head.record_count > len(data):
            continue  # a scan also refuses more records than there is room for
        (row,) = scan.scan_whole(np.frombuffer(bytes(data), dtype=np.uint8), 0, len(data), "", check_crc=False)
        accepted += 1
        assert [row[name] for name in ("base_offset", "last_offset", "base_timestamp", "max_timestamp")] == [
            head.base_offset,
            head.last_offset,
            head.base_timestamp_ms,
            head.max_timestamp_ms,
        ]
        assert [row[name] for name in ("producer_id", "producer_epoch", "base_sequence", "leader_epoch")] == [
            head.producer_id,
            head.producer_epoch,
            head.base_sequence,
            head.leader_epoch,
        ]
        assert (row["attributes"], row["record_count"]) == (head.attributes, head.record_count)
    assert accepted > 500


def test_a_field_that_is_read_alone_is_the_heads() -> None:
    head = header.unpack(CONTENT)
    assert header.base_offset_at(CONTENT) == head.base_offset
    assert header.size_at(CONTENT) == head.size_bytes
    assert header.magic_at(CONTENT) == head.magic
    assert header.attribute_bits(CONTENT) == head.attributes
    assert header.record_count(CONTENT) == head.record_count


@pytest.mark.parametrize("size", range(HEADER_BYTES))
def test_a_header_that_is_cut_off_is_none(size: int) -> None:
    assert header.head_at(CONTENT[:size], 0, 0) == "the batch is cut off"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"base_offset": -1}, "base offset -1"),
        ({"last_offset": 69}, "last offset delta -1"),
        ({"base_offset": BATCH_OFFSET_MAX, "last_offset": BATCH_OFFSET_MAX + 1}, "cannot be right"),
        ({"record_count": 4}, "record count 4"),
        ({"record_count": -1}, "record count -1"),
        ({"magic": 1}, "message format v1 is not supported"),
        ({"magic": 3}, "magic byte 3 is no known format"),
    ],
)
def test_what_cannot_be_is_said(changed: dict[str, Any], what: str) -> None:
    found = header.head_at(header.encode(header.unpack(CONTENT)._replace(**changed), b""), 0, 0)
    assert isinstance(found, str)
    assert what in found


def test_a_batch_that_is_encoded_from_its_head_is_the_same() -> None:
    assert header.encode(header.unpack(CONTENT), CONTENT[HEADER_BYTES:]) == CONTENT


def test_a_leader_changes_base_offset_and_leader_epoch_and_the_crc_still_holds() -> None:
    parts = header.with_offset(memoryview(CONTENT), header.unpack(CONTENT), 500, LeaderEpoch(21))
    found = decode(b"".join(parts))
    assert (found.base_offset, found.last_offset, found.leader_epoch) == (500, 502, 21)
    assert [record.offset for record in found.records] == [500, 502]
    assert _rest_of(found) == _rest_of(BATCH)


def test_with_log_append_time_a_leader_changes_the_time_and_the_crc_too() -> None:
    parts = header.with_offset_and_time(memoryview(CONTENT), header.unpack(CONTENT), 500, LeaderEpoch(21), 9_999)
    found = decode(b"".join(parts))
    assert found.attributes == BATCH.attributes | LOG_APPEND_TIME
    assert (found.base_offset, found.base_timestamp_ms, found.max_timestamp_ms) == (500, 1_000, 9_999)
    assert [record.timestamp_ms for record in found.records] == [9_999, 9_999]


def _rest_of(batch: Batch) -> tuple[int, ...]:
    return (
        batch.attributes & ~CODEC_MASK,
        batch.base_timestamp_ms,
        batch.max_timestamp_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
    )


def test_the_length_does_not_count_what_comes_before_it() -> None:
    assert int.from_bytes(CONTENT[8:12], "big") == len(CONTENT) - LOG_OVERHEAD_BYTES
