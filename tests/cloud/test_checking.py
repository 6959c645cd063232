"""A check of a cluster that goes on meanwhile: what it calls lost is lost, and it takes little memory to find out."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from sqlalchemy import delete

from sexton.adapters.metastore.cloud_schema import extents
from sexton.cloud import checking
from sexton.cloud.checking import check
from sexton.ports.cloud import ObjectState
from sexton.ports.object_names import claim_store
from sexton.ports.objects import Buffer, ObjectMissingError, StoreUnavailableError
from sexton.records.objects import INDEX_INTERVAL_BYTES
from sexton.types import LeaderEpoch
from tests.adapters.metastore.cloud.world import A, World
from tests.cloud.test_replica import Broker
from tests.cloud.worlds import CLUSTER, MemoryStore, make_world
from tests.log.helpers import plain

OBJECTS_COUNT = 5


class Store(MemoryStore):
    """`before` is called before the size of an object is told."""

    def __init__(self) -> None:
        super().__init__()
        self.before: Callable[[str], Coroutine[Any, Any, None]] | None = None

    async def size_bytes(self, key: str) -> int:
        if self.before is not None:
            await self.before(key)
        if key not in self.objects:
            raise ObjectMissingError("there is no such object", key)
        return len(self.objects[key])


class Scene:
    def __init__(self, world: World, store: Store) -> None:
        self.world, self.store = world, store

    async def check(self, *, is_deep: bool = False) -> checking.Found:
        return await check(self.world.store, self.store, CLUSTER, is_deep=is_deep)


def with_scene(work: Callable[[Scene], Coroutine[Any, Any, None]], *, ends_whole: bool = True) -> None:
    async def go() -> None:
        scene = Scene(await make_world(), Store())
        await claim_store(scene.store, CLUSTER)
        broker = Broker(scene.world, 1, scene.store)
        await broker.lead()
        for number in range(OBJECTS_COUNT):
            await broker.append(plain(b"%d" % number))
        await work(scene)
        if ends_whole:  # the world looks at its tables with every operation
            await broker.stop()

    asyncio.run(go())


def test_what_stops_being_part_of_a_log_while_it_is_looked_at_is_not_called_lost() -> None:
    """A pin may have ended, or the object was garbage a moment after it was listed."""

    async def work(scene: Scene) -> None:
        async def trim(key: str) -> None:
            scene.store.before = None
            await scene.world.store.advance_start(A, LeaderEpoch(1), 3)
            for one in [key for key in scene.store.objects if "/l0/" in key][:3]:
                del scene.store.objects[one]

        scene.store.before = trim
        found = await scene.check()
        assert found.is_right, found.lost
        states = [row.state for row in (await scene.world.check()).objects.values()]
        assert states.count(ObjectState.LIVE) == OBJECTS_COUNT - 3
        del scene.store.objects[next(key for key in scene.store.objects if "/l0/" in key)]
        assert len((await scene.check()).lost) == 1, "what is lost is"

    with_scene(work)


def test_a_check_holds_deletions_back_for_as_long_as_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "AT_ONCE", 1)
    monkeypatch.setattr(checking, "PIN_ROUNDS", 2)

    async def work(scene: Scene) -> None:
        metastore = scene.world.store

        async def long_after(key: str) -> None:
            """A round ends with each object; what became garbage when the check began would be due."""
            if (await metastore.read_collection()).round == 0:
                await metastore.advance_start(A, LeaderEpoch(1), 1)
            await metastore.advance_round((await metastore.read_collection()).round)
            assert not await metastore.collect(2, 10)

        scene.store.before = long_after
        await scene.check()
        assert (await metastore.read_collection()).round >= OBJECTS_COUNT - 1
        await metastore.advance_round((await metastore.read_collection()).round)
        assert await metastore.collect(2, 10), "no pin is left"

    with_scene(work)


def test_one_answer_that_is_lost_does_not_end_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "pause_ms", lambda *_: 0)

    async def work(scene: Scene) -> None:
        asked: dict[str, int] = {}

        async def lost_at_first(key: str) -> None:
            asked[key] = asked.get(key, 0) + 1
            if asked[key] == 1:
                raise StoreUnavailableError("no answer", key)

        scene.store.before = lost_at_first
        assert (await scene.check(is_deep=True)).is_right
        assert len(asked) == OBJECTS_COUNT

        async def away(key: str) -> None:
            raise StoreUnavailableError("away", key)

        scene.store.before = away
        with pytest.raises(StoreUnavailableError):
            await scene.check()

    with_scene(work)


def test_large_objects_are_read_piece_by_piece_and_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    piece_bytes = INDEX_INTERVAL_BYTES
    monkeypatch.setattr(checking, "READ_BYTES", piece_bytes)

    async def work(scene: Scene) -> None:
        broker = Broker(scene.world, 2, scene.store)
        await broker.lead(epoch=2)
        for _ in range(4):
            await broker.append(plain(random.Random(1).randbytes(3 * piece_bytes)))
        under_way, most, get = 0, 0, scene.store.get

        async def slowly(key: str, start: int, size_bytes: int) -> Buffer:
            nonlocal under_way, most
            assert size_bytes <= piece_bytes
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0.001)
            under_way -= 1
            return await get(key, start, size_bytes)

        scene.store.get = slowly  # type: ignore[method-assign]
        found = await scene.check(is_deep=True)
        assert (found.is_right, found.objects_count) == (True, OBJECTS_COUNT + 4)
        assert most <= checking.READS_AT_ONCE
        await broker.stop()

    with_scene(work)


def test_pages_between_which_a_log_was_compacted_are_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "PAGE", 2)

    async def work(scene: Scene) -> None:
        metastore, read, asked = scene.world.store, scene.world.store.read_extents, []

        async def changed_in_between(*arguments: Any) -> Any:
            page = await read(*arguments)
            asked.append(page)
            if len(asked) == 1:
                await metastore.advance_start(A, LeaderEpoch(1), 4)
            return page

        monkeypatch.setattr(metastore, "read_extents", changed_in_between)
        assert (await scene.check()).gaps == []
        assert len(asked) > 2

    with_scene(work)


def test_extents_that_are_gone_are_a_gap_wherever_they_were() -> None:
    for gone, told in ((0, "end at 0 and go on at 1"), (2, "end at 2 and go on at 3"), (4, "end at 4, the log at 5")):

        async def work(scene: Scene, gone: int = gone, told: str = told) -> None:
            def damage(session: Any) -> None:
                with session.writing_apart():
                    session.execute(delete(extents).where(extents.c.base_offset == gone))

            await scene.world.store.run(damage)
            (gap,) = (await scene.check()).gaps
            assert told in gap

        with_scene(work, ends_whole=False)
