"""HTTP as the admin listener speaks it: what is read, what is refused, and that nobody can hold it up.

The server runs on the simulated network: seconds pass at once, and a slow client is exactly as slow as it is told.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import h11
import pytest

from sexton.http import server as http
from sexton.http.server import HttpError, HttpServer, Page, Request, read, refused
from sexton.ports.network import Connection
from sexton.simulate.loop import Process, new_loop
from sexton.simulate.network import Fabric, SimulatedNetwork
from sexton.supervision import Supervisor

GET = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


def request_of(head: bytes) -> Request:
    """As a connection reads it."""
    protocol = h11.Connection(h11.SERVER, http.HEAD_BYTES_MAX)
    protocol.receive_data(head + b"\r\n\r\n")
    try:
        event = protocol.next_event()
    except h11.RemoteProtocolError as error:
        raise refused(error) from error
    assert isinstance(event, h11.Request)
    return read(event)


def test_a_request_is_read() -> None:
    asked = request_of(b"GET /compaction/why?topic=a%20b&partition=0&key=%C3%A4 HTTP/1.1\r\nHost: h\r\nAccept: */*")
    assert asked == Request("/compaction/why", {"topic": "a b", "partition": "0", "key": "ä"})


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"GET", 400),
        (b"GET / HTTP/1.1", 400),
        (b"GET  / HTTP/1.1\r\nHost: h", 400),
        (b"GET x HTTP/1.1\r\nHost: h", 400),
        (b"GET http://h/ HTTP/1.1\r\nHost: h", 400),
        (b"GET / HTTP/1.1\r\nHost", 400),
        (b"GET / HTTP/1.1\r\nHost : h", 400),
        (b"GET / HTTP/1.1\r\n: h", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: h", 400),
        (b"GET /%ff HTTP/1.1\r\nHost: h", 400),
        (b"GET /?a HTTP/1.1\r\nHost: h", 400),
        (b"GET /?a=%ff HTTP/1.1\r\nHost: h", 400),
        (b"GET /?" + b"&".join([b"a=1"] * 30) + b" HTTP/1.1\r\nHost: h", 400),
        (b"POST / HTTP/1.1\r\nHost: h", 405),
        (b"DELETE / HTTP/1.1\r\nHost: h", 405),
        (b"GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 5", 413),
        (b"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked", 413),
        (b"GET / HTTP/1.1\r\nHost: h" + b"\r\nA: b" * 100, 431),
        (b"GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip", 413),
        (b"GET / HTTP/1.1\r\nHost: h\r\nA: " + b"x" * http.HEAD_BYTES_MAX, 431),
        (b"GET / HTTP/2.0\r\nHost: h", 505),
        (b"PRI * HTTP/2.0", 505),
        (b"\x16\x03\x01\x02\x00\x01", 400),
    ],
)
def test_what_is_no_request_is_refused(head: bytes, status: int) -> None:
    with pytest.raises(HttpError) as refused:
        request_of(head)
    assert refused.value.status == status


def test_random_heads_are_read_or_refused() -> None:
    rng = random.Random(1)
    pieces = [b"GET ", b"/", b" HTTP/1.1", b"\r\n", b"Host: h", b":", b" ", b"?", b"%", b"=", b"&", b"\xff", b"x"]
    for _ in range(5000):
        head = b"".join(rng.choices(pieces, k=rng.randrange(12)))
        with suppress(HttpError):
            assert request_of(head).path.startswith("/")


# Over a network


@dataclass
class Caller:
    connection: Connection
    heard: bytearray = field(default_factory=bytearray)
    is_closed: bool = False

    def received(self, data: memoryview) -> None:
        self.heard += data

    def writable(self) -> None:
        pass

    def closed(self, error: Exception | None) -> None:
        self.is_closed = True

    def send(self, data: bytes) -> None:
        self.connection.send([data])

    @property
    def statuses(self) -> list[int]:
        return [int(part[:3]) for part in self.heard.split(b"HTTP/1.1 ")[1:]]


class World:
    """A server that answers every path with its name, and callers."""

    def __init__(self, network: SimulatedNetwork) -> None:
        self.network = network
        self.server = HttpServer(self.answer, Supervisor())
        self.answering_s = 0.0
        self.body = b"page"
        self.port = 0

    async def start(self) -> None:
        self.port = await self.server.start(self.network, "here", 0)

    async def answer(self, request: Request) -> Page:
        if request.path == "/bug":
            raise ZeroDivisionError
        await asyncio.sleep(self.answering_s)
        return Page(self.body, "text/plain")

    async def call(self, data: bytes = b"") -> Caller:
        made: list[Caller] = []

        def receiver(connection: Connection) -> Caller:
            made.append(Caller(connection))
            return made[0]

        await self.network.connect("here", self.port, receiver)
        if data:
            made[0].send(data)
        return made[0]


def scenario(work: Callable[[World], Awaitable[None]]) -> Callable[[], None]:
    def test() -> None:
        rng = random.Random(1)
        loop = new_loop(rng)
        fabric = Fabric(loop, rng)
        fabric.add_host("here")
        process = Process("here")

        async def run() -> None:
            world = World(fabric.of(process, "here"))
            await world.start()
            await work(world)

        async def main() -> None:
            await loop.spawn(process, run())

        try:
            loop.run_until_complete(main())
        finally:
            loop.close()

    return test


@scenario
async def test_a_page_is_answered_and_the_connection_stays(world: World) -> None:
    caller = await world.call(GET)
    await asyncio.sleep(1)
    head, _, body = bytes(caller.heard).partition(b"\r\n\r\n")
    assert body == b"page"
    assert b"Content-Length: 4" in head
    assert b"Content-Type: text/plain; charset=utf-8" in head
    caller.send(GET)
    await asyncio.sleep(1)
    assert caller.statuses == [200, 200]
    assert not caller.is_closed


@scenario
async def test_requests_that_come_together_or_in_pieces_are_answered_in_order(world: World) -> None:
    caller = await world.call(GET * 3 + GET[:7])
    await asyncio.sleep(1)
    for byte in GET[7:]:
        caller.send(bytes([byte]))
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    assert caller.statuses == [200] * 4


@scenario
async def test_a_head_is_answered_without_its_body(world: World) -> None:
    caller = await world.call(GET.replace(b"GET", b"HEAD"))
    await asyncio.sleep(1)
    assert caller.heard.endswith(b"\r\n\r\n")
    assert b"Content-Length: 4" in caller.heard


@scenario
async def test_who_asked_for_it_is_disconnected_after_the_whole_answer(world: World) -> None:
    world.body = b"x" * (4 << 20)
    caller = await world.call(b"GET / HTTP/1.0\r\n\r\n")
    await asyncio.sleep(20)
    assert caller.is_closed
    assert caller.heard.endswith(world.body)


@scenario
async def test_who_wants_to_be_answered_once_is(world: World) -> None:
    callers = [await world.call(GET), await world.call(GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))]
    callers.append(await world.call(b"GET / HTTP/1.0\r\n\r\n"))
    await asyncio.sleep(1)
    assert [caller.statuses for caller in callers] == [[200]] * 3
    assert [caller.is_closed for caller in callers] == [False, True, True]
    assert [b"Connection: close" in caller.heard for caller in callers] == [False, True, True]


@scenario
async def test_a_head_that_is_refused_has_no_body(world: World) -> None:
    caller = await world.call(b"HEAD / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n")
    await asyncio.sleep(1)
    assert caller.statuses == [413]
    assert caller.heard.endswith(b"\r\n\r\n")
    assert caller.is_closed


@scenario
async def test_what_is_refused_behind_a_head_is_answered_whole(world: World) -> None:
    """What was refused has a body, whatever was asked before it."""
    for nonsense in (b"rubbish\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"x" * (http.HEAD_BYTES_MAX + 1)):
        caller = await world.call(GET.replace(b"GET", b"HEAD"))
        await asyncio.sleep(1)
        caller.send(nonsense)
        await asyncio.sleep(1)
        assert b"HTTP/1.1 4" in caller.heard
        assert not caller.heard.endswith(b"\r\n\r\n")
        assert caller.is_closed


@scenario
async def test_nonsense_gets_an_answer_and_the_connection_ends(world: World) -> None:
    for nonsense, status in ((b"hello\r\n\r\n", 400), (b"PUT / HTTP/1.1\r\nHost: h\r\n\r\n", 405)):
        caller = await world.call(nonsense)
        await asyncio.sleep(1)
        assert caller.statuses == [status]
        assert caller.is_closed


@scenario
async def test_a_head_without_end_is_refused(world: World) -> None:
    caller = await world.call(b"GET / HTTP/1.1\r\nA: " + b"x" * (1 << 20))
    await asyncio.sleep(1)
    assert caller.statuses == [431]
    assert caller.is_closed


@scenario
async def test_a_client_that_dribbles_is_told_that_it_is_too_slow(world: World) -> None:
    caller = await world.call()
    for byte in GET[:20]:
        if not caller.is_closed:
            caller.send(bytes([byte]))
        await asyncio.sleep(1)
    assert caller.statuses == [408]
    assert caller.is_closed


@scenario
async def test_a_client_that_says_nothing_is_disconnected(world: World) -> None:
    silent, idle = await world.call(), await world.call(GET)
    await asyncio.sleep(http.HEAD_TIMEOUT_S + 1)
    assert silent.is_closed
    assert not idle.is_closed
    await asyncio.sleep(http.IDLE_TIMEOUT_S)
    assert idle.is_closed


@scenario
async def test_a_client_that_does_not_read_is_disconnected(world: World) -> None:
    world.body = b"x" * (64 << 20)
    caller = await world.call()
    caller.connection.pause_reading()
    caller.send(GET)
    await asyncio.sleep(http.SEND_TIMEOUT_S + 5)
    caller.connection.resume_reading()
    await asyncio.sleep(1)
    assert caller.is_closed
    assert len(caller.heard) < len(world.body)


@scenario
async def test_there_are_only_so_many_connections(world: World) -> None:
    callers = [await world.call() for _ in range(http.CONNECTIONS_MAX)]
    one_more = await world.call(GET)
    await asyncio.sleep(1)
    assert one_more.statuses == [503]
    assert one_more.is_closed
    callers[0].send(GET)
    await asyncio.sleep(1)
    assert callers[0].statuses == [200]


@scenario
async def test_pages_that_fail_or_take_too_long_are_answered_too(world: World) -> None:
    caller = await world.call(GET.replace(b"/x", b"/bug"))
    await asyncio.sleep(1)
    assert caller.statuses == [500]
    assert b"ZeroDivision" not in caller.heard
    world.answering_s = 1000
    caller.send(GET)
    await asyncio.sleep(http.ANSWER_TIMEOUT_S + 1)
    assert caller.statuses == [500, 504]


@scenario
async def test_who_floods_while_it_is_answered_is_read_no_further(world: World) -> None:
    world.answering_s = 5
    caller = await world.call(GET)
    await asyncio.sleep(1)
    for _ in range(100):
        caller.send(GET * 500)
    await asyncio.sleep(1)
    assert caller.connection.backlog_bytes > 0
