"""A consumer of several partitions, when one of their leaders refuses."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from sexton.client.client import Client
from sexton.client.consumer import Consumer, PartitionFetch
from sexton.client.errors import RefusedError, refusal
from sexton.protocol.errors import ErrorCode
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


def test_what_one_leader_has_sent_is_read_again_when_another_refuses() -> None:
    async def main() -> None:
        consumer = TwoLeaders(cast(Client, None))
        consumer.assign({GOOD: 5, BAD: 0})
        with pytest.raises(RefusedError):
            await consumer.poll()
        assert consumer.positions == {GOOD: 5, BAD: 0}
        consumer.is_mended = True
        assert [record.offset for _, _, record in await consumer.poll()] == [5]
        assert consumer.positions[GOOD] == 6

    asyncio.run(main())
