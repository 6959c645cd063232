"""A compactor: it leases the most urgent work, has the engine execute it, commits the results, and takes the next.

A failure affects one piece of work: it is given back and is due again when its broker says so. A broker that cannot be
reached is no failure of its work, which waits until the broker is back. A compactor that dies loses its lease, not
data: the brokers remove what it staged.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sexton.client.errors import NotConnectedError
from sexton.compaction.contract import Committed, Plan
from sexton.compaction.rate import ByteRate
from sexton.compactor.brokers import Brokers
from sexton.compactor.cloud.work import CloudEnded, CloudWorker
from sexton.compactor.compacted_topics import CompactedTopics
from sexton.compactor.engine import Engine, EngineUnavailableError, PlanOutcome
from sexton.compactor.schedule import Lane, Limits, choose
from sexton.errors import SextonError
from sexton.metadata.leases import CountWatch
from sexton.ports.clock import Clock
from sexton.ports.metastore import LeaseLostError, Metastore, MetastoreUnavailableError, StaleError
from sexton.ports.work_queue import CompactorRow, RunRow, WorkKey, WorkRow
from sexton.protocol.errors import KafkaError
from sexton.protocol.private import RefusedError

logger = logging.getLogger(__name__)

LEASE_MS: Final = 15_000
RENEW_MS: Final = 3_000
LOOK_MS: Final = 1_000
"""Interval at which a lane without work checks for some."""

REFRESH_MS: Final = 2_000
"""What is due of cloud topics is looked for by the lane that levels. While that is busy for longer, by any other."""

FAILED_PAUSE_MS: Final = 30_000
FAILED_PAUSE_MS_MAX: Final = 600_000
"""Work that failed is left alone for this long, and twice as long each time (up to the maximum): its cause will not go
away at once. A log that no compaction can read is not even due any more (`broker.compaction.uncleanable`)."""

UNREACHABLE_PAUSE_MS: Final = 5_000
"""A broker that has a lease and could not be connected to is left alone for this long, or until its next process has
registered."""

REST_AFTER_MS: Final = 120_000
"""After this long without work, and without compacted topics, the engine releases its memory."""

WARM_LOOK_MS: Final = 5_000

COMPANY_MAX: Final = 10_000
"""Maximum number of remembered keys of jobs that failed as a whole. Some of them are never due again."""

PLANS_AT_ONCE: Final = 8
COMMITS_AT_ONCE: Final = 8
ATTEMPTS_BEFORE_WORRY: Final = 10


@dataclass(slots=True)
class Totals:
    """Counters since this compactor started."""

    jobs_count: int = 0
    failed_jobs_count: int = 0
    committed_count: int = 0
    failed_count: int = 0
    input_bytes: int = 0
    output_bytes: int = 0
    busy_ms: int = 0
    """Time spent in jobs, both lanes together."""
    due_to_done_ms: int = 0
    """Sum over committed work of the time since it became due, by its broker's clock."""
    wasted_bytes: int = 0
    """Input of jobs on cloud partitions that were refused because another had been first."""


@dataclass(slots=True)
class _Job:
    """One job's work on its way through the steps."""

    rows: Sequence[WorkRow]
    plans: list[tuple[WorkRow, Plan]] = field(default_factory=list)
    runs: list[RunRow] = field(default_factory=list)
    is_parted: bool = False
    """Whether the job failed as a whole; then its halves are tried at once."""


class Compactor:
    def __init__(
        self,
        *,
        metastore: Metastore,
        brokers: Brokers,
        engine: Engine,
        clock: Clock,
        rng: random.Random,
        limits: Limits,
        name: str = "",
        cloud: CloudWorker | None = None,
    ) -> None:
        """Without `cloud`, work on cloud topics is left to others."""
        self._cloud = cloud
        self._metastore = metastore
        self._brokers = brokers
        self._engine = engine
        self._clock = clock
        self._rng = rng
        self._limits = limits
        self._name = name
        self._id = uuid.UUID(int=rng.getrandbits(128), version=4)
        self._rate = ByteRate(limits.bytes_per_second)
        self._skipped_until_ms: dict[WorkKey, int] = {}
        self._failures_count: dict[WorkKey, int] = {}
        """Number of consecutive failures of work that is due."""
        self._unreachable: dict[int, tuple[int, int]] = {}
        """By broker: the epoch of the process that could not be connected to, and until when it is left alone."""
        self._epochs: dict[int, int] = {}
        """By broker: the epoch of its process, of brokers that had a lease at the last check."""
        self._company: dict[WorkKey, int] = {}
        """How many partitions a job with this key may have, because its last job failed as a whole (a worker was killed
        for its memory, a page cannot be read from the disk). The number is halved each time, until the partition at
        fault is alone."""
        self._watch: CountWatch[uuid.UUID, int] = CountWatch()
        """Watches the leases of other compactors."""
        self._busy_ms = clock.monotonic_ms()
        self._refreshed_ms = clock.monotonic_ms()
        self._ahead: dict[tuple[WorkKey, int], int] = {}
        """Of work that became due later than now, by the clock of whoever said so: when it was seen here first."""
        self._underway: set[WorkKey] = set()
        self.totals = Totals()
        self.due_count = 0
        """Amount of due work at the last check, without what other compactors work on."""

    @property
    def underway_count(self) -> int:
        return len(self._underway)

    @property
    def name(self) -> str:
        return self._name

    async def run(self) -> None:
        """Runs until cancelled. Raises UnsupportedFormatError if the metastore's schema is of a newer build."""
        await self._patiently(self._metastore.find_cluster)
        tasks = [asyncio.ensure_future(self._keep_lease())]
        try:
            await self.register()
            tasks += [asyncio.ensure_future(self._work(lane)) for lane in Lane]
            tasks.append(asyncio.ensure_future(self.keep_warm_or_rest()))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._leave()

    # The lease

    async def register(self) -> None:
        """Registers, and retries until the metastore answers."""
        await self._patiently(
            lambda: self._metastore.register_compactor(CompactorRow(self._id, self._name, LEASE_MS, 0))
        )

    async def _patiently(self, call: Callable[[], Awaitable[object]]) -> None:
        """A new cluster's metastore is made, and an older one brought up to date, by a broker, which may take a
        moment."""
        attempts_count = 0
        while True:
            try:
                await call()
                return
            except MetastoreUnavailableError as error:
                attempts_count += 1
                if attempts_count == ATTEMPTS_BEFORE_WORRY:
                    logger.warning("waiting for the metastore: %s", error)
                await asyncio.sleep(LOOK_MS / 1000)

    async def _keep_lease(self) -> None:
        while True:
            await asyncio.sleep(RENEW_MS / 1000)
            try:
                await self._metastore.renew_compactor(self._id)
                await self.watch_others()
            except LeaseLostError:
                logger.warning("this compactor's lease expired; registering again")
                self._id = uuid.UUID(int=self._rng.getrandbits(128), version=4)
                await self.register()
            except (MetastoreUnavailableError, StaleError) as error:
                logger.debug("cannot renew the lease: %s", error)

    async def watch_others(self) -> None:
        """Removes compactors that do not renew their lease, so that their work is free (docs/decisions, 7)."""
        rows = [row for row in await self._metastore.read_compactors() if row.compactor_id != self._id]
        counts = {row.compactor_id: row.renewals_count for row in rows}
        self._watch.observe(counts, self._clock.monotonic_ms())
        for row in rows:
            if self._watch.stands_still(row.compactor_id, row.lease_ms):
                logger.warning(
                    "compactor %s (%s) has not renewed its lease: its work is released", row.compactor_id, row.name
                )
                await self._metastore.remove_compactor(row.compactor_id, row.renewals_count)

    async def _leave(self) -> None:
        try:
            for row in await self._metastore.read_compactors():
                if row.compactor_id == self._id:
                    await self._metastore.remove_compactor(self._id, row.renewals_count)
        except (MetastoreUnavailableError, StaleError):
            pass  # other compactors will remove it

    # The work

    async def _work(self, lane: Lane) -> None:
        while True:
            try:
                is_done = await self.turn(lane)
            except MetastoreUnavailableError as error:
                logger.warning("the metastore is unreachable: %s", error)
                is_done = False
            if not is_done:
                await asyncio.sleep(LOOK_MS * (0.5 + self._rng.random()) / 1000)

    async def turn(self, lane: Lane) -> bool:
        """Runs one job, if there is work for one. Returns whether there was."""
        monotonic_ms = self._clock.monotonic_ms()
        self._skipped_until_ms = {key: ms for key, ms in self._skipped_until_ms.items() if ms > monotonic_ms}
        others = {row.compactor_id for row in await self._metastore.read_compactors()} - {self._id}
        if self._cloud is not None and (lane is Lane.LEVEL or monotonic_ms - self._refreshed_ms >= REFRESH_MS):
            self._refreshed_ms = monotonic_ms
            await self._cloud.refresh()
        due = await self._metastore.read_work()
        self._forget_all_but({row.key for row in due})
        # Work that is leased to us and not in progress was leased or ended while the metastore was unreachable: the
        # response was lost.
        rows = [row for row in self._dated(due) if row.holder not in others]
        self.due_count = len(rows)
        await self._look_for_brokers()
        reachable = self._epochs.keys() - self._unreachable.keys()
        rows = [row for row in rows if (self._cloud if row.key.is_cloud else row.key.broker_id in reachable)]
        chosen = choose(rows, lane, self._limits, self._skipped_until_ms.keys() | self._underway, self._company)
        if not chosen:
            return False
        keys = {row.key for row in chosen}
        self._underway |= keys
        try:
            taken = await self._metastore.lease_work(self._id, [row.key for row in chosen])
            job = _Job([row for row in chosen if row.key in taken])
            if not job.rows:
                return False
            started_ms = self._clock.monotonic_ms()
            try:
                await (self._carry_out_in_cloud(job) if job.rows[0].key.is_cloud else self._carry_out(job))
            finally:
                self.totals.busy_ms += self._clock.monotonic_ms() - started_ms
                await self._metastore.end_work(self._id, [row.key for row in job.rows], job.runs)
        finally:
            self._underway -= keys
            self._busy_ms = self._clock.monotonic_ms()
        return True

    def _dated(self, due: Sequence[WorkRow]) -> list[WorkRow]:
        """A clock that is a day ahead would keep the work that it dates waiting for that day, behind all other."""
        now_ms = self._clock.now_ms()
        ahead = [one for one in ((row.key, row.since_ms) for row in due) if one[1] > now_ms or one in self._ahead]
        self._ahead = {one: self._ahead.get(one, now_ms) for one in ahead}
        return [replace(row, since_ms=self._ahead.get((row.key, row.since_ms), row.since_ms)) for row in due]

    async def _look_for_brokers(self) -> None:
        leases = await self._metastore.read_leases()
        now_ms = self._clock.monotonic_ms()
        self._epochs = {broker_id: epoch for broker_id, (epoch, _) in leases.items()}
        self._unreachable = {
            broker_id: (epoch, until_ms)
            for broker_id, (epoch, until_ms) in self._unreachable.items()
            if until_ms > now_ms and self._epochs.get(broker_id) == epoch
        }

    async def _carry_out(self, job: _Job) -> None:
        started_ms = self._clock.monotonic_ms()
        planning = asyncio.Semaphore(PLANS_AT_ONCE)
        plans = await asyncio.gather(*(self._plan(row, planning) for row in job.rows))
        job.plans += [(row, plan) for row, plan in zip(job.rows, plans, strict=True) if plan is not None]
        if not job.plans:
            return
        size_bytes = sum(plan.input_bytes for _, plan in job.plans)
        await asyncio.sleep(self._rate.wait_ms(size_bytes, self._clock.monotonic_ms()) / 1000)
        logger.info("compacting %d partitions, %d bytes", len(job.plans), size_bytes)
        self.totals.jobs_count += 1
        try:
            outcomes = await self._engine.run([plan for _, plan in job.plans])
        except EngineUnavailableError as error:
            logger.error("%s", error)
            outcomes = [PlanOutcome(plan, None, str(error)) for _, plan in job.plans]
        except Exception as error:
            logger.exception("a Spark job failed")
            self.totals.failed_jobs_count += 1
            outcomes = [PlanOutcome(plan, None, f"the job failed: {error}") for _, plan in job.plans]
            self._part(job)
        else:
            for row, _ in job.plans:
                self._company.pop(row.key, None)
        gate = asyncio.Semaphore(COMMITS_AT_ONCE)
        await asyncio.gather(
            *(
                self._finish(job, row, outcome, started_ms, gate)
                for (row, _), outcome in zip(job.plans, outcomes, strict=True)
            )
        )

    async def _carry_out_in_cloud(self, job: _Job) -> None:
        assert self._cloud is not None
        started_ms = self._clock.monotonic_ms()
        size_bytes = sum(row.total_bytes for row in job.rows)
        await asyncio.sleep(self._rate.wait_ms(size_bytes, started_ms) / 1000)
        try:
            ended = await self._cloud.carry_out(job.rows, self._id)
        except (EngineUnavailableError, LeaseLostError) as error:
            logger.error("%s", error)
            ended = []
        except MetastoreUnavailableError:
            raise
        except Exception:
            logger.exception("a job on cloud topics failed")
            self.totals.failed_jobs_count += 1
            self._company |= {row.key: max(1, len(job.rows) // 2) for row in job.rows}
            ended = []
        else:
            for row in job.rows:
                self._company.pop(row.key, None)
        known = {one.row.key for one in ended}
        for row in job.rows:
            if row.key not in known:
                self.totals.failed_count += 1
                self._skip(row.key)
        self.totals.jobs_count += any(one.done is not None for one in ended)
        self.totals.wasted_bytes = self._cloud.wasted_bytes
        for one in ended:
            self._note_in_cloud(job, one, started_ms)

    def _note_in_cloud(self, job: _Job, ended: CloudEnded, started_ms: int) -> None:
        row, done = ended.row, ended.done
        if done is None:  # nothing to do after all: min.compaction.lag.ms, or another was first
            self._skipped_until_ms[row.key] = self._clock.monotonic_ms() + FAILED_PAUSE_MS
            return
        committed = None if done.error else Committed(done.plan.size_bytes, done.bytes_after, 0, 0)
        self._count(row, committed)
        if committed is None:
            logger.warning("%s: %s was not carried out: %s", done.plan.name, ended.kind.name.lower(), done.error)
            if not done.is_refused:
                self._skip(row.key)
        else:
            self._failures_count.pop(row.key, None)
        job.runs.append(
            RunRow(
                run_id=uuid.UUID(int=self._rng.getrandbits(128), version=4),
                finished_ms=self._clock.now_ms(),
                broker_id=int(ended.kind),
                topic=done.plan.topic,
                partition=done.plan.row.partition,
                outcome=done.error or "committed",
                bound=done.plan.end_offset,
                bytes_before=done.plan.size_bytes,
                bytes_after=done.plan.size_bytes if done.error else done.bytes_after,
                duration_ms=self._clock.monotonic_ms() - started_ms,
                fates={fate: str(count) for fate, count in done.fates.items()},
                first_dirty_offset=done.plan.first_dirty_offset,
            )
        )

    async def _plan(self, row: WorkRow, gate: asyncio.Semaphore) -> Plan | None:
        try:
            async with gate:
                return await self._brokers.plan(row.key)
        except RefusedError as error:
            logger.debug("%s: %s", row.key, error)  # no longer due, or no longer there
        except (NotConnectedError, MetastoreUnavailableError) as error:
            self._leave_alone(row.key.broker_id, error)
        except (SextonError, KafkaError) as error:
            logger.info("broker %d has no plan: %s", row.key.broker_id, error)
            self._skip(row.key)
        return None

    async def _finish(
        self, job: _Job, row: WorkRow, outcome: PlanOutcome, started_ms: int, gate: asyncio.Semaphore
    ) -> None:
        async with gate:
            committed, why, is_reached = await self._commit(outcome)
        plan = outcome.plan
        self._count(row, committed)
        if committed is None:
            logger.warning("%s-%d on broker %d was not compacted: %s", plan.topic, plan.partition, plan.broker_id, why)
            if is_reached and not job.is_parted:
                self._skip(row.key)
        else:
            self._failures_count.pop(row.key, None)
        result = outcome.result
        job.runs.append(
            RunRow(
                run_id=uuid.UUID(int=self._rng.getrandbits(128), version=4),
                finished_ms=self._clock.now_ms(),
                broker_id=plan.broker_id,
                topic=plan.topic,
                partition=plan.partition,
                outcome="committed" if committed is not None else why,
                bound=plan.bound,
                bytes_before=plan.input_bytes if committed is None else committed.bytes_before,
                bytes_after=plan.input_bytes if committed is None else committed.bytes_after,
                duration_ms=self._clock.monotonic_ms() - started_ms,
                fates={} if result is None else {fate: str(count) for fate, count in result.fates.items()},
                first_dirty_offset=plan.first_dirty_offset,
            )
        )

    async def _commit(self, outcome: PlanOutcome) -> tuple[Committed | None, str, bool]:
        """Returns what was committed, or why it was not and whether the broker was reached. A request whose response is
        lost (ConnectionLostError) has reached it: if that happens again and again, the partition may be the cause."""
        try:
            if outcome.result is not None:
                return await self._brokers.commit(outcome.plan.broker_id, outcome.result), "", True
            await self._brokers.abandon(outcome.plan, outcome.error if outcome.is_lasting else "")
        except (NotConnectedError, MetastoreUnavailableError) as error:
            self._leave_alone(outcome.plan.broker_id, error)
            return None, str(error), False
        except (SextonError, KafkaError) as error:
            return None, str(error), True
        return None, outcome.error, True

    def _leave_alone(self, broker_id: int, error: SextonError) -> None:
        """The broker could not be asked, so this says nothing about its partitions."""
        epoch = self._epochs.get(broker_id)
        if epoch is None or broker_id in self._unreachable:
            return
        logger.info("cannot reach broker %d: %s. Its work waits", broker_id, error)
        self._unreachable[broker_id] = epoch, self._clock.monotonic_ms() + UNREACHABLE_PAUSE_MS

    def _count(self, row: WorkRow, committed: Committed | None) -> None:
        totals = self.totals
        if committed is None:
            totals.failed_count += 1
            return
        totals.committed_count += 1
        totals.input_bytes += committed.bytes_before
        totals.output_bytes += committed.bytes_after
        totals.due_to_done_ms += max(0, self._clock.now_ms() - row.since_ms)

    def _part(self, job: _Job) -> None:
        """One of the partitions is to blame: the next jobs have half as many."""
        self._company |= {row.key: max(1, len(job.plans) // 2) for row, _ in job.plans}
        job.is_parted = len(job.plans) > 1

    def _skip(self, key: WorkKey) -> None:
        failures_count = self._failures_count.get(key, 0)
        self._failures_count[key] = failures_count + 1
        pause_ms = min(FAILED_PAUSE_MS_MAX, FAILED_PAUSE_MS << min(failures_count, 16))
        self._skipped_until_ms[key] = self._clock.monotonic_ms() + pause_ms

    def _forget_all_but(self, due: Collection[WorkKey]) -> None:
        """Forgets the failures of work that is neither due, nor skipped, nor in progress: it is done, or will never be
        due again."""
        kept = {*due, *self._skipped_until_ms, *self._underway}
        self._failures_count = {key: count for key, count in self._failures_count.items() if key in kept}
        if len(self._company) > COMPANY_MAX:
            self._company = {key: count for key, count in self._company.items() if key in kept}

    async def keep_warm_or_rest(self) -> None:
        """A compaction that becomes due should not wait for Spark to start; but Spark should not run on a laptop
        without need."""
        topics = CompactedTopics(self._metastore)
        while True:
            try:
                if await topics.exist():
                    await self._engine.warm()
                elif not self._underway and self._clock.monotonic_ms() - self._busy_ms > REST_AFTER_MS:
                    await self._engine.rest()
                    self._busy_ms = self._clock.monotonic_ms()
            except MetastoreUnavailableError as error:
                logger.debug("cannot read topics: %s", error)
            except EngineUnavailableError as error:
                logger.error("%s", error)
                await asyncio.sleep(FAILED_PAUSE_MS / 1000)
            await asyncio.sleep(WARM_LOOK_MS / 1000)
