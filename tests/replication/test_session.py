"""A leader's replica and a follower's session on real files: what is committed when, and what is sent once."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from sexton.adapters.clock import SystemClock
from sexton.adapters.files import FileDisk
from sexton.compaction.watermarks.replica import Pair
from sexton.log import opening
from sexton.log.epochs import epoch_of
from sexton.ports.disk import FileSlice
from sexton.ports.metastore import PartitionRow
from sexton.ports.network import Part
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Record, encode, make_batch
from sexton.replication import messages
from sexton.replication.local_replica import LocalReplica
from sexton.replication.messages import FetchPartition, FetchRequest, PartitionData
from sexton.replication.session import HIGH_WATERMARK_DELAY_S, FollowerSession
from sexton.settings.topic import TopicConfig
from sexton.types import LeaderEpoch
from tests.replication.answers import answered
from tests.replication.hosts import LoneHost
from tests.replication.listeners import Listener

TOPIC = uuid.UUID(int=7, version=4)
ROW = PartitionRow(TOPIC, 0, replicas=(1, 2), isr=(1, 2), leader=1, leader_epoch=LeaderEpoch(3), partition_epoch=1)


def batch(value: bytes) -> bytes:
    return encode(make_batch([Record(0, 1000, b"k", value)]))


class SetClock(SystemClock):
    """Monotonic time is what a test says."""

    time_ms = 0

    def monotonic_ms(self) -> int:
        return self.time_ms


class Leader:
    def __init__(self, replica: LocalReplica, clock: SetClock) -> None:
        self.replica = replica
        self.clock = clock
        self.session = FollowerSession(self, clock)

    def lagging(self) -> list[int]:
        assert self.replica.leadership is not None
        return self.replica.leadership.lagging(self.replica.log.end_offset, self.clock.time_ms, lag_max_ms=30_000)

    def by_id(self, topic_id: uuid.UUID, partition: int) -> LocalReplica:
        return self.replica

    def held(self, end_offset: int) -> FetchPartition:
        entries = self.replica.log.epochs.entries
        digest = messages.history_digest(entries)
        return FetchPartition(TOPIC, 0, True, LeaderEpoch(3), end_offset, epoch_of(entries, end_offset - 1), digest)

    async def fetch(self, *held: FetchPartition, wait_ms: int = 0) -> list[PartitionData]:
        parts = await answered(self.session, FetchRequest(2, 1, wait_ms, 1 << 20, 1 << 20, held))
        return messages.decode_answer(memoryview(b"".join(map(content, parts))))


def content(part: Part) -> bytes:
    return part.file.read(part.position, part.size_bytes) if isinstance(part, FileSlice) else bytes(part)


@pytest.fixture
def with_leader(tmp_path: Path) -> Callable[[Callable[[Leader], Awaitable[None]]], None]:
    def run(scenario: Callable[[Leader], Awaitable[None]]) -> None:
        async def body() -> None:
            config = TopicConfig(min_insync_replicas=1)
            clock = SetClock()
            log = await opening.open_log(
                FileDisk(), str(tmp_path / "t-0"), "t", 0, TOPIC, config, now_ms=1000, stopped_cleanly=False
            )
            replica = LocalReplica(
                ROW,
                log,
                host=LoneHost(clock=clock),
                high_watermark=0,
                listener=Listener(),
            )
            await replica.become_leader(ROW)
            await scenario(Leader(replica, clock))
            replica.check_invariants()
            await log.close()

        asyncio.run(body())

    return run


def test_a_record_is_committed_when_the_follower_has_it_on_disk(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    async def scenario(leader: Leader) -> None:
        await leader.fetch(leader.held(0))
        _, committed = leader.replica.append(batch(b"v"), -1, 1000)
        assert committed is not None
        await leader.replica.log.flush()
        assert not committed.done()
        (fetched,) = await leader.fetch(leader.held(0))
        assert fetched.records_bytes > 0
        assert leader.replica.high_watermark == 0, "sent is not held"
        await leader.fetch(leader.held(1))
        await committed
        assert leader.replica.high_watermark == 1

    with_leader(scenario)


def test_what_was_sent_is_not_sent_again_before_the_follower_has_said_what_it_holds(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    async def scenario(leader: Leader) -> None:
        leader.replica.append(batch(b"first"), 1, 1000)
        (fetched,) = await leader.fetch(leader.held(0))
        assert fetched.records_bytes > 0
        leader.replica.append(batch(b"second"), 1, 1000)
        assert await leader.fetch() == [], "a second request is under way while the first answer is being applied"
        (fetched,) = await leader.fetch(leader.held(1))
        records = bytes(cast(memoryview, fetched.records[0]))
        assert b"second" in records
        assert b"first" not in records

    with_leader(scenario)


def test_an_append_wakes_a_follower_that_waits(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    async def scenario(leader: Leader) -> None:
        waiting = asyncio.ensure_future(leader.fetch(leader.held(0), wait_ms=60_000))
        await asyncio.sleep(0)
        assert not waiting.done()
        leader.replica.append(batch(b"v"), 1, 1000)
        (fetched,) = await waiting
        assert fetched.records_bytes > 0

    with_leader(scenario)


def test_the_first_record_after_an_idle_time_does_not_make_its_followers_lag(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    """A follower says nothing of a partition where nothing happens."""

    async def scenario(leader: Leader) -> None:
        await leader.fetch(leader.held(0))
        leader.clock.time_ms = 60_000
        await leader.fetch()
        leader.clock.time_ms = 60_400
        leader.replica.append(batch(b"v"), 1, 1000)
        assert leader.lagging() == []
        leader.clock.time_ms = 91_000
        assert leader.lagging() == [2], "it has not asked for the record for more than half a minute"

    with_leader(scenario)


def test_a_follower_that_has_asked_for_nothing_for_long_lags_with_the_first_record(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    async def scenario(leader: Leader) -> None:
        await leader.fetch(leader.held(0))
        leader.clock.time_ms = 60_000
        assert leader.lagging() == []
        leader.replica.append(batch(b"v"), 1, 1000)
        assert leader.lagging() == [2]

    with_leader(scenario)


def test_records_that_were_sent_do_not_count_as_held_while_the_follower_asks_for_others(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    async def scenario(leader: Leader) -> None:
        await leader.fetch(leader.held(0))
        leader.replica.append(batch(b"v"), 1, 1000)
        await leader.fetch()
        leader.clock.time_ms = 60_000
        await leader.fetch()
        leader.replica.append(batch(b"v"), 1, 1000)
        assert leader.lagging() == [2]

    with_leader(scenario)


def test_an_append_to_a_log_that_the_leader_made_anew_wakes_a_follower_that_knew_the_former_one(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    """It has not noticed: the session saw one request for each, and nothing in between."""

    async def scenario(leader: Leader) -> None:
        await leader.fetch(leader.held(0))
        former = leader.replica
        leader.replica = LocalReplica(
            ROW,
            former.log,
            host=LoneHost(),
            high_watermark=0,
            listener=Listener(),
        )
        await leader.replica.become_leader(replace(ROW, leader_epoch=LeaderEpoch(4), partition_epoch=2))
        held = leader.held(0)._replace(leader_epoch=LeaderEpoch(4))
        waiting = asyncio.ensure_future(leader.fetch(held, wait_ms=60_000))
        await asyncio.sleep(0)
        assert not waiting.done()
        leader.replica.append(batch(b"v"), 1, 1000)
        async with asyncio.timeout(10):
            (fetched,) = await waiting
        assert fetched.records_bytes > 0

    with_leader(scenario)


def test_every_request_is_answered_however_close_the_next_one_follows(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    """Both are there before either has begun to wait."""

    async def scenario(leader: Leader) -> None:
        request = FetchRequest(2, 1, 600_000, 1 << 20, 1 << 20, [leader.held(0)])
        first, second = leader.session.fetch(request), leader.session.fetch(request)
        assert isinstance(first, Awaitable)
        assert isinstance(second, Awaitable)
        leader.replica.append(batch(b"v"), 1, 1000)
        async with asyncio.timeout(30):
            answers = await asyncio.gather(first, second)
        assert sum(len(messages.decode_answer(memoryview(b"".join(map(content, parts))))) for parts in answers) == 1

    with_leader(scenario)


def test_a_follower_hears_of_a_high_watermark_that_rose_long_before_its_wait_is_over(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    async def scenario(leader: Leader) -> None:
        leader.replica.append(batch(b"v"), 1, 1000)
        await leader.replica.log.flush()
        (fetched,) = await leader.fetch(leader.held(0))
        assert fetched.high_watermark == 0
        async with asyncio.timeout(30):
            (fetched,) = await leader.fetch(leader.held(1), wait_ms=600_000)
        assert (fetched.high_watermark, fetched.records_bytes) == (1, 0)
        again = asyncio.ensure_future(leader.fetch(leader.held(1), wait_ms=600_000))
        await asyncio.sleep(5 * HIGH_WATERMARK_DELAY_S)
        assert not again.done(), "it has been told"
        again.cancel()

    with_leader(scenario)


def test_a_follower_of_another_epoch_is_told_so_and_does_not_count(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    async def scenario(leader: Leader) -> None:
        (fetched,) = await leader.fetch(FetchPartition(TOPIC, 0, True, LeaderEpoch(2), 0, LeaderEpoch(-1), 0))
        assert fetched.error is ErrorCode.fenced_leader_epoch
        (fetched,) = await leader.fetch(FetchPartition(TOPIC, 0, True, LeaderEpoch(4), 0, LeaderEpoch(-1), 0))
        assert fetched.error is ErrorCode.unknown_leader_epoch
        leader.replica.append(batch(b"v"), 1, 1000)
        assert leader.replica.high_watermark == 0

    with_leader(scenario)


def test_a_follower_that_strays_from_the_history_is_sent_all_of_it_and_does_not_count(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    async def scenario(leader: Leader) -> None:
        leader.replica.append(batch(b"v"), 1, 1000)
        strayed = FetchPartition(TOPIC, 0, True, LeaderEpoch(3), 1, LeaderEpoch(2), 0)
        (fetched,) = await leader.fetch(strayed)
        assert fetched.history == list(leader.replica.log.epochs.entries)
        assert fetched.records_bytes == 0
        assert leader.replica.high_watermark == 0

    with_leader(scenario)


def test_a_follower_that_strays_hears_of_no_high_watermark_before_the_history(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    """The answer is full of other partitions' records. What is committed here is not what the follower has there."""

    async def scenario(leader: Leader) -> None:
        for value in (b"1", b"2"):
            leader.replica.append(batch(value), -1, 1000)
        await leader.replica.log.flush()
        await leader.fetch(leader.held(2))
        assert leader.replica.high_watermark == 2
        strays = leader.held(2)._replace(last_epoch=LeaderEpoch(1), history_digest=1)
        full = await answered(leader.session, FetchRequest(2, 1, 1, 0, 1 << 20, [strays]))
        assert messages.decode_answer(memoryview(b"".join(map(content, full)))) == []
        (told,) = await leader.fetch()
        assert (told.history, told.high_watermark) == (list(leader.replica.log.epochs.entries), 2)

    with_leader(scenario)


def test_a_leader_that_steps_down_fails_what_waits_and_tells_its_followers(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    async def scenario(leader: Leader) -> None:
        await leader.fetch(leader.held(0))
        _, committed = leader.replica.append(batch(b"v"), -1, 1000)
        assert committed is not None
        waiting = asyncio.ensure_future(leader.fetch(leader.held(0), wait_ms=60_000))
        await asyncio.sleep(0)
        leader.replica.stop()
        with pytest.raises(KafkaError) as failure:
            await committed
        assert failure.value.code is ErrorCode.not_leader_or_follower
        assert (await waiting)[0].error in (ErrorCode.none, ErrorCode.not_leader_or_follower)
        await leader.replica.log.flush()

    with_leader(scenario)


def test_an_idle_follower_is_told_of_what_moved_once_and_of_nothing_else(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    async def scenario(leader: Leader) -> None:
        replica = leader.replica
        replica.append(batch(b"v"), 1, 1000)
        await replica.log.flush()
        await leader.fetch(leader.held(0))
        await leader.fetch(leader.held(1), wait_ms=1)  # the high watermark
        assert await leader.fetch(leader.held(1), wait_ms=1) == []
        await replica.coordination.committed(1)  # its own progress is none of a follower's business
        assert await leader.fetch(leader.held(1), wait_ms=1) == []
        assert all(followed.is_up_to_date() for followed in leader.session._followed.values())
        await replica.coordination.kept.keep(lambda known: known.with_received(0, Pair(1, 1)))
        await replica.advance_start(1)
        (fetched,) = await leader.fetch(leader.held(1), wait_ms=1)
        assert (fetched.removable, fetched.log_start_offset) == (Pair(1, 1), 1)
        assert await leader.fetch(leader.held(1), wait_ms=1) == []
        assert not leader.session._stale, "or it would look again and again"

    with_leader(scenario)


LOGS = uuid.UUID(int=21, version=4), uuid.UUID(int=22, version=4)


def test_an_answer_names_the_log_that_asked_and_where_it_ended(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    async def scenario(leader: Leader) -> None:
        for value in (b"a", b"b", b"c"):
            leader.replica.append(batch(value), 1, 1000)
        (fetched,) = await leader.fetch(leader.held(2)._replace(incarnation=LOGS[0]))
        assert (fetched.incarnation, fetched.held_end_offset, fetched.records_bytes > 0) == (LOGS[0], 2, True)
        await leader.replica.log.flush()
        await leader.fetch(leader.held(3)._replace(incarnation=LOGS[0]))
        (fetched,) = await leader.fetch(wait_ms=1)
        assert (fetched.incarnation, fetched.held_end_offset, fetched.high_watermark) == (LOGS[0], 3, 3)

    with_leader(scenario)


def test_what_a_followers_former_log_was_told_is_told_to_its_new_one(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    """It is another follower: what a session remembers belongs to a log, not to a broker."""

    async def scenario(leader: Leader) -> None:
        await leader.fetch(leader.held(0)._replace(incarnation=LOGS[0]))
        (told,) = await leader.fetch(wait_ms=1)
        assert (told.incarnation, told.high_watermark) == (LOGS[0], 0)
        await leader.fetch(leader.held(0)._replace(incarnation=LOGS[0]))
        assert await leader.fetch(wait_ms=1) == [], "it knows"
        await leader.fetch(leader.held(0)._replace(incarnation=LOGS[1]))
        (told,) = await leader.fetch(wait_ms=1)
        assert (told.incarnation, told.high_watermark) == (LOGS[1], 0)

    with_leader(scenario)


def test_a_log_that_is_not_the_followers_any_more_gets_nothing(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None],
) -> None:
    """The leader hears of the new one while it waits for something to send to the old one."""

    async def scenario(leader: Leader) -> None:
        leader.replica.row = replace(leader.replica.row, incarnations={2: LOGS[0]})
        waiting = asyncio.ensure_future(leader.fetch(leader.held(0)._replace(incarnation=LOGS[0]), wait_ms=60_000))
        await asyncio.sleep(0)
        leader.replica.follow_row(replace(leader.replica.row, incarnations={2: LOGS[1]}, partition_epoch=2))
        leader.replica.append(batch(b"v"), 1, 1000)
        (fetched,) = await waiting
        assert (fetched.error, fetched.records_bytes) == (ErrorCode.unknown_leader_epoch, 0)

    with_leader(scenario)


def test_after_a_bug_in_a_flush_producers_are_told_and_it_is_tried_again(
    with_leader: Callable[[Callable[[Leader], Awaitable[None]]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else may come that would have it tried again."""
    monkeypatch.setattr("sexton.replication.local_replica.FLUSH_AGAIN_MS", 0)

    async def scenario(leader: Leader) -> None:
        replica = leader.replica
        flush = replica.log.flush

        async def has_a_bug() -> None:
            replica.log.flush = flush  # type: ignore[method-assign]
            raise IndexError("nobody expected this")

        replica.log.flush = has_a_bug  # type: ignore[method-assign]
        _, committed = replica.append(batch(b"v"), -1, 1000)
        assert committed is not None
        with pytest.raises(KafkaError, match="nobody expected this"):
            await committed
        async with asyncio.timeout(30):
            while replica.log.flushed_offset < 1:
                await asyncio.sleep(0.001)

    with_leader(scenario)
