"""As much of HTTP/1.1 as a scraper or a person with curl needs: GET and HEAD, without bodies, one after another.

Whoever connects may be slow, broken or hostile; each way of being so has a bound and, where the other side may still
understand it, an answer. A head is at most HEAD_BYTES_MAX and must come within HEAD_TIMEOUT_S; an answer must be taken
within SEND_TIMEOUT_S; there are at most CONNECTIONS_MAX connections, and each has one request in work.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

from sexton.ports.network import Connection, Listener, Network, Receiver
from sexton.supervision import Supervisor

HEAD_BYTES_MAX: Final = 8192
HEADERS_MAX: Final = 100
PARAMETERS_MAX: Final = 20
CONNECTIONS_MAX: Final = 64
HEAD_TIMEOUT_S: Final = 10.0
IDLE_TIMEOUT_S: Final = 120.0
"""Scrapers come back every 15 s to a minute, on the same connection."""

SEND_TIMEOUT_S: Final = 30.0
SEND_POLL_S: Final = 0.02
ANSWER_TIMEOUT_S: Final = 30.0

REASONS: Final[Mapping[int, str]] = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}


class HttpError(Exception):
    """What was asked cannot be answered otherwise."""

    def __init__(self, status: int, what: str) -> None:
        super().__init__(status, what)
        self.status = status
        self.what = what


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    is_head: bool = False
    keeps_alive: bool = True


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    content_type: str = "application/json"
    status: int = 200

    @staticmethod
    def of_json(value: Any, status: int = 200) -> Page:
        return Page(json.dumps(value, indent=2, default=str).encode() + b"\n", status=status)


Answering = Callable[[Request], Awaitable[Page]]


def parse_head(head: bytes) -> Request:
    """All up to the empty line, without it. Raises HttpError."""
    try:
        lines = head.decode("ascii").split("\r\n")
    except UnicodeDecodeError:
        raise HttpError(400, "a head is ASCII") from None
    method, target, version = _request_line(lines[0])
    headers = _headers(lines[1:])
    if version == "HTTP/1.1" and "host" not in headers:
        raise HttpError(400, "HTTP/1.1 needs a Host")
    if method not in ("GET", "HEAD"):
        raise HttpError(405, "only GET and HEAD are answered here")
    if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
        raise HttpError(413, "nothing may be sent along")
    path, _, query = target.partition("?")
    wish = headers.get("connection", "").lower()
    keeps_alive = wish != "close" if version == "HTTP/1.1" else wish == "keep-alive"
    return Request(_decoded(path), _parameters(query), method == "HEAD", keeps_alive)


def _request_line(line: str) -> tuple[str, str, str]:
    parts = line.split(" ")
    if len(parts) != 3 or not parts[2].startswith("HTTP/") or not parts[0].isalpha():
        raise HttpError(400, "this is no HTTP request")
    if parts[2] not in ("HTTP/1.0", "HTTP/1.1"):
        raise HttpError(505, "HTTP/1.1 is spoken here")
    if not parts[1].startswith("/"):
        raise HttpError(400, "a path begins with /")
    return parts[0], parts[1], parts[2]


def _headers(lines: list[str]) -> dict[str, str]:
    if len(lines) > HEADERS_MAX:
        raise HttpError(431, f"at most {HEADERS_MAX} headers are read")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            raise HttpError(400, "a header is a name, a colon and a value")
        headers[name.lower()] = value.strip()
    return headers


def _decoded(path: str) -> str:
    try:
        return unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise HttpError(400, "a path is UTF-8") from None


def _parameters(query: str) -> dict[str, str]:
    try:
        found = parse_qsl(
            query, keep_blank_values=True, strict_parsing=bool(query), max_num_fields=PARAMETERS_MAX, errors="strict"
        )
    except ValueError:
        raise HttpError(400, "what follows the ? is name=value, joined by &") from None
    return dict(found)


def encode(page: Page, request: Request | None) -> bytes:
    """`request` is None if it could not be read: then the connection ends."""
    keeps_alive = request is not None and request.keeps_alive
    head = (
        f"HTTP/1.1 {page.status} {REASONS[page.status]}\r\n"
        f"Content-Type: {page.content_type}; charset=utf-8\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
        f"{'Allow: GET, HEAD' + chr(13) + chr(10) if page.status == 405 else ''}"
        f"Connection: {'keep-alive' if keeps_alive else 'close'}\r\n\r\n"
    )
    return head.encode() + (b"" if request is not None and request.is_head else page.body)


class HttpServer:
    def __init__(self, answering: Answering, supervisor: Supervisor) -> None:
        self._answering = answering
        self._supervisor = supervisor
        self._connections: dict[HttpConnection, None] = {}
        self._listener: Listener | None = None

    async def start(self, network: Network, host: str, port: int) -> int:
        """Returns the port, also when 0 was asked for."""
        self._listener = await network.listen(host, port, self.accept)
        return self._listener.port

    def accept(self, connection: Connection) -> Receiver:
        one = HttpConnection(connection, self._answering, self._closed, self._supervisor)
        self._connections[one] = None
        if len(self._connections) > CONNECTIONS_MAX:
            one.refuse(HttpError(503, f"there are {CONNECTIONS_MAX} connections already"))
        return one

    def _closed(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for connection in list(self._connections):
            connection.close()


class HttpConnection:
    """`ports.network.Receiver`."""

    def __init__(
        self,
        connection: Connection,
        answering: Answering,
        on_closed: Callable[[HttpConnection], None],
        supervisor: Supervisor,
    ) -> None:
        self._supervisor = supervisor
        self._connection = connection
        self._answering = answering
        self._on_closed = on_closed
        self._loop = asyncio.get_running_loop()
        self._buffer = bytearray()
        self._work: asyncio.Task[None] | None = None
        self._is_ending = False
        self._is_paused = False
        self._timer = self._loop.call_later(HEAD_TIMEOUT_S, self._too_slow)

    # Receiver

    def received(self, data: memoryview) -> None:
        if self._is_ending:
            return
        self._buffer += data
        if self._work is None:
            self._next()
        elif len(self._buffer) > HEAD_BYTES_MAX and not self._is_paused:
            self._is_paused = True
            self._connection.pause_reading()

    def writable(self) -> None:
        """Answers are waited for one by one."""

    def closed(self, error: Exception | None) -> None:
        self._is_ending = True
        self._timer.cancel()
        if self._work is not None:
            self._work.cancel()
        self._on_closed(self)

    # One request after another

    def _next(self) -> None:
        """Begins with the next request, if all of its head has come."""
        if self._is_paused and len(self._buffer) <= HEAD_BYTES_MAX:
            self._is_paused = False
            self._connection.resume_reading()
        end = self._buffer.find(b"\r\n\r\n", 0, HEAD_BYTES_MAX)
        if end < 0:
            if len(self._buffer) >= HEAD_BYTES_MAX:
                self.refuse(HttpError(431, f"a request's head is at most {HEAD_BYTES_MAX} bytes"))
            return
        head = bytes(self._buffer[:end])
        del self._buffer[: end + 4]
        self._timer.cancel()
        try:
            request = parse_head(head)
        except HttpError as error:
            self.refuse(error)
            return
        self._work = self._supervisor.work(self._answer(request), "a page", request.path)

    async def _answer(self, request: Request) -> None:
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                page = await self._answering(request)
        except HttpError as error:
            page = _error_page(error)
        except TimeoutError:
            page = _error_page(HttpError(504, "no answer in time; other brokers may be away"))
        except Exception as bug:
            self._supervisor.survived(bug, "a page", request.path)
            page = _error_page(HttpError(500, "a bug; the broker's log says more"))
        await self._send(encode(page, request))
        self._work = None
        if not request.keeps_alive:
            self.close()
            return
        self._timer = self._loop.call_later(IDLE_TIMEOUT_S, self._too_slow)
        self._next()

    def refuse(self, error: HttpError) -> None:
        """The connection ends when the answer has left: what would follow cannot be told apart any more."""
        self._is_ending = True
        self._timer.cancel()
        self._work = self._supervisor.work(self._send_and_close(encode(_error_page(error), None)), "a page")

    async def _send_and_close(self, data: bytes) -> None:
        await self._send(data)
        self.close()

    async def _send(self, data: bytes) -> None:
        """Until the other side has taken it, or took too long."""
        self._connection.send([data])
        deadline_s = self._loop.time() + SEND_TIMEOUT_S
        while self._connection.backlog_bytes:
            if self._loop.time() > deadline_s:
                self.close()
                return
            await asyncio.sleep(SEND_POLL_S)

    def _too_slow(self) -> None:
        """Nobody is told who has not begun to ask."""
        if self._buffer:
            self.refuse(HttpError(408, "the request's head took too long to come"))
        else:
            self.close()

    def close(self) -> None:
        self._is_ending = True
        self._connection.close()


def _error_page(error: HttpError) -> Page:
    return Page.of_json({"error": error.what}, error.status)
