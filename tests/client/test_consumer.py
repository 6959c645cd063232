"""A consumer of several partitions, when one of their leaders refuses."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sexton.client.client import Client
from sexton.client.consumer import Consumer, PartitionFetch
from sexton.client.errors import CorruptRecordsError, RefusedError, refusal
from sexton.protocol.errors import ErrorCode
from sexton.records import batch as batches
from sexton.records.batch import Record

GOOD, BAD = ("good", 0), ("bad", 0)


class TwoLeaders(Consumer):
    """One has a record for us; the other's log starts later than we ask for."""

    is_mended = False

    async def _by_leader(self) -> Any:
        return [(cast(Any, "one"), [GOOD]), (cast(Any, "other"), [BAD])], False

    async def _poll_one(self, peer: Any, parts: Any, max_wait_ms: int) -> Any:
        if parts == [GOOD]:
            return [(GOOD, 5, PartitionFetch([Record(5, 0, b"k", b"v")], 6, 6, 6, 0))]
        if not self.is_mended:
            raise refusal(ErrorCode.offset_out_of_range, "bad-0")
        return []


async def test_what_one_leader_has_sent_is_read_again_when_another_refuses() -> None:
    consumer = TwoLeaders(cast(Client, None))
    consumer.assign({GOOD: 5, BAD: 0})
    with pytest.raises(RefusedError):
        await consumer.poll()
    assert consumer.positions == {GOOD: 5, BAD: 0}
    consumer.is_mended = True
    assert [record.offset for _, _, record in await consumer.poll()] == [5]
    assert consumer.positions[GOOD] == 6


class OneLeader(Consumer):
    """Its disk has damaged a record, for a while."""

    rotten = True

    async def _by_leader(self) -> Any:
        return [(SimpleNamespace(rpc=SimpleNamespace(peer="one")), [GOOD])], False

    async def _fetch(self, peer: Any, asked: Any, max_wait_ms: int) -> Any:
        data = bytearray(batches.encode(batches.make_batch([Record(5, 0, b"k", b"v")])))
        data[-1] ^= self.rotten
        offsets = {"high_watermark": 6, "last_stable_offset": 6, "aborted_transactions": None}
        part = SimpleNamespace(partition_index=0, error_code=0, records=bytes(data), **offsets)
        return SimpleNamespace(error_code=0, responses=[SimpleNamespace(topic="good", partitions=[part])])


async def polled(consumer: Consumer) -> list[int]:
    return [record.offset for _, _, record in await consumer.poll()]


def test_damaged_records_are_an_error_that_a_later_poll_may_get_over() -> None:
    consumer = OneLeader(cast(Client, None))
    consumer.assign({GOOD: 5})
    with pytest.raises(CorruptRecordsError, match=r"good-0: what was fetched from offset 5 on is damaged: the CRC"):
        asyncio.run(polled(consumer))
    assert consumer.positions == {GOOD: 5}
    consumer.rotten = False
    assert asyncio.run(polled(consumer)) == [5]
