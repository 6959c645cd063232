"""What nobody refers to any more goes, one step at a time, on the controller.

    expire    pending objects of owners that are fenced, replaced or removed become garbage
    purge     extents of deleted topics go, in chunks; their objects become garbage with the last of them
    round     moved on once it has stood still for a while, by this broker's own monotonic clock
    delete    bytes of what has been garbage for the grace; then, by the store's word, its row
    scrub     once a day, beside the others: what the store has and nobody knows of is deleted (`scrubbing`)

Safety rests on the rows alone (C1 to C4): rounds only decide how long a reader that looked an object up may still use
it. So two controllers at once harm nobody, clocks may jump, and any step may be carried out twice or half.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from sexton.cloud.host import CloudHost
from sexton.cloud.scrubbing import AGE_MS, scrub
from sexton.ports.cloud import ObjectRow
from sexton.ports.metastore import MetastoreUnavailableError, StaleError
from sexton.ports.object_names import ObjectName
from sexton.ports.objects import StoreRefusedError, StoreUnavailableError
from sexton.records.objects import Level
from sexton.types import Round

logger = logging.getLogger(__name__)

AT_ONCE: Final = 1_000
"""Objects in one transaction, or one deletion."""

PURGED_AT_ONCE: Final = 5_000
"""Extents of a deleted topic in one transaction."""

GRACE_ROUNDS_MIN: Final = 2
"""A round may end right after an object became garbage: only the second is a whole one for its readers."""

STEP_MS_MAX: Final = 5_000
STEPS_PER_ROUND: Final = 4

SCRUB_INTERVAL_MS: Final = 24 * 3_600_000
SCRUB_AGAIN_MS: Final = 600_000
"""After a scrub that could not be done: the store was away, or is not marked as this cluster's."""


@dataclass(frozen=True, slots=True)
class CollectorSettings:
    round_ms: int
    """`cloud.gc.round.ms`."""
    delay_ms: int
    """`cloud.delete.delay.ms`."""
    scrub_interval_ms: int = SCRUB_INTERVAL_MS
    """`cloud.scrub.interval.ms`."""
    scrub_age_ms: int = AGE_MS
    """`cloud.scrub.age.ms`."""

    @property
    def scrub_rounds(self) -> int:
        return max(1, -(-self.scrub_interval_ms // self.round_ms))

    @property
    def grace_rounds(self) -> int:
        return max(GRACE_ROUNDS_MIN, -(-self.delay_ms // self.round_ms))

    @property
    def step_ms(self) -> int:
        return max(1, min(STEP_MS_MAX, self.round_ms // STEPS_PER_ROUND))


class Collector:
    def __init__(self, host: CloudHost) -> None:
        self._host = host
        self._round: Round | None = None
        self._since_ms = 0
        """When this round was seen first."""
        self._deleted_count = 0
        self._scrubbing: asyncio.Task[None] | None = None
        self._scrub_failed_ms: int | None = None

    @property
    def deleted_count(self) -> int:
        """Objects that the store has deleted for this process."""
        return self._deleted_count

    async def step(self, settings: CollectorSettings) -> None:
        """What cannot be done now is done by a later step."""
        try:
            await self._expire()
            await self._purge()
            await self._advance(settings)
            await self._delete(settings)
            await self._begin_scrub(settings)
        except (MetastoreUnavailableError, StaleError, StoreUnavailableError, StoreRefusedError) as error:
            logger.debug("objects that are not needed stay for now: %s", error)

    async def _expire(self) -> None:
        while expired_count := await self._host.metastore.expire_owners(AT_ONCE):
            logger.info("%d objects of brokers or compactors that are gone will not be committed", expired_count)

    async def _purge(self) -> None:
        metastore = self._host.metastore
        for topic_id in await metastore.find_purgeable(AT_ONCE):
            while await metastore.purge_topic(topic_id, PURGED_AT_ONCE):
                pass
            logger.info("topic %s was deleted: nothing refers to its objects any more", topic_id)

    async def _advance(self, settings: CollectorSettings) -> None:
        round_, now_ms = (await self._host.metastore.read_collection()).round, self._host.clock.monotonic_ms()
        if round_ != self._round:
            self._round, self._since_ms = round_, now_ms
        elif now_ms - self._since_ms >= settings.round_ms:
            self._round = await self._host.metastore.advance_round(round_)
            self._since_ms = self._host.clock.monotonic_ms()

    async def _delete(self, settings: CollectorSettings) -> None:
        """Only what the store confirms leaves its row (trap T17): the rest is tried again with the next step."""
        host = self._host
        while found := await host.metastore.collect(settings.grace_rounds, AT_ONCE):
            by_key = {self._key(row): row.object_id for row in found}
            gone = await host.objects.delete(list(by_key))
            await host.metastore.forget_objects([by_key[key] for key in gone])
            self._deleted_count += len(gone)
            logger.info("%d objects that nothing referred to were deleted", len(gone))
            if len(gone) < AT_ONCE:
                return

    async def _begin_scrub(self, settings: CollectorSettings) -> None:
        """Due once so many rounds have passed: what a day is, is not told by a clock. To list a large store takes a
        while, and nothing else waits for it."""
        if self._scrubbing is not None and not self._scrubbing.done():
            return
        failed_ms, again_ms = self._scrub_failed_ms, min(SCRUB_AGAIN_MS, settings.scrub_interval_ms)
        if failed_ms is not None and self._host.clock.monotonic_ms() - failed_ms < again_ms:
            return
        now = await self._host.metastore.read_collection()
        if now.round - max(0, now.scrub_round) >= settings.scrub_rounds:
            self._scrubbing = self._host.supervisor.work(self._scrub(settings.scrub_age_ms), "a scrub")

    async def _scrub(self, age_ms: int) -> None:
        host = self._host
        try:
            now_ms = host.clock.now_ms()
            found = await scrub(host.metastore, host.objects, host.cluster_id, now_ms, age_ms=age_ms, only_strays=True)
        except (MetastoreUnavailableError, StoreUnavailableError, StoreRefusedError) as error:
            self._scrub_failed_ms = host.clock.monotonic_ms()
            is_refused = isinstance(error, StoreRefusedError) and await self._has_cloud_topics()
            logger.log(
                logging.ERROR if is_refused else logging.INFO,
                "the store is not scrubbed now, and will be later: %s",
                error,
            )
            return
        self._scrub_failed_ms = None
        self._deleted_count += found.deleted_count
        if found.is_given_up:
            logger.error(
                "%d of the store's %d objects are unknown to the metastore: is it an old one, or a copy? Nothing is "
                "deleted. If it is the right one: `sexton cloud scrub --dry-run` lists them, `sexton cloud scrub` "
                "deletes them",
                len(found.unknown),
                found.listed_count,
            )
        if found.deleted_count:
            logger.warning("deleted %d objects that the metastore does not know", found.deleted_count)

    async def _has_cloud_topics(self) -> bool:
        """Before there are any, the store has no marker, and that is no reason to wake anybody."""
        try:
            return bool(await self._host.metastore.read_cloud_partitions())
        except MetastoreUnavailableError:
            return False

    async def stop(self) -> None:
        if self._scrubbing is not None:
            self._scrubbing.cancel()
            await asyncio.gather(self._scrubbing, return_exceptions=True)

    def _key(self, row: ObjectRow) -> str:
        return ObjectName(self._host.cluster_id, Level(row.level), row.object_id).key
