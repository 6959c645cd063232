"""Finds the handler of a request, and keeps all connections of a broker within their limits.

What happens to invalid requests. An unknown API key, or a frame or body that cannot be parsed: the connection is closed
and a line is logged. A version that is not supported: UNSUPPORTED_VERSION, if that version's response has an error
code. ApiVersions is answered in any version (KIP-511), for that is how clients learn the versions.
"""

from __future__ import annotations

import asyncio
import logging
import math
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from kio.schema.index import api_key_map

from sexton.broker import api
from sexton.broker.api.api_versions import unsupported_version
from sexton.broker.network.budget import Budget
from sexton.broker.network.complaints import Complaints
from sexton.broker.network.connection import ClientConnection, Waiting
from sexton.broker.network.request import Encoded, Handler, PrivateHandler, Request, Response
from sexton.broker.observe.traffic import Traffic
from sexton.ports.disk import FileSlice
from sexton.ports.network import Connection, Part, Receiver
from sexton.protocol.encoder import shapes
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.protocol.messages import (
    MalformedMessageError,
    RequestHeader,
    decode_request_header,
    encode_response,
    known_versions,
    request_reader,
    response_header,
    response_type,
)
from sexton.protocol.private import FIRST_PRIVATE_API_KEY

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

logger = logging.getLogger(__name__)

SWEEPS_PER_IDLE_PERIOD = 10
SWEEP_S_MAX = 30.0
SWEEP_S_MIN = 0.05

STALLED_REQUEST_S = 30.0
"""How long a client that has begun a large request may send nothing while other connections wait for the memory that is
reserved for it."""

_KEY_AND_VERSION = struct.Struct(">hh")


class Dispatch:
    """Created with the broker; `accept` is passed to its listener.

    `private` has the handlers of messages between our own brokers, by API key (FIRST_PRIVATE_API_KEY on).
    """

    def __init__(self, broker: Broker, private: Mapping[int, PrivateHandler]) -> None:
        self.loop = asyncio.get_running_loop()
        self.private = private
        self.connections: dict[ClientConnection, None] = {}
        self.accepted_count = 0
        """Number of connections accepted so far. Each connection is numbered by it."""
        self.traffic = Traffic()
        self.budget = Budget(broker.config.queued_max_request_bytes)
        self._broker = broker
        self._complaints = Complaints(logger, broker.clock)
        self._per_host: dict[str, int] = {}
        self._known: dict[int, tuple[Handler, Callable[[memoryview, int], Any]]] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self.is_held = False
        """While it is set, connections are accepted but their requests wait: the broker listens before it can serve."""

    # Connections

    def hold(self) -> None:
        self.is_held = True

    def release(self) -> None:
        self.is_held = False
        for client in list(self.connections):
            client.go_on()

    def accept(self, connection: Connection) -> Receiver:
        config = self._broker.config
        client = ClientConnection(connection, self, config.socket_request_max_bytes)
        self.accepted_count += 1
        client.number = self.accepted_count
        host = _host(connection.peer)
        self.connections[client] = None
        self._per_host[host] = self._per_host.get(host, 0) + 1
        if len(self.connections) > config.max_connections:
            self.complain("%s: refused: there are max.connections=%d already", connection.peer, config.max_connections)
            client.close()
        elif self._per_host[host] > config.max_connections_per_ip:
            limit = config.max_connections_per_ip
            self.complain("%s: refused: its host has max.connections.per.ip=%d already", connection.peer, limit)
            client.close()
        if self._sweeping is None:
            self._sweeping = self._broker.supervisor.loop(self._sweep(), "the sweep of idle connections")
        return client

    def closed(self, client: ClientConnection) -> None:
        """Called once by each connection when it is closed."""
        del self.connections[client]
        host = _host(client.peer)
        self._per_host[host] -= 1
        if not self._per_host[host]:
            del self._per_host[host]
        self._broker.replicas.connection_closed(client)

    async def stop(self) -> None:
        """Closes every connection, waits until `closed` was called for each, and cancels the tasks of their
        requests."""
        if self._sweeping is not None:
            self.keep(self._sweeping)
            self._sweeping = None
        for client in list(self.connections):
            client.close()
        while self.connections:
            await asyncio.sleep(0)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Keeps a reference to the task until it is done. The loop holds tasks only weakly, and a connection drops its
        own when it closes."""
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task, None))

    def survived(self, bug: Exception, peer: str) -> None:
        """Reports a bug that a request of this peer ran into; its connection is closed."""
        self._broker.supervisor.survived(bug, "a request", peer)

    def complain(self, message: str, *values: object) -> None:
        """Logs one line, unless there were many of the same kind."""
        self._complaints.log(logging.WARNING, message, *values)

    async def _sweep(self) -> None:
        """Closes connections on which nothing moved for connections.max.idle.ms. That covers clients that never read
        their responses: they have long been paused. Where connections may be idle for ever (-1), those that hold memory
        that others wait for are closed all the same."""
        idle_ms = self._broker.config.connections_max_idle_ms
        limit_s = idle_ms / 1000 if idle_ms >= 0 else math.inf
        while True:
            await asyncio.sleep(max(SWEEP_S_MIN, min(SWEEP_S_MAX, limit_s / SWEEPS_PER_IDLE_PERIOD)))
            now_s = self.loop.time()
            for client in list(self.connections):
                idle_s = client.idle_s(now_s)
                if idle_s >= limit_s:
                    client.close()
                elif client.holds_budget and self.budget.has_waiting and idle_s >= STALLED_REQUEST_S:
                    self.complain("%s: closed: it stopped half way through a request", client.peer)
                    client.close()

    # Requests

    def start(self, client: ClientConnection, frame: memoryview) -> Encoded | Waiting | None:
        """Starts a request. Raises MalformedMessageError or DropConnectionError if the connection must be closed."""
        header = decode_request_header(frame)
        api_key, version, correlation_id, client_id, position = header
        known = self._known.get(api_key << 16 | version & 0xFFFF)
        if known is None:
            if api_key >= FIRST_PRIVATE_API_KEY:
                return self._start_private(client, header, frame)
            known = self._find(api_key, version)
            if known is None:
                return self._refuse(header)
        handle, read = known
        request = Request(api_key, version, correlation_id, client_id, read(frame, position), client)
        try:
            answer = handle(self._broker, request)
            if isinstance(answer, bytes | list) or answer is None:
                return answer
            if isinstance(answer, Mapping):
                return encode_response(api_key, version, correlation_id, answer)
        except KafkaError as error:
            return _encode_failure(api_key, version, correlation_id, error)
        except Exception as error:
            error.add_note(_name(header))
            raise
        return Waiting(answer, lambda outcome: _encode(header, outcome), request)

    def _find(self, api_key: int, version: int) -> tuple[Handler, Callable[[memoryview, int], Any]] | None:
        module = api.modules().get(api_key)
        if module is None:
            raise MalformedMessageError(f"there is no API with key {api_key} here (its version was {version})")
        lowest, highest = module.VERSIONS
        if not lowest <= version <= highest:
            return None
        known = module.handle, request_reader(api_key, version)
        self._known[api_key << 16 | version & 0xFFFF] = known
        return known

    def _refuse(self, header: RequestHeader) -> Encoded:
        api_key, version = header.api_key, header.version
        if api_key == api.API_VERSIONS_KEY:
            return unsupported_version(header.correlation_id)
        known = known_versions(api_key)
        if known is None or not known[0] <= version <= known[1]:
            raise MalformedMessageError(f"API key {api_key} has no version {version}")
        error = KafkaError(ErrorCode.unsupported_version, f"version {version} is not offered")
        return _encode_failure(api_key, version, header.correlation_id, error)

    def _start_private(self, client: ClientConnection, header: RequestHeader, frame: memoryview) -> Encoded | Waiting:
        handler = self.private.get(header.api_key)
        if handler is None:
            raise MalformedMessageError(f"there is no API with key {header.api_key} here")
        payload = memoryview(bytes(frame[header.position :]))
        answer = handler(client, payload)
        if isinstance(answer, Awaitable):
            return Waiting(answer, lambda outcome: _encode_private(header, outcome))
        return _encode_private(header, answer)


def _host(peer: str) -> str:
    return peer.rpartition(":")[0]


def _name(header: RequestHeader) -> str:
    return f"in {api_key_map.get(header.api_key, header.api_key)} version {header.version} from {header.client_id!r}"


def _encode(header: RequestHeader, answer: Response | Exception) -> Encoded | None:
    """Encodes the response of a request that waited. Raises an exception again if the response cannot carry it."""
    api_key, version, correlation_id, _, _ = header
    try:
        if isinstance(answer, KafkaError):
            return _encode_failure(api_key, version, correlation_id, answer)
        if isinstance(answer, Exception):
            raise answer
        if answer is None or isinstance(answer, bytes | list):
            return answer
        return encode_response(api_key, version, correlation_id, answer)
    except Exception as error:
        error.add_note(_name(header))
        raise


def _encode_failure(api_key: int, version: int, correlation_id: int, error: KafkaError) -> Encoded:
    """Encodes a failure of the whole request, for APIs whose response has a top-level error code."""
    names = {shape.name for shape in shapes(response_type(api_key, version))}
    if "error_code" not in names:
        raise MalformedMessageError(f"API key {api_key} version {version} failed as a whole: {error}")
    values: dict[str, Any] = {"error_code": error.code}
    if error.message:
        values["error_message"] = error.message
    return encode_response(api_key, version, correlation_id, values)


def _encode_private(header: RequestHeader, parts: Sequence[Part] | Exception) -> Encoded:
    if isinstance(parts, KafkaError):
        raise MalformedMessageError(f"API key {header.api_key} failed as a whole: {parts}")
    if isinstance(parts, Exception):
        raise parts
    size = sum(part.size_bytes if isinstance(part, FileSlice) else len(part) for part in parts)
    return [response_header(header.correlation_id, size, tagged=False), *parts]
