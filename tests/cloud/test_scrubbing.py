"""The scrub deletes what nobody knows of, and nothing else; what it costs is counted from what is there."""

from __future__ import annotations

import asyncio
import random
import uuid
from typing import Any

import pytest

from sexton.cloud import costs
from sexton.cloud.scrubbing import scrub
from sexton.ports.cloud import Level, ObjectState
from sexton.ports.object_names import ObjectName, claim_store, new_object_id
from sexton.ports.objects import StoreRefusedError
from sexton.records.objects import Level as ObjectLevel
from tests.cloud.test_leveled import with_leveler
from tests.cloud.test_replica import Broker
from tests.cloud.worlds import CLUSTER, MemoryStore, make_world
from tests.log.helpers import plain

NOW_MS = 1_800_000_000_000
DAY_MS = 24 * 3_600_000


def test_only_what_nobody_knows_of_and_is_old_enough_is_deleted() -> None:
    async def go() -> None:
        world, store, rng = await make_world(), MemoryStore(), random.Random(1)
        await claim_store(store, CLUSTER)

        async def put(age_ms: int, *, is_known: bool) -> str:
            object_id = new_object_id(NOW_MS - age_ms, rng)
            if is_known:
                await world.do("register_objects", world.brokers[1], Level.L0, [object_id])
            key = ObjectName(CLUSTER, ObjectLevel.L0, object_id).key
            await store.put(key, b"x" * 10)
            return key

        known = await put(30 * DAY_MS, is_known=True)
        young = await put(DAY_MS, is_known=False)
        nobodys = await put(8 * DAY_MS, is_known=False)
        await store.put(f"{uuid.UUID(int=5)}/l0/ab/other", b"another cluster's")
        before = dict(store.objects)
        metastore: Any = world.store
        dry = await scrub(metastore, store, CLUSTER, NOW_MS, is_dry=True)
        assert store.objects == before
        assert [one.key for one in dry.unknown] == [nobodys]
        found = await scrub(metastore, store, CLUSTER, NOW_MS)
        assert (found.listed_count, found.young_count, found.deleted_count, found.unknown_bytes) == (3, 1, 1, 10)
        assert before.keys() - store.objects.keys() == {nobodys}
        assert {known, young} <= store.objects.keys()
        assert (await metastore.read_collection()).scrub_ms == NOW_MS

    asyncio.run(go())


def test_what_is_registered_and_put_while_the_store_is_listed_stays() -> None:
    """The lookup comes after the listing (C4): the other way round this object would be deleted."""

    async def go() -> None:
        world, store = await make_world(), MemoryStore()
        await claim_store(store, CLUSTER)
        object_id = new_object_id(1, random.Random(2))
        key = ObjectName(CLUSTER, ObjectLevel.L0, object_id).key
        listing = store.list

        async def list_slowly(prefix: str) -> Any:
            await world.do("register_objects", world.brokers[1], Level.L0, [object_id])
            await store.put(key, b"new")
            async for one in listing(prefix):
                yield one

        store.list = list_slowly  # type: ignore[method-assign]
        found = await scrub(world.store, store, CLUSTER, NOW_MS)
        assert found.unknown == []
        assert key in store.objects

    asyncio.run(go())


@pytest.mark.parametrize("is_anothers", [False, True])
def test_a_store_that_is_not_marked_as_this_clusters_is_not_scrubbed(is_anothers: bool) -> None:
    async def go() -> None:
        world, store = await make_world(), MemoryStore()
        if is_anothers:
            await claim_store(store, uuid.UUID(int=6))
        with pytest.raises(StoreRefusedError):
            await scrub(world.store, store, CLUSTER, NOW_MS)

    asyncio.run(go())


def test_costs_count_bytes_that_are_there_and_requests_that_made_them() -> None:
    async def work(one: Broker, leveler: Any) -> None:
        await one.append(plain(b"a" * 500), plain(b"b" * 500))
        await leveler.level()
        now_ms = one.host.clock.now_ms()
        objects = (await one.host.world.check()).objects.values()
        written = [row for row in objects if row.state is not ObjectState.PENDING and row.size_bytes]
        found = await costs.estimate(one.host.world.store, now_ms, 3_600_000)
        assert found.objects_count == len(written)
        assert found.stored_bytes == sum(row.size_bytes for row in written)
        assert found.l0_puts_per_hour == sum(row.level is Level.L0 for row in written)
        assert found.l1_puts_per_hour == 1
        later = await costs.estimate(one.host.world.store, now_ms + DAY_MS, 3_600_000)
        assert later.l0_puts_per_hour == later.l1_puts_per_hour == 0
        assert later.dollars_per_month == found.storage_dollars_per_month > 0

    with_leveler(work)
