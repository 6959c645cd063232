"""The worker's part: finds out what is due of cloud partitions, from the metastore alone, and carries it out.

No broker takes part, so none that is down holds anything up.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sexton.compaction.cloud_due import LEVEL_MS, DueLimits, due_work
from sexton.compactor.cloud.engine import CloudEngine
from sexton.compactor.cloud.future import FutureTimes
from sexton.compactor.cloud.jobs import CloudJobs, Done
from sexton.compactor.cloud.planning import plan_compaction, plan_level, plan_merge, why_not
from sexton.compactor.cloud.plans import L1_BYTES, PartitionPlan, Writer
from sexton.metadata.view import ClusterView
from sexton.ports.clock import Clock
from sexton.ports.metastore import ConfigScope, Metastore
from sexton.ports.objects import ObjectStore
from sexton.ports.work_queue import CloudWork, WorkKey, WorkRow
from sexton.settings.broker import BROKER_SETTINGS
from sexton.settings.layers import CLUSTER_DEFAULT, set_at_run_time, with_overrides
from sexton.settings.topic import TopicConfig
from sexton.types import PartitionId

logger = logging.getLogger(__name__)

PLANS_AT_ONCE: Final = 8
NO_BROKER: Final = -1
"""A compactor sees a topic's settings as a broker without a file of its own."""

Planning = Callable[[PartitionId, WorkRow], Awaitable[PartitionPlan | None]]


SLACK_MS_MIN: Final = 10_000
SLOWEST_BYTES_PER_MS: Final = 2_000
"""How long a compaction may take until what it says of delete horizons is refused: ten seconds, and as long as two
megabytes a second need. One that takes longer is given twice its time, once."""


@dataclass(frozen=True, slots=True)
class CloudEnded:
    """What became of a piece of work. A leveling may be followed by a merge, which nobody had asked for."""

    row: WorkRow
    kind: CloudWork
    done: Done | None
    """None if there was nothing to do."""


class CloudWorker:
    def __init__(
        self,
        metastore: Metastore,
        store: ObjectStore,
        engine: CloudEngine,
        clock: Clock,
        rng: random.Random,
        cluster_id: uuid.UUID | None = None,
    ) -> None:
        """Without a cluster id it is read from the metastore when it is needed."""
        self._metastore = metastore
        self._clock = clock
        self._jobs = CloudJobs(metastore, store, engine, clock, rng)
        self._view = ClusterView()
        self._cluster_id = cluster_id
        self._published: set[WorkKey] = set()
        self._future = FutureTimes()
        self._slack_ms: dict[PartitionId, int] = {}
        """Of partitions whose last job took longer than it had been given, for as long as there are such partitions."""

    @property
    def wasted_bytes(self) -> int:
        return self._jobs.wasted_bytes

    # What is due

    async def refresh(self) -> None:
        """Publishes what is due, if that is not what was published before, or is much more of it, or has become
        overdue. Raises MetastoreUnavailableError."""
        self._view.apply(await self._metastore.read_changes(self._view.revision))
        self._slack_ms = {key: ms for key, ms in self._slack_ms.items() if self._view.partition_by_id(*key) is not None}
        if not any(row.is_cloud for row in self._view.partitions()) and not self._published:
            return
        limits = DueLimits(level_ms=self._setting("cloud.level.ms", LEVEL_MS))
        now_ms = self._clock.now_ms()
        due: list[WorkRow] = []
        for row in self._future.corrected(await self._metastore.read_cloud_partitions(), now_ms):
            topic = self._view.topic_by_id(row.topic_id)
            placed = self._view.partition_by_id(row.topic_id, row.partition)
            if topic is not None and placed is not None and placed.is_cloud:
                due += due_work(row, topic.name, self.config_of(topic.name), now_ms, limits)
        known = {row.key: _urgency(row) for row in await self._metastore.read_work() if row.key.is_cloud}
        if known != {row.key: _urgency(row) for row in due}:
            await self._metastore.publish_cloud_work(due)
        self._published = {row.key for row in due}

    def config_of(self, topic: str) -> TopicConfig:
        return with_overrides(self._view, {}, NO_BROKER, self._settings_of(topic))

    def _settings_of(self, topic: str) -> dict[str, str]:
        return set_at_run_time(self._cluster_defaults, self._view.settings_of(ConfigScope.TOPIC, topic))

    @property
    def _cluster_defaults(self) -> Mapping[str, str]:
        return self._view.settings_of(ConfigScope.BROKER, CLUSTER_DEFAULT)

    def _setting(self, name: str, default: int) -> int:
        text = self._cluster_defaults.get(name)
        return default if text is None else int(BROKER_SETTINGS[name].parse(text))

    @property
    def _l1_bytes(self) -> int:
        return self._setting("cloud.l1.bytes", L1_BYTES)

    # Carrying it out

    async def carry_out(self, rows: Sequence[WorkRow], compactor_id: uuid.UUID) -> list[CloudEnded]:
        """Raises LeaseLostError, EngineUnavailableError, MetastoreUnavailableError; what was committed by then is."""
        if self._cluster_id is None:
            self._cluster_id = await self._metastore.find_cluster()
        writer = Writer(self._cluster_id, compactor_id)
        self._view.apply(await self._metastore.read_changes(self._view.revision))
        by_kind: dict[CloudWork, list[WorkRow]] = {}
        for row in rows:
            by_kind.setdefault(CloudWork(row.key.broker_id), []).append(row)
        ended = await self._level(by_kind.get(CloudWork.LEVEL, []), writer)
        return ended + await self._compact(by_kind.get(CloudWork.COMPACT, []), writer)

    async def _level(self, rows: Sequence[WorkRow], writer: Writer) -> list[CloudEnded]:
        plans = await self._plans(rows, lambda key, row: plan_level(self._metastore, key, row.topic))
        ended = [CloudEnded(row, CloudWork.LEVEL, None) for row, plan in plans if plan is None]
        planned = [(row, plan) for row, plan in plans if plan is not None]
        if not planned:
            return ended
        logger.info("leveling %d partitions, %d bytes", len(planned), sum(plan.size_bytes for _, plan in planned))
        done = await self._jobs.level([plan for _, plan in planned], writer, self._l1_bytes)
        ended += [CloudEnded(row, CloudWork.LEVEL, one) for (row, _), one in zip(planned, done, strict=True)]
        leveled = [row for (row, _), one in zip(planned, done, strict=True) if not one.error]
        return ended + await self._merge(leveled, writer)

    async def _merge(self, rows: Sequence[WorkRow], writer: Writer) -> list[CloudEnded]:
        """Compaction does it for topics that are compacted."""
        kept = [row for row in rows if not self.config_of(row.topic).compacts]
        plans = await self._plans(
            kept, lambda key, row: plan_merge(self._metastore, key, row.topic, self._settings_of(row.topic))
        )
        planned = [(row, plan) for row, plan in plans if plan is not None]
        if not planned:
            return []
        done = await self._jobs.merge([plan for _, plan in planned], writer, self._l1_bytes)
        return [CloudEnded(row, CloudWork.MERGE, one) for (row, _), one in zip(planned, done, strict=True)]

    async def _compact(self, rows: Sequence[WorkRow], writer: Writer) -> list[CloudEnded]:
        asked = [row for row in rows if row.is_requested]
        first = await self._level(asked, writer) if asked else []  # the newest records, too
        ended = [one for one in first if one.done is not None]
        plans = await self._plans(rows, self._plan_compaction)
        ended += [CloudEnded(row, CloudWork.COMPACT, None) for row, plan in plans if plan is None]
        planned = [(row, plan) for row, plan in plans if plan is not None]
        if not planned:
            return ended
        logger.info("compacting %d partitions, %d bytes", len(planned), sum(plan.size_bytes for _, plan in planned))
        done = await self._jobs.compact([plan for _, plan in planned], writer, self._l1_bytes)
        for one in done:
            self._slack_ms.pop(one.plan.key, None)
            if one.is_late:
                self._slack_ms[one.plan.key] = 2 * (self._clock.now_ms() - one.plan.planned_ms)
        return ended + [CloudEnded(row, CloudWork.COMPACT, one) for (row, _), one in zip(planned, done, strict=True)]

    async def _plan_compaction(self, key: PartitionId, row: WorkRow) -> PartitionPlan | None:
        config, now_ms = self.config_of(row.topic), self._clock.now_ms()
        slack_ms = max(self._slack_ms.get(key, 0), SLACK_MS_MIN + row.total_bytes // SLOWEST_BYTES_PER_MS)
        settings = self._settings_of(row.topic)
        plan = await plan_compaction(self._metastore, key, row.topic, settings, config, now_ms, slack_ms)
        if plan is None or row.is_requested:
            return plan
        reason = why_not(plan, config, now_ms)
        if reason:
            logger.debug("%s is not compacted now: %s", plan.name, reason)
        return None if reason else plan

    async def _plans(self, rows: Sequence[WorkRow], plan: Planning) -> list[tuple[WorkRow, PartitionPlan | None]]:
        gate = asyncio.Semaphore(PLANS_AT_ONCE)

        async def one(row: WorkRow) -> PartitionPlan | None:
            async with gate:
                return await plan((row.key.topic_id, row.key.partition), row)

        return list(zip(rows, await asyncio.gather(*map(one, rows)), strict=True))


def _urgency(row: WorkRow) -> tuple[bool, int]:
    """What decides when it is taken, and with what else: whether it is overdue, and how large it is, roughly."""
    return row.overdue_ms > 0, row.total_bytes.bit_length()
