"""One connection to a broker: requests are sent in the order of the calls, responses come back in the same order.

Kafka answers the requests of a connection in order, so a response belongs to the oldest call that waits; its
correlation id must match, or the two sides are out of step and the connection is closed. A timeout closes it too: the
responses behind the one that is late are late as well.

What a failed call means: `NotConnectedError`, it was never sent; `ConnectionLostError`, it was, and its outcome is
unknown.
"""

from __future__ import annotations

import asyncio
import os
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from sexton.client.errors import START_ONE, BadAnswerError, ConnectionLostError, NotConnectedError
from sexton.errors import SextonError
from sexton.ports.disk import Buffer
from sexton.ports.network import HIGH_BACKLOG_BYTES, Connection, Network
from sexton.protocol import messages

DEFAULT_TIMEOUT_MS = 30_000
"""The timeout of Kafka's own clients (`request.timeout.ms`)."""

CONNECT_TIMEOUT_MS = 10_000

ANSWER_BYTES_MAX = 1 << 30
"""A larger size is not a broker's response but the first bytes of some other protocol."""

ANSWER_HEADER_BYTES = 4
"""Size of the response header of a private message: its correlation id."""

CLIENT_ID = "sexton"

_SIZE = struct.Struct(">i")
_HEADER_V1 = struct.Struct(">hhih")


class Rpc:
    """Created by `connect`. Any number of tasks may call at once."""

    def __init__(self, connection: Connection, client_id: str, timeout_ms: int) -> None:
        self._connection = connection
        self._client_id = client_id
        self._timeout_ms = timeout_ms
        self._loop = asyncio.get_running_loop()
        self._correlation_id = 0
        self._waiting: deque[tuple[int, asyncio.Future[memoryview]]] = deque()
        self._room = asyncio.Event()
        self._size = bytearray()
        self._frame: bytearray | None = None
        self._filled_bytes = 0
        self._end: Exception | None = None

    @classmethod
    async def connect(
        cls,
        network: Network,
        host: str,
        port: int,
        *,
        client_id: str = CLIENT_ID,
        timeout_ms: int = DEFAULT_TIMEOUT_MS,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    ) -> Rpc:
        """Raises NotConnectedError. `timeout_ms` applies to each call that passes none."""
        made: list[Rpc] = []

        def receiver(connection: Connection) -> Rpc:
            made.append(cls(connection, client_id, timeout_ms))
            return made[0]

        try:
            async with asyncio.timeout(connect_timeout_ms / 1000):
                await network.connect(host, port, receiver)
        except TimeoutError:
            what = f"no answer within {connect_timeout_ms / 1000:g} s"
            raise NotConnectedError(what, f"{host}:{port}", START_ONE) from None
        except OSError as error:
            what = os.strerror(error.errno).lower() if error.errno and error.errno > 0 else str(error)
            raise NotConnectedError(what, f"{host}:{port}", START_ONE) from error
        return made[0]

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def is_closed(self) -> bool:
        return self._end is not None

    @property
    def waiting_count(self) -> int:
        """Number of requests that wait for their response."""
        return len(self._waiting)

    async def call(self, api_key: int, version: int, body: Mapping[str, Any], *, timeout_ms: int | None = None) -> Any:
        """Returns the response as kio's entity of that version. A field that is missing in `body` gets its default."""
        await self._wait_for_room()
        request = messages.encode_request(api_key, version, self._next_id(), self._client_id, body)
        frame = await self._exchange([request], timeout_ms)
        try:
            return messages.decode_response(api_key, version, frame)[1]
        except messages.MalformedMessageError as error:
            failure = BadAnswerError(f"cannot read its answer to request {api_key} v{version}: {error}", self.peer)
            self._give_up(failure)
            raise failure from error

    async def call_raw(
        self, api_key: int, parts: Sequence[Buffer], *, version: int = 0, timeout_ms: int | None = None
    ) -> memoryview:
        """Sends a private message, not one of Kafka's: header v1, then the parts as they are. Returns the response
        without its header."""
        await self._wait_for_room()
        return (await self.start_raw(api_key, parts, version=version, timeout_ms=timeout_ms))[ANSWER_HEADER_BYTES:]

    def start_raw(
        self, api_key: int, parts: Sequence[Buffer], *, version: int = 0, timeout_ms: int | None = None
    ) -> asyncio.Future[memoryview]:
        """Like `call_raw`, but needs no task, and the response still has its header (ANSWER_HEADER_BYTES). It does not
        wait until the other side has read what was sent before: only for messages that are small and few."""
        if self._end is not None:
            raise NotConnectedError("the connection has ended", self.peer) from self._end
        client_id = self._client_id.encode()
        header = _HEADER_V1.pack(api_key, version, self._next_id(), len(client_id)) + client_id
        size = _SIZE.pack(len(header) + sum(len(part) for part in parts))
        return self._exchange([size + header, *parts], timeout_ms)

    async def tell(self, api_key: int, version: int, body: Mapping[str, Any]) -> None:
        """Sends a request that has no response: Produce with acks=0."""
        await self._wait_for_room()
        self._connection.send([messages.encode_request(api_key, version, self._next_id(), self._client_id, body)])

    def close(self) -> None:
        """Waiting calls fail with ConnectionLostError. May be called twice."""
        self._give_up(ConnectionLostError("closed while the answer was outstanding", self.peer))

    # Sending

    async def _wait_for_room(self) -> None:
        while self._end is None and self._connection.backlog_bytes > HIGH_BACKLOG_BYTES:
            self._room.clear()
            await self._room.wait()
        if self._end is not None:
            raise NotConnectedError("the connection has ended", self.peer) from self._end

    def _next_id(self) -> int:
        self._correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        return self._correlation_id

    def _exchange(self, parts: Sequence[Buffer], timeout_ms: int | None) -> asyncio.Future[memoryview]:
        limit_ms = self._timeout_ms if timeout_ms is None else timeout_ms
        answer: asyncio.Future[memoryview] = self._loop.create_future()
        self._waiting.append((self._correlation_id, answer))
        self._connection.send(parts)
        timer = self._loop.call_later(limit_ms / 1000, self._too_late, answer, limit_ms)
        answer.add_done_callback(lambda _: timer.cancel())
        return answer

    def _too_late(self, answer: asyncio.Future[memoryview], limit_ms: int) -> None:
        if not answer.done():
            self._give_up(ConnectionLostError(f"no answer within {limit_ms / 1000:g} s", self.peer))

    # Receiving

    def received(self, data: memoryview) -> None:
        """Bytes go straight into the frame's own buffer, which the response then keeps."""
        position = 0
        while position < len(data) and self._end is None:
            if self._frame is None:
                position += self._take_size(data[position:])
                continue
            part = data[position : position + len(self._frame) - self._filled_bytes]
            self._frame[self._filled_bytes : self._filled_bytes + len(part)] = part
            self._filled_bytes += len(part)
            position += len(part)
            if self._filled_bytes == len(self._frame):
                frame, self._frame = self._frame, None
                self._answered(frame)

    def _take_size(self, data: memoryview) -> int:
        part = data[: 4 - len(self._size)]
        self._size += part
        if len(self._size) == 4:
            (size_bytes,) = _SIZE.unpack(self._size)
            self._size.clear()
            if not 4 <= size_bytes <= ANSWER_BYTES_MAX:
                what = f"announces an answer of {size_bytes:,} bytes: this is no Kafka broker, or it wants TLS"
                self._give_up(BadAnswerError(what, self.peer, "Check host and port"))
            else:
                self._frame = bytearray(size_bytes)
                self._filled_bytes = 0
        return len(part)

    def _answered(self, frame: bytearray) -> None:
        (correlation_id,) = _SIZE.unpack_from(frame)
        if not self._waiting or self._waiting[0][0] != correlation_id:
            self._give_up(BadAnswerError(f"answers request {correlation_id}, which is not the next one", self.peer))
            return
        _, answer = self._waiting.popleft()
        if not answer.done():
            answer.set_result(memoryview(frame))

    def writable(self) -> None:
        self._room.set()

    def closed(self, error: Exception | None) -> None:
        if isinstance(error, SextonError):
            self._give_up(ConnectionLostError(error.what, self.peer, error.remedy))
            return
        what = f"the connection was lost: {error}" if error is not None else "the other side closed the connection"
        self._give_up(ConnectionLostError(what, self.peer))

    # Ending

    def _give_up(self, error: ConnectionLostError | BadAnswerError) -> None:
        if self._end is not None:
            return
        self._end = error
        self._room.set()
        self._connection.close()
        waiting, self._waiting = self._waiting, deque()
        for _, answer in waiting:
            if not answer.done():
                answer.set_exception(type(error)(error.what, error.place, error.remedy))
