"""The network between simulated hosts: delay, slow links, broken connections, one-way and two-way partitions.

What TCP promises is kept (bytes in order, each once, until the connection ends), and nothing more:

- Bytes arrive in chunks that need not be those that were sent, after a delay drawn from the seed.
- A connection may break at any send. Then some part of what was under way arrives and the rest does not; both sides
  learn of it, each in its own time.
- A cut from one host to another holds bytes back. If it lasts, the sender gives the connection up, and the other side
  knows nothing of that before it sends something itself (a half-open connection).
- A killed process's connections are reset by its host's kernel. After a power loss nobody is told: a peer learns it by
  sending to the host once it is up again, or by nobody acknowledging what it sends.
- A paused process still has a kernel: connecting to it succeeds, and bytes pile up until the window is full.
"""

from __future__ import annotations

import errno
import os
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sexton.ports.disk import FileSlice
from sexton.ports.network import HIGH_BACKLOG_BYTES, LOW_BACKLOG_BYTES, Connection, Listener, Part, Receiver
from sexton.simulate.loop import MS, NS, Process, SimulatedLoop

if TYPE_CHECKING:
    import asyncio

WINDOW_BYTES = 1 << 20
"""What may be on its way to a receiver that does not read. Beyond it the sender's backlog grows."""

CHUNK_BYTES_MAX = 1 << 18

SYN_RETRIES_S = (1, 2, 4, 8, 16)
"""How long a connection attempt that gets no answer waits before it tries again; then it fails."""

UNREACHABLE_AFTER_NS = 3 * NS


@dataclass(slots=True)
class Weather:
    """How the network behaves while nothing is cut. Probabilities are per chunk sent."""

    latency_ns: int = 150_000
    jitter_ns: int = 300_000
    straggler_probability: float = 0.01
    straggler_ns: int = 40 * MS
    split_probability: float = 0.05
    break_probability: float = 0.0
    give_up_ns_min: int = 5 * NS
    give_up_ns_max: int = 40 * NS


class Host:
    """A machine: its name in the network, its listeners and its ends of connections."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_up = True
        self.slowness = 1
        """Multiplies the delay of all that goes in or out."""
        self.bytes_per_s: int | None = None
        self.listeners: dict[int, _Listener] = {}
        self.ends: dict[_End, None] = {}
        self._next_port = 40_000

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port


class Fabric:
    """All hosts and what is between them."""

    def __init__(self, loop: SimulatedLoop, rng: random.Random, weather: Weather | None = None) -> None:
        self.loop = loop
        self.rng = rng
        self.weather = weather or Weather()
        self.hosts: dict[str, Host] = {}
        self._cuts: dict[tuple[str, str], int] = {}
        self.on_delivery: Callable[[str, str, bytes], None] | None = None
        self.bytes_count = 0

    def add_host(self, name: str) -> Host:
        host = Host(name)
        self.hosts[name] = host
        return host

    def of(self, process: Process, host_name: str) -> SimulatedNetwork:
        """The network port of a process that runs on a host."""
        return SimulatedNetwork(self, self.hosts[host_name], process)

    # Partitions

    def cut(self, source: str, target: str) -> None:
        """From now on nothing gets from source to target. Cuts are counted: each needs its own `heal`."""
        self._cuts[source, target] = self._cuts.get((source, target), 0) + 1

    def heal(self, source: str, target: str) -> None:
        count = self._cuts.pop((source, target)) - 1
        if count:
            self._cuts[source, target] = count
            return
        for end in list(self.hosts[target].ends) if target in self.hosts else ():
            if end.other.host.name == source:
                end.retransmit()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    # Processes that end

    def process_killed(self, process: Process, host: Host, power_lost: bool) -> None:
        """The loop has killed it already. What its peers notice depends on whether its kernel is still there."""
        for port in [port for port, listener in host.listeners.items() if listener.process is process]:
            del host.listeners[port]
        for end in [end for end in host.ends if end.process is process]:
            end.vanish(told=not power_lost)

    # Delay

    def delay_ns(self, source: Host, target: Host) -> int:
        weather = self.weather
        draw = self.rng.random()
        ns = weather.latency_ns + int(draw * weather.jitter_ns)
        if weather.straggler_probability and self.rng.random() < weather.straggler_probability:
            ns += int(draw * weather.straggler_ns)
        return ns * max(source.slowness, target.slowness)

    def give_up_ns(self) -> int:
        return self.rng.randrange(self.weather.give_up_ns_min, self.weather.give_up_ns_max)


class SimulatedNetwork:
    """`ports.network.Network` for one process."""

    def __init__(self, fabric: Fabric, host: Host, process: Process) -> None:
        self._fabric = fabric
        self._host = host
        self._process = process

    async def listen(self, host: str, port: int, accept: Callable[[Connection], Receiver]) -> Listener:
        port = port or self._host.free_port()
        if port in self._host.listeners:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = _Listener(self._host, port, self._process, accept)
        self._host.listeners[port] = listener
        return listener

    async def connect(self, host: str, port: int, receiver: Callable[[Connection], Receiver]) -> Connection:
        fabric = self._fabric
        target = self._host if host in ("localhost", "127.0.0.1") else fabric.hosts.get(host)
        if target is None:
            raise OSError(errno.EHOSTUNREACH, f"no host is named {host}")
        answer: asyncio.Future[Connection] = fabric.loop.create_future()
        attempt = _Attempt(fabric, self._process, self._host, target, port, receiver, answer)
        fabric.loop.call_for(fabric.loop.world, fabric.delay_ns(self._host, target), attempt.arrive, 0)
        return await answer


class _Listener:
    def __init__(self, host: Host, port: int, process: Process, accept: Callable[[Connection], Receiver]) -> None:
        self._host = host
        self._port = port
        self.process = process
        self._accept = accept

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        if self.process.alive and self._host.listeners.get(self._port) is self:
            del self._host.listeners[self._port]

    def accept(self, end: _End) -> None:
        end.receiver = self._accept(end)


@dataclass(slots=True)
class _Attempt:
    """A connection that is being made. Its steps run as the world: kernels answer also for paused processes."""

    fabric: Fabric
    process: Process
    source: Host
    target: Host
    port: int
    receiver: Callable[[Connection], Receiver]
    answer: asyncio.Future[Connection]

    def arrive(self, tries: int) -> None:
        fabric, loop = self.fabric, self.fabric.loop
        if self.answer.done() or not self.process.alive:
            return
        there, back = (self.source.name, self.target.name), (self.target.name, self.source.name)
        if fabric.is_cut(*there) or fabric.is_cut(*back) or not self.target.is_up:
            if tries >= len(SYN_RETRIES_S):
                self._fail(errno.ETIMEDOUT, 0)
            elif not self.target.is_up and tries > 0 and fabric.rng.random() < 0.5:
                self._fail(errno.EHOSTUNREACH, UNREACHABLE_AFTER_NS)
            else:
                loop.call_for(loop.world, SYN_RETRIES_S[tries] * NS, self.arrive, tries + 1)
            return
        back_ns = fabric.delay_ns(self.target, self.source)
        listener = self.target.listeners.get(self.port)
        if listener is None:
            self._fail(errno.ECONNREFUSED, back_ns)
            return
        ours = _End(fabric, self.source, self.process, self.source.free_port())
        theirs = _End(fabric, self.target, listener.process, self.port)
        ours.join(theirs)
        ours.last_arrival_ns = loop.now_ns + back_ns
        loop.call_for(listener.process, 0, listener.accept, theirs)
        loop.call_for(self.process, back_ns, self._established, ours)

    def _established(self, end: _End) -> None:
        if self.answer.done():  # nobody waits any more
            end.receiver = _Nobody()
            end.close()
            return
        end.receiver = self.receiver(end)
        self.answer.set_result(end)

    def _fail(self, number: int, delay_ns: int) -> None:
        self.fabric.loop.call_for(self.process, delay_ns, self._tell_failure, number)

    def _tell_failure(self, number: int) -> None:
        if not self.answer.done():
            self.answer.set_exception(OSError(number, os.strerror(number)))


class _Nobody:
    def received(self, data: memoryview) -> None:
        """Bytes for a connection whose caller has gone."""

    def writable(self) -> None:
        """Nobody writes."""

    def closed(self, error: Exception | None) -> None:
        """Nobody asks."""


class _End:
    """One side of a connection: `ports.network.Connection`. Holds what it has yet to send and what is coming."""

    def __init__(self, fabric: Fabric, host: Host, process: Process, port: int) -> None:
        self._fabric = fabric
        self.host = host
        self.process = process
        self.receiver: Receiver | None = None
        self._port = port
        self.other: _End
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

    def join(self, other: _End) -> None:
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
            if data is None:  # the file is shorter than was promised: there is no way to go on
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
        receiver, self.receiver = self.receiver, _Nobody()
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
    """The first bytes of a part, and what is left of it. (None, None) if the file has become too short."""
    if isinstance(part, FileSlice):
        size_bytes = min(part.size_bytes, room_bytes)
        data = part.file.read(part.position, size_bytes)
        if len(data) < size_bytes:
            return None, None
        left_bytes = part.size_bytes - size_bytes
        return data, FileSlice(part.file, part.position + size_bytes, left_bytes) if left_bytes else None
    if len(part) <= room_bytes:
        return bytes(part), None
    return bytes(part[:room_bytes]), part[room_bytes:]
