"""Compaction's watermarks between a leader and its follower: who is told what, when, and who may copy."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sexton.adapters.clock import SystemClock
from sexton.adapters.files import FileDisk
from sexton.compaction.watermarks.checkpoint import Kept
from sexton.compaction.watermarks.replica import NOTHING, Claim, Pair
from sexton.log import opening
from sexton.ports.disk import FileSlice
from sexton.ports.metastore import PartitionRow
from sexton.ports.network import Part
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Record, encode, make_batch
from sexton.replication import messages
from sexton.replication.coordination import AbsurdWatermarkError, LostRecordsError
from sexton.replication.fetcher import held_by, take_fetched
from sexton.replication.local_replica import LocalReplica
from sexton.replication.messages import FetchPartition, FetchRequest, PartitionData
from sexton.replication.session import FollowerSession
from sexton.settings.topic import TopicConfig
from sexton.types import LeaderEpoch
from tests.epochs import history
from tests.replication.answers import answered
from tests.replication.hosts import LoneHost
from tests.replication.listeners import Listener

TOPIC = uuid.UUID(int=1)
IDS = {broker: uuid.UUID(int=10 + broker, version=4) for broker in (1, 2, 3)}
ROW = PartitionRow(TOPIC, 0, (1, 2), (1, 2), 1, LeaderEpoch(3), 0, incarnations={1: IDS[1], 2: IDS[2]})
COMPACTED = TopicConfig(cleanup_policy=frozenset({"compact"}))


def batch(value: bytes) -> bytes:
    return encode(make_batch([Record(0, 1000, b"k", value)], leader_epoch=-1))


class Two:
    """Broker 1 leads, broker 2 follows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.listeners = {1: Listener(), 2: Listener()}
        self.leader: LocalReplica
        self.follower: LocalReplica

    async def open(self, broker: int, row: PartitionRow, config: TopicConfig = COMPACTED) -> LocalReplica:
        directory = str(self.path / f"broker-{broker}" / "t-0")
        disk = FileDisk()
        log = await opening.open_log(disk, directory, "t", 0, TOPIC, config, now_ms=1000, stopped_cleanly=False)
        kept = await Kept.open(disk, directory, IDS[broker], log.start_offset, log.end_offset)
        return LocalReplica(
            row,
            log,
            host=LoneHost(identity=(broker, 1)),
            high_watermark=0,
            listener=self.listeners[broker],
            kept=kept,
        )

    async def start(self, row: PartitionRow = ROW, config: TopicConfig = COMPACTED) -> None:
        self.leader = await self.open(1, row, config)
        await self.leader.become_leader(row)
        self.follower = await self.open(2, row, config)
        self.follower.become_follower(row)
        self.reconnect()

    def reconnect(self) -> None:
        self.session = FollowerSession(self, SystemClock())

    def by_id(self, topic_id: uuid.UUID, partition: int) -> LocalReplica:
        return self.leader

    @property
    def fenced(self) -> list[int]:
        """Followers that the leader's fence refused."""
        return self.listeners[1].fenced

    def held(self) -> FetchPartition:
        return held_by(self.follower, self.follower.leader_epoch)

    async def ask(self, held: FetchPartition, wait_ms: int = 1) -> list[PartitionData]:
        parts = await answered(self.session, FetchRequest(2, 1, wait_ms, 1 << 20, 1 << 20, [held]))
        return messages.decode_answer(memoryview(b"".join(map(content, parts))))

    async def fetch(self, rounds: int = 3) -> None:
        for _ in range(rounds):
            for fetched in await self.ask(self.held()):
                if fetched.error is ErrorCode.none:
                    await take_fetched(self.follower, fetched)
            await self.follower.log.flush()
        await advanced(self.leader)

    def write(self, count: int) -> None:
        for index in range(count):
            self.leader.append(batch(b"%d" % index), 1, 1000)


def content(part: Part) -> bytes:
    return part.file.read(part.position, part.size_bytes) if isinstance(part, FileSlice) else bytes(part)


@pytest.fixture
async def two(tmp_path: Path) -> Two:
    """Made inside the event loop of the test: replicas start tasks."""
    return Two(tmp_path)


async def compacted(replica: LocalReplica, bound: int) -> None:
    await replica.coordination.plan(replica.high_watermark)
    await replica.coordination.committed(bound)
    await advanced(replica)


async def advanced(replica: LocalReplica) -> None:
    """MTRO and MXRO are as high as they can be. A slow disk takes its time."""
    coordination = replica.coordination
    await asyncio.sleep(0.02)
    async with asyncio.timeout(10):
        while coordination.leader is not None and coordination.leader.computed() != coordination.watermarks.removable:
            await asyncio.sleep(0.005)


async def test_mtro_is_the_smallest_progress_of_all_and_reaches_everybody(two: Two) -> None:
    await two.start()
    two.write(10)
    await two.fetch()
    await compacted(two.leader, 8)
    assert two.leader.coordination.watermarks.removable == NOTHING, "the follower has compacted nothing"
    await compacted(two.follower, 6)
    await two.fetch()
    assert two.leader.coordination.watermarks.removable == Pair(6, 6)
    await two.fetch()
    assert two.follower.coordination.watermarks.removable == Pair(6, 6)


async def test_records_that_come_twice_are_taken_once(two: Two) -> None:
    """A follower may report something else just before it learns what the leader has already sent."""
    await two.start()
    two.write(3)
    (fetched,) = await two.ask(two.held())
    (again,) = await two.ask(two.held())
    assert again.records_bytes == fetched.records_bytes
    await take_fetched(two.follower, fetched)
    await take_fetched(two.follower, again)
    assert two.follower.log.end_offset == 3


async def test_a_follower_that_has_something_to_report_says_so_by_itself(two: Two) -> None:
    await two.start()
    two.write(3)
    await two.fetch()
    before = two.listeners[2].reports_count
    await compacted(two.follower, 2)
    assert two.listeners[2].reports_count > before


async def test_a_follower_that_reports_while_it_waits_for_records_takes_them_once(two: Two) -> None:
    """Both requests name the same end, and both answers bring what follows it."""
    await two.start()
    two.write(3)
    await two.fetch()
    held = two.held()
    two.write(2)
    answers = [*await two.ask(held), *await two.ask(held)]
    assert [bool(fetched.records) for fetched in answers] == [True, True]
    for fetched in answers:
        await take_fetched(two.follower, fetched)
    assert two.follower.log.end_offset == 5


async def test_a_silent_follower_counts_at_its_last_report_and_a_removed_one_no_more(two: Two) -> None:
    await two.start()
    two.write(10)
    await two.fetch()
    await compacted(two.follower, 3)
    await two.fetch()
    await compacted(two.leader, 9)
    assert two.leader.coordination.watermarks.removable == Pair(3, 3)
    two.leader.follow_row(replace(ROW, replicas=(1,), isr=(1,), partition_epoch=1, incarnations={1: IDS[1]}))
    async with asyncio.timeout(30):
        while two.leader.coordination.watermarks.removable != Pair(9, 9):
            await asyncio.sleep(0.001)


async def test_a_report_of_another_log_does_not_count_and_gets_nothing(two: Two) -> None:
    await two.start()
    two.write(10)
    await compacted(two.leader, 9)
    (fetched,) = await two.ask(two.held()._replace(incarnation=IDS[3], compacted=Pair(9, 9)))
    assert fetched.error is ErrorCode.unknown_leader_epoch
    assert two.leader.coordination.watermarks.removable == NOTHING
    assert two.leader.leadership is not None
    progress = two.leader.leadership.progress_of(2)
    assert progress is not None
    assert progress.end_offset == -1, "what a log holds that is to be wiped is no reason to count it in"


async def test_a_report_beyond_the_leaders_log_is_ignored(two: Two) -> None:
    await two.start()
    two.write(10)
    await two.fetch()
    await compacted(two.leader, 9)
    await two.ask(two.held()._replace(compacted=Pair(1 << 60, 1 << 60)))
    await asyncio.sleep(0.02)
    assert two.leader.coordination.watermarks.removable == NOTHING


async def test_an_empty_log_starts_at_mtro_before_it_takes_its_first_record(two: Two) -> None:
    alone = replace(ROW, replicas=(1,), isr=(1,), incarnations={1: IDS[1]})
    await two.start(alone)
    two.write(10)
    await two.leader.log.flush()
    await compacted(two.leader, 7)
    assert two.leader.coordination.watermarks.removable == Pair(7, 7)
    two.leader.follow_row(replace(ROW, isr=(1,), partition_epoch=1))
    two.follower.become_follower(ROW)
    at_first_record: list[Pair] = []
    append = two.follower.log.append_as_follower
    known = two.follower.coordination.kept

    def noted(records: Any, *limits: int) -> None:
        at_first_record.append(known.value.compacted)
        append(records, *limits)

    two.follower.log.append_as_follower = noted  # type: ignore[method-assign, assignment]
    await two.fetch()
    assert at_first_record[0] == Pair(7, 7)
    assert known.value.compacted == known.value.removable == Pair(7, 7)
    assert not two.fenced


async def test_a_log_that_ends_below_mtro_and_was_not_compacted_that_far_is_turned_away(two: Two) -> None:
    """An old disk image, or a replica that was removed and came back with its old data."""
    await two.start()
    two.write(4)
    await two.fetch()
    two.leader.follow_row(replace(ROW, replicas=(1,), isr=(1,), partition_epoch=1, incarnations={1: IDS[1]}))
    two.write(6)
    await two.leader.log.flush()
    await compacted(two.leader, 9)
    two.leader.follow_row(replace(ROW, isr=(1,), partition_epoch=2))
    two.reconnect()
    (fetched,) = await two.ask(two.held())
    assert fetched.error is not ErrorCode.none
    assert two.fenced == [2]
    assert not fetched.records


async def test_a_log_that_ends_below_mtro_and_was_compacted_that_far_goes_on(two: Two) -> None:
    await two.start()
    two.write(10)
    await two.leader.log.flush()
    held = two.held()._replace(end_offset=4, last_epoch=LeaderEpoch(3), is_empty=False, compacted=Pair(9, 9))
    await two.leader.coordination.kept.keep(lambda known: known.with_received(0, Pair(9, 9)))
    (fetched,) = await two.ask(held)
    assert fetched.records
    assert not two.fenced
    await two.ask(held._replace(compacted=Pair(9, 8)))
    assert two.fenced == [2], "MXFO counts as MCCO does"


async def test_without_coordination_nobody_is_turned_away(two: Two) -> None:
    await two.start(config=replace(COMPACTED, compaction_coordination="independent"))
    two.write(10)
    await two.leader.log.flush()
    await compacted(two.leader, 9)
    known = two.leader.coordination.watermarks
    assert known.compacted == Pair(9, 0), "nothing was settled"
    assert known.fence_below == 9
    stale = two.held()._replace(end_offset=4, last_epoch=LeaderEpoch(3), is_empty=False)
    (fetched,) = await two.ask(stale)
    assert fetched.records
    two.leader.log.reconfigure(COMPACTED)
    await two.ask(stale)
    assert two.fenced == [2], "a topic that leaves independent: the fence applies to what was removed"


async def test_a_leader_that_lost_its_watermarks_turns_away_whoever_ends_below_its_log(two: Two) -> None:
    await two.start()
    two.write(10)
    await two.leader.log.flush()
    (two.path / "broker-1" / "t-0" / "compaction-watermarks").write_bytes(b"damaged")
    two.leader = await two.open(1, ROW)
    later = replace(ROW, leader_epoch=LeaderEpoch(4), partition_epoch=1)
    await two.leader.become_leader(later)
    two.reconnect()
    entries = two.leader.log.epochs.entries
    held = two.held()._replace(leader_epoch=LeaderEpoch(4), end_offset=4, last_epoch=LeaderEpoch(3), is_empty=False)
    held = held._replace(history_digest=messages.history_digest(entries))
    await two.ask(held)
    assert two.fenced == [2]
    assert two.leader.coordination.watermarks.removable == NOTHING, "and nothing goes by what is not known"


async def test_what_may_be_gone_is_durable_before_the_records_that_lack_it(two: Two) -> None:
    await two.start()
    two.write(10)
    await two.leader.log.flush()
    await two.leader.coordination.kept.keep(lambda known: known.with_received(0, Pair(5, 4)).with_plan(8))
    (fetched,) = await two.ask(two.held())
    assert (fetched.removable, fetched.planned_high_watermark) == (Pair(5, 4), 8)

    async def fails(change: Any) -> bool:
        raise OSError(28, "full")

    two.follower.coordination.kept.keep = fails  # type: ignore[method-assign]
    with pytest.raises(OSError, match="full"):
        await take_fetched(two.follower, fetched)
    assert two.follower.log.end_offset == 0


async def test_a_replica_joins_only_above_the_high_watermark_at_which_what_it_copied_was_compacted(two: Two) -> None:
    """Rule 4, even if the leader changed meanwhile and knows of no such high watermark."""
    await two.start(replace(ROW, isr=(1,)))
    two.write(6)
    await two.leader.log.flush()
    assert two.leader.leadership is not None
    await two.ask(
        two.held()._replace(end_offset=6, last_epoch=LeaderEpoch(3), is_empty=False, claim=Claim(9, LeaderEpoch(3)))
    )
    assert not two.leader.leadership.caught_up(2, two.leader.high_watermark)
    two.write(4)
    await two.leader.log.flush()
    await two.ask(
        two.held()._replace(end_offset=10, last_epoch=LeaderEpoch(3), is_empty=False, claim=Claim(9, LeaderEpoch(3)))
    )
    assert two.leader.leadership.caught_up(2, two.leader.high_watermark)


async def test_the_high_watermark_never_starts_below_one_that_a_compaction_was_planned_at(two: Two) -> None:
    await two.start(replace(ROW, isr=(1,)))
    two.write(10)
    await two.leader.log.flush()
    await asyncio.sleep(0.02)
    assert two.leader.high_watermark == 10
    await two.leader.coordination.plan(two.leader.high_watermark)
    again = await two.open(1, ROW)  # its checkpoint of high watermarks says 0
    assert again.high_watermark == 10


async def test_a_new_leader_starts_from_what_it_was_told_and_tells_it_again(two: Two) -> None:
    await two.start()
    two.write(10)
    await two.fetch()
    await two.leader.coordination.kept.keep(lambda known: known.with_received(0, Pair(5, 5)))
    await two.fetch()
    later = replace(ROW, leader=2, leader_epoch=LeaderEpoch(4), partition_epoch=1)
    await two.follower.become_leader(later)
    two.leader.become_follower(later)
    two.leader, two.follower = two.follower, two.leader
    two.reconnect()
    held = held_by(two.follower, LeaderEpoch(4))
    parts = await answered(two.session, FetchRequest(1, 1, 1, 1 << 20, 1 << 20, [held]))
    (fetched,) = messages.decode_answer(memoryview(b"".join(map(content, parts))))
    assert fetched.removable == Pair(5, 5)


async def test_watermarks_that_cannot_be_are_not_taken(two: Two) -> None:
    await two.start()
    absurd = PartitionData(TOPIC, 0, ErrorCode.none, LeaderEpoch(3), log_end_offset=10, removable=Pair(11, 0))
    with pytest.raises(AbsurdWatermarkError):
        await two.follower.coordination.take(absurd)
    assert two.follower.coordination.watermarks.removable == NOTHING


def test_negative_offsets_are_no_message() -> None:
    held = FetchPartition(TOPIC, 0, True, LeaderEpoch(3), 0, LeaderEpoch(-1), 0, compacted=Pair(-1, 0))
    with pytest.raises(ValueError, match="cannot be"):
        messages.decode_request(messages.encode_request(FetchRequest(2, 1, 0, 1, 1, [held])))
    fetched = PartitionData(TOPIC, 0, ErrorCode.none, removable=Pair(0, -5))
    with pytest.raises(ValueError, match="cannot be"):
        messages.decode_answer(memoryview(b"".join(map(content, messages.encode_answer([fetched])))))


async def test_the_log_start_counts_as_compacted(two: Two) -> None:
    config = replace(COMPACTED, cleanup_policy=frozenset({"compact", "delete"}))
    await two.start(config=config)
    two.write(10)
    await two.fetch(4)
    await two.leader.advance_start(4)
    assert two.leader.coordination.watermarks.compacted == Pair(4, 4)
    with pytest.raises(KafkaError):
        two.leader.log.read(2, 100, 10, min_one=True)


async def test_a_forced_election_starts_a_generation_cuts_watermarks_and_ignores_older_messages(two: Two) -> None:
    """The trap: new records would be "already below MTRO" on a replica that was copied by half."""
    await two.start()
    two.write(4)
    await two.fetch()
    await two.follower.coordination.kept.keep(lambda known: known.with_received(0, Pair(9, 9)).with_plan(9))
    forced = replace(ROW, leader=2, isr=(2,), leader_epoch=LeaderEpoch(4), partition_epoch=1, generation=1)
    await two.follower.become_leader(forced)
    known = two.follower.coordination.watermarks
    assert known.generation == 1
    assert known.removable.highest <= two.follower.log.end_offset == 4
    assert known.planned_high_watermark <= 4
    late = PartitionData(TOPIC, 0, ErrorCode.none, LeaderEpoch(3), log_end_offset=10, removable=Pair(9, 9))
    await two.follower.coordination.take(late)
    assert two.follower.coordination.watermarks == known
    again = await two.open(2, forced)
    assert again.coordination.kept.value.generation == 1, "durable before it leads"


async def test_a_log_of_an_older_generation_is_turned_away_and_an_empty_one_takes_the_new(two: Two) -> None:
    await two.start(replace(ROW, generation=1))
    two.write(4)
    await two.leader.log.flush()
    assert two.leader.coordination.kept.value.generation == 1
    await two.ask(two.held()._replace(end_offset=2, last_epoch=LeaderEpoch(3), is_empty=False))
    assert two.fenced == [2]
    two.reconnect()
    await two.fetch()
    assert two.follower.coordination.kept.value.generation == 1
    assert two.follower.log.end_offset == 4


async def test_a_follower_takes_no_history_that_lacks_what_its_own_log_was_compacted_by(two: Two) -> None:
    """It may have compacted since it asked: when it asks again, the leader turns it away."""
    await two.start()
    two.write(10)
    await two.fetch(4)
    lost = list(history((3, 0), (4, 6)))
    late = PartitionData(
        TOPIC, 0, ErrorCode.none, LeaderEpoch(3), high_watermark=6, log_start_offset=0, log_end_offset=9, history=lost
    )
    await compacted(two.follower, 8)
    with pytest.raises(LostRecordsError):
        await take_fetched(two.follower, late)
    assert two.follower.log.end_offset == 10
    assert two.follower.coordination.claim == Claim(10, LeaderEpoch(3))
    await take_fetched(two.follower, late._replace(history=list(history((3, 0), (4, 10))), log_end_offset=12))
    assert two.follower.log.epochs.latest_epoch == 4


async def test_what_watermarks_speak_of_is_flushed_before_they_are_kept(two: Two) -> None:
    await two.start(config=replace(COMPACTED, flush_before_ack=False))
    two.write(10)
    await two.fetch(4)
    assert two.leader.high_watermark == 10 > two.leader.log.flushed_offset
    await two.leader.coordination.plan(8)
    assert two.leader.log.flushed_offset == 10
