"""What nothing refers to any more goes, after its grace and not before, whatever fails in between."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sexton.cloud.collector import Collector, CollectorSettings
from sexton.cloud.scrubbing import STRAYS_MAX
from sexton.ports.cloud import ObjectState
from sexton.ports.object_names import ObjectName, claim_store, new_object_id
from sexton.ports.objects import StoreUnavailableError
from sexton.records.objects import Level
from tests.adapters.metastore.cloud.world import TOPIC, A, World
from tests.adapters.metastore.rows import topic
from tests.broker.serving import ManualClock
from tests.cloud.test_replica import Broker
from tests.cloud.worlds import CLUSTER, Host, MemoryStore, make_world
from tests.log.helpers import plain

SETTINGS = CollectorSettings(round_ms=1_000, delay_ms=3_000)
GRACE = 3


class Scene:
    def __init__(self, world: World, store: MemoryStore) -> None:
        self.world, self.store = world, store
        self.host = Host(world)
        self.clock = ManualClock()
        self.host.clock = self.clock  # type: ignore[assignment]
        self.host.objects = store
        self.collector = Collector(self.host)

    async def rounds(self, count: int) -> None:
        """Each of which a collector has seen from its beginning to its end."""
        for _ in range(count):
            await self.collector.step(SETTINGS)
            self.clock.ms += SETTINGS.round_ms
            await self.collector.step(SETTINGS)

    async def states(self) -> list[ObjectState]:
        return [row.state for row in (await self.world.check()).objects.values()]


def with_scene(work: Callable[[Scene], Coroutine[Any, Any, None]]) -> None:
    async def go() -> None:
        await work(Scene(await make_world(), MemoryStore()))

    asyncio.run(go())


async def written(scene: Scene, batches_count: int = 3) -> Broker:
    """A broker with as many objects, which goes on to lead."""
    broker = Broker(scene.world, 1, scene.store)
    await broker.lead()
    for number in range(batches_count):
        await broker.append(plain(b"%d" % number))
    assert len(scene.store.objects) == batches_count
    return broker


def test_what_a_dead_broker_registered_is_gone_after_the_grace() -> None:
    async def work(scene: Scene) -> None:
        broker = await written(scene)
        await broker.stop()
        orphan = await scene.world.pending()
        await scene.world.fence(1)
        await scene.rounds(1)
        assert await scene.world.state(orphan) is ObjectState.GARBAGE
        await scene.rounds(GRACE + 1)
        assert set(await scene.states()) == {ObjectState.LIVE}
        assert len(scene.store.objects) == 3

    with_scene(work)


def test_objects_of_a_deleted_topic_are_gone_after_the_grace_and_those_of_others_stay() -> None:
    async def work(scene: Scene) -> None:
        broker = await written(scene)
        other = topic("payments", 9)
        await scene.world.make_topic(other, 1)
        await scene.world.claim(1, 1, (other.topic_id, 0))
        kept = await scene.world.write((other.topic_id, 0), 0, 5)
        await scene.world.store.delete_topic(TOPIC.topic_id)
        await scene.rounds(1)
        assert A not in (await scene.world.check()).partitions
        assert len(scene.store.objects) == 3, "readers may still be at work"
        await scene.rounds(GRACE + 1)
        assert not scene.store.objects
        assert await scene.world.state(kept) is ObjectState.LIVE
        assert (await scene.states()).count(ObjectState.LIVE) == 1
        assert ObjectState.GARBAGE not in await scene.states()
        await broker.stop()

    with_scene(work)


def test_a_round_ends_only_if_a_collector_has_seen_all_of_it() -> None:
    """Clocks of those that did not watch count for nothing: whoever starts has to wait again."""

    async def work(scene: Scene) -> None:
        for _ in range(5):
            await Collector(scene.host).step(SETTINGS)
            scene.clock.ms += 100 * SETTINGS.round_ms
        assert (await scene.world.store.read_collection()).round == 0
        await scene.rounds(2)
        assert (await scene.world.store.read_collection()).round == 2

    with_scene(work)


def test_only_what_the_store_confirms_leaves_its_row() -> None:
    """T17: a deletion that failed in part is neither reported as done nor given up."""

    async def work(scene: Scene) -> None:
        broker = await written(scene)
        await broker.stop()
        await scene.world.store.delete_topic(TOPIC.topic_id)
        delete, asked = scene.store.delete, []

        async def half(keys: Sequence[str]) -> Sequence[str]:
            asked.append(len(keys))
            stored = [key for key in keys if key in scene.store.objects]
            return await delete([key for key in keys if key not in stored[:1]])

        scene.store.delete = half  # type: ignore[method-assign]
        await scene.rounds(GRACE + 1)
        assert len(scene.store.objects) == 1
        assert await scene.states() == [ObjectState.GARBAGE]
        scene.store.delete = delete  # type: ignore[method-assign]
        await scene.rounds(1)
        assert not scene.store.objects
        assert not await scene.states()

    with_scene(work)


def test_a_store_that_is_away_delays_the_end_of_objects_and_nothing_else() -> None:
    async def work(scene: Scene) -> None:
        broker = await written(scene)
        await broker.stop()
        await scene.world.store.delete_topic(TOPIC.topic_id)
        delete = scene.store.delete

        async def refused(keys: Sequence[str]) -> Sequence[str]:
            raise StoreUnavailableError("away", "memory")

        scene.store.delete = refused  # type: ignore[method-assign]
        await scene.rounds(GRACE + 3)
        assert set(await scene.states()) == {ObjectState.GARBAGE}
        scene.store.delete = delete  # type: ignore[method-assign]
        await scene.rounds(1)
        assert not await scene.states()

    with_scene(work)


def test_each_step_may_be_done_by_two_and_answered_to_nobody() -> None:
    """C10: whatever of the metastore's answers is lost, the next step ends what was begun."""

    async def work(scene: Scene) -> None:
        broker = await written(scene)
        await broker.stop()
        await scene.world.store.delete_topic(TOPIC.topic_id)
        other = Collector(scene.host)
        calls = 0

        def every_second(operation: str) -> str | None:
            nonlocal calls
            calls += 1
            return "after" if calls % 2 else None

        scene.host.metastore.loses = every_second
        for _ in range(60):
            await scene.collector.step(SETTINGS)
            await other.step(SETTINGS)
            scene.clock.ms += SETTINGS.round_ms
        scene.host.metastore.loses = lambda operation: None
        await scene.rounds(GRACE + 1)
        assert not scene.store.objects
        assert not await scene.states()

    with_scene(work)


# The scrub

SCRUBBED = replace(SETTINGS, scrub_interval_ms=5 * SETTINGS.round_ms, scrub_age_ms=60_000)


async def stray(scene: Scene, made_ms: int, suffix: str = "") -> str:
    """A PUT that was given up, and landed when its object was long gone."""
    object_id = new_object_id(made_ms, random.Random(made_ms))
    key = ObjectName(CLUSTER, Level.L1, object_id).key + suffix
    await scene.store.put(key, b"from the dead")
    return key


async def days(scene: Scene, rounds_count: int) -> None:
    for _ in range(rounds_count):
        await scene.collector.step(SCRUBBED)
        scene.clock.ms += SCRUBBED.round_ms
        await scene.collector.step(SCRUBBED)
        for _ in range(50):
            await asyncio.sleep(0)


def test_what_came_back_from_the_dead_is_deleted_by_the_controller_itself() -> None:
    """T20: nobody has to know of `sexton cloud scrub`."""

    async def work(scene: Scene) -> None:
        broker = await written(scene)
        await claim_store(scene.store, CLUSTER)
        kept = set(scene.store.objects)
        now_ms = scene.clock.now_ms()
        old, left = await stray(scene, now_ms - 120_000), await stray(scene, now_ms - 130_000, ".17.1.tmp")
        young = await stray(scene, now_ms)
        await days(scene, 4)
        assert {old, left, young} <= scene.store.objects.keys(), "it is not due yet"
        await days(scene, 3)
        assert scene.store.objects.keys() == kept | {young}
        scrubbed = (await scene.world.store.read_collection()).scrub_round
        assert scrubbed >= 5
        await days(scene, 1)
        assert (await scene.world.store.read_collection()).scrub_round == scrubbed, "once, until it is due"
        await scene.collector.stop()
        await broker.stop()

    with_scene(work)


def test_a_store_without_its_marker_is_shouted_about_and_not_scrubbed(caplog: pytest.LogCaptureFixture) -> None:
    async def work(scene: Scene) -> None:
        old = await stray(scene, 1)
        with caplog.at_level(logging.ERROR):
            await days(scene, 8)
        assert old in scene.store.objects
        assert caplog.text.count("the store has no marker") == 1, "not with every step"
        await claim_store(scene.store, CLUSTER)
        scene.clock.ms += 600_000
        await days(scene, 1)
        assert old not in scene.store.objects

    with_scene(work)


def test_a_store_that_has_no_marker_because_there_is_no_cloud_topic_yet_wakes_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def work(scene: Scene) -> None:
        await scene.world.store.delete_topic(TOPIC.topic_id)
        with caplog.at_level(logging.INFO):
            await days(scene, 14)
        assert caplog.text.count("the store has no marker") > 1, "it is looked at again"
        assert not [one for one in caplog.records if one.levelno >= logging.WARNING]

    with_scene(work)


def test_a_metastore_that_knows_hardly_anything_of_the_store_does_not_empty_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was restored from an old backup, or is a copy: when the right one is back, everything must be there."""

    async def work(scene: Scene) -> None:
        await claim_store(scene.store, CLUSTER)
        before = [await stray(scene, made_ms) for made_ms in range(STRAYS_MAX + 1)]
        with caplog.at_level(logging.ERROR):
            await days(scene, 8)
        assert scene.store.objects.keys() >= set(before)
        assert caplog.text.count("101 of the store's 101 objects are unknown") == 1, "once, until it is due again"
        assert (await scene.world.store.read_collection()).scrub_round >= 5
        del scene.store.objects[before[0]]
        await days(scene, 5)
        assert not scene.store.objects.keys() & set(before), "so many may be strays"
        await scene.collector.stop()

    with_scene(work)


def test_a_scrub_that_takes_long_holds_nothing_up_and_ends_with_its_broker() -> None:
    async def work(scene: Scene) -> None:
        broker = await written(scene)
        await claim_store(scene.store, CLUSTER)
        await broker.stop()
        listing = asyncio.Event()

        async def list_for_ever(prefix: str) -> Any:
            listing.set()
            await asyncio.Event().wait()
            yield prefix

        scene.store.list = list_for_ever  # type: ignore[method-assign]
        await days(scene, 6)
        assert listing.is_set()
        await scene.world.store.delete_topic(TOPIC.topic_id)
        await days(scene, GRACE + 2)
        assert not [key for key in scene.store.objects if "/l0/" in key]
        await scene.collector.stop()

    with_scene(work)
