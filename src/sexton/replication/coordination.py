"""One replica's part in coordinated compaction (docs/rules.md): what it knows of its own progress and the others', and,
while it leads, what it makes of their reports.

What is decided is in `sexton.watermarks`; here it is made durable before it counts, and carried by `ReplicaFetch`:
progress goes up with what a follower holds, MTRO and MXRO come down with the records.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sexton.errors import SextonError
from sexton.log.log import Log
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import KafkaError
from sexton.records.checkpoints import EpochEntry
from sexton.replication.history import end_of_epoch
from sexton.replication.messages import NO_INCARNATION, Held, News
from sexton.supervision import Supervisor
from sexton.watermarks.checkpoint import Kept
from sexton.watermarks.leader import LeaderWatermarks, Report
from sexton.watermarks.replica import NO_CLAIM, UNKNOWN_EPOCH, Claim, Pair, ReplicaWatermarks

logger = logging.getLogger(__name__)

INDEPENDENT: Final = "independent"


class AbsurdWatermarkError(SextonError):
    """A peer speaks of offsets that cannot be."""


class LostRecordsError(SextonError):
    """A leader lacks what a follower's watermarks speak of: it turns the follower away when it hears of it."""


class Coordination:
    def __init__(self, kept: Kept, log: Log, broker_id: int, supervisor: Supervisor) -> None:
        self._supervisor = supervisor
        self.kept = kept
        self.leader: LeaderWatermarks | None = None
        self.on_moved: Callable[[], None] = lambda: None
        """What others are to be told has changed."""
        self._log = log
        self._broker_id = broker_id
        self._advancing: asyncio.Task[None] | None = None

    @property
    def watermarks(self) -> ReplicaWatermarks:
        """All of it durable: the log's start is, by itself."""
        value = self.kept.value
        return value.with_log_start(self._log.start_offset) if self._log.start_offset > min(value.compacted) else value

    @property
    def claim(self) -> Claim:
        """What the log that is followed must have had, or everything here is about another one. Nothing, of what lies
        below the log's own start."""
        value = self.kept.value
        epoch = value.epoch if value.epoch != UNKNOWN_EPOCH else self._log.epochs.latest_epoch
        return Claim(value.highest, epoch) if value.highest > self._log.start_offset else NO_CLAIM

    @property
    def outlives_its_log(self) -> bool:
        """Whether the log ends below what is said of it. While it is being copied, that is how it is; one that is to
        lead has lost its end."""
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
        """From what it was last told. That it is told again, to everybody, follows from new sessions."""
        self.leader = LeaderWatermarks(self._broker_id, self.watermarks, _incarnations(row))
        self.advance()

    async def enter_generation(self, generation: int) -> None:
        """An unclean election was forced onto this replica: what it knew of offsets that it does not have is void.
        Durable before it leads."""
        if generation > self.kept.value.generation:
            end_offset = self._log.end_offset
            logger.warning("%r: generation %d begins; its watermarks are lowered to the log end", self._log, generation)
            await self._keep(lambda known: known.with_forced_election(generation, end_offset))

    def follow_row(self, row: PartitionRow) -> None:
        if self.leader is not None:
            self.leader.set_replicas(_incarnations(row))
            self.advance()

    def resign(self) -> None:
        self.leader = None

    def take_report(self, follower: int, broker_epoch: int, held: Held) -> None:
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

    def may_copy(self, held: Held, *, in_sync: bool) -> bool:
        """The fetch fence, for a follower whose log lies on ours. One that is empty, or is about to throw everything
        away because it ends before our log starts, has no past that could contradict ours."""
        leader = self._refreshed()
        if leader is None or self.is_independent or held.is_empty or held.end_offset < self._log.start_offset:
            return True
        return leader.may_copy(held.end_offset, _report(held), in_sync=in_sync)

    def has_what_is_claimed(self, held: Held) -> bool:
        """Whether a follower's watermarks are about this very log. If not, records were lost that it has compacted by,
        or that what it copied was compacted by: be it in sync or not, its log may lack what ours has."""
        if held.generation != self.kept.value.generation or held.claim.end_offset <= self._log.start_offset:
            return True
        return _is_true(held.claim, self._log.epochs.entries, self._log.end_offset)

    def advance(self) -> None:
        """Called whenever MTRO and MXRO may rise."""
        if self._advancing is None and self._due() is not None:
            self._advancing = self._supervisor.work(self._advance(), "MTRO and MXRO", self._log)

    def _due(self) -> Pair | None:
        leader = self._refreshed()
        if leader is None or not self._log.config.compacts:
            return None
        computed = leader.computed()
        return computed if computed != leader.own.removable else None

    def _refreshed(self) -> LeaderWatermarks | None:
        if self.leader is not None:
            self.leader.own = self.watermarks
        return self.leader

    async def _advance(self) -> None:
        """Durable here before it is sent or acted on (rule 7)."""
        try:
            while (computed := self._due()) is not None:
                await self._keep_removable(self.kept.value.generation, computed)
                logger.debug("%r: MTRO and MXRO are %s", self._log, computed)
                self.on_moved()
        except (OSError, KafkaError) as error:
            logger.error("%r: cannot write MTRO and MXRO: %s", self._log, error)
        finally:
            self._advancing = None

    async def _keep_removable(self, generation: int, removable: Pair) -> None:
        await self._keep(lambda known: known.told(generation, removable))

    async def _keep(self, change: Callable[[ReplicaWatermarks], ReplicaWatermarks]) -> None:
        """What watermarks speak of is on this disk before they are, as far as it is here: also where producers are
        answered before the flush. So a log that was whole never ends below its own watermarks, whatever it loses."""
        if change(self.kept.value).highest > self._log.flushed_offset:
            await self._log.flush()
        await self.kept.keep(lambda known: self._with_epoch(known, change(known)))

    def _with_epoch(self, before: ReplicaWatermarks, now: ReplicaWatermarks) -> ReplicaWatermarks:
        return before if now == before else replace(now, epoch=self._log.epochs.latest_epoch)

    # As a follower

    def check_claim(self, news: News) -> None:
        """Before a leader's history is taken: the next report must still say what this log was made by."""
        if news.history is None or news.generation != self.kept.value.generation:
            return
        claim = self.claim
        if claim.end_offset > news.log_start_offset and not _is_true(claim, news.history, news.log_end_offset):
            raise LostRecordsError(
                f"the leader's log lacks what was committed up to {claim.end_offset} in leader epoch {claim.epoch}, "
                "and this one may have been compacted by it"
            )

    async def take(self, news: News) -> None:
        """Before the records that came with it: they may lack what these values allowed to remove."""
        value = self.kept.value
        is_empty = self._log.start_offset == self._log.end_offset
        if (
            not is_empty
            and news.generation == value.generation
            and value.removable.covers(news.removable)
            and value.fence_below >= news.fence_below
            and value.planned_high_watermark >= news.planned_high_watermark
        ):
            return
        if news.removable.highest > news.log_end_offset:
            raise AbsurdWatermarkError(
                f"the leader says that {news.removable} may go, and ends at {news.log_end_offset}"
            )
        told = news.generation, news.removable, news.fence_below, news.planned_high_watermark
        await self._keep(lambda known: known.told_while_empty(*told) if is_empty else known.told(*told))

    # Compaction

    async def plan(self, high_watermark: int) -> ReplicaWatermarks:
        """The values that a pass may act on. The high watermark is durable before anything is removed by it."""
        await self._keep(lambda known: known.with_plan(high_watermark))
        return self.watermarks

    async def before_adoption(
        self, generation: int, removable: Pair, fence_below: int, planned_high_watermark: int, high_watermark: int
    ) -> None:
        """What an adopted compaction carries, and the own high watermark, are durable before its segments are: they may
        lack what these values allowed to remove."""
        await self._keep(
            lambda known: known.told(generation, removable, fence_below, planned_high_watermark).with_plan(
                high_watermark
            )
        )

    async def committed(self, bound: int) -> None:
        """After the swap, before the report (rule 7)."""
        if self.is_independent:
            await self._keep(lambda known: known.with_independent_compaction(bound))
        elif bound > min(self.kept.value.compacted):
            await self._keep(lambda known: known.with_compaction(bound))
        self.advance()
        self.on_moved()


def _is_true(claim: Claim, history: Sequence[EpochEntry], log_end_offset: int) -> bool:
    """Of a log with that history: no later leader began below what was committed."""
    return end_of_epoch(history, claim.epoch, log_end_offset) >= claim.end_offset


def _incarnations(row: PartitionRow) -> dict[int, uuid.UUID]:
    return {broker: row.incarnations.get(broker, NO_INCARNATION) for broker in row.replicas}


def _report(held: Held, broker_epoch: int = 0) -> Report:
    return Report(held.incarnation, held.generation, held.compacted, broker_epoch)
