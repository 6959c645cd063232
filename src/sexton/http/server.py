"""As much of HTTP/1.1 as a scraper or a person with curl needs: GET and HEAD, without bodies, one after another.

Whoever connects may be slow, broken or hostile; each way of being so has a bound and, where the other side may still
understand it, an answer. A head is at most HEAD_BYTES_MAX and must come within HEAD_TIMEOUT_S; an answer must be taken
within SEND_TIMEOUT_S; there are at most CONNECTIONS_MAX connections, and each has one request in work.

h11 knows the protocol: it cuts requests from bytes, frames responses, and says when a connection must end.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote_to_bytes

import h11

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


@dataclass(frozen=True, slots=True)
class Page:
    body: bytes
    content_type: str = "application/json"
    status: int = 200

    @staticmethod
    def of_json(value: Any, status: int = 200) -> Page:
        return Page(json.dumps(value, indent=2, default=str).encode() + b"\n", status=status)


Answering = Callable[[Request], Awaitable[Page]]


def read(head: h11.Request) -> Request:
    """What is asked for. Raises HttpError if it cannot be answered here."""
    if head.http_version not in (b"1.0", b"1.1"):
        raise HttpError(505, "HTTP/1.1 is spoken here")
    if len(head.headers) > HEADERS_MAX:
        raise HttpError(431, f"at most {HEADERS_MAX} headers are read")
    if len(head.target) + sum(len(name) + len(value) for name, value in head.headers) > HEAD_BYTES_MAX:
        raise _head_is_too_long()
    if head.method not in (b"GET", b"HEAD"):
        raise HttpError(405, "only GET and HEAD are answered here")
    headers = dict(head.headers)
    if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
        raise HttpError(413, "nothing may be sent along")
    if not head.target.startswith(b"/"):
        raise HttpError(400, "a path begins with /")
    path, _, query = head.target.decode("ascii").partition("?")
    return Request(_decoded(path), _parameters(query))


def refused(error: h11.RemoteProtocolError) -> HttpError:
    """What h11 could not read as a request."""
    if error.error_status_hint == 431:
        return _head_is_too_long()
    if error.error_status_hint == 501:
        return HttpError(413, "nothing may be sent along")
    return HttpError(400, f"this is no HTTP request: {error}")


def _head_is_too_long() -> HttpError:
    return HttpError(431, f"a request's head is at most {HEAD_BYTES_MAX} bytes")


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


def response(page: Page, *, closes: bool) -> h11.Response:
    headers = [
        ("Content-Type", f"{page.content_type}; charset=utf-8"),
        ("Content-Length", str(len(page.body))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if page.status == 405:
        headers.append(("Allow", "GET, HEAD"))
    if closes:
        headers.append(("Connection", "close"))
    return h11.Response(status_code=page.status, headers=headers, reason=REASONS[page.status])


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
        self._protocol = h11.Connection(h11.SERVER, HEAD_BYTES_MAX)
        self._has_begun = False
        """Whether bytes of the next request have come."""
        self._is_head = False
        """Whether the request in work is a HEAD, whose response has no body."""
        self._buffer = bytearray()
        """What h11 has not seen yet: it gets more only when it has nothing left to read, so that it holds little."""
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
        try:
            event = self._protocol.next_event()
            while event is h11.NEED_DATA and self._buffer:
                self._feed()
                event = self._protocol.next_event()
            if event is h11.NEED_DATA:
                return
            self._timer.cancel()
            assert isinstance(event, h11.Request)
            self._is_head = event.method == b"HEAD"
            request = read(event)
            assert isinstance(self._protocol.next_event(), h11.EndOfMessage), "a request without a body has ended"
        except h11.RemoteProtocolError as error:
            self.refuse(refused(error))
            return
        except HttpError as error:
            self.refuse(error)
            return
        self._work = self._supervisor.work(self._answer(request), "a page", request.path)

    def _feed(self) -> None:
        self._has_begun = True
        self._protocol.receive_data(bytes(self._buffer))
        self._buffer.clear()
        if self._is_paused:
            self._is_paused = False
            self._connection.resume_reading()

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
        await self._send(page)
        self._work = None
        if self._protocol.our_state is not h11.DONE:
            self.close()
            return
        self._protocol.start_next_cycle()
        self._is_head = False
        self._has_begun = bool(self._protocol.trailing_data[0])
        self._timer = self._loop.call_later(IDLE_TIMEOUT_S, self._too_slow)
        self._next()

    def refuse(self, error: HttpError) -> None:
        """The connection ends when the answer has left: what would follow cannot be told apart any more."""
        self._is_ending = True
        self._timer.cancel()
        self._work = self._supervisor.work(self._send_and_close(_error_page(error)), "a page")

    async def _send_and_close(self, page: Page) -> None:
        try:
            await self._send(page, closes=True)
        finally:
            self.close()

    async def _send(self, page: Page, *, closes: bool = False) -> None:
        """Until the other side has taken it, or took too long."""
        events: list[h11.Event] = [response(page, closes=closes)]
        if not self._is_head:
            events.append(h11.Data(data=page.body))
        events.append(h11.EndOfMessage())
        parts = [part for event in events for part in self._protocol.send_with_data_passthrough(event) or ()]
        self._connection.send(parts)
        deadline_s = self._loop.time() + SEND_TIMEOUT_S
        while self._connection.backlog_bytes:
            if self._loop.time() > deadline_s:
                self.close()
                return
            await asyncio.sleep(SEND_POLL_S)

    def _too_slow(self) -> None:
        """A connection that has sent nothing of a request is closed without a response."""
        if self._has_begun:
            self.refuse(HttpError(408, "the request's head took too long to come"))
        else:
            self.close()

    def close(self) -> None:
        self._is_ending = True
        self._connection.close()


def _error_page(error: HttpError) -> Page:
    return Page.of_json({"error": error.what}, error.status)
