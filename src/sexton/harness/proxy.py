"""A network that delays or changes what a test wants: a proxy in front of each broker that understands Kafka's frames.

Clients stay behind it, because it rewrites the addresses in the answers that name brokers. A test asks it to `hold` the
next request of some kind: that request, and whatever the client sends after it on the same connection, does not reach
the broker until `release`, even if the client has long closed its end. That is what a slow network does with packets.
A `Watch` decides so for each request that comes by. `Weather` is what the network is like for all that passes: slow,
narrow, or given to resets. A `Liar` changes requests and answers: no network does that, and a judge must notice.
"""

from __future__ import annotations

import asyncio
import io
import math
import random
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

from kio.serial import entity_writer

from sexton.protocol import messages

HOST: Final = "127.0.0.1"
PRODUCE: Final = 0
FETCH: Final = 1
METADATA: Final = 3
FIND_COORDINATOR: Final = 10
ADD_PARTITIONS: Final = 24
END_TXN: Final = 26
TXN_OFFSET_COMMIT: Final = 28
DESCRIBE_CLUSTER: Final = 60
NAMES_BROKERS: Final = {
    METADATA: "brokers",
    DESCRIBE_CLUSTER: "brokers",
    FIND_COORDINATOR: "coordinators",
    PRODUCE: "node_endpoints",
    FETCH: "node_endpoints",
}
"""Answers with addresses, and the field that they are in."""
NAMES_SINCE: Final = {PRODUCE: 10, FETCH: 16}
"""Versions: before these, such an answer names nobody."""

WAIT_S: Final = 10
LET_THROUGH_S: Final = 2.0
"""How long an answer waits for the broker to answer what was let through before it."""
Address = tuple[str, int]
_HEADER: Final = struct.Struct(">hhi")


@dataclass(frozen=True, eq=False)
class Request:
    api_key: int
    version: int
    correlation_id: int
    frame: bytes
    """Without its size."""

    @classmethod
    def of(cls, frame: bytes) -> Request:
        api_key, version, correlation_id = _HEADER.unpack_from(frame)
        return cls(api_key, version, correlation_id, frame)

    def body(self) -> Any:
        """Decodes the body into kio's entity."""
        view = memoryview(self.frame)
        position = messages.decode_request_header(view).position
        return messages.decode_request(self.api_key, self.version, view, position)

    def with_body(self, body: Any) -> Request:
        position = messages.decode_request_header(memoryview(self.frame)).position
        return replace(self, frame=self.frame[:position] + _encoded(body))

    def renumbered(self, correlation_id: int) -> Request:
        frame = self.frame[:4] + struct.pack(">i", correlation_id) + self.frame[_HEADER.size :]
        return replace(self, correlation_id=correlation_id, frame=frame)

    @property
    def names_brokers(self) -> bool:
        """Whether its answer does."""
        return self.api_key in NAMES_BROKERS and self.version >= NAMES_SINCE.get(self.api_key, 0)


class Liar:
    """This one is honest. Its methods are called in the proxy's thread, in no particular order of connections."""

    def before(self, request: Request) -> Sequence[Request]:
        """What the broker gets first, over the same connection. Nobody is given the answers."""
        return ()

    def request(self, request: Request) -> Request:
        """What the broker gets instead."""
        return request

    def answer(self, request: Request, frame: bytes) -> bytes:
        """What the client gets instead; `request` is what the client had asked."""
        return frame


HONEST: Final = Liar()


@dataclass(eq=False)
class Hold:
    """One request that is to be late."""

    api_key: int
    matches: Callable[[Request], bool]
    caught: threading.Event = field(default_factory=threading.Event)
    request: Request | None = None
    lane: Lane | None = None

    def wait(self, timeout_s: float) -> None:
        assert self.caught.wait(timeout_s), f"no request {self.api_key} came by within {timeout_s:g} s"


class Watch:
    """This one holds nothing. Its methods are called in the proxy's thread."""

    def caught(self, request: Request) -> Hold | None:
        """Who holds this request, which has not reached its broker yet."""
        return None

    def due(self, request: Request) -> Sequence[Hold]:
        """What is to be let through now, before the client is given the answer to this request."""
        return ()


NOBODY: Final = Watch()


@dataclass(frozen=True, slots=True)
class Weather:
    """What happens to each frame, in either direction."""

    delay_s: float = 0.0
    bytes_per_s: float = math.inf
    """Rate of one connection."""
    reset_p: float = 0.0
    """That the connection is reset instead."""

    async def passed(self, size: int) -> None:
        if random.random() < self.reset_p:
            raise ConnectionResetError
        wait_s = self.delay_s + size / self.bytes_per_s
        if wait_s:
            await asyncio.sleep(wait_s)


CLEAR: Final = Weather()


class Lane:
    """A client's connection and ours to the broker. Ours stays when the client goes while something is held."""

    def __init__(
        self, proxy: Proxy, address: Address, upstream: asyncio.StreamWriter, client: asyncio.StreamWriter
    ) -> None:
        self.address = address
        """The broker's."""
        self._proxy = proxy
        self._upstream = upstream
        self._client = client
        self._asked: dict[int, Request] = {}
        self._kept: list[Request] | None = None
        self._late: dict[int, asyncio.Future[bytes | None]] = {}
        self._is_client_gone = False
        self._is_broker_gone = False
        self._is_half_open = False
        self._invented = 0
        """The number of the last request that no client has sent: they count up, and we down."""

    async def pump_requests(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                request = Request.of(await read_frame(reader))
                await self._proxy.weather_at(self.address).passed(len(request.frame))
                if self._is_half_open:
                    continue
                if self._kept is None and self._proxy.catch(request, self):
                    self._kept = []
                if self._kept is not None:
                    self._kept.append(request)
                else:
                    await self._forward(request)
        except (asyncio.IncompleteReadError, OSError) as error:
            self._is_client_gone = True
            if isinstance(error, ConnectionResetError):
                _reset(self._client)
            if self._kept is None:
                self._upstream.close()

    async def _forward(self, request: Request) -> None:
        for invented in self._proxy.liar.before(request):
            self._invented -= 1
            await write_frame(self._upstream, invented.renumbered(self._invented).frame)
        self._asked[request.correlation_id] = request
        await write_frame(self._upstream, self._proxy.liar.request(request).frame)

    async def pump_answers(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                frame = await read_frame(reader)
                (correlation_id,) = struct.unpack_from(">i", frame)
                if correlation_id < 0:
                    continue
                request = self._asked.pop(correlation_id)
                await self._proxy.weather_at(self.address).passed(len(frame))
                frame = self._proxy.liar.answer(request, frame)
                if request.names_brokers:
                    frame = await self._proxy.kept_behind(request, frame)
                if correlation_id in self._late:
                    _settle(self._late.pop(correlation_id), frame)
                await self._proxy.let_through(
                    [hold for hold in self._proxy.watch.due(request) if hold.lane is not self]
                )
                with suppress(OSError):
                    if not self._is_client_gone:
                        await write_frame(self._client, frame)
        except (asyncio.IncompleteReadError, OSError) as error:
            self._is_broker_gone = True
            if isinstance(error, ConnectionResetError):
                _reset(self._client)
                self._upstream.close()
            elif not self._is_half_open:
                self._client.close()
            for late in self._late.values():
                _settle(late, None)

    async def release(self, held: Request) -> bytes | None:
        """All that was held, in its order; the answer to the request that was to be late. None: the broker is gone."""
        kept, self._kept = self._kept or [], None
        if self._is_broker_gone:
            return None
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._late[held.correlation_id] = answer
        try:
            for request in kept:
                await self._forward(request)
            return await asyncio.wait_for(answer, WAIT_S)
        except OSError:
            return None
        finally:
            if self._is_client_gone:
                self._upstream.close()

    def leave_half_open(self) -> None:
        """The broker sees its end closed. The client is told nothing: what it sends is lost."""
        self._is_half_open = True
        self._upstream.close()

    def reset(self) -> None:
        _reset(self._client)
        self._upstream.close()

    @property
    def is_half_open(self) -> bool:
        return self._is_half_open


class Proxy:
    """For the brokers at these addresses, and those that they name. Runs in a thread of its own."""

    def __init__(self, bootstrap: str, liar: Liar = HONEST) -> None:
        self.liar = liar
        self.watch: Watch = NOBODY
        self._addresses = [_address(part) for part in bootstrap.split(",")]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._fronts: dict[Address, Address] = {}
        self._servers: list[asyncio.Server] = []
        self._lanes: set[Lane] = set()
        self._weather: dict[Address, Weather] = {}
        self._holds: list[Hold] = []
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        self._thread.start()
        for address in self._addresses:
            self._wait(self._open(address))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{host}:{port}" for host, port in (self._fronts[address] for address in self._addresses))

    # ---- What tests ask for.

    def hold(self, api_key: int, matches: Callable[[Request], bool] = lambda _: True) -> Hold:
        """The next request of this kind will be late."""
        hold = Hold(api_key, matches)
        with self._lock:
            self._holds.append(hold)
        return hold

    def forget_holds(self) -> None:
        """What has not been caught is not held any more."""
        with self._lock:
            self._holds.clear()

    def release(self, hold: Hold) -> Any:
        """Lets it through now; the broker's answer as kio's entity, or None if it closed the connection instead."""
        assert hold.lane is not None
        assert hold.request is not None
        frame = self._wait(hold.lane.release(hold.request))
        if frame is None:
            return None
        return answer_of(hold.request, frame)

    # ---- What faults ask for.

    @property
    def addresses(self) -> list[Address]:
        """Addresses of the brokers that the proxy stands in front of."""
        return sorted(self._fronts)

    def watched_by(self, watch: Watch) -> None:
        """From now on. Whoever watched before is not asked again."""

        async def swap() -> None:
            self.watch = watch

        self._wait(swap())

    def release_all(self, holds: Sequence[Hold]) -> None:
        self._wait(self.let_through(holds))

    def set_weather(self, weather: Weather, addresses: Iterable[Address]) -> None:
        """Of the connections to these brokers, those that there are and those to come."""
        self._weather |= dict.fromkeys(addresses, weather)

    def leave_half_open(self, addresses: Iterable[Address]) -> int:
        """All connections to these brokers, as they are now. New ones work. How many it were."""
        lanes = self._lanes_to(addresses)
        self._wait(_each(Lane.leave_half_open, lanes))
        return len(lanes)

    def reset_half_open(self) -> int:
        lanes = [lane for lane in list(self._lanes) if lane.is_half_open]
        self._wait(_each(Lane.reset, lanes))
        return len(lanes)

    def _lanes_to(self, addresses: Iterable[Address]) -> list[Lane]:
        wanted = set(addresses)
        return [lane for lane in list(self._lanes) if lane.address in wanted]

    # ---- Inside.

    def catch(self, request: Request, lane: Lane) -> bool:
        hold = self._asked_for(request) or self.watch.caught(request)
        if hold is None:
            return False
        hold.request, hold.lane = request, lane
        hold.caught.set()
        return True

    def _asked_for(self, request: Request) -> Hold | None:
        with self._lock:
            for hold in self._holds:
                if hold.api_key == request.api_key and hold.matches(request):
                    self._holds.remove(hold)
                    return hold
        return None

    async def let_through(self, holds: Sequence[Hold]) -> None:
        """One after the other, and each only for so long: a broker that is away answers nobody."""
        for hold in holds:
            if hold.lane is not None and hold.request is not None:
                with suppress(TimeoutError):
                    await asyncio.wait_for(hold.lane.release(hold.request), LET_THROUGH_S)

    def weather_at(self, address: Address) -> Weather:
        return self._weather.get(address, CLEAR)

    async def kept_behind(self, request: Request, frame: bytes) -> bytes:
        """An answer that names brokers, with our addresses in the place of theirs: also of those that nobody had named
        before."""
        answer = answer_of(request, frame)
        named = addresses_in(request, answer)
        for address in named:
            if address not in self._fronts:
                await self._open(address)
        return with_answer(frame, rewritten(request, answer, self.front_of)) if named else frame

    def front_of(self, host: str, port: int) -> Address:
        """Where clients reach that broker."""
        return self._fronts.get((host, port), (host, port))

    async def _close(self) -> None:
        for server in self._servers:
            server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _open(self, address: Address) -> None:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                upstream_reader, upstream = await asyncio.open_connection(*address)
            except OSError:
                writer.close()
                return
            lane = Lane(self, address, upstream, writer)
            self._lanes.add(lane)
            try:
                await asyncio.gather(lane.pump_requests(reader), lane.pump_answers(upstream_reader))
            except asyncio.CancelledError:  # the test is over
                writer.close()
                upstream.close()
            finally:
                self._lanes.discard(lane)

        server = await asyncio.start_server(accept, HOST, 0)
        self._servers.append(server)
        self._fronts[address] = server.sockets[0].getsockname()[:2]

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * WAIT_S)


def rewritten(request: Request, answer: Any, front_of: Callable[[str, int], Address]) -> Any:
    """The answer with the proxy's addresses in the place of the brokers' own."""

    def moved(part: Any) -> Any:
        host, port = front_of(part.host, part.port)
        return replace(part, host=host, port=type(part.port)(port))

    many = NAMES_BROKERS[request.api_key]
    if hasattr(answer, many):
        return replace(answer, **{many: tuple(moved(part) for part in getattr(answer, many))})
    return moved(answer)  # FindCoordinator before version 4 names one


def addresses_in(request: Request, answer: Any) -> list[Address]:
    """Of the brokers that the answer names. FindCoordinator that finds nobody has an empty host."""
    parts = getattr(answer, NAMES_BROKERS[request.api_key], (answer,))
    return [(str(part.host), int(part.port)) for part in parts if part.host]


def answer_of(request: Request, frame: bytes) -> Any:
    """Decodes the body into kio's entity."""
    return messages.decode_response(request.api_key, request.version, memoryview(frame))[1]


def with_answer(frame: bytes, answer: Any) -> bytes:
    """The frame with another entity of the same type in it."""
    tags = b"\x00" if answer.__header_schema__.__flexible__ else b""
    return frame[:4] + tags + _encoded(answer)


def _encoded(entity: Any) -> bytes:
    out = io.BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)


async def write_frame(writer: asyncio.StreamWriter, frame: bytes) -> None:
    writer.write(struct.pack(">i", len(frame)) + frame)
    await writer.drain()


def _address(text: str) -> Address:
    host, port = text.rsplit(":", 1)
    return host, int(port)


async def _each(do: Callable[[Lane], None], lanes: Sequence[Lane]) -> None:
    for lane in lanes:
        do(lane)


def _settle(future: asyncio.Future[bytes | None], result: bytes | None) -> None:
    """Does nothing if the waiting caller has been cancelled."""
    if not future.done():
        future.set_result(result)


def _reset(writer: asyncio.StreamWriter) -> None:
    """RST in the place of FIN."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
