"""One connection of the simulated network: its two ends, and the bytes between them.

What an end has yet to send waits in its backlog; what has left is on its way to the other end, each chunk with the time
at which it arrives. `network.py` says what may happen to it there.
"""

from __future__ import annotations

import errno
import os
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sexton.ports.disk import FileSlice
from sexton.ports.network import HIGH_BACKLOG_BYTES, LOW_BACKLOG_BYTES, Part, Receiver
from sexton.simulate.loop import NS, Process

if TYPE_CHECKING:
    from sexton.simulate.network import Fabric, Host

WINDOW_BYTES = 1 << 20
"""What may be on its way to a receiver that does not read. Beyond it the sender's backlog grows."""

CHUNK_BYTES_MAX = 1 << 18


class Nobody:
    def received(self, data: memoryview) -> None:
        """Bytes for a connection whose caller has gone."""

    def writable(self) -> None:
        """Nobody writes."""

    def closed(self, error: Exception | None) -> None:
        """Nobody asks."""


class End:
    """One side of a connection: `ports.network.Connection`. Holds what it has yet to send and what is coming."""

    def __init__(self, fabric: Fabric, host: Host, process: Process, port: int) -> None:
        self._fabric = fabric
        self.host = host
        self.process = process
        self.receiver: Receiver | None = None
        self._port = port
        self.other: End
        self.ended = False
        self._broken = False
        """Nothing leaves any more; the reset is on its way."""
        self._reading_paused = False
        self._backlog: deque[Part] = deque()
        self._backlog_bytes = 0
        self._was_above_high = False
        self._departs_ns = 0
        self._pump_scheduled = False
        self._incoming: deque[tuple[int, bytes | None]] = deque()
        """Arrival time and bytes; None is the other side's orderly end."""
        self.unread_bytes = 0
        self.last_arrival_ns = 0
        self._stalled = False

    def join(self, other: End) -> None:
        self.other, other.other = other, self
        self.host.ends[self] = other.host.ends[other] = None

    @property
    def peer(self) -> str:
        return f"{self.other.host.name}:{self.other._port}"

    @property
    def local(self) -> str:
        return f"{self.host.name}:{self._port}"

    # Sending

    @property
    def backlog_bytes(self) -> int:
        return self._backlog_bytes

    def send(self, parts: Sequence[Part]) -> None:
        if self.ended or not self.process.alive:
            return
        plain: list[bytes] = []
        for part in parts:
            if isinstance(part, FileSlice):
                self._queue(b"".join(plain))
                plain.clear()
                self._queue(part)
            else:
                plain.append(bytes(part))
        self._queue(b"".join(plain))
        if self._backlog_bytes > HIGH_BACKLOG_BYTES:
            self._was_above_high = True
        if not self._pump_scheduled:
            self._pump()

    def _queue(self, part: Part) -> None:
        size_bytes = part.size_bytes if isinstance(part, FileSlice) else len(part)
        if size_bytes:
            self._backlog.append(part)
            self._backlog_bytes += size_bytes

    def _pump(self) -> None:
        """Lets leave what the link's speed and the other side's window allow."""
        self._pump_scheduled = False
        loop = self._fabric.loop
        while self._backlog and not self.ended and self.other.unread_bytes < WINDOW_BYTES:
            if self._departs_ns > loop.now_ns:
                self._pump_scheduled = True
                loop.call_for(self.process, self._departs_ns - loop.now_ns, self._pump)
                break
            self._depart(self._next_chunk())
        if self._was_above_high and self._backlog_bytes <= LOW_BACKLOG_BYTES and not self.ended:
            self._was_above_high = False
            loop.call_for(self.process, 0, self._tell_writable)

    def _next_chunk(self) -> bytes:
        """Everything that is queued leaves together, unless the seed splits it. A slice of a file is read only now."""
        rng, weather = self._fabric.rng, self._fabric.weather
        room_bytes = CHUNK_BYTES_MAX
        if rng.random() < weather.split_probability:
            room_bytes = rng.randrange(1, max(2, min(CHUNK_BYTES_MAX, self._backlog_bytes)))
        taken: list[bytes] = []
        while self._backlog and room_bytes > 0:
            part = self._backlog.popleft()
            data, rest = _take(part, room_bytes)
            if rest is not None:
                self._backlog.appendleft(rest)
            if data is None:  # less can be sent than was promised: there is no way to go on
                self._break_now()
                break
            taken.append(data)
            room_bytes -= len(data)
        chunk = taken[0] if len(taken) == 1 else b"".join(taken)
        self._backlog_bytes -= len(chunk)
        return chunk

    def _depart(self, chunk: bytes) -> None:
        fabric, rng = self._fabric, self._fabric.rng
        if not chunk or self._broken:
            return
        fabric.bytes_count += len(chunk)
        speed = min((host.bytes_per_s for host in (self.host, self.other.host) if host.bytes_per_s), default=None)
        if speed:
            self._departs_ns = fabric.loop.now_ns + len(chunk) * NS // speed
        if not self.other.process.alive:
            self._sent_to_the_dead()
        elif fabric.weather.break_probability and rng.random() < fabric.weather.break_probability:
            self.other.arrives(chunk[: rng.randrange(len(chunk) + 1)])
            self._break_now()
        else:
            self.other.arrives(chunk)

    def _sent_to_the_dead(self) -> None:
        """A kernel that knows nothing of the connection says so. A machine that is off says nothing."""
        fabric = self._fabric
        if self.other.host.is_up:
            round_trip_ns = fabric.delay_ns(self.host, self.other.host) + fabric.delay_ns(self.other.host, self.host)
            self.reset_later(round_trip_ns)
        else:
            self._stall()

    def _break_now(self) -> None:
        fabric = self._fabric
        self._broken = self.other._broken = True
        self.reset_later(fabric.delay_ns(self.host, self.other.host))
        self.other.reset_later(2 * fabric.delay_ns(self.host, self.other.host))

    def _tell_writable(self) -> None:
        if not self.ended and self.receiver is not None:
            self.receiver.writable()

    # Receiving

    def arrives(self, chunk: bytes | None) -> None:
        """Under way to this end. One timer per chunk; the first to run takes all that has arrived by then."""
        loop = self._fabric.loop
        delay_ns = self._fabric.delay_ns(self.other.host, self.host)
        self.last_arrival_ns = max(self.last_arrival_ns, loop.now_ns + delay_ns)
        self._incoming.append((self.last_arrival_ns, chunk))
        self.unread_bytes += len(chunk) if chunk is not None else 0
        loop.call_for(self.process, self.last_arrival_ns - loop.now_ns, self._take_arrived)

    def _take_arrived(self) -> None:
        if not self._incoming or self._reading_paused:
            return
        fabric = self._fabric
        if fabric.is_cut(self.other.host.name, self.host.name):
            self.other._stall()
            return
        if self.ended:
            self._incoming.clear()
            self._answer_with_reset()
            return
        now_ns = fabric.loop.now_ns
        chunks: list[bytes] = []
        has_ended = False
        while self._incoming and self._incoming[0][0] <= now_ns:
            chunk = self._incoming.popleft()[1]
            if chunk is None:
                has_ended = True
            else:
                chunks.append(chunk)
        if chunks:
            self._hand_over(chunks[0] if len(chunks) == 1 else b"".join(chunks))
        if has_ended and not self.ended:
            self._finish(None)

    def _hand_over(self, data: bytes) -> None:
        fabric = self._fabric
        self.unread_bytes -= len(data)
        if fabric.on_delivery is not None:
            fabric.on_delivery(self.other.local, self.local, data)
        other = self.other
        if other._backlog and not other._pump_scheduled and other.process.alive:
            other._pump_scheduled = True
            fabric.loop.call_for(other.process, fabric.delay_ns(self.host, other.host), other._pump)
        assert self.receiver is not None, "bytes came before the connection was accepted"
        self.receiver.received(memoryview(data))

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        if self._reading_paused:
            self._reading_paused = False
            self._fabric.loop.call_for(self.process, 0, self._take_arrived)

    # Ends

    def close(self) -> None:
        if self.ended or not self.process.alive:
            return
        self.ended = True
        if not self.other.ended:
            if self._backlog:  # the stream is incomplete: this is no orderly end
                self.other.reset_later(self._fabric.delay_ns(self.host, self.other.host))
            elif self.other.process.alive:
                self.other.arrives(None)
        self._fabric.loop.call_for(self.process, 0, self._finish, None)

    def reset_later(self, delay_ns: int, number: int = errno.ECONNRESET) -> None:
        if not self.ended and self.process.alive:
            self._fabric.loop.call_for(self.process, delay_ns, self._reset, number)

    def _reset(self, number: int) -> None:
        cut = self._fabric.is_cut(self.other.host.name, self.host.name)
        if not self.ended and not (cut and number == errno.ECONNRESET):
            self._finish(OSError(number, os.strerror(number)))

    def _answer_with_reset(self) -> None:
        self.other.reset_later(self._fabric.delay_ns(self.host, self.other.host))

    def _finish(self, error: Exception | None) -> None:
        self.ended = True
        self._backlog.clear()
        self._backlog_bytes = 0
        self.host.ends.pop(self, None)
        receiver, self.receiver = self.receiver, Nobody()
        if receiver is not None:
            receiver.closed(error)

    def vanish(self, told: bool) -> None:
        """Its process was killed."""
        self.ended = True
        self.host.ends.pop(self, None)
        other = self.other
        if told:
            other.reset_later(self._fabric.delay_ns(self.host, other.host))
        elif other._backlog or self._incoming:
            other._stall()

    # Cuts

    def _stall(self) -> None:
        """Nobody acknowledges what this end sends. If that lasts, it gives up."""
        if not self._stalled and not self.ended and self.process.alive:
            self._stalled = True
            fabric = self._fabric
            fabric.loop.call_for(fabric.loop.world, fabric.give_up_ns(), self._give_up)

    def _give_up(self) -> None:
        if self._stalled:
            self.reset_later(0, errno.ETIMEDOUT)

    def retransmit(self) -> None:
        """The way to this end is open again: what was held back comes, with the sender's doubled timers."""
        self.other._stalled = False
        if self._incoming:
            loop, rng = self._fabric.loop, self._fabric.rng
            self.last_arrival_ns = max(self.last_arrival_ns, loop.now_ns + rng.randrange(NS))
            self._incoming = deque((max(when, self.last_arrival_ns), chunk) for when, chunk in self._incoming)
            loop.call_for(self.process, self.last_arrival_ns - loop.now_ns, self._take_arrived)


def _take(part: Part, room_bytes: int) -> tuple[bytes | None, Part | None]:
    """The first bytes of a part, and what is left of it. (None, None) if the file has become too short, or cannot be
    read."""
    if isinstance(part, FileSlice):
        size_bytes = min(part.size_bytes, room_bytes)
        try:
            data = part.read(0, size_bytes)
        except OSError:
            return None, None
        left_bytes = part.size_bytes - size_bytes
        return data, FileSlice(part.file, part.position + size_bytes, left_bytes) if left_bytes else None
    if len(part) <= room_bytes:
        return bytes(part), None
    return bytes(part[:room_bytes]), part[room_bytes:]
