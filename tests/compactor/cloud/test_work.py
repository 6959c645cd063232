"""A compactor on cloud topics with every broker down: what it finds due, what it does about it, and what becomes of two
of them, of one that sleeps, and of work that the log has left behind."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from sexton.adapters.clock import SystemClock
from sexton.compaction.cloud_due import DueLimits, due_work
from sexton.compactor.cloud import planning, plans
from sexton.compactor.cloud.future import FutureTimes
from sexton.compactor.cloud.jobs import TOO_LATE
from sexton.compactor.cloud.reference import ReferenceCloudEngine
from sexton.compactor.cloud.work import CloudWorker
from sexton.compactor.schedule import Lane, Limits
from sexton.compactor.worker import Compactor
from sexton.ports.cloud import CloudPartitionRow, ObjectState, OwnerKind
from sexton.ports.metastore import ConfigScope, MetastoreUnavailableError
from sexton.ports.work_queue import CloudWork, WorkKey, WorkRow
from sexton.records.batch import ControlType
from sexton.settings.layers import CLUSTER_DEFAULT, set_at_run_time
from sexton.settings.topic import TopicConfig
from sexton.types import INT64_MAX
from tests.adapters.metastore.cloud.world import TOPIC, A, World
from tests.cloud.test_leveled import keyed, records, tell
from tests.cloud.test_replica import Broker, with_brokers
from tests.cloud.worlds import CLUSTER, NOW_MS, Forgetful, MemoryStore, until
from tests.compactor.cloud.histories import row_of
from tests.log.helpers import plain, sequenced

HOUR_MS = 3_600_000


class Clock:
    """That of this machine, and as much later as a test wants."""

    def __init__(self) -> None:
        self.offset_ms = 0

    def now_ms(self) -> int:
        return SystemClock().now_ms() + self.offset_ms

    def monotonic_ms(self) -> int:
        return self.offset_ms


class Slow(ReferenceCloudEngine):
    """Between what it reads and what is committed of it, something happens."""

    meanwhile: Callable[[], Coroutine[Any, Any, None]] | None = None

    async def level(self, *arguments: Any) -> Any:
        made = await super().level(*arguments)
        await self._happens()
        return made

    async def compact(self, *arguments: Any) -> Any:
        made = await super().compact(*arguments)
        await self._happens()
        return made

    async def _happens(self) -> None:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            await happens()


class Machine:
    """One compactor. There is no broker that it could ask."""

    def __init__(self, world: World, store: MemoryStore, seed: int = 1) -> None:
        self.clock = Clock()
        self.metastore = cast(Any, Forgetful(world))
        self.engine = Slow(store)
        rng = random.Random(seed)
        self.cloud = CloudWorker(self.metastore, store, self.engine, self.clock, rng, CLUSTER)
        self.compactor = Compactor(
            metastore=self.metastore,
            brokers=cast(Any, None),
            engine=cast(Any, None),
            clock=self.clock,
            rng=rng,
            limits=Limits(),
            name=f"machine {seed}",
            cloud=self.cloud,
        )

    async def turn(self, *lanes: Lane) -> list[bool]:
        done = []
        for lane in lanes or (Lane.LEVEL, Lane.SMALL):
            await self.cloud.refresh()
            done.append(await self.compactor.turn(lane))
        return done

    async def due(self) -> list[tuple[int, int]]:
        await self.cloud.refresh()
        return [(row.key.broker_id, row.key.partition) for row in await self.metastore.read_work()]

    async def outcomes(self) -> list[tuple[int, str]]:
        return [(run.broker_id, run.outcome) for run in reversed(await self.metastore.read_runs(100))]


def with_machines(work: Callable[[Broker, Machine, Machine], Coroutine[Any, Any, None]], **settings: str) -> None:
    async def go(one: Broker, _: Broker) -> None:
        world = one.host.world
        named = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", **settings}
        await world.store.change_settings(
            ConfigScope.TOPIC, TOPIC.name, {name.replace("_", "."): value for name, value in named.items()}
        )
        defaults = {"cloud.level.ms": "0", "log.segment.bytes": "1000000"}
        await world.store.change_settings(ConfigScope.BROKER, CLUSTER_DEFAULT, defaults)
        await one.lead()
        machines = [Machine(world, one.host.objects, seed) for seed in (1, 2)]
        for machine in machines:
            await machine.compactor.register()
        for broker_id in (1, 2):
            await world.fence(broker_id)
        await work(one, *machines)

    with_brokers(go)


async def write(one: Broker, *values: bytes) -> None:
    """As its leader before all brokers went down: what it had appended was committed by then."""
    await one.host.world.register(1)
    await one.lead(epoch=one.replica.leader_epoch + 1)
    for number, value in enumerate(values):
        await one.append(keyed(b"k%d" % (number % 2), value))
    await one.host.world.fence(1)


def test_with_all_brokers_down_what_is_due_is_leveled_and_compacted() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await write(one, b"a", b"b", b"c", b"d")
        assert await machine.due() == [(CloudWork.LEVEL, 0)]
        assert await machine.turn() == [True, True]
        row = await one.host.world.row()
        assert (row.leveled_offset, row.cleaned_offset) == (4, 4)
        assert await machine.due() == []
        assert await machine.turn() == [False, False]
        assert await machine.outcomes() == [(CloudWork.LEVEL, "committed"), (CloudWork.COMPACT, "committed")]
        assert machine.compactor.totals.committed_count == 2
        await one.host.world.register(1)
        await one.lead(epoch=one.replica.leader_epoch + 1)
        assert records(await one.read_all()) == [(2, b"k0", b"c"), (3, b"k1", b"d")]
        objects = (await one.host.world.check()).objects.values()
        states = [each.state for each in objects if each.owner.kind is OwnerKind.COMPACTOR]
        assert ObjectState.PENDING not in states, "ids that were not used are given back"

    with_machines(work)


def test_ids_whose_registration_was_not_answered_are_given_back() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await write(one, b"a", b"b")
        lost = ["after"]
        machine.metastore.loses = lambda operation: lost.pop() if operation == "register_objects" and lost else None
        with pytest.raises(MetastoreUnavailableError):
            await machine.turn(Lane.LEVEL)
        assert (await one.host.world.row()).leveled_offset == 0
        objects = (await one.host.world.check()).objects.values()
        states = {each.state for each in objects if each.owner.kind is OwnerKind.COMPACTOR}
        assert states == {ObjectState.GARBAGE}

    with_machines(work)


@pytest.mark.parametrize("lane", [Lane.LEVEL, Lane.SMALL])
def test_of_two_compactors_on_one_partition_one_commits_and_the_other_is_refused_whole(lane: Lane) -> None:
    async def work(one: Broker, first: Machine, second: Machine) -> None:
        await write(one, b"a", b"b", b"c")
        if lane is Lane.SMALL:
            await first.turn(Lane.LEVEL)

        async def overtaken() -> None:
            for row in await first.metastore.read_compactors():  # it is taken for dead, and is not
                if row.name == "machine 1":
                    await one.host.world.store.remove_compactor(row.compactor_id, row.renewals_count)
            assert await second.turn(lane) == [True]

        first.engine.meanwhile = overtaken
        assert await first.turn(lane) == [True]
        told = [outcome for _, outcome in await first.outcomes()]
        assert told.count("committed") == (1 if lane is Lane.LEVEL else 2)
        assert first.cloud.wasted_bytes > 0
        assert second.cloud.wasted_bytes == 0
        await one.host.world.check()

    with_machines(work)


def test_the_sleeper_whose_objects_were_collected_commits_nothing() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await write(one, b"a", b"b")

        async def sleeps() -> None:
            store = one.host.world.store
            for row in await store.read_compactors():
                await store.remove_compactor(row.compactor_id, row.renewals_count)
            assert await store.expire_owners(100) > 0

        machine.engine.meanwhile = sleeps
        await machine.turn(Lane.LEVEL)
        assert (await one.host.world.row()).leveled_offset == 0
        assert "lease" in (await machine.outcomes())[0][1]

    with_machines(work)


def test_delete_records_during_compaction_keeps_what_is_above_and_nothing_below() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        for value in (b"a", b"b", b"c"):
            await write(one, value, value)
            await machine.turn(Lane.LEVEL)

        async def deletes() -> None:
            await one.host.world.register(1)
            await one.lead(epoch=one.replica.leader_epoch + 1)
            await one.host.world.do("advance_start", A, one.replica.leader_epoch, 3)

        machine.engine.meanwhile = deletes
        await machine.turn(Lane.SMALL)
        assert (await machine.outcomes())[-1] == (CloudWork.COMPACT, "committed")
        row = await one.host.world.row()
        assert (row.start_offset, row.cleaned_offset) == (3, 6)
        await one.lead(epoch=one.replica.leader_epoch + 1)
        assert records(await one.read_all(3)) == [(4, b"k0", b"c"), (5, b"k1", b"c")]

    with_machines(work, cleanup_policy="compact,delete")


@pytest.mark.parametrize(
    ("change", "why"),
    [("policy", "changed"), ("default policy", "changed"), ("topic", "deleted")],
    ids=["the policy", "the policy of all topics", "the topic"],
)
def test_what_an_operator_changes_meanwhile_refuses_the_compaction(change: str, why: str) -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await write(one, b"a", b"b", b"c")
        await machine.turn(Lane.LEVEL)
        store = one.host.world.store
        if change == "default policy":
            await store.change_settings(ConfigScope.BROKER, "", {"log.cleanup.policy": "compact"})
            await store.change_settings(ConfigScope.TOPIC, TOPIC.name, {"cleanup.policy": None})

        async def changes() -> None:
            if change == "policy":
                await store.change_settings(ConfigScope.TOPIC, TOPIC.name, {"cleanup.policy": "delete"})
            elif change == "default policy":
                await store.change_settings(ConfigScope.BROKER, "", {"log.cleanup.policy": "delete"})
            else:
                await store.delete_topic(TOPIC.topic_id)

        machine.engine.meanwhile = changes
        await machine.turn(Lane.SMALL)
        assert why in (await machine.outcomes())[-1][1]
        assert machine.cloud.wasted_bytes > 0
        assert await machine.due() == [], "and it is not due any more"

    with_machines(work)


def test_leveling_and_compaction_of_one_partition_do_not_meet() -> None:
    async def work(one: Broker, first: Machine, second: Machine) -> None:
        await write(one, b"a", b"b", b"c")
        await first.turn(Lane.LEVEL)
        await write(one, b"d", b"e")

        async def levels() -> None:
            assert await second.turn(Lane.LEVEL) == [True]

        first.engine.meanwhile = levels
        await first.turn(Lane.SMALL)
        assert {outcome for _, outcome in await first.outcomes()} == {"committed"}
        row = await one.host.world.row()
        assert (row.cleaned_offset, row.leveled_offset) == (3, 5)

    with_machines(work)


def test_leveling_and_merging_cannot_both_replace() -> None:
    """T22: a merge names the compaction epoch, and a compaction that came first has taken it."""

    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        from tests.cloud.leveler import Leveler

        leveler = Leveler(one.host, settings=await _settings(one))
        for number in range(18):
            await write(one, b"%d" % number)
            await leveler.level()
        plan = await leveler.plan_compaction(now_ms=3_000_000)
        assert plan is not None
        merged = await leveler.merge()
        assert merged.error == ""
        (done,) = await leveler.jobs.compact([plan], leveler.writer)
        assert done.is_refused
        assert (await one.host.world.row()).cleaned_offset == 0

    with_machines(work)


async def _settings(one: Broker) -> dict[str, str]:
    changes = await one.host.world.store.read_changes(0)
    settings = {row.name: row.settings for row in changes.configs}
    return set_at_run_time(settings[CLUSTER_DEFAULT], settings[TOPIC.name])


def test_many_small_runs_of_a_topic_that_is_not_compacted_are_merged_after_a_leveling() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        for number in range(17):
            await write(one, b"%d" % number)
            await machine.turn(Lane.LEVEL)
        assert (await machine.outcomes())[-1] == (CloudWork.MERGE, "committed")
        assert await one.host.world.extents() == [(0, 17, "L1")]

    with_machines(work, cleanup_policy="delete")


def test_a_topic_that_was_compacted_once_is_merged_below_and_above_what_is_clean() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await write(one, b"a", b"b")
        await machine.turn()
        assert (await one.host.world.row()).cleaned_offset == 2
        await one.host.world.store.change_settings(ConfigScope.TOPIC, TOPIC.name, {"cleanup.policy": "delete"})
        for number in range(17):
            await write(one, b"%d" % number)
            await machine.turn(Lane.LEVEL)
        assert (await machine.outcomes())[-1] == (CloudWork.MERGE, "committed")
        assert await one.host.world.extents() == [(0, 2, "L1"), (2, 19, "L1")]
        assert machine.compactor.totals.wasted_bytes == 0

    with_machines(work)


def test_what_was_requested_is_leveled_and_compacted_at_once_and_then_is_done() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        store = one.host.world.store
        await store.change_settings(ConfigScope.BROKER, "", {"cloud.level.ms": str(HOUR_MS)})
        await write(one, b"a", b"b", b"c")
        assert await machine.due() == []
        key = WorkKey(CloudWork.COMPACT, *A)
        await store.request_cloud_work([_work(key)])
        assert await machine.due() == [(CloudWork.COMPACT, 0)], "although nothing else says so"
        assert await machine.turn(Lane.SMALL) == [True]
        row = await one.host.world.row()
        assert (row.leveled_offset, row.cleaned_offset) == (3, 3)
        assert await machine.due() == []

    with_machines(work)


def _work(key: WorkKey, **more: Any) -> WorkRow:
    row = WorkRow(
        key=key,
        topic=TOPIC.name,
        why="",
        dirty_ratio_ppm=0,
        dirty_bytes=0,
        total_bytes=0,
        overdue_ms=0,
        is_requested=False,
        since_ms=5,
    )
    return replace(row, **more)


def test_what_stays_due_keeps_its_time_and_its_holder() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        store = one.host.world.store
        key, other = WorkKey(CloudWork.LEVEL, *A), WorkKey(CloudWork.COMPACT, *A)
        await store.publish_cloud_work([_work(key), _work(other)])
        (holder,) = [row.compactor_id for row in await store.read_compactors() if row.name == "machine 1"]
        assert await store.lease_work(holder, [key]) == [key]
        await store.publish_cloud_work([_work(key, since_ms=9, why="more")])
        (row,) = await store.read_work()
        assert (row.key, row.since_ms, row.holder, row.why) == (key, 5, holder, "more")
        await store.publish_cloud_work([])
        assert [row.key for row in await store.read_work()] == [key], "somebody works on it"
        await store.end_work(holder, [key], [])
        assert await store.read_work() == []

    with_machines(work)


def test_a_partition_whose_objects_cannot_be_read_pauses_and_the_others_go_on() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await write(one, b"a")
        store = one.host.objects
        kept = dict(store.objects)
        store.objects.clear()
        await machine.turn(Lane.LEVEL)
        assert "no such object" in (await machine.outcomes())[0][1]
        assert await machine.turn(Lane.LEVEL) == [False], "it pauses"
        store.objects.update(kept)
        machine.clock.offset_ms += HOUR_MS
        assert await machine.turn(Lane.LEVEL) == [True]
        assert (await one.host.world.row()).leveled_offset == 1

    with_machines(work)


def test_what_min_compaction_lag_keeps_back_is_not_compacted_again_and_again() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await write(one, b"a", b"b", b"c")  # of long ago
        await machine.turn(Lane.LEVEL)
        await one.host.world.register(1)
        await one.lead(epoch=one.replica.leader_epoch + 1)
        for number in range(3):
            await one.append(keyed(b"k%d" % number, b"new", time_ms=NOW_MS + HOUR_MS // 2))
        await machine.turn()
        row = await one.host.world.row()
        assert (row.cleaned_offset, row.leveled_offset) == (3, 6)
        assert await machine.due() == [(CloudWork.COMPACT, 0)], "by the row alone it is dirty enough"
        runs_count = len(await machine.outcomes())
        for _minute in range(3):
            machine.clock.offset_ms += 60_000
            await machine.turn(Lane.SMALL)
        assert len(await machine.outcomes()) == runs_count
        machine.clock.offset_ms += 2 * HOUR_MS
        await machine.turn(Lane.SMALL)
        assert (await one.host.world.row()).cleaned_offset == 6

    with_machines(work, min_compaction_lag_ms=str(SystemClock().now_ms() - NOW_MS - HOUR_MS // 4))


def test_behind_an_open_transaction_nothing_is_due() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await one.host.world.register(1)
        await one.lead(epoch=2)
        await one.append(sequenced(0, is_open=True), plain(b"b"))
        assert await machine.due() == []
        await one.end(ControlType.ABORT)
        assert await machine.due() == [(CloudWork.LEVEL, 0)]
        await tell(one)

    with_machines(work, cleanup_policy="delete")


COMPACTED = TopicConfig(cleanup_policy=frozenset({"compact"}))


@pytest.mark.parametrize(
    ("fields", "config", "kinds"),
    [
        ({"l0_bytes": 32 << 20, "l0_extents_count": 9, "stable_offset": 9}, TopicConfig(), [CloudWork.LEVEL]),
        ({"l0_bytes": 5, "l0_extents_count": 5000, "stable_offset": 9}, TopicConfig(), [CloudWork.LEVEL]),
        ({"l0_bytes": 5, "l0_extents_count": 9, "stable_offset": 9, "l0_since_ms": 700_000}, TopicConfig(), [-2]),
        ({"l0_bytes": 5, "l0_extents_count": 9, "stable_offset": 9, "l0_since_ms": 700_001}, TopicConfig(), []),
        ({"l0_bytes": 32 << 20, "l0_extents_count": 9}, TopicConfig(), []),
        ({"l1_bytes": 100, "dirty_bytes": 51}, COMPACTED, [CloudWork.COMPACT]),
        ({"l1_bytes": 100, "dirty_bytes": 50}, COMPACTED, []),
        ({"l1_bytes": 100, "dirty_bytes": 51}, TopicConfig(), []),
        ({"l1_bytes": 100, "horizon_ms": 1_000_000}, COMPACTED, [CloudWork.COMPACT]),
        ({"l1_bytes": 100, "horizon_ms": 1_000_001}, COMPACTED, []),
    ],
)
def test_what_is_due_is_told_by_the_row_alone(
    fields: dict[str, int], config: TopicConfig, kinds: Sequence[int]
) -> None:
    row = row_of(A, **fields)
    assert [one.key.broker_id for one in due_work(row, "t", config, 1_000_000, DueLimits())] == list(kinds)


def test_a_record_is_compacted_within_max_compaction_lag_of_both_levels_together() -> None:
    lag = TopicConfig(cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=60_000)

    def kinds(**fields: int) -> list[int]:
        row: CloudPartitionRow = row_of(A, stable_offset=9, **fields)
        return [one.key.broker_id for one in due_work(row, "t", lag, 1_000_000, DueLimits())]

    assert kinds(l0_bytes=1, l0_extents_count=1, l0_since_ms=970_000) == [CloudWork.LEVEL]
    assert kinds(l0_bytes=1, l0_extents_count=1, l0_since_ms=970_001) == []
    assert kinds(l1_bytes=100, dirty_bytes=1, dirty_since_ms=969_999) == [CloudWork.COMPACT]
    assert kinds(l1_bytes=100, dirty_bytes=1, dirty_since_ms=970_000) == []
    assert lag.max_compaction_lag_ms != INT64_MAX


def test_a_compaction_that_took_too_long_tells_of_no_horizon_that_has_passed_and_is_given_more_time() -> None:
    """C8: who has read a value before the commit finds its tombstone after it."""

    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await one.host.world.register(1)
        await one.lead(epoch=one.replica.leader_epoch + 1)
        await one.append(keyed(b"k", b"v"), keyed(b"k", None), keyed(b"other", b"v"))
        await one.host.world.fence(1)
        await machine.turn(Lane.LEVEL)

        async def a_minute_passes() -> None:
            machine.clock.offset_ms += 60_000

        machine.engine.meanwhile = a_minute_passes
        await machine.turn(Lane.SMALL)
        assert (await machine.outcomes())[-1] == (CloudWork.COMPACT, TOO_LATE)
        assert (await one.host.world.row()).compaction_epoch == 0
        await machine.cloud.refresh()
        machine.engine.meanwhile = a_minute_passes
        await machine.turn(Lane.SMALL)
        assert (await machine.outcomes())[-1] == (CloudWork.COMPACT, "committed")
        row = await one.host.world.row()
        assert row.horizon_ms >= machine.clock.now_ms() + 20_000
        await one.host.world.register(1)
        await one.lead(epoch=one.replica.leader_epoch + 1)
        assert records(await one.read_all()) == [(1, b"k", None), (2, b"other", b"v")]

    with_machines(work, **{"delete.retention.ms": "0"})


def test_a_topic_that_is_deleted_after_a_job_that_took_too_long_leaves_nothing_in_memory() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await one.host.world.register(1)
        await one.lead(epoch=one.replica.leader_epoch + 1)
        await one.append(keyed(b"k", b"v"), keyed(b"k", None), keyed(b"other", b"v"))
        await one.host.world.fence(1)
        await machine.turn(Lane.LEVEL)

        async def a_minute_passes() -> None:
            machine.clock.offset_ms += 60_000

        machine.engine.meanwhile = a_minute_passes
        await machine.turn(Lane.SMALL)
        assert list(machine.cloud._slack_ms) == [A]
        await one.host.world.store.delete_topic(TOPIC.topic_id)
        await machine.cloud.refresh()
        assert not machine.cloud._slack_ms

    with_machines(work, **{"delete.retention.ms": "0"})


def test_a_commit_that_a_metastore_away_made_late_is_not_sent_any_more() -> None:
    """C8, too: the job was quick enough, its commit was not. The next leader's map would have lost the tombstone right
    after a reader of the last one had seen the value."""

    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await one.host.world.register(1)
        await one.lead(epoch=one.replica.leader_epoch + 1)
        await one.append(keyed(b"k", b"v"), keyed(b"k", None), keyed(b"other", b"v"))
        await one.host.world.fence(1)
        await machine.turn(Lane.LEVEL)
        asked: list[int] = []

        def away_for_minutes(operation: str) -> str | None:
            if operation != "commit_compactions" or len(asked) == 3:
                return None
            asked.append(machine.clock.offset_ms)
            machine.clock.offset_ms += 60_000
            return "before"

        machine.metastore.loses = away_for_minutes
        await machine.turn(Lane.SMALL)
        assert (await machine.outcomes())[-1] == (CloudWork.COMPACT, TOO_LATE)
        assert (await one.host.world.row()).compaction_epoch == 0
        objects = (await one.host.world.check()).objects.values()
        states = {each.state for each in objects if each.owner.kind is OwnerKind.COMPACTOR}
        assert ObjectState.PENDING not in states, "a commit that is still on its way finds nothing to commit"
        machine.metastore.loses = lambda operation: None
        await machine.turn(Lane.SMALL)
        row = await one.host.world.row()
        assert (row.compaction_epoch, row.cleaned_offset) == (1, 3)
        assert row.horizon_ms >= machine.clock.now_ms() + 20_000

    with_machines(work, **{"delete.retention.ms": "0"})


def test_a_compactor_whose_clock_is_ahead_ends_a_horizon_early_and_no_key_comes_back() -> None:
    """As a broker of Kafka's does (docs/cloud.md, Compaction)."""

    async def work(one: Broker, first: Machine, second: Machine) -> None:
        await one.host.world.register(1)
        await one.lead(epoch=one.replica.leader_epoch + 1)
        await one.append(keyed(b"k", b"v"), keyed(b"k", None), keyed(b"other", b"v"))
        await one.host.world.fence(1)
        await first.turn()
        row = await one.host.world.row()
        assert row.horizon_ms > first.clock.now_ms() + 23 * HOUR_MS
        await first.turn()
        assert await one.host.world.row() == row
        second.clock.offset_ms = 25 * HOUR_MS
        await second.turn()
        await one.host.world.register(1)
        await one.lead(epoch=one.replica.leader_epoch + 1)
        assert records(await one.read_all()) == [(2, b"other", b"v")]

    with_machines(work)


def test_what_cannot_be_given_back_at_once_is_given_back_when_the_metastore_answers() -> None:
    """All that the job had written would stay pending, and in the store, for as long as this compactor runs; and a
    commit that is still on its way would find it."""

    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await one.host.world.register(1)
        await one.lead(epoch=one.replica.leader_epoch + 1)
        await one.append(keyed(b"k", b"v"), keyed(b"k", None), keyed(b"other", b"v"))
        await one.host.world.fence(1)
        await machine.turn(Lane.LEVEL)
        away = {"commit_compactions": 1, "release_objects": 2}

        def loses(operation: str) -> str | None:
            if not away.get(operation):
                return None
            away[operation] -= 1
            machine.clock.offset_ms += 60_000
            return "before"

        machine.metastore.loses = loses
        await machine.turn(Lane.SMALL)
        assert (await machine.outcomes())[-1] == (CloudWork.COMPACT, TOO_LATE)
        objects = (await one.host.world.check()).objects.values()
        states = {each.state for each in objects if each.owner.kind is OwnerKind.COMPACTOR}
        assert ObjectState.PENDING not in states
        assert not any(away.values())

    with_machines(work, **{"delete.retention.ms": "0"})


def test_a_compactor_that_stops_does_not_wait_for_a_metastore_that_is_away() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await write(one, b"a", b"b")
        machine.metastore.loses = lambda operation: "before" if operation == "release_objects" else None
        machine.engine.meanwhile = lambda: asyncio.sleep(3600)
        turn = asyncio.ensure_future(machine.turn(Lane.LEVEL))
        await until(lambda: machine.engine.meanwhile is None)
        turn.cancel()
        async with asyncio.timeout(5):
            await asyncio.gather(turn, return_exceptions=True)
        assert turn.cancelled()

    with_machines(work)


def test_a_compaction_that_has_not_read_all_of_l1_calls_nothing_else_clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """More extents than one plan may have: what lies above them still has its older values, and stays dirty."""
    monkeypatch.setattr(planning, "COMPACTION_EXTENTS_MAX", 2)
    monkeypatch.setattr(planning, "PAGE", 2)

    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        for number in range(4):
            await write(one, b"old %d" % number, b"other")
            await machine.turn(Lane.LEVEL)
        assert len(await one.host.world.extents()) == 4
        await machine.turn(Lane.SMALL)
        row = await one.host.world.row()
        assert (row.cleaned_offset, row.leveled_offset) == (4, 8)
        assert row.dirty_bytes > 0

    with_machines(work)


def test_a_time_that_a_fast_clock_wrote_delays_leveling_only_as_long_as_any_other() -> None:
    """A broker's clock was a day ahead when it wrote: for that day nothing was leveled."""
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), max_compaction_lag_ms=HOUR_MS)
    later_ms = NOW_MS + 24 * HOUR_MS
    waiting = {"l0_bytes": 5, "l0_extents_count": 9, "stable_offset": 9, "l1_bytes": 100, "dirty_bytes": 1}
    ahead = row_of(A, l0_since_ms=later_ms, dirty_since_ms=later_ms, **waiting)
    future = FutureTimes()

    def due(row: CloudPartitionRow, now_ms: int) -> set[int]:
        (corrected,) = future.corrected([row], now_ms)
        return {one.key.broker_id for one in due_work(corrected, "t", config, now_ms, DueLimits())}

    assert due(ahead, NOW_MS) == set()
    assert due(ahead, NOW_MS + 299_000) == set()
    assert due(ahead, NOW_MS + 300_000) == {CloudWork.LEVEL}
    assert due(ahead, NOW_MS + HOUR_MS) == {CloudWork.LEVEL, CloudWork.COMPACT}
    assert due(replace(ahead, l0_since_ms=NOW_MS + 30 * HOUR_MS), NOW_MS + HOUR_MS) == {CloudWork.COMPACT}
    assert due(replace(ahead, l0_since_ms=NOW_MS), NOW_MS + 299_000) == set(), "no time here is changed"


def test_a_lane_of_its_own_keeps_leveling_from_waiting_for_compactions() -> None:
    from sexton.compactor.schedule import choose

    rows = [
        _work(WorkKey(CloudWork.COMPACT, uuid.UUID(int=1), 0), total_bytes=1 << 40),
        _work(WorkKey(CloudWork.COMPACT, uuid.UUID(int=1), 1)),
        _work(WorkKey(CloudWork.LEVEL, uuid.UUID(int=1), 0)),
        _work(WorkKey(3, uuid.UUID(int=1), 0), since_ms=0),
    ]
    chosen = {lane: [row.key.broker_id for row in choose(rows, lane, Limits())] for lane in Lane}
    assert chosen == {Lane.SMALL: [3], Lane.LARGE: [-1], Lane.LEVEL: [-2]}, "a job is on disks or in the store"


def test_what_becomes_overdue_or_much_larger_while_it_waits_is_published_as_such() -> None:
    """It was due before; its turn, and what fits into one job with it, depend on what it is now."""

    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        minutes_ms = 60_000
        await one.host.world.store.change_settings(ConfigScope.BROKER, "", {"cloud.level.ms": str(10 * minutes_ms)})
        await write(one, b"a")
        machine.clock.offset_ms += 11 * minutes_ms
        await machine.cloud.refresh()
        (before,) = await machine.metastore.read_work()
        assert before.overdue_ms == 0
        await write(one, *(b"x" * 200 for _ in range(8)))
        await machine.cloud.refresh()
        (larger,) = await machine.metastore.read_work()
        assert larger.total_bytes > 4 * before.total_bytes
        machine.clock.offset_ms += 10 * minutes_ms
        await machine.cloud.refresh()
        (overdue,) = await machine.metastore.read_work()
        assert overdue.overdue_ms > 0
        assert overdue.since_ms == larger.since_ms == before.since_ms
        calls = machine.metastore.calls.count("publish_cloud_work")
        await machine.cloud.refresh()
        assert machine.metastore.calls.count("publish_cloud_work") == calls, "nothing new is written"

    with_machines(work)


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_runs_stay_small_enough_for_a_task_however_large_objects_are(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of a compaction or a merge holds one run in memory."""
    monkeypatch.setattr(plans, "RUN_BYTES_MAX", 130)

    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await write(one, *(b"%d" % number for number in range(6)))
        assert await machine.turn(Lane.LEVEL) == [True]
        page = await one.host.world.store.read_extents(A, 0, 10)
        assert page is not None
        assert [(each.base_offset, each.end_offset) for each in page.extents] == [(0, 2), (2, 4), (4, 6)]
        assert len({each.object_id for each in page.extents}) == 1, "in one object"
        assert all(each.size_bytes < 130 + 80 for each in page.extents)
        if policy == "compact":
            await machine.turn(Lane.SMALL)
        await one.host.world.register(1)
        await one.lead(epoch=one.replica.leader_epoch + 1)
        found = [value for _, _, value in records(await one.read_all())]
        assert found == ([b"4", b"5"] if policy == "compact" else [b"%d" % number for number in range(6)])

    with_machines(work, cleanup_policy=policy)


def test_the_answer_to_a_commit_is_asked_for_until_it_comes() -> None:
    async def work(one: Broker, machine: Machine, _: Machine) -> None:
        await write(one, b"a", b"b", b"c")
        lost: list[str] = []

        def loses(operation: str) -> str | None:
            if operation.startswith("commit_") and lost.count(operation) < 2:
                lost.append(operation)
                return "after"
            return None

        machine.metastore.loses = loses
        async with asyncio.timeout(20):
            await machine.turn()
        assert lost.count("commit_level") == lost.count("commit_compactions") == 2
        assert {outcome for _, outcome in await machine.outcomes()} == {"committed"}

    with_machines(work)
