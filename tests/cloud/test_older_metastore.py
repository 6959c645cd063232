"""The metastore is suddenly an older one (a backup was restored, or a standby took over that lagged behind), and
brokers that led cloud partitions have not been away."""

from __future__ import annotations

import asyncio
import random
import uuid

from sexton.adapters.metastore.inprocess import InProcessMetastore
from sexton.compactor.cloud.jobs import CloudJobs
from sexton.compactor.cloud.planning import plan_level
from sexton.compactor.cloud.plans import L1_BYTES, Writer
from sexton.compactor.cloud.reference import ReferenceCloudEngine
from sexton.ports.work_queue import CompactorRow
from tests.cloud.test_stories import CloudStory
from tests.simulated import CLIENT, TOPIC

COMPACTOR = uuid.UUID(int=0xCC)


class OlderStory(CloudStory):
    def _check(self) -> None:
        """Its rules speak of one history."""

    @property
    def inner(self) -> InProcessMetastore:
        inner = self.cluster.metastore.inner
        assert isinstance(inner, InProcessMetastore)
        return inner

    async def level(self) -> None:
        store = self.store.of(self._process, CLIENT)
        broker = self.broker(self.row().leader)
        writer = Writer(broker.cluster_id, COMPACTOR)
        await self.inner.register_compactor(CompactorRow(COMPACTOR, "c", 15_000, 0))
        jobs = CloudJobs(self.inner, store, ReferenceCloudEngine(store), broker.clock, random.Random(3))
        plan = await plan_level(self.inner, (self.row().topic_id, 0), TOPIC)
        assert plan is not None
        (done,) = await self.client_does(jobs.level([plan], writer, L1_BYTES))
        assert not done.error

    def leads(self, broker_id: int) -> bool:
        cloud = self.broker(broker_id).replicas.cloud
        replica = None if cloud is None else cloud.get(TOPIC, 0)
        return replica is not None and replica.is_leader

    async def write_some(self, count: int) -> None:
        self.is_over.set()
        await self.write(count)


def test_what_was_leveled_since_is_read_where_the_older_metastore_has_it() -> None:
    story = OlderStory(3)

    async def go() -> None:
        await story.begin()
        await story.write_some(20)
        backup = story.inner.backup()
        await story.level()
        await asyncio.sleep(2)  # longer than metadata.poll.ms
        story.inner.restore(backup)
        await asyncio.sleep(5)
        async with asyncio.timeout(60):
            assert await story.read() == story.acknowledged

    story.run(go())


def test_a_change_of_the_leader_that_the_older_metastore_does_not_know() -> None:
    story = OlderStory(3)

    async def go() -> None:
        await story.begin()
        await story.write_some(20)
        story.cluster.kill(story.node(1), power_lost=False)
        await story.until(lambda: story.row().leader == 2)
        await story.start(1)
        await asyncio.sleep(5)
        assert story.row().leader == 2
        backup = story.inner.backup()
        await story.client_does(story.admin.elect_leaders(None))
        await story.until(lambda: story.row().leader == 1)
        await asyncio.sleep(2)
        story.inner.restore(backup)
        await story.until(lambda: story.leads(2), 10)
        assert not story.leads(1)
        async with asyncio.timeout(60):
            await story.write_some(20)
        assert await story.read() == story.acknowledged
        assert len(story.acknowledged) == 40

    story.run(go())
