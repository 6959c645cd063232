"""A broker dies at each step between a batch and its acknowledgement, and the client sends the batch to the next
leader: the batch is there once, and nothing that the dead broker left stays for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from sexton.ports.cloud import ObjectState
from tests.adapters.metastore.cloud.world import World
from tests.cloud.test_replica import Broker, offsets
from tests.cloud.worlds import NOW_MS, MemoryStore, make_world, until
from tests.log.helpers import sequenced

STEPS = ["after register", "during put", "after put", "before commit", "after commit"]


class Death:
    """Holds the broker at a step for ever: what it has sent by then is carried out, nothing else is."""

    def __init__(self, step: str) -> None:
        self._step = step
        self.is_there = asyncio.Event()
        self._never = asyncio.Event()

    async def die(self) -> None:
        self.is_there.set()
        await self._never.wait()

    def haunt(self, broker: Broker, store: MemoryStore) -> None:
        metastore = broker.host.metastore
        register, commit = metastore.register_objects, metastore.commit_l0

        async def register_objects(*arguments: object) -> None:
            await register(*arguments)
            if self._step == "after register":
                await self.die()

        async def commit_l0(*arguments: object) -> object:
            if self._step == "before commit":
                await self.die()
            told = await commit(*arguments)
            if self._step == "after commit":
                await self.die()
            return told

        metastore.register_objects, metastore.commit_l0 = register_objects, commit_l0
        put = store.put

        async def dying_put(key: str, data: bytes) -> None:
            if self._step == "during put":
                await self.die()
            await put(key, data)
            if self._step == "after put":
                await self.die()

        broker.host.objects = _WithPut(store, dying_put)


class _WithPut:
    def __init__(self, store: MemoryStore, put: Callable[..., object]) -> None:
        self._store = store
        self.put = put

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


async def objects_of(world: World) -> list[ObjectState]:
    return sorted(row.state for row in (await world.check()).objects.values())


@pytest.mark.parametrize("step", STEPS)
def test_a_batch_is_there_once_wherever_its_broker_died(step: str) -> None:
    async def go() -> None:
        world, store = await make_world(), MemoryStore()
        one, other = Broker(world, 1, store), Broker(world, 2, store)
        await one.lead()
        await one.append(sequenced(0))
        dying = Broker(world, 1, store)
        dying.replica.take(one.replica.row)
        await until(lambda: dying.replica.is_leader)  # the same registration with an empty pool and an empty tail
        one.replica.resign()
        death = Death(step)
        death.haunt(dying, store)
        _, promised = dying.replica.append(sequenced(1), -1, NOW_MS)
        await death.is_there.wait()
        assert promised is not None
        assert not promised.done(), "nothing was acknowledged"
        await world.fence(1)
        await other.lead(epoch=2)
        again, _ = other.replica.append(sequenced(1), -1, NOW_MS)
        assert again.is_duplicate == (step == "after commit")
        await other.append(sequenced(2))
        assert offsets(await other.read_all()) == [0, 1, 2]
        while await world.do("expire_owners", 100):
            pass
        await other.stop()
        states = await objects_of(world)
        assert states.count(ObjectState.PENDING) == 0, "what the dead broker had registered has expired"
        live = {extent.object_id for extents in (await world.check()).extents.values() for extent in extents}
        assert states.count(ObjectState.LIVE) == len(live)
        dying.parts.uploads.is_stopped = True

    asyncio.run(go())
