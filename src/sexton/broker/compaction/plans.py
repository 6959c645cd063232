"""Plans compactions when compactors ask, and commits their results.

Plans are in memory only: after a restart they are unknown, and their staged files are gone. Compactors then simply ask
again.
"""

from __future__ import annotations

import asyncio
import logging
import os.path
import uuid
from dataclasses import dataclass
from typing import Final

from sexton.broker.compaction.host import Host
from sexton.broker.compaction.memory import Memory
from sexton.broker.compaction.publish import Publisher
from sexton.compaction.acceptance import SwapTerms, may_commit
from sexton.compaction.contract import Committed, PassResult, Plan
from sexton.compaction.due import Due, Leftovers
from sexton.compaction.swap import SwapRefusedError
from sexton.compaction.watermarks.replica import Pair
from sexton.errors import SextonError
from sexton.log.segments import ClosedSegments
from sexton.log.swap_disk import staging_path
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.replication.local_replica import LocalReplica
from sexton.settings.topic import TopicConfig

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


class Plans:
    def __init__(self, memory: Memory, publisher: Publisher, host: Host) -> None:
        self._memory = memory
        self._publisher = publisher
        self._host = host
        self._disk = host.disk
        self._clock = host.clock
        self.validating = asyncio.Lock()
        """Held by the one log whose new segments are being validated (`Log.swap`)."""
        self._underway: dict[str, _Underway] = {}

    @property
    def underway_count(self) -> int:
        return len(self._underway)

    def is_coming(self, replica: LocalReplica) -> bool:
        """Whether the replica will be compacted by this broker soon."""
        if any(one.replica is replica for one in self._underway.values()):
            return True
        return self._publisher.due(replica).is_due and not self._publisher.is_barred(replica)

    async def plan(self, topic_id: uuid.UUID, partition: int) -> Plan:
        """Raises NotDueError if there is nothing to compact, or KafkaError if this broker has no such replica."""
        replica = self._host.replicas.by_id(topic_id, partition)
        if replica.log.failure is not None:
            raise NotDueError("its disk has failed", str(replica))
        high_watermark = replica.high_watermark
        await replica.coordination.plan(high_watermark)  # durable before anything is removed by it (rule 7)
        if not self._is_here(replica):
            raise NotDueError("it was removed meanwhile", str(replica))
        due = self._publisher.due(replica, high_watermark)
        if not due.is_due:
            raise NotDueError(due.why, f"{replica.topic}-{partition}")
        if self._publisher.is_barred(replica):
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
        plan_id = f"{self._host.rng.getrandbits(128):032x}"
        is_independent = replica.coordination.is_independent
        return Plan(
            plan_id=plan_id,
            broker_id=self._host.identity[0],
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
            producers=tuple(one.last for one in log.producers if one.last.last_data_offset < due.bound),
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
            self._memory.uncleanable.failed(log, read, found.config, uncleanable, now_ms, monotonic_ms)
            self._memory.no_longer_wanted((found.replica.topic_id, found.replica.partition))

    def collect(self) -> None:
        """Abandons plans that can never be committed, or whose compactor is gone."""
        now_ms = self._clock.monotonic_ms()
        for plan_id, one in list(self._underway.items()):
            is_too_old = now_ms - one.planned_ms > PLAN_AGE_MS_MAX
            if is_too_old or not self._is_here(one.replica) or not one.replica.log.segments.are_current(one.closed):
                self.abandon(plan_id)

    def _is_here(self, replica: LocalReplica) -> bool:
        """Whether the replica is still the one on this broker. A `LocalReplica` object that was removed, or wiped and
        created again, does not show that: its log, its watermarks and the planned segments still fit together, but its
        directory may belong to another log by now."""
        try:
            return self._host.replicas.by_id(replica.topic_id, replica.partition) is replica
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
            self._memory.totals.refused_count += 1
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
                lambda: self._memory.keep(found.replica, found.plan.bound, self._left_by(found, result)),
            )
        except OSError as error:
            raise KafkaError(ErrorCode.kafka_storage_error, f"what was compacted cannot be kept: {error}") from error
        finally:
            self._remove_staged(found)
        self._memory.compacted(found.replica, found.plan.now_ms, "compacted", committed)
        self._memory.totals.committed_count += 1
        logger.info(
            "%s-%d: compacted up to offset %d: %d bytes became %d",
            found.plan.topic,
            found.plan.partition,
            found.plan.bound,
            committed.bytes_before,
            committed.bytes_after,
        )
        return committed

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

    def _left_by(self, found: _Underway, result: PassResult) -> Leftovers:
        plan, before = found.plan, self._memory.leftovers.of(found.replica)
        removable = Pair(plan.mtro, plan.mxro)
        retention_ms, held_back_bytes = plan.delete_retention_ms, result.held_back_bytes
        return Leftovers.of_pass(before, result.fates, removable, plan.now_ms, retention_ms, held_back_bytes)
