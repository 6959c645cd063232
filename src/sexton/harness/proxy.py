"""A network that delays or changes what a test wants: a proxy in front of each broker that understands Kafka's frames.

Clients stay behind it, because it rewrites the addresses in the answers that name brokers. A test asks it to `hold` the
next request of some kind: that request, and whatever the client sends after it on the same connection, does not reach
the broker until `release`, even if the client has long closed its end. That is what a slow network does with packets.
A `Liar` changes requests and answers as they pass: no network does that, and a judge must notice.
"""

from __future__ import annotations

import asyncio
import io
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

from kio.serial import entity_writer

from sexton.protocol import messages

HOST: Final = "127.0.0.1"
PRODUCE: Final = 0
METADATA: Final = 3
FIND_COORDINATOR: Final = 10
ADD_PARTITIONS: Final = 24
END_TXN: Final = 26
DESCRIBE_CLUSTER: Final = 60
NAMES_BROKERS: Final = {METADATA: "brokers", DESCRIBE_CLUSTER: "brokers", FIND_COORDINATOR: "coordinators"}
"""Answers with addresses, and the field that they are in."""

WAIT_S: Final = 10
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
        """As kio's entity."""
        view = memoryview(self.frame)
        position = messages.decode_request_header(view).position
        return messages.decode_request(self.api_key, self.version, view, position)

    def with_body(self, body: Any) -> Request:
        position = messages.decode_request_header(memoryview(self.frame)).position
        return replace(self, frame=self.frame[:position] + _encoded(body))


class Liar:
    """This one is honest. Its methods are called in the proxy's thread, in no particular order of connections."""

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


class Lane:
    """A client's connection and ours to the broker. Ours stays when the client goes while something is held."""

    def __init__(self, proxy: Proxy, upstream: asyncio.StreamWriter, client: asyncio.StreamWriter) -> None:
        self._proxy = proxy
        self._upstream = upstream
        self._client = client
        self._asked: dict[int, Request] = {}
        self._kept: list[Request] | None = None
        self._late: dict[int, asyncio.Future[bytes | None]] = {}
        self._is_client_gone = False

    async def pump_requests(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                request = Request.of(await read_frame(reader))
                if self._kept is None and self._proxy.catch(request, self):
                    self._kept = []
                if self._kept is not None:
                    self._kept.append(request)
                else:
                    await self._forward(request)
        except (asyncio.IncompleteReadError, OSError):
            self._is_client_gone = True
            if self._kept is None:
                self._upstream.close()

    async def _forward(self, request: Request) -> None:
        self._asked[request.correlation_id] = request
        await write_frame(self._upstream, self._proxy.liar.request(request).frame)

    async def pump_answers(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                frame = await read_frame(reader)
                (correlation_id,) = struct.unpack_from(">i", frame)
                request = self._asked.pop(correlation_id)
                frame = self._proxy.liar.answer(request, frame)
                if request.api_key in NAMES_BROKERS:
                    frame = rewritten(request, frame, self._proxy.front_of)
                if correlation_id in self._late:
                    self._late.pop(correlation_id).set_result(frame)
                with suppress(OSError):
                    if not self._is_client_gone:
                        await write_frame(self._client, frame)
        except (asyncio.IncompleteReadError, OSError):
            self._client.close()
            for late in self._late.values():
                late.set_result(None)

    async def release(self, held: Request) -> bytes | None:
        """All that was held, in its order; the answer to the request that was to be late."""
        answer: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        self._late[held.correlation_id] = answer
        kept, self._kept = self._kept or [], None
        for request in kept:
            await self._forward(request)
        return await asyncio.wait_for(answer, WAIT_S)


class Proxy:
    """For the brokers at these addresses. Runs in a thread of its own."""

    def __init__(self, bootstrap: str, liar: Liar = HONEST) -> None:
        self.liar = liar
        self._addresses = [_address(part) for part in bootstrap.split(",")]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._fronts: dict[Address, Address] = {}
        self._servers: list[asyncio.Server] = []
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

    # ---- Inside.

    def catch(self, request: Request, lane: Lane) -> bool:
        with self._lock:
            for hold in self._holds:
                if hold.api_key == request.api_key and hold.matches(request):
                    self._holds.remove(hold)
                    hold.request, hold.lane = request, lane
                    hold.caught.set()
                    return True
        return False

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
            lane = Lane(self, upstream, writer)
            try:
                await asyncio.gather(lane.pump_requests(reader), lane.pump_answers(upstream_reader))
            except asyncio.CancelledError:  # the test is over
                writer.close()
                upstream.close()

        server = await asyncio.start_server(accept, HOST, 0)
        self._servers.append(server)
        self._fronts[address] = server.sockets[0].getsockname()[:2]

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * WAIT_S)


def rewritten(request: Request, frame: bytes, front_of: Callable[[str, int], Address]) -> bytes:
    """The answer with the proxy's addresses in the place of the brokers' own."""
    answer = answer_of(request, frame)

    def moved(part: Any) -> Any:
        host, port = front_of(part.host, part.port)
        return replace(part, host=host, port=type(part.port)(port))

    many = NAMES_BROKERS[request.api_key]
    if hasattr(answer, many):
        answer = replace(answer, **{many: tuple(moved(part) for part in getattr(answer, many))})
    else:
        answer = moved(answer)  # FindCoordinator before version 4 names one
    return with_answer(frame, answer)


def answer_of(request: Request, frame: bytes) -> Any:
    """As kio's entity."""
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
