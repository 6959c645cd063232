"""One replica's part in coordinated compaction (DESIGN): what it knows of its own progress and the others', and, while
it leads, what it makes of their reports.

What is decided is in `sexton.watermarks`; here it is made durable before it counts, and carried by `ReplicaFetch`:
progress goes up with what a follower holds, MTRO and MXRO come down with the records.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from typing import Final

from sexton.errors import SextonError
from sexton.log.log import Log
from sexton.ports.metastore import PartitionRow
from sexton.replication.messages import NO_INCARNATION, Held, News
from sexton.watermarks.checkpoint import Kept
from sexton.watermarks.leader import LeaderWatermarks, Report
from sexton.watermarks.replica import Pair, ReplicaWatermarks

logger = logging.getLogger(__name__)

INDEPENDENT: Final = "independent"


class AbsurdWatermarkError(SextonError):
    """A peer speaks of offsets that cannot be."""


class Coordination:
    def __init__(self, kept: Kept, log: Log, broker_id: int) -> None:
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
            logger.warning("%r: generation %d begins; watermarks are cut to its end", self._log, generation)
            await self.kept.keep(lambda known: known.with_forced_election(generation, end_offset))

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
                "%r: broker %d says that it has compacted up to %s, which cannot be",
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

    def advance(self) -> None:
        """Called whenever MTRO and MXRO may rise."""
        if self._advancing is None and self._due() is not None:
            self._advancing = asyncio.ensure_future(self._advance())

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
        except OSError as error:
            logger.error("%r: MTRO and MXRO cannot be kept: %s", self._log, error)
        finally:
            self._advancing = None

    async def _keep_removable(self, generation: int, removable: Pair) -> None:
        await self.kept.keep(lambda known: known.told(generation, removable))

    # As a follower

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
        await self.kept.keep(lambda known: known.told_while_empty(*told) if is_empty else known.told(*told))

    # Compaction

    async def plan(self, high_watermark: int) -> ReplicaWatermarks:
        """The values that a pass may act on. The high watermark is durable before anything is removed by it."""
        await self.kept.keep(lambda known: known.with_plan(high_watermark))
        return self.watermarks

    async def before_adoption(
        self, generation: int, removable: Pair, fence_below: int, planned_high_watermark: int, high_watermark: int
    ) -> None:
        """What an adopted compaction carries, and the own high watermark, are durable before its segments are: they may
        lack what these values allowed to remove."""
        await self.kept.keep(
            lambda known: known.told(generation, removable, fence_below, planned_high_watermark).with_plan(
                high_watermark
            )
        )

    async def committed(self, bound: int) -> None:
        """After the swap, before the report (rule 7)."""
        if self.is_independent:
            await self.kept.keep(lambda known: known.with_independent_compaction(bound))
        elif bound > min(self.kept.value.compacted):
            await self.kept.keep(lambda known: known.with_compaction(bound))
        self.advance()
        self.on_moved()


def _incarnations(row: PartitionRow) -> dict[int, uuid.UUID]:
    return {broker: row.incarnations.get(broker, NO_INCARNATION) for broker in row.replicas}


def _report(held: Held, broker_epoch: int = 0) -> Report:
    return Report(held.incarnation, held.generation, held.compacted, broker_epoch)
