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
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sexton.ports.network import Connection, Listener, Receiver
from sexton.simulate.loop import MS, NS, Process, SimulatedLoop
from sexton.simulate.streams import End, Nobody

if TYPE_CHECKING:
    import asyncio

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
        self.ends: dict[End, None] = {}
        self._next_port = 40_000

    def free_port(self) -> int:
        self._next_port += 1
        return self._next_port


class Fabric:
    """The network: all hosts, and what is between them."""

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
        attempt = _Attempt(
            fabric=fabric,
            process=self._process,
            source=self._host,
            target=target,
            port=port,
            receiver=receiver,
            answer=answer,
        )
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

    def accept(self, end: End) -> None:
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
        ours = End(fabric, self.source, self.process, self.source.free_port())
        theirs = End(fabric, self.target, listener.process, self.port)
        ours.join(theirs)
        ours.last_arrival_ns = loop.now_ns + back_ns
        loop.call_for(listener.process, 0, listener.accept, theirs)
        loop.call_for(self.process, back_ns, self._established, ours)

    def _established(self, end: End) -> None:
        if self.answer.done():  # nobody waits any more
            end.receiver = Nobody()
            end.close()
            return
        end.receiver = self.receiver(end)
        self.answer.set_result(end)

    def _fail(self, number: int, delay_ns: int) -> None:
        self.fabric.loop.call_for(self.process, delay_ns, self._tell_failure, number)

    def _tell_failure(self, number: int) -> None:
        if not self.answer.done():
            self.answer.set_exception(OSError(number, os.strerror(number)))
