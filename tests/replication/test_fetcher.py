"""When a follower asks its leader for more: what it has must be on disk, and partitions do not wait for each other."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from sexton.adapters.clock import SystemClock
from sexton.adapters.files import FileDisk
from sexton.client.connection import Rpc
from sexton.compaction.config import TopicConfig
from sexton.log.log import Log
from sexton.ports.metastore import PartitionRow
from sexton.records.batch import Record, encode, make_batch
from sexton.replication import messages
from sexton.replication.fetcher import Fetcher, FetchLimits
from sexton.replication.replica import Replica

TOPIC = uuid.UUID(int=7, version=4)


class Followed:
    """A fetcher that follows two partitions of a leader without an address, and what it would send."""

    def __init__(self) -> None:
        self.replicas: list[Replica] = []
        self.fetcher = Fetcher(1, lambda: None, lambda: (2, 5), cast(Any, None), SystemClock(), FetchLimits())

    async def start(self, directory: Path) -> None:
        for partition in range(2):
            row = PartitionRow(TOPIC, partition, (1, 2), (1, 2), leader=1, leader_epoch=3, partition_epoch=1)
            place = str(directory / f"t-{partition}")
            log = await Log.open(
                FileDisk(), place, "t", partition, TOPIC, TopicConfig(), now_ms=1000, stopped_cleanly=False
            )
            replica = Replica(row, log, 2, 0, SystemClock(), lambda: True)
            replica.become_follower(row)
            self.replicas.append(replica)
            self.fetcher.follow(replica)

    def asked(self) -> dict[int, int]:
        """The partitions of the next request, with how far each is said to be on disk."""
        sent: list[bytes] = []
        rpc = SimpleNamespace(start_raw=lambda key, parts, version: sent.extend(parts))
        self.fetcher._ask(cast(Rpc, rpc))
        return {held.partition: held.end_offset for held in messages.decode_request(sent[0]).held}


def test_a_partition_that_is_being_flushed_is_asked_for_when_that_is_done_and_others_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        followed = Followed()
        await followed.start(tmp_path)
        slow, quick = followed.replicas
        assert followed.asked() == {0: 0, 1: 0}
        assert followed.asked() == {}, "nothing has changed"
        disk_is_ready = asyncio.Event()
        flush = slow.log.flush

        async def slow_flush() -> None:
            await disk_is_ready.wait()
            await flush()

        slow.log.flush = slow_flush  # type: ignore[method-assign]
        for replica in (slow, quick):
            replica.log.append_as_follower(encode(make_batch([Record(0, 1000, b"k", b"v")])))
            replica.settle()
            followed.fetcher._mark((TOPIC, replica.partition))
        while quick.is_flushing:
            await asyncio.sleep(0)
        assert followed.asked() == {1: 1}
        disk_is_ready.set()
        while slow.is_flushing:
            await asyncio.sleep(0)
        assert followed.asked() == {0: 1}, "it reports by itself"
        await followed.fetcher.stop()

    asyncio.run(body())
