"""What the simulated network keeps of TCP's promises, and what it breaks."""

from __future__ import annotations

import asyncio
import errno
import random
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from sexton.ports.network import HIGH_BACKLOG_BYTES, Connection
from sexton.simulate.loop import MS, NS, Process, new_loop
from sexton.simulate.network import Fabric, Weather
from tests.adapters.network_behaviour import SCENARIOS, Scenario


class Peer:
    """Collects what it is told; echoes if asked to."""

    def __init__(self, connection: Connection, *, echo: bool = False) -> None:
        self.connection = connection
        self.echo = echo
        self.data = bytearray()
        self.chunks_count = 0
        self.writable_count = 0
        self.end: list[Exception | None] = []

    def received(self, data: memoryview) -> None:
        assert not self.end
        self.data += data
        self.chunks_count += 1
        if self.echo:
            self.connection.send([bytes(data)])

    def writable(self) -> None:
        self.writable_count += 1

    def closed(self, error: Exception | None) -> None:
        assert not self.end
        self.end.append(error)


class World:
    def __init__(self, seed: int, weather: Weather | None) -> None:
        rng = random.Random(seed)
        self.loop = new_loop(rng)
        self.fabric = Fabric(self.loop, rng, weather)
        self.server, self.client = Process("server"), Process("client")
        self.hosts = {name: self.fabric.add_host(name) for name in ("server", "client")}
        self.accepted: list[Peer] = []

    async def listen(self, *, echo: bool = False) -> None:
        def accept(connection: Connection) -> Peer:
            self.accepted.append(Peer(connection, echo=echo))
            return self.accepted[-1]

        network = self.fabric.of(self.server, "server")
        await self.loop.spawn(self.server, network.listen("server", 9092, accept))

    async def connect(self) -> Peer:
        peers: list[Peer] = []

        def receiver(connection: Connection) -> Peer:
            peers.append(Peer(connection))
            return peers[0]

        network = self.fabric.of(self.client, "client")
        await self.loop.spawn(self.client, network.connect("server", 9092, receiver))
        return peers[0]

    def kill_server(self, *, power_lost: bool) -> None:
        self.loop.kill(self.server)
        self.fabric.process_killed(self.server, self.hosts["server"], power_lost)
        self.hosts["server"].is_up = not power_lost


def simulate(main: Callable[[World], Coroutine[Any, Any, Any]], seed: int = 1, weather: Weather | None = None) -> Any:
    world = World(seed, weather)
    try:
        return world.loop.run_until_complete(main(world))
    finally:
        world.loop.close()


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
@pytest.mark.parametrize("seed", range(3))
def test_it_behaves_as_every_network_does(scenario: Scenario, seed: int) -> None:
    async def main(world: World) -> None:
        await scenario(world.fabric.of(world.loop.world, "server"), "server")

    simulate(main, seed, Weather(split_probability=0.2 * seed))


@pytest.mark.parametrize("seed", range(10))
def test_bytes_arrive_in_order_once_in_chunks_of_any_size(seed: int) -> None:
    async def main(world: World) -> None:
        await world.listen(echo=True)
        peer = await world.connect()
        sent = bytearray()
        for number in range(200):
            part = bytes([number]) * world.fabric.rng.randrange(1, 5000)
            sent += part
            peer.connection.send([part[:3], part[3:]])
            if number % 7 == 0:
                await asyncio.sleep(0.001)
        await asyncio.sleep(5)
        assert peer.data == sent
        assert world.accepted[0].chunks_count != 200

    simulate(main, seed, Weather(split_probability=0.3))


def test_an_orderly_end_reaches_the_other_side_after_the_bytes() -> None:
    async def main(world: World) -> None:
        await world.listen()
        peer = await world.connect()
        peer.connection.send([b"last words"])
        world.loop.call_for(world.client, 0, peer.connection.close)
        await asyncio.sleep(1)
        assert world.accepted[0].data == b"last words"
        assert world.accepted[0].end == [None]
        assert peer.end == [None]

    simulate(main)


def test_nobody_listens_and_the_connection_is_refused() -> None:
    async def main(world: World) -> None:
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    simulate(main)


def test_connecting_through_a_cut_hangs_until_it_heals() -> None:
    async def main(world: World) -> None:
        await world.listen()
        world.fabric.cut("server", "client")
        task = asyncio.ensure_future(world.connect())
        await asyncio.sleep(5)
        assert not task.done()
        world.fabric.heal("server", "client")
        await task

    simulate(main)


def test_connecting_to_a_machine_that_is_off_fails_in_the_end() -> None:
    async def main(world: World) -> None:
        await world.listen()
        world.kill_server(power_lost=True)
        with pytest.raises(OSError, match=r"Connection timed out|No route to host"):
            await world.connect()
        assert world.loop.now_ns >= 3 * NS

    for seed in range(5):
        simulate(main, seed)


def test_a_short_cut_delays_bytes_and_loses_none() -> None:
    async def main(world: World) -> None:
        await world.listen()
        peer = await world.connect()
        world.fabric.cut("client", "server")
        peer.connection.send([b"held "])
        peer.connection.send([b"back"])
        await asyncio.sleep(2)
        assert not world.accepted[0].data
        world.fabric.heal("client", "server")
        await asyncio.sleep(2)
        assert world.accepted[0].data == b"held back"

    simulate(main)


def test_a_cut_is_one_way() -> None:
    async def main(world: World) -> None:
        await world.listen(echo=True)
        peer = await world.connect()
        world.fabric.cut("server", "client")
        peer.connection.send([b"hello"])
        await asyncio.sleep(1)
        assert world.accepted[0].data == b"hello"
        assert not peer.data

    simulate(main)


def test_after_a_long_cut_the_sender_gives_up_and_the_other_side_learns_it_when_it_sends() -> None:
    async def main(world: World) -> None:
        await world.listen()
        peer = await world.connect()
        world.fabric.cut("client", "server")
        peer.connection.send([b"lost"])
        await asyncio.sleep(60)
        assert [getattr(error, "errno", None) for error in peer.end] == [errno.ETIMEDOUT]
        server = world.accepted[0]
        assert not server.end
        world.fabric.heal("client", "server")
        await asyncio.sleep(60)
        assert not server.end, "half open: nobody told it"
        world.loop.call_for(world.server, 0, server.connection.send, [b"anybody there?"])
        await asyncio.sleep(1)
        assert [type(error) for error in server.end] == [ConnectionResetError]

    simulate(main)


def test_a_killed_process_resets_its_connections() -> None:
    async def main(world: World) -> None:
        await world.listen()
        peer = await world.connect()
        world.kill_server(power_lost=False)
        await asyncio.sleep(1)
        assert [type(error) for error in peer.end] == [ConnectionResetError]
        with pytest.raises(ConnectionRefusedError):
            await world.connect()

    simulate(main)


def test_a_power_loss_is_noticed_only_by_sending() -> None:
    async def main(world: World) -> None:
        await world.listen()
        peer = await world.connect()
        world.kill_server(power_lost=True)
        await asyncio.sleep(100)
        assert not peer.end
        world.hosts["server"].is_up = True
        world.loop.call_for(world.client, 0, peer.connection.send, [b"hello?"])
        await asyncio.sleep(1)
        assert [type(error) for error in peer.end] == [ConnectionResetError]

    simulate(main)


def test_a_paused_process_is_connected_to_and_reads_everything_at_once_when_it_resumes() -> None:
    async def main(world: World) -> None:
        await world.listen()
        world.loop.pause(world.server)
        peer = await world.connect()
        for _ in range(10):
            peer.connection.send([b"x"])
            await asyncio.sleep(1)
        assert not world.accepted
        world.loop.resume(world.server)
        await asyncio.sleep(1)
        assert world.accepted[0].data == b"x" * 10
        assert world.accepted[0].chunks_count == 1

    simulate(main)


def test_a_receiver_that_does_not_read_fills_the_senders_backlog() -> None:
    async def main(world: World) -> None:
        await world.listen()
        peer = await world.connect()
        await asyncio.sleep(1)
        server = world.accepted[0]
        server.connection.pause_reading()
        part = bytes(1 << 20)
        for _ in range(6):
            peer.connection.send([part])
        await asyncio.sleep(10)
        assert peer.connection.backlog_bytes > HIGH_BACKLOG_BYTES
        assert not server.data
        server.connection.resume_reading()
        await asyncio.sleep(10)
        assert peer.connection.backlog_bytes == 0
        assert peer.writable_count == 1
        assert len(server.data) == 6 << 20

    simulate(main)


def test_a_slow_link_lets_bytes_through_at_its_speed() -> None:
    async def main(world: World) -> None:
        world.hosts["server"].bytes_per_s = 1 << 20
        await world.listen()
        peer = await world.connect()
        peer.connection.send([bytes(4 << 20)])
        await asyncio.sleep(2)
        assert 1 << 20 < len(world.accepted[0].data) < 3 << 20
        await asyncio.sleep(3)
        assert len(world.accepted[0].data) == 4 << 20

    simulate(main)


def test_a_connection_that_breaks_delivers_some_prefix_and_tells_both_sides() -> None:
    lengths = set()

    async def main(world: World) -> None:
        await world.listen()
        peer = await world.connect()
        peer.connection.send([b"0123456789"])
        await asyncio.sleep(1)
        server = world.accepted[0]
        assert b"0123456789".startswith(bytes(server.data))
        lengths.add(len(server.data))
        assert [type(error) for error in peer.end + server.end] == [ConnectionResetError] * 2

    for seed in range(30):
        simulate(main, seed, Weather(break_probability=1.0))
    assert len(lengths) > 3


def test_one_who_stops_waiting_for_a_connection_leaves_nothing_behind() -> None:
    async def main(world: World) -> None:
        await world.listen()
        world.hosts["server"].slowness = 10_000
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5 * MS / NS):
                await world.connect()
        await asyncio.sleep(100)
        assert all(peer.end == [None] for peer in world.accepted)
        assert not world.hosts["client"].ends
        assert not world.hosts["server"].ends

    simulate(main)
