"""A broker that comes back with another disk than it had: an empty one, or an old image of its own.

Two simulated brokers share a partition, and the second one is away when the first comes back. Whatever the first has on
its disk, it lacks what it acknowledged, and must neither lead nor count as in sync.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sexton.broker.lifecycle.folder import Folder, Past, Start
from sexton.client.admin import Admin
from sexton.client.client import Client
from sexton.ports.metastore import BrokerRow, BrokerStatus, PartitionRow
from sexton.simulate.clock import SimulatedClock, WallClock
from sexton.simulate.cluster import BrokerTimes, Node, SimulatedCluster
from sexton.simulate.loop import Process, SimulatedLoop, new_loop
from sexton.simulate.metastore import HOST as METASTORE
from sexton.simulate.network import Fabric, Weather
from sexton.simulate.observe import Agreement
from sexton.simulate.trace import Trace
from sexton.types import NO_LEADER

CLIENT = "client"


class World:
    def __init__(self) -> None:
        self.loop: SimulatedLoop = new_loop(random.Random(1))
        trace = Trace(self.loop)
        self.fabric = Fabric(self.loop, random.Random(2), Weather())
        self.cluster = SimulatedCluster(
            loop=self.loop,
            seed=3,
            brokers_count=2,
            fabric=self.fabric,
            trace=trace,
            times=BrokerTimes(5_000, 10_000, True),
        )
        self.agreement = Agreement(trace)
        self.cluster.metastore.observer = self.carried_out
        self.on_registered: Callable[[], None] = lambda: None
        self.fabric.add_host(CLIENT)
        self.first, self.second = self.cluster.nodes.values()

    def carried_out(self, who: str, operation: str, arguments: tuple[Any, ...], result: Any) -> None:
        self.agreement.carried_out(who, operation, arguments, result)
        if operation == "register_broker" and who.startswith(self.first.name):
            on_registered, self.on_registered = self.on_registered, lambda: None
            on_registered()

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        self.loop.run_until_complete(story)

    @property
    def row(self) -> PartitionRow:
        return next(iter(self.agreement.rows.values()))

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not what():
                await asyncio.sleep(0.1)

    async def begin(self) -> None:
        """Both are in sync."""
        for node in (self.first, self.second):
            self.cluster.start(node)
        await self.until(lambda: self.first.is_started and self.second.is_started)
        process = Process(CLIENT)
        client = Client(
            self.fabric.of(process, CLIENT),
            self.cluster.addresses,
            clock=SimulatedClock(WallClock(), process, self.loop),
            rng=random.Random(4),
        )
        await self.loop.spawn(process, _made(Admin(client).create_topic("t", 1, 2)))
        await self.all_in_sync()

    async def die_once_registered(self, *, power_lost: bool) -> None:
        self.on_registered = lambda: self.cluster.kill(self.first, power_lost=power_lost)
        self.cluster.start(self.first)
        await self.until(lambda: not self.first.is_up)

    async def all_in_sync(self) -> None:
        await self.until(lambda: sorted(self.row.isr) == [1, 2] and self.row.leader != NO_LEADER)

    async def restart(self, node: Node) -> None:
        self.cluster.start(node)
        await self.until(lambda: node.is_started)

    def power_off(self) -> None:
        for node in (self.first, self.second):
            self.cluster.kill(node, power_lost=True)

    async def second_has_it(self) -> None:
        """The first is up, and waits for the second; together they are whole again."""
        await asyncio.sleep(20)
        assert self.row.isr == (2,)
        assert self.row.leader == NO_LEADER
        self.cluster.start(self.second)
        await self.all_in_sync()


async def _made(made: Awaitable[object]) -> None:
    await made


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.loop.close()


@pytest.mark.parametrize(
    ("registered_epoch", "registered_start", "expected"),
    [
        (5, "x", Past.WHOLE),
        (7, "x", Past.WHOLE),
        (9, "s", Past.WHOLE),
        (9, "x", Past.OLD),
        (9, None, Past.OLD),
    ],
    ids=["it marked the folder", "it registered nothing", "it registered and died", "a later one", "an older build"],
)
def test_a_folder_is_whole_if_the_last_registration_is_from_its_last_start(
    registered_epoch: int, registered_start: str | None, expected: Past
) -> None:
    """Epoch 5 has marked it; the next process found it whole when 7 was registered, and wrote down that it starts."""
    data_id = uuid.UUID(int=1)
    start = Start.decode(Start("s", Past.WHOLE, 7).encode())
    folder = Folder("/data", data_id, stopped_cleanly=False, broker_epoch=5, start=start)
    proposed = BrokerRow(1, -1, "host", 9092, None, data_id, 5_000, 0, BrokerStatus.STARTING)
    former = replace(proposed, epoch=registered_epoch, start_id=registered_start)
    assert folder.past(former) is expected
    found_old = replace(folder, start=Start("s", Past.OLD, 7))
    assert found_old.past(former) is (Past.WHOLE if registered_epoch == 5 else Past.OLD)
    assert found_old.past(replace(former, data_id=uuid.UUID(int=2))) is Past.LOST


def test_what_is_written_of_a_start_and_cannot_be_read_says_nothing() -> None:
    assert Start.decode(b"") is None
    assert Start.decode(b"s whole") is None
    assert Start.decode(b"s new 7") is None
    assert Start.decode(b"\xff whole 7") is None


@pytest.mark.parametrize("is_orderly", [False, True], ids=["after a power loss", "after a clean stop"])
def test_a_broker_with_an_old_image_of_its_disk_is_not_in_sync(world: World, is_orderly: bool) -> None:
    async def story() -> None:
        await world.begin()
        if is_orderly:
            stopped = asyncio.Event()
            world.cluster.stop_orderly(world.first, stopped.set)
            await stopped.wait()
        world.cluster.kill(world.first, power_lost=True)
        image = world.first.volume.image()
        await world.restart(world.first)
        await world.all_in_sync()
        world.power_off()
        world.cluster.replace_disk(world.first, image)
        await world.restart(world.first)
        await world.second_has_it()

    world.run(story())


def test_a_broker_with_its_own_disk_stays_in_sync(world: World) -> None:
    async def story() -> None:
        await world.begin()
        for _ in range(2):
            world.power_off()
            await world.restart(world.first)
            await world.until(lambda: world.row.leader == 1)
            await world.restart(world.second)
            await world.all_in_sync()

    world.run(story())


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_broker_that_dies_right_after_it_has_registered_stays_in_sync_with_its_own_disk(
    world: World, deaths: int
) -> None:
    """It leads at once: nobody waits for the second one, which may be gone for good."""

    async def story() -> None:
        await world.begin()
        world.power_off()
        for _ in range(deaths):
            await world.die_once_registered(power_lost=True)
        await world.restart(world.first)
        await world.until(lambda: world.row.leader == 1)
        assert 1 in world.row.isr

    world.run(story())


def test_an_image_of_a_broker_that_died_right_after_it_had_registered_is_old(world: World) -> None:
    async def story() -> None:
        await world.begin()
        world.cluster.kill(world.first, power_lost=True)
        await world.die_once_registered(power_lost=True)
        image = world.first.volume.image()
        await world.restart(world.first)
        await world.all_in_sync()
        world.power_off()
        world.cluster.replace_disk(world.first, image)
        await world.restart(world.first)
        await world.second_has_it()

    world.run(story())


def test_an_old_image_stays_old_when_its_broker_dies_before_it_can_say_so(world: World) -> None:
    async def story() -> None:
        await world.begin()
        world.cluster.kill(world.first, power_lost=True)
        image = world.first.volume.image()
        await world.restart(world.first)
        await world.all_in_sync()
        world.power_off()
        world.cluster.replace_disk(world.first, image)
        await world.die_once_registered(power_lost=True)
        assert 1 in world.row.isr, "it has not come so far as to say anything"
        await world.restart(world.first)
        await world.second_has_it()

    world.run(story())


def test_a_wiped_broker_that_dies_before_it_can_say_so_is_recognized_the_next_time(world: World) -> None:
    async def story() -> None:
        await world.begin()
        world.power_off()
        world.cluster.replace_disk(world.first)
        await world.die_once_registered(power_lost=False)
        assert 1 in world.row.isr, "it has not come so far as to say anything"
        await world.restart(world.first)
        await world.second_has_it()

    world.run(story())


@pytest.mark.parametrize("is_wiped", [True, False])
def test_what_a_broker_knows_of_its_disk_survives_a_registration_whose_answer_is_lost(
    world: World, is_wiped: bool
) -> None:
    async def story() -> None:
        await world.begin()
        world.power_off()
        if is_wiped:
            world.cluster.replace_disk(world.first)
        world.on_registered = lambda: world.fabric.cut(METASTORE, world.first.name)
        world.cluster.start(world.first)
        await asyncio.sleep(15)
        world.fabric.heal(METASTORE, world.first.name)
        await world.until(lambda: world.first.is_started)
        if is_wiped:
            await world.second_has_it()
        else:
            await world.until(lambda: world.row.leader == 1)

    world.run(story())


@pytest.mark.parametrize("is_wiped", [True, False])
def test_a_broker_that_is_fenced_while_it_takes_its_place_registers_anew(world: World, is_wiped: bool) -> None:
    """One with a new disk has something to write about its replicas, which is refused before it hears of its lease."""

    def cut() -> None:
        world.fabric.cut(world.first.name, METASTORE)

    async def story() -> None:
        await world.begin()
        world.cluster.kill(world.first, power_lost=True)
        if is_wiped:
            world.cluster.replace_disk(world.first)
        world.on_registered = cut
        world.cluster.start(world.first)
        await asyncio.sleep(30)
        assert not world.first.is_started
        world.fabric.heal(world.first.name, METASTORE)
        await world.until(lambda: world.first.is_started)
        await world.all_in_sync()

    world.run(story())
