"""An event loop under virtual time: many processes in one thread, each of which can be paused or killed.

Time stands still while anything can run, then jumps to the next timer. It is counted in whole nanoseconds and moved
only by additions, so that it is the same number on every machine.

Who a callback belongs to travels with its context: every task, timer and callback carries the `Process` that made it.

- A *paused* process (SIGSTOP) keeps collecting what becomes due, and runs it when it is resumed.
- A *killed* process (kill -9, power loss) runs nothing ever again: what was due is dropped, its coroutines are closed.
  Their `finally` blocks do run, as Python has no other way to end a coroutine, but the simulated ports are dead then.
- A process sees time through its own clock, which may run fast or slow.

Callbacks of one process run in the order in which they were made, as asyncio promises. Which of several processes runs
next is drawn from the seed. Now and then a process loses the processor between two turns: what arrives meanwhile comes
between a callback that has run and what that has put off by a turn. Tasks and futures are numbered and hash by their
number: a set of them iterates in the same order in every run. Cyclic garbage is collected at fixed virtual times for
the same reason (`__del__` may speak up).
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import random
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar, TypeVarTuple

from sexton.simulate.errors import SimulationFailure

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NS = 1_000_000_000
MS = 1_000_000

CALLBACKS_PER_INSTANT_MAX = 200_000
"""More than this without time moving on is a loop that waits for itself."""

GARBAGE_INTERVAL_NS = 20 * NS
FULL_GARBAGE_TURNS = 6
"""Each so many times all garbage is looked for, between them only what is young: the history of a long run grows, and
to look through all of it takes a tenth of the run."""

TURNS_WITHOUT_A_BREAK_MAX = 8
BREAK_NS_MAX = 2 * MS
THREAD_S_MAX = 0.005
"""How long it takes until a process that has lost the processor has it again."""


class Process:
    """One process of the simulated world, from its start to its end. A restart is a new `Process`."""

    def __init__(self, name: str, started_ns: int = 0, rate_ppm: int = 0, offset_ns: int = 0) -> None:
        self.name = name
        self.alive = True
        self.paused = False
        self.rate_ppm = rate_ppm
        """How much faster than true time its clock runs, in millionths."""
        self._started_ns = started_ns
        self._offset_ns = offset_ns
        self.ready: deque[asyncio.Handle] = deque()
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context = contextvars.copy_context()
        self.context.run(_CURRENT.set, self)

    def local_ns(self, true_ns: int) -> int:
        """What its monotonic clock shows at a moment of true time."""
        passed = true_ns - self._started_ns
        return self._offset_ns + passed + passed * self.rate_ppm // 1_000_000

    def true_ns(self, local_ns: int) -> int:
        """The first moment of true time at which the clock shows at least `local_ns`."""
        passed = local_ns - self._offset_ns
        return self._started_ns - (-passed * 1_000_000 // (1_000_000 + self.rate_ppm))

    def __repr__(self) -> str:
        state = "dead" if not self.alive else "paused" if self.paused else "running"
        return f"<{self.name} {state}>"


_CURRENT: contextvars.ContextVar[Process] = contextvars.ContextVar("simulated process")


class _Future(asyncio.Future[T]):
    """Hashes by its number, and knows whose it is."""

    def __init__(self, *, loop: SimulatedLoop) -> None:
        super().__init__(loop=loop)
        self._number = loop.next_number()
        self.process = loop.current

    def __hash__(self) -> int:
        return self._number


class _Task(asyncio.Task[T]):
    def __init__(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        loop: SimulatedLoop,
        name: str | None,
        context: contextvars.Context,
        process: Process,
    ) -> None:
        self._number = loop.next_number()  # first of all: the base class puts the task into a set
        self.process = process
        super().__init__(coro, loop=loop, name=name or f"task-{self._number}", context=context)

    def __hash__(self) -> int:
        return self._number


class _Handle(asyncio.Handle):
    """asyncio's own, without a look at whether the loop is being debugged: hundreds of thousands are made a run."""

    __slots__ = ()

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        loop: SimulatedLoop,
        context: contextvars.Context | None,
    ) -> None:
        self._context = contextvars.copy_context() if context is None else context
        self._loop = loop
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._repr = None


class _Timer(asyncio.TimerHandle):
    """A timer that knows nothing of a heap but its place in it."""


class SimulatedLoop(asyncio.AbstractEventLoop):
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._now_ns = 0
        self._numbers = 0
        self._timers: list[tuple[int, int, asyncio.Handle, Process]] = []
        self._ready: list[Process] = []
        """Running processes with something to run, in no particular order; drawn from at random."""
        self._running = False
        self._stopping = False
        self._closed = False
        self._next_garbage_ns = GARBAGE_INTERVAL_NS
        self._garbage_count = 0
        self._in_turn: Process | None = None
        """It is not drawn before its turn is over, whatever that makes ready."""
        self._turns_left = TURNS_WITHOUT_A_BREAK_MAX
        self.world = Process("world")
        self.current = self.world
        self.callbacks_count = 0
        self.failures: list[SimulationFailure] = []
        """What nobody handled, of processes that are alive. The simulation ends at the first."""
        self.after_turn: Callable[[Process, int], None] | None = None
        """Called after each turn of a process, with how many callbacks it has run: where invariants are checked."""

    # Time

    @property
    def now_ns(self) -> int:
        """True virtual time, which no process can see."""
        return self._now_ns

    def time(self) -> float:
        return self.current.local_ns(self._now_ns) / NS

    # Callbacks

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        process = self.current if context is None else context.get(_CURRENT, self.world)
        handle = _Handle(callback, args, self, context)
        self._enqueue(process, handle)
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        process = self.current if context is None else context.get(_CURRENT, self.world)
        timer = _Timer(when, callback, args, self, context)
        self._push(process.true_ns(round(when * NS)), timer, process)
        return timer

    def call_for(
        self, process: Process, delay_ns: int, callback: Callable[[*Ts], object], *args: *Ts
    ) -> asyncio.Handle:
        """How the simulated world reaches into a process: after true time `delay_ns`, as that process."""
        handle = _Handle(callback, args, self, process.context)
        self._push(self._now_ns + delay_ns, handle, process)
        return handle

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:  # type: ignore[override]
        raise NotImplementedError("a simulated process has one thread")

    def run_in_executor(self, executor: object, work: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """What real processes have threads for takes a moment; a process has one thread here."""
        future: asyncio.Future[T] = self.create_future()

        def do() -> None:
            if future.done():
                return
            try:
                future.set_result(work(*args))
            except Exception as error:
                future.set_exception(error)

        self.call_later(self._rng.random() * THREAD_S_MAX, do)
        return future

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """asyncio tells; a cancelled timer just falls out of the heap when its time comes."""

    def _push(self, when_ns: int, handle: asyncio.Handle, process: Process) -> None:
        if process.alive:
            self._numbers += 1
            heapq.heappush(self._timers, (max(when_ns, self._now_ns), self._numbers, handle, process))

    def _enqueue(self, process: Process, handle: asyncio.Handle) -> None:
        if not process.alive:
            return
        if not process.ready and not process.paused and process is not self._in_turn:
            self._ready.append(process)
        process.ready.append(handle)

    # Tasks and futures

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def create_future(self) -> asyncio.Future[Any]:
        return _Future(loop=self)

    def create_task(
        self,
        coro: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> asyncio.Task[T]:
        process = self.current if context is None else context.get(_CURRENT, self.world)
        if context is None:
            context = contextvars.copy_context()
            context.run(_CURRENT.set, process)
        task = _Task(coro, loop=self, name=name, context=context, process=process)
        if process.alive:
            process.tasks[task] = None
            task.add_done_callback(process.tasks.__delitem__, context=self.world.context)
        else:
            _abandon(task)
        return task

    def spawn(self, process: Process, coro: Coroutine[Any, Any, T], name: str | None = None) -> asyncio.Task[T]:
        """A task that is the process's own, made from outside of it."""
        context = process.context.copy()
        return self.create_task(coro, name=name, context=context)

    # Processes

    def pause(self, process: Process) -> None:
        process.paused = True
        if process in self._ready:
            self._ready.remove(process)

    def resume(self, process: Process) -> None:
        if process.alive and process.paused:
            process.paused = False
            if process.ready:
                self._ready.append(process)

    def kill(self, process: Process) -> None:
        """Nothing of it runs from now on. Not to be called by the process itself."""
        assert process is not self.current, "a process cannot close the coroutine it is in"
        process.alive = False
        if process in self._ready:
            self._ready.remove(process)
        process.ready.clear()
        caller, self.current = self.current, process
        try:
            for task in list(process.tasks):
                process.context.run(_abandon, task)
        finally:
            self.current = caller
        process.tasks.clear()

    # Running

    def run_until_complete(self, future: Generator[Any, None, T] | Awaitable[T]) -> T:
        task: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
        task.add_done_callback(lambda _: self.stop())
        self.run_forever()
        if self.failures:
            raise self.failures[0]
        return task.result()

    def run_forever(self) -> None:
        self._running, self._stopping = True, False
        hooks = sys.get_asyncgen_hooks()
        sys.set_asyncgen_hooks(finalizer=self._finalize_generator)
        asyncio._set_running_loop(self)
        collecting = gc.isenabled()
        gc.disable()
        try:
            while not self._stopping:
                self._advance()
                self._run_ready()
        finally:
            asyncio._set_running_loop(None)
            sys.set_asyncgen_hooks(*hooks)
            self._running = False
            if collecting:
                gc.enable()

    def _advance(self) -> None:
        """If nothing can run, time moves to the next timer. What is due becomes ready."""
        timers = self._timers
        while timers and timers[0][2].cancelled():
            heapq.heappop(timers)
        if not self._ready:
            if not timers:
                raise SimulationFailure("deadlock", "nothing can run and nothing will become due")
            self._now_ns = max(self._now_ns, timers[0][0])
            if self._now_ns >= self._next_garbage_ns:
                self._next_garbage_ns += GARBAGE_INTERVAL_NS
                self._garbage_count += 1
                gc.collect(1 if self._garbage_count % FULL_GARBAGE_TURNS else 2)
        self._take_due()

    def _take_due(self) -> None:
        timers, now_ns = self._timers, self._now_ns
        while timers and timers[0][0] <= now_ns:
            _, _, handle, process = heapq.heappop(timers)
            if not handle._cancelled:
                self._enqueue(process, handle)

    def _run_ready(self) -> None:
        """Every process that can run does, in an order from the seed, until nothing is left to do at this instant."""
        ready = self._ready
        instant_count = 0
        while ready and not self._stopping:
            position = int(self._rng.random() * len(ready)) if len(ready) > 1 else 0
            process = ready[position]
            ready[position] = ready[-1]
            ready.pop()
            instant_count += self._run_turn(process)
            if instant_count > CALLBACKS_PER_INSTANT_MAX:
                raise SimulationFailure(
                    "livelock",
                    f"{instant_count} callbacks without time moving on, the next of {process.name}: "
                    f"{', '.join(_described(handle) for handle in list(process.ready)[:5])}",
                )
            if self.failures:
                self._stopping = True
            if self._timers and self._timers[0][0] <= self._now_ns:
                self._take_due()

    def _run_turn(self, process: Process) -> int:
        """One round of a process: what is ready now, not what that makes ready."""
        queue = process.ready
        self.current = self._in_turn = process
        count = 0
        try:
            for _ in range(len(queue)):
                if not queue:  # it was killed, or the simulation ends, in mid-turn
                    break
                handle = queue.popleft()
                if not handle._cancelled:
                    try:
                        handle._context.run(handle._callback, *handle._args)  # type: ignore[attr-defined]
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self.call_exception_handler({"message": f"in {_described(handle)}", "exception": error})
                    count += 1
        finally:
            self.current = self.world
            self._in_turn = None
        if self.after_turn is not None:
            self.after_turn(process, count)
        if queue and process.alive and not process.paused:
            self._turns_left -= 1
            if self._turns_left > 0 or process is self.world:
                self._ready.append(process)
            else:
                self._take_a_break(process)
        self.callbacks_count += count
        return count

    def _take_a_break(self, process: Process) -> None:
        self._turns_left = 1 + int(self._rng.random() * TURNS_WITHOUT_A_BREAK_MAX)
        self.call_for(self.world, int(self._rng.random() * BREAK_NS_MAX), self._end_break, process)

    def _end_break(self, process: Process) -> None:
        if process.ready and not process.paused and process not in self._ready:
            self._ready.append(process)

    def stop(self) -> None:
        self._stopping = True

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Ends every process that is left, so that no coroutine is found unfinished later."""
        for process in dict.fromkeys([self.world, *(process for _, _, _, process in self._timers), *self._ready]):
            for task in list(process.tasks):
                _abandon(task)
        self._timers.clear()
        self._ready.clear()
        self._closed = True

    async def shutdown_asyncgens(self) -> None:
        """Nothing to do: generators that were left open are closed by `_finalize_generator`."""

    async def shutdown_default_executor(self) -> None:
        """There is none."""

    def _finalize_generator(self, generator: Any) -> None:
        if self.current.alive:
            self.create_task(generator.aclose())

    # What nobody handled

    def get_debug(self) -> bool:
        return False

    def set_debug(self, enabled: bool) -> None:
        raise NotImplementedError

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception that nobody retrieved, in a process that is alive, is a bug, and ends the simulation."""
        owner = context.get("future") or context.get("task")
        process = getattr(owner, "process", self.current)
        if not process.alive or self._closed:
            return
        error = context.get("exception")
        if isinstance(error, SimulationFailure):
            self.failures.append(error)
            return
        evidence = f"{context.get('message', '')} ({owner!r})"
        failure = SimulationFailure("crash", f"in {process.name}: {evidence}")
        failure.__cause__ = error
        self.failures.append(failure)


def new_loop(rng: random.Random) -> SimulatedLoop:
    """What sockets, pipes and signals would need is left out: asking for it raises NotImplementedError."""
    return SimulatedLoop(rng)  # type: ignore[abstract]


def _described(handle: asyncio.Handle) -> str:
    callback: Any = handle._callback  # type: ignore[attr-defined]
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        inner: Any = task.get_coro()
        while getattr(inner, "cr_await", None) is not None and hasattr(inner.cr_await, "cr_frame"):
            inner = inner.cr_await
        frame = getattr(inner, "cr_frame", None)
        return f"{task.get_name()} at {frame.f_code.co_qualname}:{frame.f_lineno}" if frame else task.get_name()
    return str(getattr(callback, "__qualname__", callback))


def _abandon(task: asyncio.Task[Any]) -> None:
    """Ends a task for good without letting anybody hear of it."""
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    coroutine = task.get_coro()
    # A coroutine may refuse to end or fail while it does; its process is dead, so nobody is left to care.
    try:
        coroutine.close()
    except BaseException:
        return
