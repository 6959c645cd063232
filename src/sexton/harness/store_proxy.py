"""A proxy in front of an object store that is slow, busy, forgetful or silent, as a test or a benchmark wants it.

It speaks HTTP/1.1 on loopback and passes on what it gets as it is, so that signatures stay right. Each request meets
one fate, drawn by the probabilities that `faults` has at that moment:

    unsent    the connection breaks before the store has seen the request
    half      the store sees the first half of the request's body, and then the connection breaks
    busy      503 SlowDown: the store does not see it
    refused   403 AccessDenied: the store does not see it
    hanging   nothing happens until `faults` is set anew; then it is carried out, though nobody may wait for it
    dropped   the store carries it out, and the connection breaks before the answer
    short     the answer's body ends before its length says so
    passed    none of these

Besides, each answer may be delayed (lognormal, as stores are: the median and the 99th percentile are given).
"""

from __future__ import annotations

import asyncio
import math
import random
import threading
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

HOST: Final = "127.0.0.1"
WAIT_S: Final = 20
HEAD_BYTES_MAX: Final = 1 << 16
Z_99: Final = 2.326
"""Standard deviations from the median to the 99th percentile."""

FATES: Final = ("unsent", "half", "busy", "refused", "hanging", "dropped", "short")
CODES: Final = {"busy": (503, "SlowDown"), "refused": (403, "AccessDenied")}
NO_BODY: Final = (204, 304)


@dataclass(frozen=True, slots=True)
class StoreFaults:
    """Shares of the requests, which together are at most 1."""

    median_ms: float = 0.0
    p99_ms: float = 0.0
    unsent: float = 0.0
    half: float = 0.0
    busy: float = 0.0
    refused: float = 0.0
    hanging: float = 0.0
    dropped: float = 0.0
    short: float = 0.0
    methods: frozenset[str] = frozenset()
    """Which requests meet them; empty for all. Delays are for all."""

    def fate(self, method: str, rng: random.Random) -> str:
        drawn = rng.random()
        if self.methods and method not in self.methods:
            return "passed"
        for fate in FATES:
            drawn -= getattr(self, fate)
            if drawn < 0:
                return fate
        return "passed"

    def delay_s(self, rng: random.Random) -> float:
        if not self.median_ms:
            return 0.0
        sigma = math.log(max(self.p99_ms, self.median_ms) / self.median_ms) / Z_99
        return self.median_ms / 1000 * math.exp(sigma * rng.gauss(0.0, 1.0))


class _Message(NamedTuple):
    head: bytes
    body: bytes
    """With the frame of its chunks, if it has one: it is passed on as it came."""

    @property
    def first_line(self) -> list[str]:
        return self.head.partition(b"\r\n")[0].decode("latin-1").split(" ")


class StoreProxy:
    """For the store at one port of this machine. Runs in a thread of its own; `faults` may be set at any time."""

    def __init__(self, port: int, faults: StoreFaults | None = None, seed: int = 0, host: str = HOST) -> None:
        self._upstream_port = port
        self.host = host
        """Where it listens. To be set before it is entered."""
        self._faults = faults or StoreFaults()
        self._rng = random.Random(seed)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._changed = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._port = 0
        self.counts: Counter[tuple[str, str]] = Counter()
        """Requests so far, by method and fate."""

    @property
    def endpoint(self) -> str:
        return f"http://{self.host}:{self._port}"

    @property
    def faults(self) -> StoreFaults:
        return self._faults

    @faults.setter
    def faults(self, faults: StoreFaults) -> None:
        """What hangs goes on now, under whatever comes next."""
        self._wait(self._change(faults))

    async def _change(self, faults: StoreFaults) -> None:
        self._faults = faults
        self._changed.set()
        self._changed = asyncio.Event()

    def __enter__(self) -> Self:
        self._thread.start()
        self._wait(self._open())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._serve, self.host, 0, limit=HEAD_BYTES_MAX)
        self._port = self._server.sockets[0].getsockname()[1]

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client's connection, and one of ours to the store."""
        upstream: asyncio.StreamWriter | None = None
        try:
            store, upstream = await asyncio.open_connection(HOST, self._upstream_port, limit=HEAD_BYTES_MAX)
            while await self._pass_on(await _read(reader, ""), store, upstream, writer):
                pass
        except (asyncio.IncompleteReadError, OSError, asyncio.CancelledError):
            pass  # either side has gone, or the test is over
        finally:
            for one in (writer, upstream):
                if one is not None:
                    one.close()

    async def _pass_on(
        self,
        request: _Message,
        store: asyncio.StreamReader,
        upstream: asyncio.StreamWriter,
        client: asyncio.StreamWriter,
    ) -> bool:
        """False when the connection is to end."""
        method = request.first_line[0]
        faults = self._faults
        fate = faults.fate(method, self._rng)
        self.counts[method, fate] += 1
        delay_s = faults.delay_s(self._rng)
        if fate == "hanging":
            await self._changed.wait()
        if fate == "unsent":
            return False
        if fate == "half":
            await _write(upstream, request._replace(body=request.body[: len(request.body) // 2]))
            return False
        if fate in CODES:
            await asyncio.sleep(delay_s)
            await _write(client, _refusal(*CODES[fate]))
            return True
        await _write(upstream, request)
        answer = await _read(store, method)
        await asyncio.sleep(delay_s)
        if fate == "dropped":
            return False
        if fate == "short" and answer.body:
            answer = answer._replace(body=answer.body[: self._rng.randrange(len(answer.body))])
        with suppress(OSError):
            await _write(client, answer)
        return fate != "short" and b"connection: close" not in answer.head.lower()

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(WAIT_S)


async def _read(reader: asyncio.StreamReader, answers_to: str) -> _Message:
    """A request, or the answer to a request with that method."""
    head = await reader.readuntil(b"\r\n\r\n")
    fields = _fields(head)
    status = int(head.split(b" ", 2)[1]) if answers_to else 0
    if answers_to and status < 200:  # 100 Continue: another answer follows
        return await _read(reader, answers_to)
    if answers_to == "HEAD" or status in NO_BODY:
        return _Message(head, b"")
    if b"chunked" in fields.get(b"transfer-encoding", b"").lower():
        return _Message(head, await _read_chunks(reader))
    if answers_to and b"content-length" not in fields:
        return _Message(head, await reader.read())
    return _Message(head, await reader.readexactly(int(fields.get(b"content-length", b"0"))))


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    out = bytearray()
    while True:
        line = await reader.readuntil(b"\r\n")
        size = int(line.split(b";")[0], 16)
        out += line + await reader.readexactly(size + 2)
        if size == 0:
            return bytes(out)


def _fields(head: bytes) -> dict[bytes, bytes]:
    lines = [line.partition(b":") for line in head.split(b"\r\n")[1:] if line]
    return {name.strip().lower(): value.strip() for name, _, value in lines}


def _refusal(status: int, code: str) -> _Message:
    body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>a fault</Message></Error>'.encode()
    head = f"HTTP/1.1 {status} {code}\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
    return _Message(head.encode(), body)


async def _write(writer: asyncio.StreamWriter, message: _Message) -> None:
    writer.write(message.head)
    writer.write(message.body)
    await writer.drain()
