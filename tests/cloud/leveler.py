"""A compactor without Spark on the world of a broker: it levels, compacts and merges, and tells the broker."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, cast

from sexton.adapters.clock import SystemClock
from sexton.compactor.cloud.jobs import CloudJobs, Done
from sexton.compactor.cloud.planning import plan_compaction, plan_level, plan_merge
from sexton.compactor.cloud.plans import L1_BYTES, PartitionPlan, Writer
from sexton.compactor.cloud.reference import ReferenceCloudEngine
from sexton.settings.topic import TopicConfig
from sexton.types import PartitionId
from tests.adapters.metastore.cloud.world import COMPACTOR, SETTINGS, A
from tests.cloud.worlds import CLUSTER, NOW_MS, Forgetful, Host

COMPACTED = TopicConfig(cleanup_policy=frozenset({"compact"}))


class Still(SystemClock):
    """The time at which plans are made."""

    def now_ms(self) -> int:
        return NOW_MS


class Leveler:
    def __init__(self, host: Host, *, l1_bytes: int = L1_BYTES, settings: Mapping[str, str] | None = None) -> None:
        self.metastore = cast(Any, Forgetful(host.world))
        self.engine = ReferenceCloudEngine(host.objects)
        self.jobs = CloudJobs(self.metastore, host.objects, self.engine, SystemClock(), random.Random(3))
        self.writer = Writer(CLUSTER, COMPACTOR)
        self.host = host
        self._l1_bytes = l1_bytes
        self._settings = dict(settings or SETTINGS)

    def stand_still(self) -> None:
        """Its jobs take no time, by the clock that plans are made by."""
        self.jobs = CloudJobs(self.metastore, self.host.objects, self.engine, Still(), random.Random(3))

    async def plan_level(self, key: PartitionId = A) -> PartitionPlan:
        plan = await plan_level(self.metastore, key, "orders")
        assert plan is not None
        return plan

    async def level(self, *keys: PartitionId) -> list[Done]:
        plans = [await self.plan_level(key) for key in keys or (A,)]
        return await self.jobs.level(plans, self.writer, self._l1_bytes)

    async def plan_compaction(
        self, key: PartitionId = A, *, now_ms: int = NOW_MS, config: TopicConfig = COMPACTED
    ) -> PartitionPlan | None:
        return await plan_compaction(self.metastore, key, "orders", self._settings, config, now_ms)

    async def compact(self, key: PartitionId = A, *, now_ms: int = NOW_MS, config: TopicConfig = COMPACTED) -> Done:
        plan = await self.plan_compaction(key, now_ms=now_ms, config=config)
        assert plan is not None
        (done,) = await self.jobs.compact([plan], self.writer)
        return done

    async def merge(self, key: PartitionId = A) -> Done:
        plan = await plan_merge(self.metastore, key, "orders", self._settings)
        assert plan is not None
        (done,) = await self.jobs.merge([plan], self.writer, self._l1_bytes)
        return done
