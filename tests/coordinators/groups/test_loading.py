"""What a coordinator must have seen of the cluster's topics before it says where a group is."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from sexton.coordinators import partition
from sexton.coordinators.groups import offset_operations
from sexton.coordinators.groups import records as r
from sexton.coordinators.groups.consumer_protocol import ConsumerProtocol
from sexton.coordinators.groups.messages import CommittedOffset, ConsumerHeartbeatRequest, OffsetFetchRequest
from sexton.coordinators.groups.service import GroupService
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records import batch as batches
from tests.coordinators.groups.harness import CLIENT, GROUP, FakeTopics, partitions, refused
from tests.coordinators.groups.test_service import (
    PARTITION,
    PARTITIONS,
    SETTINGS,
    FakeLog,
    commit,
    offset_of,
    run,
)
from tests.coordinators.hosts import FakeHost


class Cluster:
    """What the metastore says, and what this broker has seen of it."""

    def __init__(self) -> None:
        self.seen = FakeTopics({"t": 2})
        self.is_away = False
        self.was_made_again = False

    async def catch_up(self) -> None:
        await asyncio.sleep(0)
        if self.is_away:
            raise MetastoreUnavailableError("it is away")
        if self.was_made_again:
            self.was_made_again = False
            self.seen.make_again("t")

    def service(self) -> GroupService:
        host = FakeHost(topic_size=PARTITIONS, on_catch_up=self.catch_up)
        return GroupService(host, SETTINGS, self.seen)


def kept(log: FakeLog) -> list[r.Record]:
    """All that was written, oldest first."""
    found: list[r.Record] = []
    for data in log.batches:
        for record in next(iter(batches.decode_all(data, "log"))).records:
            key = r.decode_key(record.key or b"")
            assert key is not None
            found.append((key, None if record.value is None else r.decode_value(key, record.value)))
    return found


async def until_loaded(service: GroupService) -> int:
    while True:
        try:
            return await offset_of(service)
        except KafkaError as error:
            if error.code is not ErrorCode.coordinator_load_in_progress:
                raise
            await asyncio.sleep(0.001)


def test_offsets_of_a_topic_that_this_broker_has_not_heard_of_are_not_taken_for_those_of_a_deleted_one() -> None:
    async def test() -> None:
        log = FakeLog()
        other = Cluster()
        other.seen.make_again("t")
        there = other.service()
        await there.load(PARTITION, log)
        await there.commit_offsets(commit(5))
        here = Cluster()
        here.was_made_again = True
        service = here.service()
        await service.load(PARTITION, log)
        assert await offset_of(service) == 5
        assert len(kept(log)) == 1

    run(test())


def test_nobody_is_told_an_offset_while_the_cluster_cannot_be_asked_about_its_topics() -> None:
    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        cluster.is_away = True
        service = cluster.service()
        loading = service.load(PARTITION, log)
        await asyncio.sleep(0.01)
        with refused(ErrorCode.coordinator_load_in_progress):
            await offset_of(service)
        cluster.is_away = False
        await loading
        assert await offset_of(service) == -1

    run(test())


def test_a_log_that_this_broker_alone_has_written_to_is_read_again_without_asking_the_cluster() -> None:
    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        service = cluster.service()
        await service.load(PARTITION, log)
        await service.commit_offsets(commit(1))
        cluster.is_away = True
        log.error = KafkaError(ErrorCode.not_enough_replicas)
        with refused(ErrorCode.coordinator_not_available):
            await service.commit_offsets(commit(2))
        log.error = None
        assert await until_loaded(service) == 1

    run(test())


def test_offsets_of_a_topic_that_is_deleted_while_its_groups_are_loaded_are_taken_back() -> None:
    """One of them as Kafka wrote it before 4.1: it names no topic, so that only the deletion itself tells."""

    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        await (service := cluster.service()).load(PARTITION, log)
        await service.commit_offsets(commit(1))
        old = r.OffsetKey(GROUP, "t", 1)
        await log.append([r.encode((old, r.OffsetValue(2, "", 1)))], 1)
        log.read_gate.clear()
        loading = service.load(PARTITION, log)
        cluster.seen.delete("t")
        service.topics_deleted(["t"])
        log.read_gate.set()
        await loading
        while len(kept(log)) < 4:
            await asyncio.sleep(0.001)
        assert kept(log)[2:] == [(r.OffsetKey(GROUP, "t", 0), None), (old, None)]

    run(test())


@pytest.mark.parametrize("is_loaded_after_it", [False, True])
def test_a_deletion_that_cannot_be_written_yet_disturbs_no_group(
    monkeypatch: pytest.MonkeyPatch, is_loaded_after_it: bool
) -> None:
    """Too few replicas are in sync. Other groups' offsets are told, and the partition is not loaded again and again."""
    monkeypatch.setattr(partition, "UNWRITABLE_PAUSE_MS", 1)

    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        cluster.seen.set("gone", 1)
        await (service := cluster.service()).load(PARTITION, log)
        await service.commit_offsets(replace(commit(1), topics=[("gone", [CommittedOffset(0, 1)])]))
        await service.commit_offsets(commit(2))
        log.has_too_few_in_sync = True
        cluster.seen.delete("gone")
        if is_loaded_after_it:
            service.load(PARTITION, log)
            await until_loaded(service)
        else:
            service.topics_deleted(["gone"])
        led = service.led[PARTITION]
        for _ in range(20):
            await asyncio.sleep(0.001)
            assert await offset_of(service) == 2
        assert service.led[PARTITION] is led
        log.has_too_few_in_sync = False
        while len(kept(log)) < 3:
            await asyncio.sleep(0.001)
        assert kept(log)[2] == (r.OffsetKey(GROUP, "gone", 0), None)
        assert service.led[PARTITION] is led

    run(test())


def test_an_offset_of_the_next_topic_of_a_name_survives_a_deletion_that_could_not_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It has no topic id, because its client asked for a retention."""
    monkeypatch.setattr(partition, "UNWRITABLE_PAUSE_MS", 20)

    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        await (service := cluster.service()).load(PARTITION, log)
        await service.commit_offsets(replace(commit(1), retention_ms=60_000))
        log.has_too_few_in_sync = True
        cluster.seen.delete("t")
        service.topics_deleted(["t"])
        await asyncio.sleep(0.005)
        cluster.seen.set("t", 2)
        log.has_too_few_in_sync = False
        await service.commit_offsets(replace(commit(7), retention_ms=60_000))
        await asyncio.sleep(0.05)
        assert await offset_of(service) == 7

    run(test())


@pytest.mark.parametrize("is_loading", [False, True])
def test_an_offset_goes_with_its_topic_whatever_time_it_was_by_the_clock_of_its_coordinator(is_loading: bool) -> None:
    """It names no topic, and another broker, whose clock was ahead, has taken it."""

    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        service = cluster.service()
        old = r.OffsetKey(GROUP, "t", 0)
        await log.append([r.encode((old, r.OffsetValue(2, "", service.now().wall_ms + 60_000)))], 1)
        loading = service.load(PARTITION, log)
        if not is_loading:
            await loading
        cluster.seen.make_again("t")
        service.topics_deleted(["t"])
        await loading
        while len(kept(log)) < 2:
            await asyncio.sleep(0.001)
        assert kept(log)[1:] == [(old, None)]

    run(test())


def test_an_offset_of_a_deleted_topic_is_not_told_for_the_next_one_while_it_cannot_be_deleted() -> None:
    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        await (service := cluster.service()).load(PARTITION, log)
        await service.commit_offsets(replace(commit(1), retention_ms=60_000))
        log.has_too_few_in_sync = True
        cluster.seen.make_again("t")
        service.topics_deleted(["t"])
        assert await offset_of(service) == -1

    run(test())


def test_deletions_that_cannot_be_written_yet_wait_in_one_task_and_only_those_with_offsets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Topics may come and go for as long as too few replicas are in sync."""
    monkeypatch.setattr(partition, "UNWRITABLE_PAUSE_MS", 1)

    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        names = ["a", "b", "c"]
        for name in names:
            cluster.seen.set(name, 1)
        await (service := cluster.service()).load(PARTITION, log)
        await service.commit_offsets(replace(commit(1), topics=[(name, [CommittedOffset(0, 1)]) for name in names]))
        await service.commit_offsets(commit(2))
        log.has_too_few_in_sync = True
        before = asyncio.all_tasks()
        for number in range(100):
            name = names[number % 3]
            cluster.seen.make_again(name)
            service.topics_deleted([name, f"without offsets {number}"])
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks() - before) == 1
        assert sorted(service.led[PARTITION].deleted_ms) == names
        log.has_too_few_in_sync = False
        while len(kept(log)) < 7:
            await asyncio.sleep(0.001)
        assert dict(kept(log)[4:]) == {r.OffsetKey(GROUP, name, 0): None for name in names}
        while asyncio.all_tasks() != before:
            await asyncio.sleep(0.001)
        assert await offset_of(service) == 2

    run(test())


def test_a_deletion_that_waits_is_not_forgotten_when_the_log_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that was under way fails. The offset names no topic id, so only the deletion itself tells."""
    monkeypatch.setattr(partition, "UNWRITABLE_PAUSE_MS", 1)

    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        old = r.OffsetKey(GROUP, "t", 1)
        await log.append([r.encode((old, r.OffsetValue(2, "", 1)))], 1)
        await (service := cluster.service()).load(PARTITION, log)
        log.gate.clear()
        under_way = asyncio.ensure_future(service.commit_offsets(commit(1)))
        await asyncio.sleep(0.005)
        log.has_too_few_in_sync = True
        cluster.seen.delete("t")
        service.topics_deleted(["t"])
        log.error = KafkaError(ErrorCode.not_enough_replicas)
        log.gate.set()
        with refused(ErrorCode.coordinator_not_available):
            await under_way
        log.error, log.has_too_few_in_sync = None, False
        while len(kept(log)) < 2:
            await asyncio.sleep(0.001)
        assert kept(log)[-1] == (old, None)

    run(test())


def test_what_was_known_of_a_deleted_topic_before_the_log_is_read_again_deletes_nothing_afterwards(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An append fails while deletions wait for replicas in sync: they are those of the state that is read again."""
    monkeypatch.setattr(partition, "UNWRITABLE_PAUSE_MS", 50)
    monkeypatch.setattr(offset_operations, "EXPIRED_COUNT_MAX", 1)

    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        await (service := cluster.service()).load(PARTITION, log)
        both = [("t", [CommittedOffset(0, 1), CommittedOffset(1, 1)])]
        await service.commit_offsets(replace(commit(1), topics=both))
        before = asyncio.all_tasks()
        log.gate.clear()
        cluster.seen.make_again("t")
        service.topics_deleted(["t"])
        await asyncio.sleep(0)
        log.has_too_few_in_sync = True
        await asyncio.sleep(0.01)
        log.gate.set()  # what was being written fails
        await asyncio.sleep(0.01)
        log.has_too_few_in_sync = False
        await until_loaded(service)
        await service.commit_offsets(replace(commit(1), topics=[("t", [CommittedOffset(0, 7), CommittedOffset(1, 7)])]))
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.001)
        await service.load(PARTITION, log)
        told = await service.fetch_offsets(OffsetFetchRequest(GROUP, topics=[("t", [0, 1])]))
        assert [one.offset for _, found in told for one in found] == [7, 7]

    run(test())


@pytest.mark.parametrize("is_too_late", [False, True])
def test_nobody_waits_for_a_deletion_of_a_state_that_is_read_again(
    monkeypatch: pytest.MonkeyPatch, is_too_late: bool
) -> None:
    """It would wait for ever, and keep that state."""
    monkeypatch.setattr(partition, "UNWRITABLE_PAUSE_MS", 20)

    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        await (service := cluster.service()).load(PARTITION, log)
        await service.commit_offsets(commit(1))
        before = asyncio.all_tasks()
        log.gate.clear()
        cluster.seen.delete("t")
        service.topics_deleted(["t"])
        await asyncio.sleep(0)
        log.has_too_few_in_sync = is_too_late
        await asyncio.sleep(0.005)
        log.error = KafkaError(ErrorCode.not_enough_replicas_after_append)
        log.gate.set()
        await asyncio.sleep(0.005)
        log.error, log.has_too_few_in_sync = None, False
        async with asyncio.timeout(5):
            while asyncio.all_tasks() - before:
                await asyncio.sleep(0.001)
        assert kept(log)[-1] == (r.OffsetKey(GROUP, "t", 0), None)

    run(test())


def test_offsets_of_a_deleted_topic_are_taken_back() -> None:
    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        await (service := cluster.service()).load(PARTITION, log)
        await service.commit_offsets(commit(1))
        cluster.seen.make_again("t")
        service.topics_deleted(["t"])
        assert await offset_of(service) == -1
        while len(kept(log)) < 2:
            await asyncio.sleep(0.001)
        assert kept(log)[1] == (r.OffsetKey(GROUP, "t", 0), None)
        await service.commit_offsets(commit(2))
        assert await offset_of(service) == 2

    run(test())


def test_topics_that_changed_are_looked_at_once_while_nothing_can_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each member may have its own regular expression, and there may be many topics: a heartbeat must stay cheap."""

    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        await (service := cluster.service()).load(PARTITION, log)
        alive = ConsumerHeartbeatRequest(
            GROUP, "m", 0, CLIENT, rebalance_timeout_ms=1_000, regex="t.*", owned={}, requires_member_id=False
        )
        joined = await service.consumer_heartbeat(alive)
        assert joined.assignment is not None
        bare = ConsumerHeartbeatRequest(GROUP, "m", joined.member_epoch, CLIENT)
        await service.consumer_heartbeat(replace(bare, owned=joined.assignment))
        log.has_too_few_in_sync = True
        looks = 0
        matching = ConsumerProtocol._matching

        def counted(self: ConsumerProtocol, regex: str) -> tuple[str, ...]:
            nonlocal looks
            looks += 1
            return matching(self, regex)

        monkeypatch.setattr(ConsumerProtocol, "_matching", counted)
        cluster.seen.set("t2", 1)
        for _ in range(3):
            assert (await service.consumer_heartbeat(bare)).member_epoch == joined.member_epoch
        assert looks == 1
        log.has_too_few_in_sync = False
        assert (await service.consumer_heartbeat(bare)).member_epoch == joined.member_epoch + 1

    run(test())


def test_what_a_heartbeat_would_change_waits_until_it_can_be_recorded() -> None:
    """A topic grows while too few replicas are in sync (KIP-848). Members go on with what they have, other groups are
    not disturbed, and the change is made up for."""

    async def test() -> None:
        log = FakeLog()
        cluster = Cluster()
        await (service := cluster.service()).load(PARTITION, log)
        await service.commit_offsets(commit(2))
        alive = ConsumerHeartbeatRequest(
            GROUP, "m", 0, CLIENT, rebalance_timeout_ms=1_000, topics=("t",), owned={}, requires_member_id=False
        )
        joined = await service.consumer_heartbeat(alive)
        whole = joined.assignment
        assert whole == partitions(t=[0, 1])
        full = replace(alive, member_epoch=1, owned=whole)
        bare = ConsumerHeartbeatRequest(GROUP, "m", 1, CLIENT)
        log.has_too_few_in_sync = True
        led = service.led[PARTITION]
        assert (await service.consumer_heartbeat(full)).assignment == whole
        cluster.seen.set("u", 1)
        assert (await service.consumer_heartbeat(full)).assignment == whole, "it is not about this group"
        cluster.seen.set("t", 3)
        assert await service.consumer_heartbeat(bare) == replace(joined, assignment=None)
        for brings_news in (full, replace(bare, topics=("t", "u")), replace(bare, owned=partitions(t=[0]))):
            with refused(ErrorCode.coordinator_not_available):
                await service.consumer_heartbeat(brings_news)
        with refused(ErrorCode.fenced_member_epoch):
            await service.consumer_heartbeat(replace(bare, member_epoch=7))
        with refused(ErrorCode.unknown_member_id):
            await service.consumer_heartbeat(replace(bare, member_id="other"))
        await asyncio.sleep(0.01)
        assert service.led[PARTITION] is led
        assert await offset_of(service) == 2
        log.has_too_few_in_sync = False
        grown = await service.consumer_heartbeat(bare)
        assert (grown.member_epoch, grown.assignment) == (2, partitions(t=[0, 1, 2]))

    run(test())
