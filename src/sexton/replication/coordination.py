"""One replica's part in coordinated compaction (docs/rules.md): its own progress, what it has received of the others',
and, on the leader, the result of their reports.

The decisions are in `compaction.watermarks`; here they are made durable before they count, and `ReplicaFetch` carries
them: followers report their progress with what they hold, leaders send MTRO and MXRO with the records.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sexton.compaction.watermarks import fence
from sexton.compaction.watermarks.checkpoint import Kept
from sexton.compaction.watermarks.leader import LeaderWatermarks, Report
from sexton.compaction.watermarks.replica import NO_CLAIM, UNKNOWN_EPOCH, Claim, Pair, ReplicaWatermarks
from sexton.errors import SextonError
from sexton.log.log import Log
from sexton.ports.metastore import PartitionRow, Storage
from sexton.protocol.errors import KafkaError
from sexton.records.checkpoints import EpochEntry
from sexton.replication.history import end_of_epoch
from sexton.replication.messages import NO_INCARNATION, FetchPartition, PartitionData
from sexton.supervision import Supervisor

logger = logging.getLogger(__name__)

INDEPENDENT: Final = "independent"


class AbsurdWatermarkError(SextonError):
    """A peer sent offsets that are impossible."""


class LostRecordsError(SextonError):
    """The leader's log lacks records that a follower's watermarks cover. It refuses the follower (the fetch fence) at
    the follower's next report."""


class Coordination:
    def __init__(self, kept: Kept, log: Log, broker_id: int, supervisor: Supervisor, moved: Callable[[], None]) -> None:
        """`moved` is called when a value that is sent to other replicas has changed."""
        self._supervisor = supervisor
        self.kept = kept
        self.leader: LeaderWatermarks | None = None
        self._moved = moved
        self._log = log
        self._broker_id = broker_id
        self._advancing: asyncio.Task[None] | None = None
        self._is_moving = False
        """The log is being copied to the store. MTRO and MXRO stay where they are: what they protect may be in the part
        that was copied, and what protects from it in the part that was not."""

    @property
    def watermarks(self) -> ReplicaWatermarks:
        """The replica's watermarks, all durable. The log start counts too; it is durable by itself."""
        value = self.kept.value
        return value.with_log_start(self._log.start_offset) if self._log.start_offset > min(value.compacted) else value

    @property
    def claim(self) -> Claim:
        """What the log of a leader must have contained for these watermarks to be about it. NO_CLAIM if they do not
        reach beyond this log's own start."""
        value = self.kept.value
        epoch = value.epoch if value.epoch != UNKNOWN_EPOCH else self._log.epochs.latest_epoch
        return Claim(value.highest, epoch) if value.highest > self._log.start_offset else NO_CLAIM

    @property
    def outlives_its_log(self) -> bool:
        """Whether the log ends below its own watermarks. Normal while it is still being copied; a replica that is to
        lead has lost its tail."""
        return self.kept.value.highest > self._log.end_offset

    @property
    def is_independent(self) -> bool:
        return self._log.config.compaction_coordination == INDEPENDENT

    def check_invariants(self) -> None:
        self.kept.value.check_invariants()
        if self.leader is not None:
            self.leader.check_invariants()

    # As a leader

    def lead(self, row: PartitionRow) -> None:
        """Starts from the MTRO and MXRO that this replica last received. New follower sessions send them again, so no
        broadcast is needed."""
        self._is_moving = row.storage is not Storage.LOCAL
        self.leader = LeaderWatermarks(self._broker_id, self.watermarks, _incarnations(row))
        self.advance()

    async def enter_generation(self, generation: int) -> None:
        """A forced unclean election chose this replica: its watermarks are lowered to its log end. Durable before it
        leads."""
        if generation > self.kept.value.generation:
            end_offset = self._log.end_offset
            logger.warning("%r: generation %d begins; its watermarks are lowered to the log end", self._log, generation)
            await self._keep(lambda known: known.with_forced_election(generation, end_offset))

    def follow_row(self, row: PartitionRow) -> None:
        if self.leader is not None:
            self._is_moving = row.storage is not Storage.LOCAL
            self.leader.set_replicas(_incarnations(row))
            self.advance()

    def resign(self) -> None:
        self.leader = None

    def take_report(self, follower: int, broker_epoch: int, held: FetchPartition) -> None:
        leader = self._refreshed()
        if leader is None:
            return
        if held.compacted.highest > self._log.end_offset:
            logger.warning(
                "%r: ignoring the report of broker %d that it has compacted up to %s, which is impossible",
                self._log,
                follower,
                held.compacted,
            )
            return
        if leader.take_report(follower, _report(held, broker_epoch)):
            self.advance()

    def may_copy(self, held: FetchPartition, *, in_sync: bool) -> bool:
        """The fetch fence, for a follower whose log is a prefix of ours."""
        if self.leader is None or self.is_independent:
            return True
        return fence.may_copy(
            self.watermarks,
            end_offset=held.end_offset,
            is_empty=held.is_empty,
            generation=held.generation,
            compacted=held.compacted,
            in_sync=in_sync,
        )

    def has_what_is_claimed(self, held: FetchPartition) -> bool:
        """Whether a follower's watermarks are about this very log. If not, records were lost that it, or the replica
        that it copied from, has compacted by: in sync or not, its log may lack what ours has."""
        if held.generation != self.kept.value.generation or held.claim.end_offset <= self._log.start_offset:
            return True
        return _is_true(held.claim, self._log.epochs.entries, self._log.end_offset)

    def advance(self) -> None:
        """Called whenever MTRO and MXRO may rise."""
        if self._advancing is None and self._due() is not None:
            self._advancing = self._supervisor.work(self._advance(), "MTRO and MXRO", self._log)

    def _due(self) -> Pair | None:
        leader = self._refreshed()
        if leader is None or self._is_moving or not self._log.config.compacts:
            return None
        computed = leader.computed()
        return computed if computed != leader.own.removable else None

    def _refreshed(self) -> LeaderWatermarks | None:
        if self.leader is not None:
            self.leader.own = self.watermarks
        return self.leader

    async def _advance(self) -> None:
        """Makes MTRO and MXRO durable here before they are sent or acted on (rule 7)."""
        try:
            while (computed := self._due()) is not None:
                await self._keep_removable(self.kept.value.generation, computed)
                logger.debug("%r: MTRO and MXRO are %s", self._log, computed)
                self._moved()
        except (OSError, KafkaError) as error:
            logger.error("%r: cannot write MTRO and MXRO: %s", self._log, error)
        finally:
            self._advancing = None

    async def _keep_removable(self, generation: int, removable: Pair) -> None:
        await self._keep(lambda known: known.with_received(generation, removable))

    async def _keep(self, change: Callable[[ReplicaWatermarks], ReplicaWatermarks]) -> None:
        """Flushes the log up to the new watermarks before it writes them, also where producers are acknowledged before
        the flush. So a log that was complete never ends below its own watermarks, whatever a power failure takes from
        it."""
        if change(self.kept.value).highest > self._log.flushed_offset:
            await self._log.flush()
        await self.kept.keep(lambda known: self._with_epoch(known, change(known)))

    def _with_epoch(self, before: ReplicaWatermarks, now: ReplicaWatermarks) -> ReplicaWatermarks:
        return before if now == before else replace(now, epoch=self._log.epochs.latest_epoch)

    # As a follower

    def check_claim(self, fetched: PartitionData) -> None:
        """Called before a leader's history is taken over: the next report must still carry the claim that this log was
        compacted by. Raises LostRecordsError if the leader's log contradicts it."""
        if fetched.history is None or fetched.generation != self.kept.value.generation:
            return
        claim = self.claim
        if claim.end_offset > fetched.log_start_offset and not _is_true(claim, fetched.history, fetched.log_end_offset):
            raise LostRecordsError(
                f"the leader's log lacks what was committed up to {claim.end_offset} in leader epoch {claim.epoch}, "
                "and this one may have been compacted by it"
            )

    async def take(self, fetched: PartitionData) -> None:
        """Called before the response's records are appended: they may lack what these watermarks allowed to remove."""
        value = self.kept.value
        is_empty = self._log.start_offset == self._log.end_offset
        if (
            not is_empty
            and fetched.generation == value.generation
            and value.removable.covers(fetched.removable)
            and value.fence_below >= fetched.fence_below
            and value.planned_high_watermark >= fetched.planned_high_watermark
        ):
            return
        if fetched.removable.highest > fetched.log_end_offset:
            raise AbsurdWatermarkError(
                f"the leader says that {fetched.removable} may go, and ends at {fetched.log_end_offset}"
            )
        received = fetched.generation, fetched.removable, fetched.fence_below, fetched.planned_high_watermark
        await self._keep(
            lambda known: known.with_received_while_empty(*received) if is_empty else known.with_received(*received)
        )

    # Compaction

    async def plan(self, high_watermark: int) -> ReplicaWatermarks:
        """The watermarks that a compaction may act on. The high watermark is durable before anything is removed by
        it."""
        await self._keep(lambda known: known.with_plan(high_watermark))
        return self.watermarks

    async def before_adoption(
        self, generation: int, removable: Pair, fence_below: int, planned_high_watermark: int, high_watermark: int
    ) -> None:
        """Makes the watermarks that come with an adopted compaction, and the own high watermark, durable before its
        segments are swapped in: the segments may lack what these values allowed to remove."""
        await self._keep(
            lambda known: known.with_received(generation, removable, fence_below, planned_high_watermark).with_plan(
                high_watermark
            )
        )

    async def committed(self, bound: int) -> None:
        """Called after the swap and before the report (rule 7)."""
        if self.is_independent:
            await self._keep(lambda known: known.with_independent_compaction(bound))
        elif bound > min(self.kept.value.compacted):
            await self._keep(lambda known: known.with_compaction(bound))
        self.advance()
        self._moved()


def _is_true(claim: Claim, history: Sequence[EpochEntry], log_end_offset: int) -> bool:
    """Whether a log with this history satisfies the claim: no later leader started below the claimed end."""
    return end_of_epoch(history, claim.epoch, log_end_offset) >= claim.end_offset


def _incarnations(row: PartitionRow) -> dict[int, uuid.UUID]:
    return {broker: row.incarnations.get(broker, NO_INCARNATION) for broker in row.replicas}


def _report(held: FetchPartition, broker_epoch: int) -> Report:
    return Report(held.incarnation, held.generation, held.compacted, broker_epoch)
