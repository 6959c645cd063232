"""Which work on cloud partitions gets its turn, and when: the real worker and the real queue, on jobs that only take
time."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Sequence
from typing import Any, cast

import pytest

from sexton.adapters.metastore import InProcessMetastore
from sexton.compactor import worker
from sexton.compactor.cloud.work import CloudEnded
from sexton.compactor.schedule import AHEAD_MS_MAX, Lane, Limits
from sexton.compactor.worker import Compactor
from sexton.ports.work_queue import CloudWork, WorkKey, WorkRow
from tests.cloud.worlds import CLUSTER

TOPIC_ID = uuid.UUID(int=7)
MINUTE_MS = 60_000
LIMITS = Limits(large_bytes=1_000, job_bytes_max=3_000, job_partitions_max=3)
SMALL_BYTES, LARGE_BYTES = 10, 1_000


class Clock:
    def __init__(self) -> None:
        self.time_ms = 1_000_000

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_ms(self) -> int:
        return self.time_ms


def due(kind: CloudWork, partition: int, since_ms: int, **more: Any) -> WorkRow:
    size_bytes = more.pop("total_bytes", SMALL_BYTES)
    return WorkRow(
        key=WorkKey(kind, TOPIC_ID, partition),
        topic="t",
        why="",
        dirty_ratio_ppm=more.pop("dirty_ratio_ppm", 1_000_000),
        dirty_bytes=size_bytes,
        total_bytes=size_bytes,
        overdue_ms=more.pop("overdue_ms", 3_600_000),
        is_requested=False,
        since_ms=since_ms,
    )


class Jobs:
    """Stands for a `CloudWorker`: what is due is what the test has put there, until it is carried out."""

    wasted_bytes = 0

    def __init__(self, metastore: InProcessMetastore) -> None:
        self._metastore = metastore
        self.due: dict[WorkKey, WorkRow] = {}
        self.done: list[WorkKey] = []
        self.held: dict[WorkKey, asyncio.Event] = {}
        """Jobs that take until the event."""

    def add(self, *rows: WorkRow) -> None:
        self.due |= {row.key: row for row in rows}

    async def refresh(self) -> None:
        await self._metastore.publish_cloud_work(list(self.due.values()))

    async def carry_out(self, rows: Sequence[WorkRow], compactor_id: uuid.UUID) -> list[CloudEnded]:
        for row in rows:
            if row.key in self.held:
                await self.held[row.key].wait()
            self.done.append(row.key)
            self.due.pop(row.key, None)
        return [CloudEnded(row, CloudWork(row.key.broker_id), None) for row in rows]


class Engine:
    async def warm(self) -> None: ...

    async def rest(self) -> None: ...


async def make(clock: Clock) -> tuple[Compactor, Jobs]:
    metastore = InProcessMetastore()
    await metastore.open_cluster(CLUSTER)
    jobs = Jobs(metastore)
    compactor = Compactor(
        metastore=metastore,
        brokers=cast(Any, None),
        engine=cast(Any, Engine()),
        clock=clock,
        rng=random.Random(1),
        limits=LIMITS,
        cloud=cast(Any, jobs),
    )
    await compactor.register()
    return compactor, jobs


KINDS = {
    Lane.LEVEL: (CloudWork.LEVEL, SMALL_BYTES),
    Lane.SMALL: (CloudWork.COMPACT, SMALL_BYTES),
    Lane.LARGE: (CloudWork.COMPACT, LARGE_BYTES),
}


@pytest.mark.parametrize("lane", list(Lane), ids=lambda lane: lane.value)
async def test_a_steady_supply_of_overdue_partitions_delays_nobody_for_ever(lane: Lane) -> None:
    """Each minute as many come as one job takes, all of them overdue and all dirty; one partition is neither."""
    clock = Clock()
    compactor, jobs = await make(clock)
    kind, size_bytes = KINDS[lane]
    plain = due(kind, 0, clock.time_ms, total_bytes=size_bytes, overdue_ms=0, dirty_ratio_ppm=0)
    jobs.add(plain)
    began_ms, next_partition = clock.time_ms, 1
    for _minute in range(2 * AHEAD_MS_MAX // MINUTE_MS):
        for _ in range(LIMITS.job_partitions_max):
            jobs.add(due(kind, next_partition, clock.time_ms, total_bytes=size_bytes))
            next_partition += 1
        await jobs.refresh()
        before = len(jobs.done)
        assert await compactor.turn(lane)
        assert len(jobs.done) - before == LIMITS.job_partitions_max, "the compactor has no time to spare"
        clock.time_ms += MINUTE_MS
        if plain.key in jobs.done:
            break
    assert plain.key in jobs.done
    assert clock.time_ms - began_ms <= AHEAD_MS_MAX + MINUTE_MS


async def test_work_that_another_one_published_with_a_clock_ahead_gets_its_turn() -> None:
    """It was found due by a compactor whose clock is a day ahead: for that day all other work would have come first."""
    clock = Clock()
    compactor, jobs = await make(clock)
    late = due(CloudWork.COMPACT, 0, clock.time_ms + 24 * 60 * MINUTE_MS, overdue_ms=0, dirty_ratio_ppm=0)
    jobs.add(late)
    began_ms, next_partition = clock.time_ms, 1
    for _minute in range(2 * AHEAD_MS_MAX // MINUTE_MS):
        for _ in range(LIMITS.job_partitions_max):
            jobs.add(due(CloudWork.COMPACT, next_partition, clock.time_ms))
            next_partition += 1
        await jobs.refresh()
        await compactor.turn(Lane.SMALL)
        clock.time_ms += MINUTE_MS
        if late.key in jobs.done:
            break
    assert late.key in jobs.done
    assert clock.time_ms - began_ms <= AHEAD_MS_MAX + 2 * MINUTE_MS


@pytest.mark.parametrize("long", list(Lane), ids=lambda lane: lane.value)
async def test_a_long_job_holds_up_no_short_ones(long: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    """One job of each lane runs beside the others. What becomes due while one of them takes long is found, too, though
    it is the lane that levels that looks for it."""
    monkeypatch.setattr(worker, "LOOK_MS", 10)
    clock = Clock()
    compactor, jobs = await make(clock)
    kind, size_bytes = KINDS[long]
    held = due(kind, 0, clock.time_ms, total_bytes=size_bytes)
    jobs.held[held.key] = asyncio.Event()
    jobs.add(held)
    running = asyncio.ensure_future(compactor.run())
    try:
        async with asyncio.timeout(20):
            while not compactor.underway_count:
                await asyncio.sleep(0.005)
            for number in range(1, 4):
                wanted = [
                    due(its_kind, 10 * place + number, clock.time_ms, total_bytes=its_bytes)
                    for place, (lane, (its_kind, its_bytes)) in enumerate(KINDS.items(), start=1)
                    if lane is not long
                ]
                jobs.add(*wanted)
                while not {row.key for row in wanted} <= set(jobs.done):
                    clock.time_ms += 100
                    await asyncio.sleep(0.005)
        assert held.key not in jobs.done
        jobs.held[held.key].set()
        async with asyncio.timeout(20):
            while held.key not in jobs.done:
                await asyncio.sleep(0.005)
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
