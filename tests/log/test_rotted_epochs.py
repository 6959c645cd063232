"""A bit that has flipped in a batch's leader epoch, which no CRC covers.

Whoever believed it would copy it to other replicas and give it to consumers, which then look for a truncation that
never was. The log's epoch history says which epoch wrote the offset.
"""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from sexton.log.epochs import EpochHistory
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.header import unpack
from tests.epochs import history
from tests.log.helpers import EPOCH, NOW_MS, open_log, plain

EPOCH_POSITION = 12
HISTORY = history((2, 0), (5, 10))


def written(offset: int, epoch: int, value: bytes = b"a") -> bytes:
    return plain(value, base_offset=offset, last_offset=offset, leader_epoch=epoch)


@pytest.mark.parametrize(("offset", "epoch"), [(0, 2), (9, 2), (10, 5), (11, 5), (9, -1)])
def test_what_the_history_says_is_right(offset: int, epoch: int) -> None:
    assert EpochHistory(HISTORY).contradiction(unpack(written(offset, epoch))) == ""


@pytest.mark.parametrize(("offset", "epoch"), [(0, 5), (9, 3), (10, 2), (11, 4), (11, 5 + 2**29)])
def test_what_it_contradicts_is_damaged(offset: int, epoch: int) -> None:
    assert f"names leader epoch {epoch}" in EpochHistory(HISTORY).contradiction(unpack(written(offset, epoch)))


def test_nothing_is_said_of_what_the_history_does_not_reach() -> None:
    assert EpochHistory().contradiction(unpack(written(0, 7))) == ""
    assert EpochHistory().contradiction(unpack(written(0, -1))) == ""
    assert EpochHistory(history((5, 10))).contradiction(unpack(written(9, 7))) == ""


async def test_a_follower_does_not_copy_it(tmp_path: Path) -> None:
    log = await open_log(tmp_path)
    await log.replace_epochs(HISTORY)
    log.append_as_follower(written(9, 2) + written(10, 5))
    with pytest.raises(KafkaError) as caught:
        log.append_as_follower(written(11, 5 + 2**29))
    assert caught.value.code is ErrorCode.corrupt_message
    assert log.end_offset == 11


async def test_who_reads_a_closed_segment_is_not_given_it_and_the_log_is_damaged(tmp_path: Path) -> None:
    log = await open_log(tmp_path, segment_bytes=1000)
    await log.begin_epoch(EPOCH)
    for _ in range(40):
        log.append_as_leader(plain(b"a" * 200), EPOCH, NOW_MS)
    await log.flush()
    first = log.segments.all[0]
    with open(Path(log.directory) / f"{first.base_offset:020d}.log", "r+b") as file:
        file.seek(EPOCH_POSITION)
        file.write(struct.pack(">i", EPOCH + 2**29))
    with pytest.raises(KafkaError) as caught:
        log.verify(0, 1)
    assert caught.value.code is ErrorCode.kafka_storage_error
    assert log.damage is not None
    assert "leader epoch" in str(log.damage)
