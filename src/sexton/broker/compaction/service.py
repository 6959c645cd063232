"""A broker's part in compaction: publishes what is due, plans it when a compactor asks, commits the result.

Plans are in memory only: after a restart they are unknown, and their staged files are gone. Compactors then simply ask
again.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
import random
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sexton.broker.compaction.compactors import LiveCompactors
from sexton.broker.compaction.due import Due, Leftovers, is_due, must_close_active
from sexton.broker.compaction.leftovers import KeptLeftovers
from sexton.broker.compaction.lookout import Lookout
from sexton.broker.compaction.patience import Patience
from sexton.broker.compaction.records import LastPass, LastRun, Totals, closed_sizes, planned_producers
from sexton.broker.compaction.uncleanable import Uncleanable, UncleanableReplicas
from sexton.compaction.acceptance import SwapTerms, may_commit
from sexton.compaction.contract import Committed, PassResult, Plan
from sexton.compaction.swap import SwapRefusedError
from sexton.compaction.watermarks.replica import Pair
from sexton.errors import SextonError
from sexton.log.segments import ClosedSegments
from sexton.log.swap_disk import staging_path
from sexton.ports.clock import Clock
from sexton.ports.disk import Disk
from sexton.ports.metastore import LeaseLostError, Metastore, MetastoreUnavailableError
from sexton.ports.work_queue import WorkKey, WorkRow
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.replication.local_replica import LocalReplica, Role
from sexton.replication.replicas import Replicas
from sexton.settings.topic import TopicConfig
from sexton.supervision import Pauses, Supervisor
from sexton.types import PartitionId

logger = logging.getLogger(__name__)


PLANS_PER_REPLICA_MAX: Final = 2
"""Two compactors may have leased the same work; a third one replaces the plan of the first, which is surely dead."""

PLAN_AGE_MS_MAX: Final = 6 * 3_600_000
"""A plan older than this is abandoned: its compactor will not come back."""


class NotDueError(SextonError):
    """Raised if there is nothing to compact now."""


@dataclass(slots=True)
class _Underway:
    plan: Plan
    replica: LocalReplica
    closed: ClosedSegments
    planned_ms: int
    config: TopicConfig


class CompactionService:
    def __init__(
        self,
        replicas: Replicas,
        disk: Disk,
        clock: Clock,
        metastore: Metastore,
        identity: Callable[[], tuple[int, int]],
        rng: random.Random,
        adopts: Callable[[], bool] = lambda: False,
        supervisor: Supervisor | None = None,
    ) -> None:
        """`adopts` returns whether followers adopt their leader's compactions."""
        self._supervisor = supervisor or Supervisor()
        self._pauses = Pauses()
        self.patience = Patience()
        self.validating = asyncio.Lock()
        """Held by the one log whose new segments are being validated (`Log.swap`)."""
        self._adopts = adopts
        self._passes: dict[uuid.UUID, LastPass] = {}
        """Last compaction of each replica, by incarnation."""
        self.passes_count = 0
        self._replicas = replicas
        self._disk = disk
        self._clock = clock
        self._metastore = metastore
        self._identity = identity
        self._rng = rng
        self._underway: dict[str, _Underway] = {}
        self._leftovers = KeptLeftovers(disk)
        self._uncleanable = UncleanableReplicas()
        self.compactors = LiveCompactors(metastore, clock)
        self._lookout = Lookout(clock)
        self._since_ms: dict[PartitionId, int] = {}
        self._held_back_since_ms: dict[PartitionId, int] = {}
        self._last_runs: dict[PartitionId, LastRun] = {}
        self.totals = Totals()
        self._requested: dict[PartitionId, None] = {}
        self._published: list[WorkRow] = []

    @property
    def broker_id(self) -> int:
        return self._identity()[0]

    @property
    def broker_epoch(self) -> int:
        return self._identity()[1]

    # What is due

    async def look(self) -> None:
        """Closes active segments whose records have waited too long, and publishes what is due."""
        self._collect()
        self._prune()
        rows = []
        for replica in self._replicas.all():
            if not replica.config.compacts or replica.log.failure is not None:
                self._forget((replica.topic_id, replica.partition))
                continue
            log, now_ms = replica.coordination.kept.value.incarnation, self._clock.monotonic_ms()
            if self._pauses.last(log, now_ms):
                continue
            try:
                self._close_active(replica)
                self._note_held_back(replica)
                row = self._work_row(replica)
                self._lookout.looked(replica, self.due(replica), self.leftovers(replica))
            except (OSError, KafkaError) as error:
                logger.error("%r: cannot determine whether it is due for compaction: %s", replica, error)
                continue
            except Exception as bug:
                self._supervisor.survived(bug, "what is due", replica)
                self._pauses.failed(log, now_ms)
                continue
            self._pauses.succeeded(log)
            if row is not None:
                rows.append(row)
        await self._publish(rows)
        await self.compactors.look()

    def has_news(self) -> bool:
        return self._lookout.has_news(self._replicas.all())

    async def _publish(self, rows: list[WorkRow]) -> None:
        """Also publishes unchanged rows, because a compactor may have ended work that it could not do. Skipped when
        there is nothing to publish and nothing was."""
        if not rows and not self._published:
            return
        try:
            await self._metastore.publish_work(*self._identity(), rows)
            self._published = rows
        except (MetastoreUnavailableError, LeaseLostError) as error:
            logger.debug("what is due cannot be published: %s", error)

    def _close_active(self, replica: LocalReplica) -> None:
        active = replica.log.summaries()[-1]
        if must_close_active(active, self._clock.now_ms(), replica.config):
            replica.log.close_active(self._clock.now_ms())
            replica.settle()

    def _note_held_back(self, replica: LocalReplica) -> None:
        key, leader = (replica.topic_id, replica.partition), replica.coordination.leader
        if leader is not None and leader.holding_back():
            self._held_back_since_ms.setdefault(key, self._clock.now_ms())
        else:
            self._held_back_since_ms.pop(key, None)

    def held_back_since_ms(self, replica: LocalReplica) -> int | None:
        """Since when, as far as this leader has looked, some replica has kept MTRO or MXRO from rising."""
        return self._held_back_since_ms.get((replica.topic_id, replica.partition))

    def last_run(self, replica: LocalReplica) -> LastRun | None:
        return self._last_runs.get((replica.topic_id, replica.partition))

    def longest_due_ms(self) -> int:
        return max((self._clock.now_ms() - since_ms for since_ms in self._since_ms.values()), default=0)

    @property
    def underway_count(self) -> int:
        return len(self._underway)

    def _work_row(self, replica: LocalReplica) -> WorkRow | None:
        key = replica.topic_id, replica.partition
        due = self.due(replica)
        if not due.is_due or self._is_barred(replica):
            self._forget(key)
            return None
        if self._follows_compactions(replica) and self.patience.waits(key, self._clock.monotonic_ms()):
            return None
        found = due.eligibility
        return WorkRow(
            WorkKey(self._identity()[0], *key),
            replica.topic,
            due.why,
            int(found.dirty_ratio * 1_000_000),
            found.dirty_bytes,
            found.clean_bytes + found.dirty_bytes,
            found.overdue_ms,
            key in self._requested,
            self._since_ms.setdefault(key, self._clock.now_ms()),
        )

    def _forget(self, key: PartitionId) -> None:
        self._since_ms.pop(key, None)
        self.patience.forget(key)

    def _follows_compactions(self, replica: LocalReplica) -> bool:
        """Whether this follower gets its leader's compactions: now, or as soon as it is in sync."""
        return (
            replica.role is Role.FOLLOWER
            and replica.config.compacts
            and self._adopts()
            and not replica.coordination.is_independent
            and replica.log.failure is None
        )

    def takes_offers(self, replica: LocalReplica) -> bool:
        """Whether this replica adopts its leader's compactions now."""
        return self._follows_compactions(replica) and self.broker_id in replica.row.isr

    def is_coming(self, replica: LocalReplica) -> bool:
        """Whether the replica will be compacted by this broker soon."""
        if any(one.replica is replica for one in self._underway.values()):
            return True
        return self.due(replica).is_due and not self._is_barred(replica)

    def uncleanable(self, replica: LocalReplica) -> Uncleanable | None:
        return self._uncleanable.of(replica.coordination.watermarks.incarnation)

    def _is_barred(self, replica: LocalReplica) -> bool:
        log = replica.coordination.watermarks.incarnation
        return self._uncleanable.bars(log, closed_sizes(replica), replica.config, self._clock.monotonic_ms())

    def due(self, replica: LocalReplica, high_watermark: int | None = None) -> Due:
        log, watermarks = replica.log, replica.coordination.watermarks
        high_watermark = replica.high_watermark if high_watermark is None else high_watermark
        return is_due(
            log.summaries(),
            watermarks,
            self.leftovers(replica),
            log_start=log.start_offset,
            log_end=log.end_offset,
            last_stable_offset=log.last_stable_offset(high_watermark),
            high_watermark=high_watermark,
            now_ms=self._clock.now_ms(),
            config=replica.config,
            is_requested=(replica.topic_id, replica.partition) in self._requested,
        )

    def leftovers(self, replica: LocalReplica) -> Leftovers | None:
        return self._leftovers.of(replica)

    def compacted_ms(self, replica: LocalReplica) -> int | None:
        """When its last compaction was committed, by this broker's clock, also by an earlier process; None if
        unknown."""
        return self._leftovers.compacted_ms(replica)

    def pass_of(self, replica: LocalReplica) -> LastPass:
        return self._passes.get(replica.coordination.watermarks.incarnation, LastPass())

    async def request(self, topic: str, partition: int | None) -> list[int]:
        """Requests a compaction of everything now, the active segment included. Returns the topic's partitions on this
        broker."""
        wanted = [
            one
            for one in self._replicas.all()
            if one.topic == topic and partition in (None, one.partition) and one.config.compacts
        ]
        for replica in wanted:
            self._requested[replica.topic_id, replica.partition] = None
            self._uncleanable.requested(replica.coordination.watermarks.incarnation)
            replica.log.close_active(self._clock.now_ms())
            replica.settle()
        await self.look()
        return [replica.partition for replica in wanted]

    # Plans

    async def plan(self, topic_id: uuid.UUID, partition: int) -> Plan:
        """Raises NotDueError if there is nothing to compact, or KafkaError if this broker has no such replica."""
        replica = self._replicas.by_id(topic_id, partition)
        if replica.log.failure is not None:
            raise NotDueError("its disk has failed", str(replica))
        high_watermark = replica.high_watermark
        await replica.coordination.plan(high_watermark)  # durable before anything is removed by it (rule 7)
        if not self._is_here(replica):
            raise NotDueError("it was removed meanwhile", str(replica))
        due = self.due(replica, high_watermark)
        if not due.is_due:
            raise NotDueError(due.why, f"{replica.topic}-{partition}")
        if self._is_barred(replica):
            raise NotDueError("it cannot be compacted as it is", f"{replica.topic}-{partition}")
        plan = self._plan(replica, due, high_watermark)
        self._make_room_for_plan(replica)
        self._disk.make_directory(plan.staging)
        closed = replica.log.segments.closed(plan.bound)
        self._underway[plan.plan_id] = _Underway(plan, replica, closed, self._clock.monotonic_ms(), replica.config)
        logger.info("%s-%d: planned a compaction up to offset %d: %s", replica.topic, partition, plan.bound, due.why)
        return plan

    def _plan(self, replica: LocalReplica, due: Due, high_watermark: int) -> Plan:
        log, config = replica.log, replica.config
        watermarks = replica.coordination.watermarks
        plan_id = f"{self._rng.getrandbits(128):032x}"
        is_independent = replica.coordination.is_independent
        return Plan(
            plan_id=plan_id,
            broker_id=self._identity()[0],
            topic=replica.topic,
            topic_id=str(replica.topic_id),
            partition=replica.partition,
            incarnation=str(watermarks.incarnation),
            generation=watermarks.generation,
            directory=os.path.abspath(log.directory),
            staging=os.path.abspath(staging_path(log.directory, plan_id)),
            segments=log.segments.sizes_below(high_watermark),
            bound=due.bound,
            first_dirty_offset=due.eligibility.first_dirty_offset,
            high_watermark=high_watermark,
            now_ms=self._clock.now_ms(),
            delete_retention_ms=config.delete_retention_ms,
            mtro=watermarks.removable.keys,
            mxro=watermarks.removable.transactions,
            settle_below=0 if is_independent else due.bound,
            is_independent=is_independent,
            segment_bytes=config.segment_bytes,
            index_interval_bytes=config.index_interval_bytes,
            producers=planned_producers(replica, due.bound),
        )

    def _make_room_for_plan(self, replica: LocalReplica) -> None:
        mine = [plan_id for plan_id, one in self._underway.items() if one.replica is replica]
        for plan_id in mine[: max(0, len(mine) - PLANS_PER_REPLICA_MAX + 1)]:
            self.abandon(plan_id)

    def underway(self, plan_id: str) -> Plan | None:
        found = self._underway.get(plan_id)
        return None if found is None else found.plan

    def abandon(self, plan_id: str, uncleanable: str = "") -> None:
        """Drops a plan that will not be committed, with its staged files. `uncleanable` says which contents of the log
        no compaction can read, if that was the reason."""
        found = self._underway.pop(plan_id, None)
        if found is None:
            return
        self._remove_staged(found)
        log, plan = found.replica.coordination.watermarks.incarnation, found.plan
        is_same = str(log) == plan.incarnation and found.replica.log.segments.are_current(found.closed)
        if uncleanable and is_same and self._is_here(found.replica):
            logger.error("%s-%d cannot be compacted: %s", plan.topic, plan.partition, uncleanable)
            read = frozenset((base, size) for base, size in plan.segments if base < plan.bound)
            now_ms, monotonic_ms = self._clock.now_ms(), self._clock.monotonic_ms()
            self._uncleanable.failed(log, read, found.config, uncleanable, now_ms, monotonic_ms)
            self._requested.pop((found.replica.topic_id, found.replica.partition), None)
            self._forget((found.replica.topic_id, found.replica.partition))

    def _collect(self) -> None:
        """Abandons plans that can never be committed, or whose compactor is gone."""
        now_ms = self._clock.monotonic_ms()
        for plan_id, one in list(self._underway.items()):
            is_too_old = now_ms - one.planned_ms > PLAN_AGE_MS_MAX
            if is_too_old or not self._is_here(one.replica) or not one.replica.log.segments.are_current(one.closed):
                self.abandon(plan_id)

    def _prune(self) -> None:
        """Topics are deleted and replicas move: drops what is remembered of their logs."""
        logs = {one.coordination.watermarks.incarnation for one in self._replicas.all()}
        places = {(one.topic_id, one.partition) for one in self._replicas.all()}
        self._uncleanable.keep_only(logs)
        self._leftovers.keep_only(logs)
        self._passes = {log: one for log, one in self._passes.items() if log in logs}
        self._lookout.keep_only(logs)
        for by_place in (self._last_runs, self._requested, self._since_ms, self._held_back_since_ms):
            for place in by_place.keys() - places:
                del by_place[place]
        self.patience.keep_only(places)

    def _is_here(self, replica: LocalReplica) -> bool:
        """Whether the replica is still the one on this broker. A `LocalReplica` object that was removed, or wiped and
        created again, does not show that: its log, its watermarks and the planned segments still fit together, but its
        directory may belong to another log by now."""
        try:
            return self._replicas.by_id(replica.topic_id, replica.partition) is replica
        except KafkaError:
            return False

    def _remove_staged(self, one: _Underway) -> None:
        try:
            self._disk.remove_tree(one.plan.staging)
        except OSError as error:
            logger.warning("cannot remove %s: %s", one.plan.staging, error)

    # Commits

    async def commit(self, result: PassResult) -> Committed:
        """Raises SwapRefusedError, having changed nothing, or KafkaError if the disk failed."""
        try:
            return await self._commit(result)
        except (SwapRefusedError, KafkaError):
            self.totals.refused_count += 1
            raise

    async def _commit(self, result: PassResult) -> Committed:
        found = self._underway.pop(result.plan_id, None)
        if found is None:
            raise SwapRefusedError("no such plan is under way here: the broker was restarted, or it took too long")
        try:
            self._check(found)
            committed = await found.replica.log.swap(
                found.closed,
                found.plan.staging,
                result.segments,
                self._swap_terms(found),
                lambda: self._check(found),
                self.validating,
                lambda: self.keep(found.replica, found.plan.bound, self._left_by(found.plan, found.replica, result)),
            )
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"what was compacted cannot be kept: {error}") from error
        finally:
            self._remove_staged(found)
        self.note(found.replica, found.plan.now_ms, "compacted")
        self.totals.committed_count += 1
        self.count(found.replica, committed.bytes_before, committed.bytes_after)
        logger.info(
            "%s-%d: compacted up to offset %d: %d bytes became %d",
            found.plan.topic,
            found.plan.partition,
            found.plan.bound,
            committed.bytes_before,
            committed.bytes_after,
        )
        return committed

    def count(self, replica: LocalReplica, bytes_before: int, bytes_after: int) -> None:
        key, totals = (replica.topic_id, replica.partition), self.totals
        totals.bytes_before += bytes_before
        totals.bytes_after += bytes_after
        before = self._last_runs.get(key)
        saved = bytes_before - bytes_after + (before.bytes_saved if before is not None else 0)
        self._last_runs[key] = LastRun(self._clock.now_ms(), bytes_before, bytes_after, saved)

    def _check(self, found: _Underway) -> None:
        """Checked at the moment of the commit, whatever held when it was planned."""
        plan, replica = found.plan, found.replica
        watermarks = replica.coordination.watermarks
        is_same = (str(watermarks.incarnation), watermarks.generation) == (plan.incarnation, plan.generation)
        if not is_same or not self._is_here(replica):
            raise SwapRefusedError(f"{plan.topic}-{plan.partition} is another log by now")
        if not replica.config.compacts or replica.coordination.is_independent != plan.is_independent:
            raise SwapRefusedError(f"{plan.topic}-{plan.partition} has other settings by now")
        stable = replica.last_stable_offset
        if not may_commit(watermarks, generation=plan.generation, bound=plan.bound, last_stable_offset=stable):
            raise SwapRefusedError(
                f"it ends at {plan.bound}, not between what is compacted already ({watermarks.compacted.keys}) and the "
                f"last stable offset ({stable})"
            )

    def _swap_terms(self, found: _Underway) -> SwapTerms:
        plan = found.plan
        if plan.is_independent:
            return SwapTerms(plan.bound, plan.bound, None)
        return SwapTerms(plan.bound, plan.mxro, found.replica.coordination.watermarks.compacted.transactions)

    def _left_by(self, plan: Plan, replica: LocalReplica, result: PassResult) -> Leftovers:
        removable = Pair(plan.mtro, plan.mxro)
        before = self.leftovers(replica)
        retention_ms, held_back_bytes = plan.delete_retention_ms, result.held_back_bytes
        return Leftovers.of_pass(before, result.fates, removable, plan.now_ms, retention_ms, held_back_bytes)

    async def keep(self, replica: LocalReplica, bound: int, leftovers: Leftovers | None) -> None:
        """Records a compaction that has just been swapped in, own or adopted. Nothing else is swapped in before this
        ends: a compaction that went less far would end up below an MCCO that is about to be written."""
        await self._leftovers.keep(replica, leftovers, self._clock.now_ms())
        await replica.coordination.committed(bound)

    def note(self, replica: LocalReplica, made_ms: int, how: str) -> None:
        """Called after a compaction was committed, own or adopted."""
        incarnation = replica.coordination.watermarks.incarnation
        self.passes_count += 1
        self._passes[incarnation] = LastPass(self.passes_count, made_ms, how)
        self._uncleanable.succeeded(incarnation)
        self._requested.pop((replica.topic_id, replica.partition), None)
        self._forget((replica.topic_id, replica.partition))
