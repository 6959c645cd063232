"""The way to the metastore and back: delays, outages, lost answers, changes that come late."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sexton.adapters.metastore.inprocess import InProcessMetastore
from sexton.adapters.metastore.threaded import WORKERS_MAX
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
        self.carried_out: list[str] = []
        self.service.observer = lambda who, operation, arguments, result: self.carried_out.append(operation)
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


def test_a_locked_metastore_answers_reads_of_one_host_and_changes_nothing_for_it() -> None:
    async def main(world: World) -> None:
        await world.open()
        world.service.weather.lock_probabilities["broker-1"] = 1.0
        with pytest.raises(MetastoreUnavailableError, match="locked"):
            await world.metastore.register_broker(BROKER, None)
        assert not (await world.metastore.read_changes(0)).brokers
        other = world.service.of(Process("broker-2"), "broker-2")
        await other.register_broker(BROKER, None)
        assert len((await world.metastore.read_changes(0)).brokers) == 1

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
        await asyncio.sleep(0.0001)  # it is on its way, and has not arrived
        assert await world.registered_epoch() is None
        world.loop.kill(world.process)
        await asyncio.sleep(1)
        assert await world.registered_epoch() is not None

    simulate(main)


async def _register(metastore: SimulatedMetastore) -> None:
    await metastore.register_broker(BROKER, None)


def test_a_request_whose_connection_breaks_was_carried_out_or_not_and_its_caller_cannot_tell() -> None:
    async def main(world: World) -> None:
        await world.open()
        world.service.weather.break_probabilities["broker-1"] = 1.0
        was_made = set()
        for number in range(20):
            before = await world.service.inner.allocate_producer_ids(1)
            with pytest.raises(MetastoreUnavailableError, match="broke"):
                await world.metastore.allocate_producer_ids(1)
            was_made.add(await world.service.inner.allocate_producer_ids(1) - before == 2)
            assert number or world.loop.now_ns < NS, "the caller is told at once"
        assert was_made == {True, False}

    simulate(main)


def test_only_the_requests_of_the_host_that_is_named_break() -> None:
    async def main(world: World) -> None:
        await world.open()
        world.service.weather.break_probabilities["broker-2"] = 1.0
        await world.metastore.allocate_producer_ids(1)
        with pytest.raises(MetastoreUnavailableError):
            await world.service.of(world.process, "broker-2").allocate_producer_ids(1)

    simulate(main)


def test_requests_of_one_process_overtake_each_other() -> None:
    async def main(world: World) -> None:
        await world.open()
        orders = set()
        for _ in range(20):
            answers = await asyncio.gather(*(world.metastore.allocate_producer_ids(1) for _ in range(2)))
            orders.add(answers[0] < answers[1])
        assert orders == {True, False}

    simulate(main)


def test_a_process_has_as_many_requests_under_way_as_connections() -> None:
    async def main(world: World) -> None:
        await world.open()
        world.service.hang()
        calls = [asyncio.ensure_future(world.metastore.allocate_producer_ids(1)) for _ in range(WORKERS_MAX + 1)]
        await asyncio.sleep(1)
        calls[0].cancel()
        await asyncio.sleep(1)
        calls[-1].cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        world.service.go_on()
        assert world.carried_out.count("allocate_producer_ids") == WORKERS_MAX + 1, "who gave up freed a connection"

        world.carried_out.clear()
        world.service.hang()
        calls = [asyncio.ensure_future(world.metastore.allocate_producer_ids(1)) for _ in range(WORKERS_MAX + 1)]
        await asyncio.gather(*calls, return_exceptions=True)
        world.service.go_on()
        assert world.carried_out.count("allocate_producer_ids") == WORKERS_MAX, "the last one was never sent"

    simulate(main)


def test_a_straggler_is_carried_out_after_its_caller_gave_up_and_later_ones_overtake_it() -> None:
    async def main(world: World) -> None:
        await world.open()
        world.service.weather.straggler_probability = 1.0
        for _ in range(100):
            try:
                await world.metastore.read_leases()
            except MetastoreUnavailableError:
                break
        else:
            raise AssertionError("none took too long")
        world.service.weather.straggler_probability = 0.0
        world.carried_out.clear()
        await world.metastore.allocate_producer_ids(1)
        await asyncio.sleep(10)
        assert world.carried_out == ["allocate_producer_ids", "read_leases"]

    simulate(main)


def test_a_failover_ends_every_request_under_way_and_undoes_nothing() -> None:
    async def main(world: World) -> None:
        await world.open()
        first = await world.metastore.allocate_producer_ids(1)
        fates = set()
        for _ in range(20):
            world.carried_out.clear()
            calls = [asyncio.ensure_future(world.metastore.allocate_producer_ids(1)) for _ in range(3)]
            await asyncio.sleep(0)
            world.service.fail_over()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(answer, MetastoreUnavailableError) for answer in answers)
            await asyncio.sleep(1)
            fates.add(len(world.carried_out))
        assert len(fates) > 1, "of some more were carried out than of others"
        assert await world.metastore.allocate_producer_ids(1) > first

    simulate(main)
