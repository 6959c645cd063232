"""The way to the metastore and back: delays, outages, lost answers, changes that come late."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sexton.adapters.metastore.inprocess import InProcessMetastore
from sexton.ports.metastore import BrokerRow, BrokerStatus, MetastoreUnavailableError, StaleError
from sexton.simulate.loop import NS, Process, SimulatedLoop, new_loop
from sexton.simulate.metastore import HOST, MetastoreService, SimulatedMetastore
from sexton.simulate.network import Fabric

BROKER = BrokerRow(1, -1, "broker-1", 9092, None, uuid.UUID(int=7), 5000, 0, BrokerStatus.STARTING)


class World:
    def __init__(self) -> None:
        rng = random.Random(1)
        self.loop: SimulatedLoop = new_loop(rng)
        self.fabric = Fabric(self.loop, rng)
        self.service = MetastoreService(self.loop, rng, self.fabric, InProcessMetastore())
        self.process = Process("broker-1")
        self.metastore: SimulatedMetastore = self.service.of(self.process, "broker-1")

    async def open(self) -> None:
        await self.metastore.open_cluster(uuid.UUID(int=1))

    async def registered_epoch(self) -> int | None:
        brokers = (await self.service.inner.read_changes(0)).brokers
        return brokers[0].epoch if brokers else None


def simulate(main: Callable[[World], Coroutine[Any, Any, None]]) -> None:
    world = World()
    try:
        world.loop.run_until_complete(main(world))
    finally:
        world.loop.close()


def test_an_answer_takes_a_moment_and_failures_are_those_of_the_operation() -> None:
    async def main(world: World) -> None:
        await world.open()
        assert 0 < world.loop.now_ns < NS
        row = await world.metastore.register_broker(BROKER, None)
        assert row.epoch == await world.registered_epoch()
        with pytest.raises(StaleError):
            await world.metastore.register_broker(BROKER, None)

    simulate(main)


def test_a_metastore_that_is_down_refuses_at_once_and_changes_nothing() -> None:
    async def main(world: World) -> None:
        await world.open()
        world.service.is_down = True
        with pytest.raises(MetastoreUnavailableError, match="refused"):
            await world.metastore.register_broker(BROKER, None)
        assert world.loop.now_ns < NS
        assert await world.registered_epoch() is None

    simulate(main)


def test_a_metastore_that_hangs_carries_out_late_what_was_given_up() -> None:
    async def main(world: World) -> None:
        await world.open()
        world.service.hang()
        with pytest.raises(MetastoreUnavailableError, match="no answer"):
            await world.metastore.register_broker(BROKER, None)
        assert await world.registered_epoch() is None
        world.service.go_on()
        assert await world.registered_epoch() is not None

    simulate(main)


def test_an_answer_that_is_cut_off_leaves_the_change_made() -> None:
    async def main(world: World) -> None:
        await world.open()
        world.fabric.cut(HOST, "broker-1")
        with pytest.raises(MetastoreUnavailableError):
            await world.metastore.register_broker(BROKER, None)
        assert await world.registered_epoch() is not None

    simulate(main)


def test_a_request_that_is_cut_off_changes_nothing() -> None:
    async def main(world: World) -> None:
        await world.open()
        world.fabric.cut("broker-1", HOST)
        with pytest.raises(MetastoreUnavailableError):
            await world.metastore.register_broker(BROKER, None)
        assert await world.registered_epoch() is None

    simulate(main)


def test_what_was_sent_by_a_process_that_died_is_carried_out() -> None:
    async def main(world: World) -> None:
        await world.open()
        world.loop.spawn(world.process, _register(world.metastore))
        await asyncio.sleep(0)
        world.loop.kill(world.process)
        await asyncio.sleep(1)
        assert await world.registered_epoch() is not None

    simulate(main)


async def _register(metastore: SimulatedMetastore) -> None:
    await metastore.register_broker(BROKER, None)
