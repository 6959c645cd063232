"""A compactor's turns: what it takes, what it hands back, and what it does when things go wrong."""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest

from sexton.adapters.metastore import InProcessMetastore, migrations
from sexton.adapters.metastore.schema import SCHEMA_VERSION
from sexton.client.errors import NotConnectedError
from sexton.compaction.contract import Committed, PassResult, Plan
from sexton.compactor.engine import EngineUnavailableError, PlanOutcome
from sexton.compactor.schedule import Lane, Limits
from sexton.compactor.worker import (
    FAILED_PAUSE_MS,
    FAILED_PAUSE_MS_MAX,
    LEASE_MS,
    RENEW_MS,
    UNREACHABLE_PAUSE_MS,
    Compactor,
)
from sexton.errors import CorruptLogError, EnvironmentFailure, UnsupportedFormatError
from sexton.ports.metastore import BrokerStatus, MetastoreUnavailableError
from sexton.ports.work_queue import CompactorRow, WorkKey, WorkRow
from sexton.protocol.private import RefusedError
from tests.adapters.metastore.rows import CLUSTER, register

TOPIC = uuid.UUID(int=5)
DEAD = uuid.UUID(int=9)


def plan_of(key: WorkKey) -> Plan:
    return Plan(
        plan_id=f"plan {key.partition}",
        broker_id=key.broker_id,
        topic="t",
        topic_id=str(key.topic_id),
        partition=key.partition,
        incarnation="",
        generation=0,
        directory="/data",
        staging="/staged",
        segments=((0, 100), (10, 0)),
        bound=10,
        first_dirty_offset=0,
        high_watermark=10,
        now_ms=1000,
        delete_retention_ms=0,
        mtro=0,
        mxro=0,
        settle_below=10,
        is_independent=False,
        segment_bytes=1000,
        index_interval_bytes=4096,
    )


class World:
    """A metastore, and brokers, engine and clock that do as they are told."""

    def __init__(self) -> None:
        self.metastore = InProcessMetastore()
        self.time_ms = 1_000_000
        self.committed: list[str] = []
        self.abandoned: list[str] = []
        self.uncleanable: list[int] = []
        self.deadly: int | None = None
        """A partition that takes the whole job down."""
        self.jobs: list[list[str]] = []
        self.not_due: set[int] = set()
        self.failing: set[int] = set()
        self.refused: set[int] = set()
        self.is_broker_away = False
        self.dies_during_job = False
        self.asked_count = 0
        """How often the broker was asked for a plan."""
        self.engine_error: Exception | None = None

    async def start(self, *partitions: int) -> Compactor:
        await self.metastore.open_cluster(CLUSTER)
        self.broker = await register(self.metastore, 1)
        await self.publish(*partitions)
        compactor = Compactor(
            metastore=self.metastore,
            brokers=cast(Any, self),
            engine=cast(Any, self),
            clock=cast(Any, self),
            rng=random.Random(1),
            limits=Limits(),
            name="one",
        )
        await compactor.register()
        return compactor

    async def restart_broker(self) -> None:
        """Its next process registers, as one does when it comes back."""
        row = await self.metastore.read_broker(1)
        assert row is not None
        self.broker = await self.metastore.register_broker(row, row)
        self.is_broker_away = self.dies_during_job = False

    async def publish(self, *partitions: int) -> None:
        rows = [
            WorkRow(
                key=WorkKey(1, TOPIC, index),
                topic="t",
                why="",
                dirty_ratio_ppm=900_000,
                dirty_bytes=90,
                total_bytes=100,
                overdue_ms=0,
                is_requested=False,
                since_ms=0,
            )
            for index in partitions
        ]
        await self.metastore.publish_work(1, self.broker.epoch, rows)

    # As the clock

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms

    # As the brokers

    async def plan(self, key: WorkKey) -> Plan:
        self.asked_count += 1
        if self.is_broker_away:
            raise NotConnectedError("connection refused", "broker 1")
        if key.partition in self.not_due:
            raise RefusedError("nothing is dirty", "broker 1")
        return plan_of(key)

    async def commit(self, broker_id: int, result: PassResult) -> Committed:
        if self.is_broker_away:
            raise NotConnectedError("connection refused", "broker 1")
        if result.plan_id in {f"plan {index}" for index in self.refused}:
            raise RefusedError("the segments have changed", "broker 1")
        self.committed.append(result.plan_id)
        return Committed(100, 40, 3, 1)

    async def abandon(self, plan: Plan, uncleanable: str = "") -> None:
        if self.is_broker_away:
            raise NotConnectedError("connection refused", "broker 1")
        self.abandoned.append(plan.plan_id)
        self.uncleanable += [plan.partition] if uncleanable else []

    # As the engine

    async def run(self, plans: Sequence[Plan]) -> list[PlanOutcome]:
        self.jobs.append([plan.plan_id for plan in plans])
        self.is_broker_away = self.is_broker_away or self.dies_during_job
        if self.engine_error is not None:
            raise self.engine_error
        if self.deadly in {plan.partition for plan in plans}:
            raise RuntimeError("a worker was killed")
        return [
            PlanOutcome.failed(plan, CorruptLogError("a corrupt batch"))
            if plan.partition in self.failing
            else PlanOutcome(plan, PassResult(plan.plan_id, fates={"superseded": 7}))
            for plan in plans
        ]

    # What is left

    async def due(self) -> list[int]:
        return [row.key.partition for row in await self.metastore.read_work()]

    async def outcomes(self) -> dict[int, str]:
        return {row.partition: row.outcome for row in await self.metastore.read_runs(100)}


async def test_what_is_due_is_done_in_one_job_committed_and_remembered(world: World) -> None:
    compactor = await world.start(0, 1, 2)
    assert await compactor.turn(Lane.SMALL)
    assert len(world.jobs) == 1
    assert sorted(world.committed) == ["plan 0", "plan 1", "plan 2"]
    assert await world.due() == []
    (run, *_) = await world.metastore.read_runs(100)
    assert (run.outcome, run.bytes_before, run.bytes_after, run.fates) == ("committed", 100, 40, {"superseded": "7"})
    assert not await compactor.turn(Lane.SMALL)


async def test_one_partition_that_fails_is_given_up_and_the_others_go_on(world: World) -> None:
    compactor = await world.start(0, 1, 2)
    world.failing, world.refused = {1}, {2}
    await compactor.turn(Lane.SMALL)
    assert world.committed == ["plan 0"]
    assert world.abandoned == ["plan 1"]
    outcomes = await world.outcomes()
    assert outcomes[0] == "committed"
    assert "corrupt" in outcomes[1]
    assert "changed" in outcomes[2]


async def test_what_failed_is_left_alone_for_a_while(world: World) -> None:
    compactor = await world.start(0)
    world.failing = {0}
    await compactor.turn(Lane.SMALL)
    await world.publish(0)
    assert not await compactor.turn(Lane.SMALL)
    world.time_ms += FAILED_PAUSE_MS + 1
    world.failing = set()
    assert await compactor.turn(Lane.SMALL)
    assert world.committed == ["plan 0"]


async def test_what_keeps_failing_is_tried_ever_less_often(world: World) -> None:
    compactor = await world.start(0)
    world.refused = {0}
    tried_ms = []
    for _ in range(4 * FAILED_PAUSE_MS_MAX // 10_000):
        await world.publish(0)
        if await compactor.turn(Lane.SMALL):
            tried_ms.append(world.time_ms)
        world.time_ms += 10_000
    pauses = [after - before for before, after in pairwise(tried_ms)]
    assert pauses[:2] == [30_000, 60_000]
    assert pauses == sorted(pauses)
    assert pauses[-1] == FAILED_PAUSE_MS_MAX
    world.refused = set()
    world.time_ms += FAILED_PAUSE_MS_MAX
    await compactor.turn(Lane.SMALL)
    assert world.committed == ["plan 0"]
    world.refused = {0}
    await world.publish(0)
    assert await compactor.turn(Lane.SMALL)
    world.time_ms += pauses[0]
    await world.publish(0)
    assert await compactor.turn(Lane.SMALL), "the pauses begin anew"


async def test_what_no_pass_can_read_is_told_to_its_broker(world: World) -> None:
    compactor = await world.start(0, 1)
    world.failing = {1}
    await compactor.turn(Lane.SMALL)
    assert world.uncleanable == [1]
    for error in (EnvironmentFailure("the disk is full"), OSError(28, "no space"), MemoryError()):
        assert not PlanOutcome.failed(plan_of(WorkKey(1, TOPIC, 0)), error).is_lasting


async def test_one_partition_that_takes_the_job_down_is_found_and_the_others_are_done(world: World) -> None:
    compactor = await world.start(*range(16))
    world.deadly = 11
    for _ in range(40):
        await world.publish(*[index for index in range(16) if f"plan {index}" not in world.committed])
        await compactor.turn(Lane.SMALL)
    assert sorted(world.committed) == sorted(f"plan {index}" for index in range(16) if index != 11)
    assert ["plan 11"] in world.jobs, "in the end it was alone"
    assert world.uncleanable == [], "nobody knows what was wrong"
    world.deadly = None
    world.time_ms += FAILED_PAUSE_MS
    await world.publish(11)
    await compactor.turn(Lane.SMALL)
    assert "plan 11" in world.committed
    await world.publish(*range(16))
    await compactor.turn(Lane.SMALL)
    assert len(world.jobs[-1]) == 16, "nobody is kept apart any more"


async def test_an_engine_that_cannot_be_started_is_no_partitions_fault(world: World) -> None:
    compactor = await world.start(0, 1)
    world.engine_error = EngineUnavailableError("Spark cannot be started")
    await compactor.turn(Lane.SMALL)
    assert sorted(world.abandoned) == ["plan 0", "plan 1"]
    await world.publish(0, 1)
    assert not await compactor.turn(Lane.SMALL), "all of them are left alone for a while"
    world.engine_error = None
    world.time_ms += FAILED_PAUSE_MS + 1
    await compactor.turn(Lane.SMALL)
    assert len(world.jobs[-1]) == 2


async def test_a_job_that_fails_as_a_whole_is_given_up_as_a_whole(world: World) -> None:
    compactor = await world.start(0, 1)
    world.engine_error = RuntimeError("the JVM is gone")
    assert await compactor.turn(Lane.SMALL)
    assert sorted(world.abandoned) == ["plan 0", "plan 1"]
    assert "the JVM is gone" in (await world.outcomes())[0]
    assert await world.due() == []


async def test_what_is_no_longer_due_costs_nothing(world: World) -> None:
    compactor = await world.start(0)
    world.not_due = {0}
    await compactor.turn(Lane.SMALL)
    assert world.jobs == []
    assert await world.due() == []


async def test_a_broker_that_does_not_answer_is_left_alone(world: World) -> None:
    compactor = await world.start(0)
    world.is_broker_away = True
    await compactor.turn(Lane.SMALL)
    assert world.jobs == []
    assert await world.metastore.read_runs(10) == []


@pytest.mark.parametrize("when", ["before the plan", "before the commit", "before it is told of a failure"])
async def test_a_broker_that_is_down_for_long_is_no_failure_of_its_partitions(world: World, when: str) -> None:
    """Its partitions were left alone for up to ten minutes after it had come back."""
    compactor = await world.start(0, 1)
    world.is_broker_away = when == "before the plan"
    world.dies_during_job = not world.is_broker_away
    world.failing = {0, 1} if when == "before it is told of a failure" else set()
    for _ in range(FAILED_PAUSE_MS_MAX // 10_000):
        await compactor.turn(Lane.SMALL)
        await world.publish(0, 1)
        world.time_ms += 10_000
    await compactor.turn(Lane.SMALL)
    world.failing = set()
    await world.restart_broker()
    await world.publish(0, 1)
    assert await compactor.turn(Lane.SMALL), "at once"
    assert sorted(world.committed) == ["plan 0", "plan 1"]


async def test_a_broker_that_cannot_be_reached_is_not_asked_for_each_partition_at_each_look(world: World) -> None:
    compactor = await world.start(0)
    world.is_broker_away = True
    for _ in range(10):
        await compactor.turn(Lane.SMALL)
        await world.publish(0)
        world.time_ms += UNREACHABLE_PAUSE_MS // 5
    assert world.asked_count == 2
    assert world.jobs == []


async def test_work_of_a_fenced_broker_waits_in_the_queue(world: World) -> None:
    compactor = await world.start(0)
    await world.metastore.set_broker_status(1, world.broker.epoch, BrokerStatus.FENCED)
    assert not await compactor.turn(Lane.SMALL)
    assert world.asked_count == 0
    await world.restart_broker()
    await world.publish(0)
    assert await compactor.turn(Lane.SMALL)
    assert world.committed == ["plan 0"]


async def test_a_dead_compactors_work_is_taken_over_when_its_count_has_stood_still(world: World) -> None:
    compactor = await world.start(0)
    await world.metastore.register_compactor(CompactorRow(DEAD, "dead", LEASE_MS, 0))
    await world.metastore.lease_work(DEAD, [WorkKey(1, TOPIC, 0)])
    assert not await compactor.turn(Lane.SMALL)
    await watch(compactor, world, LEASE_MS)
    assert not await compactor.turn(Lane.SMALL), "its clock may be slower than ours"
    await watch(compactor, world, LEASE_MS)
    assert await compactor.turn(Lane.SMALL)
    assert world.committed == ["plan 0"]


async def watch(compactor: Compactor, world: World, for_ms: int) -> None:
    until_ms = world.time_ms + for_ms
    while world.time_ms < until_ms:
        await compactor.watch_others()
        world.time_ms += RENEW_MS
    await compactor.watch_others()


async def test_nobody_is_taken_for_dead_because_the_metastore_was_away(world: World) -> None:
    """Nobody could renew; whoever reaches it first must not remove all the others."""
    compactor = await world.start(0)
    await world.metastore.register_compactor(CompactorRow(DEAD, "alive", LEASE_MS, 0))
    await watch(compactor, world, RENEW_MS)
    world.time_ms += 10 * LEASE_MS
    await compactor.watch_others()
    assert DEAD in {row.compactor_id for row in await world.metastore.read_compactors()}


async def test_a_compactor_that_renews_keeps_its_work(world: World) -> None:
    compactor = await world.start(0)
    await world.metastore.register_compactor(CompactorRow(DEAD, "alive", LEASE_MS, 0))
    await world.metastore.lease_work(DEAD, [WorkKey(1, TOPIC, 0)])
    for _ in range(5):
        await compactor.watch_others()
        world.time_ms += LEASE_MS
        await world.metastore.renew_compactor(DEAD)
    assert not await compactor.turn(Lane.SMALL)


async def test_work_whose_end_could_not_be_told_is_done_again_by_the_same_compactor(world: World) -> None:
    """Found by the simulator: nobody else may take what a living compactor holds, so it was never compacted again."""
    compactor = await world.start(0)

    async def away(*_: object) -> None:
        raise MetastoreUnavailableError("connection refused")

    told = world.metastore.end_work
    world.metastore.end_work = away  # type: ignore[assignment, method-assign]
    with pytest.raises(MetastoreUnavailableError):
        await compactor.turn(Lane.SMALL)
    world.metastore.end_work = told  # type: ignore[method-assign]
    await world.publish(0)
    assert await compactor.turn(Lane.SMALL)
    assert world.committed == ["plan 0", "plan 0"]
    assert await world.due() == []


async def test_a_compactor_of_an_older_build_ends_where_the_schema_is_a_newer_ones(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it has touched anything: what it does not know of it would not keep."""
    compactor = await world.start(0)
    with monkeypatch.context() as newer_build:
        newer_build.setattr(migrations, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
        newer_build.setattr(migrations, "STEPS", (migrations.Step(SCHEMA_VERSION + 1, "", lambda session: None),))
        await world.metastore.open_cluster(CLUSTER)
    before = await world.metastore.read_compactors()
    with pytest.raises(UnsupportedFormatError, match=r"A newer Sexton has opened this cluster"):
        await compactor.run()
    assert await world.metastore.read_compactors() == before
