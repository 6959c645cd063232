"""A bit that has flipped in a batch's base offset or length, which no CRC covers.

A consumer goes on behind the last record that it was given. Behind an offset that never was, it would wait for ever and
pass over all that is written from then on. Only in a log without gaps does the next batch tell.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pytest

from sexton.log.log import Log
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.header import base_offset_at
from tests.log.helpers import EPOCH, NOW_MS, open_log, plain

LENGTH_POSITION = 8
BATCH_COUNT = 40


async def written(path: Path, **settings: Any) -> Log:
    """Forty batches of two records each."""
    log = await open_log(path, **settings)
    await log.begin_epoch(EPOCH)
    for _ in range(BATCH_COUNT):
        log.append_as_leader(plain(b"a" * 100, b"b" * 100), EPOCH, NOW_MS)
    await log.flush()
    return log


def overwrite(log: Log, offset: int, at: int, what: bytes) -> None:
    segment = next(one for one in reversed(log.segments.all) if one.base_offset <= offset)
    with open(Path(log.directory) / f"{segment.base_offset:020d}.log", "r+b") as file:
        file.seek(segment.position_of(offset) + at)
        file.write(what)


def refused(log: Log, offset: int, max_bytes: int) -> str:
    with pytest.raises(KafkaError) as caught:
        log.read(offset, max_bytes, log.end_offset, min_one=True)
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert log.damage is not None
    return str(log.damage)


@pytest.mark.parametrize("segment_bytes", [1000, 1 << 20], ids=["closed", "active"])
@pytest.mark.parametrize("rotten", [2**58 + 8, 8 + 128, 8 - 8, 9], ids=["far", "above", "below", "by one"])
async def test_a_rotten_base_offset_is_not_sent(tmp_path: Path, segment_bytes: int, rotten: int) -> None:
    log = await written(tmp_path, segment_bytes=segment_bytes)
    overwrite(log, 8, 0, struct.pack(">q", rotten))
    assert "are due" in refused(log, 8 if rotten != 9 else 6, 1000)


async def test_that_of_the_last_batch_is_not_sent_either(tmp_path: Path) -> None:
    log = await written(tmp_path)
    last = 2 * BATCH_COUNT - 2
    overwrite(log, last, 0, struct.pack(">q", last + 2))
    refused(log, last, 1000)


@pytest.mark.parametrize("length", [0, -1, 48, 100, 2**30])
async def test_a_rotten_length_ends_the_read(tmp_path: Path, length: int) -> None:
    log = await written(tmp_path)
    overwrite(log, 8, LENGTH_POSITION, struct.pack(">i", length))
    refused(log, 8, 2000)


async def test_what_follows_is_still_read(tmp_path: Path) -> None:
    log = await written(tmp_path)
    overwrite(log, 8, 0, struct.pack(">q", 2**58 + 8))
    refused(log, 8, 1000)
    found = log.read(10, 1000, log.end_offset, min_one=True)
    assert base_offset_at(b"".join(bytes(part) for part in found.parts if not hasattr(part, "file"))) == 10


async def test_a_leader_whose_follower_was_sent_one_looks(tmp_path: Path) -> None:
    """Large reads go out unread; who receives them complains."""
    log = await written(tmp_path)
    overwrite(log, 8, 0, struct.pack(">q", 2**58 + 8))
    with pytest.raises(KafkaError) as caught:
        log.verify(0, 20)
    assert caught.value.code is ErrorCode.kafka_storage_error


async def test_what_was_sent_and_is_deleted_by_now_is_not_looked_at(tmp_path: Path) -> None:
    """A follower that was sent it, and could not take it, asks once more after DeleteRecords."""
    log = await written(tmp_path)
    await log.advance_start(40)
    log.verify(0, 20)
    assert log.failure is None


async def test_a_follower_copies_nothing_above_its_leaders_end(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    log.append_as_follower(plain(b"a", base_offset=0, last_offset=0, leader_epoch=3), leader_end_offset=5)
    rotten = plain(b"a", base_offset=2**58 + 1, last_offset=2**58 + 1, leader_epoch=3)
    with pytest.raises(KafkaError, match="the leader's log ends at 5") as caught:
        log.append_as_follower(rotten, leader_end_offset=5)
    assert caught.value.code is ErrorCode.corrupt_message
    assert log.end_offset == 1
