"""Ids that are registered ahead of need."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from sexton.cloud.pool import AHEAD_COUNT, Pool
from sexton.ports.cloud import ObjectState
from tests.adapters.metastore.cloud.world import World
from tests.cloud.worlds import Host, make_world, until


async def pending_count(world: World) -> int:
    return len((await world.check()).objects)


def test_who_is_cancelled_while_ids_are_registered_leaves_them_to_the_next() -> None:
    """The slower of two PUTs of an object is given up. Nobody else would ever use those ids, or release them."""

    async def go() -> None:
        world = await make_world()
        host: Any = Host(world)
        pool = Pool(host)
        for _ in range(3):
            host.metastore.loses = lambda operation: "after"
            taking = asyncio.ensure_future(pool.take())
            host.metastore.calls.clear()
            await until(lambda: bool(host.metastore.calls))
            await asyncio.sleep(0.01)
            taking.cancel()
            with suppress(asyncio.CancelledError):
                await taking
        host.metastore.loses = lambda operation: None
        await pool.take()
        assert await pending_count(world) == AHEAD_COUNT
        assert len(pool.drain()[1]) == AHEAD_COUNT - 1

    asyncio.run(go())


def test_ids_whose_registration_was_given_up_are_released_at_the_end() -> None:
    async def go() -> None:
        world = await make_world()
        host: Any = Host(world)
        pool = Pool(host)
        host.metastore.loses = lambda operation: "after"
        with suppress(TimeoutError):
            await asyncio.wait_for(pool.take(), 0.05)
        assert len(pool.drain()[1]) == await pending_count(world) == AHEAD_COUNT
        assert pool.drain()[1] == []

    asyncio.run(go())


async def garbage_count(world: World) -> int:
    return sum(row.state is ObjectState.GARBAGE for row in (await world.check()).objects.values())


def test_what_is_given_back_while_the_metastore_is_away_is_released_by_one_task_when_it_is_back() -> None:
    async def go() -> None:
        world = await make_world()
        host: Any = Host(world)
        pool = Pool(host)
        taken = [await pool.take() for _ in range(5)]
        await world.register(1)  # the first were of a former registration, which has not expired yet
        taken += [await pool.take() for _ in range(3)]
        host.metastore.loses = lambda operation: "before"
        before = asyncio.all_tasks()
        for owner, object_id in taken:
            pool.give_back(owner, [object_id])
            await asyncio.sleep(0.001)
        assert len(asyncio.all_tasks() - before) == 1
        assert await garbage_count(world) == 0
        host.metastore.loses = lambda operation: None
        await until(lambda: asyncio.all_tasks() == before)
        assert await garbage_count(world) == len(taken)
        pool.give_back(*pool.drain())
        await until(lambda: asyncio.all_tasks() == before)
        assert await garbage_count(world) == len(taken) + AHEAD_COUNT - 3

    asyncio.run(go())


def test_who_ends_while_the_metastore_is_away_waits_for_nothing() -> None:
    async def go() -> None:
        world = await make_world()
        host: Any = Host(world)
        pool = Pool(host)
        owner, object_id = await pool.take()
        host.metastore.loses = lambda operation: "before"
        pool.give_back(owner, [object_id])
        async with asyncio.timeout(1):
            await pool.close()
            await until(lambda: asyncio.all_tasks() == {asyncio.current_task()})
        host.metastore.loses = lambda operation: None
        await pool.close()
        assert await garbage_count(world) == AHEAD_COUNT

    asyncio.run(go())
