"""Which process is asked for what, and when.

A *thread* is a place for one client at a time, numbered from 0; the client in it is a *process*. One whose operation
ended in INFO may still be at work somewhere: nothing more is asked of it, and the thread goes on with a new client as
process + threads_count, as in Jepsen.

The generator is pure. The runner tells it the time, which processes are free and what came of each operation; it
answers with what to ask next. From one seed, one order of completions makes one order of questions.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from sexton.history.op import NAMES_LOGS, F, Log, MicroOp, Op, Type

NS = 1_000_000_000

NTH_REPLICA: Final = "nth-replica"
"""In an Ask's ext, of a scan: which of a log's replicas, counted round and round. A workload knows no brokers."""


class Ask(NamedTuple):
    """An invocation, before anybody was asked."""

    f: str
    micro_ops: tuple[MicroOp, ...] = ()
    logs: tuple[int, ...] = ()
    offsets: Mapping[int, int] = {}
    ext: Mapping[str, Any] = {}

    @property
    def named_logs(self) -> tuple[int, ...]:
        """That a history names: of what a table or a final poll is asked for, it tells what was read."""
        return self.logs if self.f in NAMES_LOGS else ()


class Topic(NamedTuple):
    """How a topic is made that is not there."""

    partitions: int
    settings: Mapping[str, str] = {}


class Needs(NamedTuple):
    """What a process's client must be like, beside what all clients of a run are."""

    group: str = ""
    """The end of its group's name: processes with the same one share a group."""
    consumer: Mapping[str, str | int | bool] = {}
    has_plain_producer: bool = False
    """Whether what it sends without a transaction goes through a producer that is not idempotent, if its client can be
    told to send nothing twice."""
    speaks_kip848: bool = False
    """Whether it joins its group by the new protocol, if its client and the brokers have it."""
    has_generation: bool = True
    """Whether one member's generation can be held against another's. Not where somebody may speak the new protocol:
    then each member has an epoch of its own."""


class Asking(Protocol):
    def next(self, process: int) -> Ask:
        """Of a process that is free. The process is as old as the first question that it was asked."""


class Workload(Asking, Protocol):
    @property
    def logs(self) -> Mapping[int, Log]:
        """All that were used so far."""

    @property
    def uses_subscribe(self) -> bool: ...

    def log(self, log: int) -> Log:
        """Any, used or not."""

    def topic(self, log: int) -> Topic:
        """That it is in."""

    def needs(self, process: int) -> Needs:
        """Asked before its first question."""

    @property
    def seen(self) -> Mapping[str, int]:
        """What it has counted for people to read. No judge knows of it."""

    def completed(self, op: Op) -> None:
        """Takes every completion in the order of the history."""

    def final(self) -> Ask:
        """What every process is asked when the faults are over, so that all that was written is read."""


@dataclass(frozen=True, slots=True)
class Question:
    process: int
    ask: Ask


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing is to be asked before this, or before the next completion."""

    until_ns: int


class Processes:
    """Which process runs in each thread."""

    def __init__(self, threads_count: int, generation: int = 0) -> None:
        """In each thread were so many before."""
        self._count = threads_count
        self._current = [thread + generation * threads_count for thread in range(threads_count)]
        self._busy: set[int] = set()

    @property
    def free(self) -> Sequence[int]:
        return [process for process in self._current if process not in self._busy]

    def thread_of(self, process: int) -> int:
        return process % self._count

    def invoked(self, process: int) -> None:
        assert process in self.free, f"process {process} is asked twice"
        self._busy.add(process)

    def completed(self, op: Op) -> None:
        self._busy.remove(op.process)
        if op.type is Type.INFO:
            self._current[self.thread_of(op.process)] = op.process + self._count


@dataclass(slots=True)
class Generator:
    """Asks at random moments, `rate` times a second on average. Who cannot keep up is not asked faster later."""

    workload: Asking
    rng: random.Random
    rate: float
    end_ns: int
    """May be moved."""
    crash_every_ns: int = 0
    """How often, on average, some client is killed without notice; 0 is never."""
    _next_ns: int = 0
    _crash_ns: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._crash_ns = self._later(0, self.crash_every_ns)

    def next(self, now_ns: int, free: Sequence[int]) -> Question | Wait | None:
        """None: it is over."""
        if now_ns >= self.end_ns:
            return None
        if now_ns < self._next_ns or not free:
            return Wait(min(max(self._next_ns, now_ns), self.end_ns) if free else self.end_ns)
        self._next_ns = self._later(now_ns, round(NS / self.rate))
        process = self.rng.choice(free)
        if self.crash_every_ns and now_ns >= self._crash_ns:
            self._crash_ns = self._later(now_ns, self.crash_every_ns)
            return Question(process, Ask(F.CRASH))
        return Question(process, self.workload.next(process))

    def _later(self, now_ns: int, mean_ns: int) -> int:
        """Uniform between nothing and twice the mean."""
        return now_ns + self.rng.randrange(2 * mean_ns + 1)
