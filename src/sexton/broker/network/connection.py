"""One client's connection: receives requests, sends responses in the same order.

Requests that arrived together are all started before anything is sent, and the responses that are ready then are sent
together. A request that must wait holds back the responses behind it, not the work. In four cases the connection stops
reading, so that TCP flow control slows the client down and the broker's memory stays bounded:

- too many of its requests wait (IN_FLIGHT_MAX);
- the client does not read its responses (the backlog is above HIGH_BACKLOG_BYTES);
- a request is too large for what is left of the broker's memory for requests (`Budget`);
- it has had its turn (REQUESTS_PER_TURN_MAX): other connections go first.

At most one chunk of received but unprocessed bytes is kept.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from sexton.broker.network.request import DropConnectionError, Encoded, Request
from sexton.broker.observe.traffic import ApiTraffic
from sexton.ports.network import HIGH_BACKLOG_BYTES, Connection, Part
from sexton.protocol.frames import FrameReader, FrameSizeError
from sexton.protocol.messages import MalformedMessageError

if TYPE_CHECKING:
    from sexton.broker.network.dispatch import Dispatch

IN_FLIGHT_MAX = 100
"""Maximum number of requests of one connection that wait for something. Kafka's own clients send five at most."""

REQUESTS_PER_TURN_MAX = 256
SEND_BYTES_MAX = 1 << 17
"""Small responses are gathered up to this size before they are handed to the network."""


class _Slot:
    """One response's place in the queue."""

    __slots__ = ("api", "arrived_s", "encode", "future", "held_bytes", "is_ready", "parts")

    def __init__(self, api: ApiTraffic, arrived_s: float) -> None:
        self.api = api
        self.arrived_s = arrived_s
        self.is_ready = False
        self.parts: Encoded | None = None
        self.held_bytes = 0
        self.future: asyncio.Future[Any] | None = None
        self.encode: Callable[[Any], Encoded | None] | None = None


class Waiting:
    """Returned by `Dispatch.start` if the response is not ready yet."""

    __slots__ = ("awaitable", "encode", "request")

    def __init__(
        self, awaitable: Awaitable[Any], encode: Callable[[Any], Encoded | None], request: Request | None = None
    ) -> None:
        self.awaitable = awaitable
        self.request = request
        """The request, if its body may be released before the response is ready."""
        self.encode = encode
        """Encodes the result as a frame. If the awaitable raised, it is called with the exception, which it may raise
        again."""


class ClientConnection:
    """Implements `ports.network.Receiver` on the broker's side. API modules see it as `request.connection`."""

    def __init__(self, connection: Connection, dispatch: Dispatch, max_request_bytes: int) -> None:
        self.dispatch = dispatch
        self.number = 0
        """Number of this connection, in the order in which the broker accepted its connections."""
        self.last_active_s = dispatch.loop.time()
        self.is_closed = False
        self._connection = connection
        self._frames = FrameReader(max_request_bytes)
        self._slots: deque[_Slot] = deque()
        self._out: list[Part] = []
        self._out_bytes = 0
        self._granted_bytes = 0
        """Bytes of the budget that are held for the frame that is being received."""
        self._is_short_of_budget = False
        self._is_paused = False
        self._is_due = False
        """Whether its next turn is scheduled."""
        self._seen_backlog_bytes = 0
        self._answered: list[ApiTraffic] = []
        """APIs of the requests of this turn whose responses are sent at its end."""

    @property
    def peer(self) -> str:
        return self._connection.peer

    @property
    def local(self) -> str:
        return self._connection.local

    def close(self) -> None:
        """Responses that have not been sent yet are dropped. Work that its requests have started goes on."""
        self.is_closed = True
        self._connection.close()

    # Receiver

    def received(self, data: memoryview) -> None:
        if self.is_closed:
            return
        self.last_active_s = self.dispatch.loop.time()
        self._frames.feed(data)
        self._work()

    def writable(self) -> None:
        self.go_on()

    def closed(self, error: Exception | None) -> None:
        self.is_closed = True
        budget = self.dispatch.budget
        budget.forget(self)
        budget.give_back(self._granted_bytes + sum(slot.held_bytes for slot in self._slots))
        self._granted_bytes = 0
        for slot in self._slots:
            slot.held_bytes = 0
            # A task is a request that runs to its end even if its connection is closed.
            if slot.future is not None and not isinstance(slot.future, asyncio.Task):
                slot.future.cancel()
        self._slots.clear()
        self.dispatch.closed(self)

    # Reading

    def _is_blocked(self) -> bool:
        return (
            self._is_short_of_budget
            or self.dispatch.is_held
            or len(self._slots) >= IN_FLIGHT_MAX
            or self._connection.backlog_bytes + self._out_bytes > HIGH_BACKLOG_BYTES
        )

    def _work(self) -> None:
        """Starts the requests that have been received, until none is left or reading must pause."""
        start = self.dispatch.start
        frames = self._frames
        left = REQUESTS_PER_TURN_MAX
        try:
            while not self.is_closed:
                if self._is_blocked():
                    self._pause()
                    break
                if left == 0:
                    self._pause()
                    self._take_turn_later()
                    break
                frame = frames.next()
                if frame is None:
                    break
                left -= 1
                self._started(start(self, frame), frame)
            self._account_for_partial()
        except FrameSizeError as error:
            self.dispatch.complain("%s: closed: it announces %s", self.peer, error)
            self._close_malformed()
        except (MalformedMessageError, DropConnectionError) as error:
            self.dispatch.complain("%s: closed: %s", self.peer, error)
            self._close_malformed()
        except Exception as bug:
            self.dispatch.survived(bug, self.peer)
            self.close()
        if self._out:
            self._send_out()
        if self._answered:
            self._count_answered()

    def _close_malformed(self) -> None:
        self.dispatch.traffic.malformed_count += 1
        self.close()

    def _count_answered(self) -> None:
        answered, self._answered = self._answered, []
        seconds = self.dispatch.loop.time() - self.last_active_s
        for api in answered:
            api.answered(seconds)

    def _started(self, result: Encoded | Waiting | None, frame: memoryview) -> None:
        api = self.dispatch.traffic.of(frame[0] << 8 | frame[1])
        api.requests_count += 1
        api.request_bytes += len(frame)
        if isinstance(result, Waiting):
            self._wait_for(result, len(frame), api)
            return
        self._answered.append(api)
        if result is None:
            return
        api.response_bytes += _size_bytes(result)
        if self._slots:
            slot = _Slot(api, self.last_active_s)
            slot.parts = result
            slot.is_ready = True
            self._slots.append(slot)
        else:
            self._put_out(result)

    def _wait_for(self, waiting: Waiting, size_bytes: int, api: ApiTraffic) -> None:
        slot = _Slot(api, self.last_active_s)
        slot.encode = waiting.encode
        slot.future = asyncio.ensure_future(waiting.awaitable)
        if isinstance(slot.future, asyncio.Task):  # a task keeps the request's body; a bare future does not
            slot.held_bytes = size_bytes
            self.dispatch.budget.take_over(size_bytes)
            self.dispatch.keep(slot.future)
            if waiting.request is not None:
                waiting.request.on_released = lambda: self._give_back(slot)
        self._slots.append(slot)
        slot.future.add_done_callback(lambda future: self._finished(slot, future))

    def _account_for_partial(self) -> None:
        """A frame that spans chunks is collected in memory: budget for its whole size is taken before more of it is
        read."""
        claimed = self._frames.claimed_bytes
        if claimed == self._granted_bytes or self._is_short_of_budget:
            return
        budget = self.dispatch.budget
        if self._granted_bytes:
            granted, self._granted_bytes = self._granted_bytes, 0
            budget.give_back(granted)
        if claimed:
            if budget.take(self, claimed, lambda: self._budget_granted(claimed)):
                self._granted_bytes = claimed
            else:
                self._is_short_of_budget = True
                self._pause()

    def _budget_granted(self, size_bytes: int) -> None:
        self._granted_bytes = size_bytes
        self._is_short_of_budget = False
        self._take_turn_later()

    def _pause(self) -> None:
        self._frames.keep_rest()
        if not self._is_paused:
            self._is_paused = True
            self._connection.pause_reading()

    def _take_turn_later(self) -> None:
        if not self._is_due:
            self._is_due = True
            self.dispatch.loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._is_due = False
        self.go_on()

    def go_on(self) -> None:
        """Resumes reading if no reason to pause remains."""
        if not self._is_paused or self.is_closed or self._is_due or self._is_blocked():
            return
        self._is_paused = False
        self._connection.resume_reading()
        if self._frames.has_rest:
            self._work()

    # Responding

    def _finished(self, slot: _Slot, future: asyncio.Future[Any]) -> None:
        if self.is_closed:
            if not future.cancelled():
                future.exception()  # retrieved so that asyncio does not warn
            return
        try:
            slot.parts = self._outcome(slot, future)
        except (MalformedMessageError, DropConnectionError) as error:
            self.dispatch.complain("%s: closed: %s", self.peer, error)
            self.close()
            return
        except asyncio.CancelledError:
            self.dispatch.complain("%s: closed: its request was cancelled", self.peer)
            self.close()
            return
        except Exception as bug:
            self.dispatch.survived(bug, self.peer)
            self.close()
            return
        slot.is_ready = True
        slot.future = None
        slot.api.answered(self.dispatch.loop.time() - slot.arrived_s)
        if slot.parts is not None:
            slot.api.response_bytes += _size_bytes(slot.parts)
        self._give_back(slot)
        slots = self._slots
        while slots and slots[0].is_ready:
            parts = slots.popleft().parts
            if parts is not None:
                self._put_out(parts)
        if self._out:
            self._send_out()
        if self._is_paused:
            self.go_on()

    def _give_back(self, slot: _Slot) -> None:
        if slot.held_bytes:
            held, slot.held_bytes = slot.held_bytes, 0
            self.dispatch.budget.give_back(held)

    @staticmethod
    def _outcome(slot: _Slot, future: asyncio.Future[Any]) -> Encoded | None:
        assert slot.encode is not None
        error = future.exception()
        return slot.encode(future.result() if error is None else error)

    def _put_out(self, parts: Encoded) -> None:
        if isinstance(parts, bytes):
            self._out.append(parts)
            self._out_bytes += len(parts)
            if self._out_bytes >= SEND_BYTES_MAX:
                self._send_out()
        else:
            self._out += parts
            self._send_out()

    def _send_out(self) -> None:
        out, self._out = self._out, []
        self._out_bytes = 0
        if not self.is_closed:
            self._connection.send(out if len(out) < 3 or not _is_all_bytes(out) else [b"".join(out)])  # type: ignore[arg-type]

    # Used by the dispatcher's sweep

    def idle_s(self, now_s: float) -> float:
        """Seconds since bytes last moved in either direction, or a request of this connection was in progress."""
        backlog = self._connection.backlog_bytes
        if backlog != self._seen_backlog_bytes or (self._slots and not backlog):
            self._seen_backlog_bytes = backlog
            self.last_active_s = now_s
        return now_s - self.last_active_s

    @property
    def holds_budget(self) -> bool:
        return self._granted_bytes > 0


def _size_bytes(answer: Encoded) -> int:
    """The first four bytes of a response in several parts are the size of the rest."""
    if isinstance(answer, bytes):
        return len(answer)
    return 4 + int.from_bytes(answer[0][:4], "big")  # type: ignore[index]


def _is_all_bytes(parts: list[Part]) -> bool:
    return all(type(part) is bytes for part in parts)
