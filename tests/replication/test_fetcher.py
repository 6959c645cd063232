"""When a follower asks its leader for more: what it has must be on disk, and partitions do not wait for each other. And
what it takes of an answer: only what is for the log that is there, without a hole."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from sexton.adapters.files import FileDisk
from sexton.client.connection import Rpc
from sexton.log import opening
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import ErrorCode
from sexton.records.batch import Record, encode, make_batch
from sexton.replication import messages
from sexton.replication.fetcher import Fetcher, FetchLimits
from sexton.replication.local_replica import LocalReplica
from sexton.replication.messages import PartitionData
from sexton.settings.topic import TopicConfig
from sexton.types import LeaderEpoch
from tests.epochs import history
from tests.log.helpers import lead, read_all, sequenced
from tests.replication.hosts import LoneHost
from tests.replication.listeners import Listener

TOPIC = uuid.UUID(int=7, version=4)


class Followed:
    """A fetcher that follows two partitions of a leader without an address, and what it would send."""

    def __init__(self) -> None:
        self.replicas: list[LocalReplica] = []
        self.fetcher = Fetcher(1, LoneHost(identity=(2, 5)), FetchLimits())

    async def start(self, directory: Path) -> None:
        for partition in range(2):
            row = PartitionRow(
                TOPIC, partition, (1, 2), (1, 2), leader=1, leader_epoch=LeaderEpoch(3), partition_epoch=1
            )
            place = str(directory / f"t-{partition}")
            log = await opening.open_log(
                FileDisk(), place, "t", partition, TOPIC, TopicConfig(), now_ms=1000, stopped_cleanly=False
            )
            replica = LocalReplica(
                row,
                log,
                host=LoneHost(identity=(2, 1)),
                high_watermark=0,
                listener=Listener(self.fetcher),
            )
            replica.become_follower(row)
            self.replicas.append(replica)
            self.fetcher.follow(replica)

    def asked(self) -> dict[int, int]:
        """The partitions of the next request, with how far each is said to be on disk."""
        sent: list[bytes] = []
        rpc = SimpleNamespace(start_raw=lambda key, parts, version: sent.extend(parts))
        self.fetcher.ask(cast(Rpc, rpc))
        return {held.partition: held.end_offset for held in messages.decode_request(sent[0]).held}


async def test_a_partition_that_is_being_flushed_is_asked_for_when_that_is_done_and_others_at_once(
    tmp_path: Path,
) -> None:
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
        replica.flush_and_commit()
        followed.fetcher.report(replica)
    while quick.is_flushing:
        await asyncio.sleep(0)
    assert followed.asked() == {1: 1}
    disk_is_ready.set()
    while slow.is_flushing:
        await asyncio.sleep(0)
    assert followed.asked() == {0: 1}, "it reports by itself"
    await followed.fetcher.stop()


def records(*offsets: int, epoch: int = 3) -> tuple[list[memoryview], int]:
    data = b"".join(
        encode(make_batch([Record(offset, 1000, b"k", b"v")], base_offset=offset, leader_epoch=epoch))
        for offset in offsets
    )
    return [memoryview(data)], len(data)


def answer(replica: LocalReplica, held_end: int, *offsets: int, **changes: Any) -> PartitionData:
    """What the leader of `HISTORY` sends to a log that ended there."""
    log = replica.coordination.watermarks.incarnation
    told: dict[str, Any] = {
        "incarnation": log,
        "held_end_offset": held_end,
        "high_watermark": 100,
        "log_start_offset": 0,
    }
    told |= changes
    sent, size_bytes = records(*offsets, epoch=changes["history"][-1].epoch if "history" in changes else 3)
    fetched = PartitionData(
        TOPIC, replica.partition, ErrorCode.none, LeaderEpoch(3), log_end_offset=100, records_bytes=size_bytes, **told
    )
    return fetched._replace(records=sent)


HISTORY = list(history((3, 0)))


def offsets_of(replica: LocalReplica) -> list[int]:
    return [batch.base_offset for batch in read_all(replica.log)]


def story(body: Callable[[Followed], Awaitable[None]]) -> Any:
    def test(tmp_path: Path) -> None:
        async def run() -> None:
            followed = Followed()
            await followed.start(tmp_path)
            await body(followed)
            await followed.fetcher.stop()

        asyncio.run(run())

    test.__doc__ = body.__doc__
    return test


@story
async def test_an_answer_for_another_log_of_the_partition_is_not_taken(followed: Followed) -> None:
    """Neither its records, nor its history, nor its high watermark; and the log that is there is asked for again."""
    replica, _ = followed.replicas
    followed.asked()
    await followed.fetcher.apply([answer(replica, 4, 4, 5, history=HISTORY, incarnation=uuid.UUID(int=1, version=4))])
    assert (offsets_of(replica), replica.log.epochs.entries, replica.high_watermark) == ([], (), 0)
    assert followed.asked() == {0: 0}


@story
async def test_an_answer_for_a_log_that_was_cut_meanwhile_is_not_taken(followed: Followed) -> None:
    replica, _ = followed.replicas
    await followed.fetcher.apply([answer(replica, 0, 0, 1, 2, 3, history=HISTORY)])
    await replica.cut_to(2)
    await followed.fetcher.apply([answer(replica, 4, 4, 5)])
    assert offsets_of(replica) == [0, 1]
    await replica.restart_log(2)
    await followed.fetcher.apply([answer(replica, 4, 4, 5)])
    assert offsets_of(replica) == []
    await followed.fetcher.apply([answer(replica, 2, 2, 3, 4, history=HISTORY)])
    assert offsets_of(replica) == [2, 3, 4]


@story
async def test_a_transaction_of_a_log_that_parted_below_the_leaders_start_is_not_open(followed: Followed) -> None:
    """All in sync had lost it, but for this one, which was not. Then records were deleted up to offset 3."""
    replica, _ = followed.replicas
    lead(replica.log, *(sequenced(number, is_open=True) for number in range(5)))
    replica.take_high_watermark(5)
    assert replica.last_stable_offset == 0
    later = list(history((7, 3)))
    await followed.fetcher.apply([answer(replica, 5, 3, 4, history=later, log_start_offset=3)])
    assert (replica.log.start_offset, offsets_of(replica), replica.high_watermark) == (3, [3, 4], 5)
    assert replica.last_stable_offset == 5


@story
async def test_of_an_answer_for_a_log_that_has_grown_meanwhile_the_rest_is_taken(followed: Followed) -> None:
    """Whoever reports something while a request waits asks for the same records twice."""
    replica, _ = followed.replicas
    await followed.fetcher.apply([answer(replica, 0, 0, 1, 2, history=HISTORY)])
    await followed.fetcher.apply([answer(replica, 0, 0, 1, 2, 3)])
    assert offsets_of(replica) == [0, 1, 2, 3]


@story
async def test_a_topic_that_was_never_compacted_has_no_gaps(followed: Followed) -> None:
    replica, other = followed.replicas
    await followed.fetcher.apply([answer(replica, 0, 0, 1, 3, history=HISTORY), answer(other, 0, 0, history=HISTORY)])
    assert offsets_of(replica) == [], "all of it is refused, and asked for again"
    assert offsets_of(other) == [0]
    await followed.fetcher.apply([answer(replica, 0, 0, 1, 2, 3)])
    assert offsets_of(replica) == [0, 1, 2, 3]


@story
async def test_a_topic_that_was_compacted_once_has_gaps_where_it_was(followed: Followed) -> None:
    """Below the high watermark of the pass, or the fence, whatever cleanup.policy is now."""
    replica, other = followed.replicas
    await followed.fetcher.apply([answer(replica, 0, 3, 7, history=HISTORY, planned_high_watermark=7)])
    await followed.fetcher.apply([answer(replica, 8, 10, planned_high_watermark=7)])
    assert offsets_of(replica) == [3, 7]
    await followed.fetcher.apply([answer(other, 0, 3, 7, history=HISTORY, fence_below=7)])
    assert offsets_of(other) == [3, 7]


@story
async def test_a_topic_that_is_compacted_may_have_gaps_anywhere(followed: Followed) -> None:
    replica, _ = followed.replicas
    replica.log.reconfigure(TopicConfig(cleanup_policy=frozenset({"compact"})))
    await followed.fetcher.apply([answer(replica, 0, 3, 7, history=HISTORY)])
    assert offsets_of(replica) == [3, 7]


@story
async def test_a_batch_below_all_that_was_asked_for_is_not_one_that_is_held(followed: Followed) -> None:
    """Its base offset has rotted: passed over, it would be missing from a log that may have gaps."""
    replica, _ = followed.replicas
    replica.log.reconfigure(TopicConfig(cleanup_policy=frozenset({"compact"})))
    await followed.fetcher.apply([answer(replica, 0, 0, 1, history=HISTORY)])
    await followed.fetcher.apply([answer(replica, 2, 0, 3)])
    assert offsets_of(replica) == [0, 1]
