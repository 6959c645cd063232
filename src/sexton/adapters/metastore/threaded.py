"""The metastore of a real broker: calls run in a few threads, each with a timeout on the caller's side."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from sexton.adapters.metastore.databases import Database
from sexton.adapters.metastore.session import Session
from sexton.adapters.metastore.store import SqlMetastore
from sexton.adapters.metastore.workers import Operation, Worker, connection_opened
from sexton.ports.metastore import MetastoreUnavailableError

P = ParamSpec("P")
T = TypeVar("T")

WORKERS_MAX = 4
"""Number of connections per broker. Writers wait for each other in the database anyway; more would only wait there."""

LINGERING_MAX = 16
"""Maximum number of abandoned threads that have not ended yet. That many hang only if something other than the database
hangs."""

WAITING_MAX = 10_000
"""Maximum number of calls that wait for a worker: more than all loops and requests of a broker make together."""


class _Call:
    def __init__(self, operation: Operation, timeout_ms: int) -> None:
        self.operation = operation
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[Any] = self.loop.create_future()
        self.deadline_s = time.monotonic() + timeout_ms / 1000
        self.worker: Worker | None = None
        self.timer: asyncio.TimerHandle | None = None

    def end(self, value: Any, error: BaseException | None) -> None:
        """The caller may be gone (cancelled, or timed out): then the result is dropped."""
        if self.timer is not None:
            self.timer.cancel()
        if self.result.done():
            return
        if error is None:
            self.result.set_result(value)
        else:
            self.result.set_exception(error)


class ThreadedMetastore(SqlMetastore):
    """All its state belongs to the event loop; threads only report back to it."""

    def __init__(self, url: str, timeout_ms: int) -> None:
        self._database = Database(url, timeout_ms, connection_opened)
        self._timeout_ms = timeout_ms
        self._idle: list[Worker] = []
        self._workers: list[Worker] = []
        self._lingering: list[Worker] = []
        self._waiting: deque[_Call] = deque()
        self._is_closed = False
        self._made_count = 0

    async def run(self, operation: Callable[Concatenate[Session, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        if self._is_closed or len(self._waiting) >= WAITING_MAX:
            raise self._unavailable("closed" if self._is_closed else "overloaded")
        call = _Call(lambda session: operation(session, *args, **kwargs), self._timeout_ms)
        call.timer = call.loop.call_later(self._timeout_ms / 1000, self._give_up, call)
        self._waiting.append(call)
        self._hand_out()
        result: T = await call.result
        return result

    async def close(self) -> None:
        """Lets calls in progress end, within the timeout that they have anyway."""
        self._is_closed = True
        for worker in self._idle:
            worker.stop()
        self._idle.clear()
        end_s = time.monotonic() + self._timeout_ms / 1000
        while time.monotonic() < end_s and any(worker.thread.is_alive() for worker in self._workers):
            await asyncio.sleep(0.005)
        for worker in self._workers:
            worker.abandon()
        self._database.engine.dispose()

    def _hand_out(self) -> None:
        while self._waiting:
            if self._waiting[0].result.done():
                self._waiting.popleft()
                continue
            worker = self._free_worker()
            if worker is None:
                return
            call = self._waiting.popleft()
            call.worker = worker
            worker.submit(lambda its_worker, its_call=call: self._execute(its_worker, its_call))  # type: ignore[misc]

    def _free_worker(self) -> Worker | None:
        if self._idle:
            return self._idle.pop()
        if len(self._workers) >= WORKERS_MAX:
            # A worker whose event loop was closed has ended without a report.
            self._workers = [worker for worker in self._workers if worker.thread.is_alive()]
        if len(self._workers) >= WORKERS_MAX or len(self._lingering) >= LINGERING_MAX:
            return None
        self._made_count += 1
        worker = Worker(self._database, f"metastore-{self._made_count}")
        self._workers.append(worker)
        return worker

    def _execute(self, worker: Worker, call: _Call) -> None:
        """Runs in the worker's thread."""
        value: Any = None
        error: BaseException | None = None
        try:
            value = worker.execute(call.operation, call.deadline_s)
        except BaseException as raised:
            error = raised
        try:
            call.loop.call_soon_threadsafe(self._finished, worker, call, value, error)
        except RuntimeError:  # the event loop has been closed, and with it all callers
            worker.stop()

    def _finished(self, worker: Worker, call: _Call, value: Any, error: BaseException | None) -> None:
        if worker.is_abandoned:
            self._lingering = [other for other in self._lingering if other is not worker]
        elif self._is_closed:
            worker.stop()
        else:
            self._idle.append(worker)
        call.end(value, error)
        self._hand_out()

    def _give_up(self, call: _Call) -> None:
        """Called after the timeout: fails the call, and replaces a worker that hangs."""
        worker = call.worker
        if worker is not None and not worker.is_abandoned:
            self._workers.remove(worker)
            self._lingering.append(worker)
            worker.abandon()
        call.end(None, self._unavailable("no answer in time, and whether the change was made is unknown"))
        self._hand_out()

    def _unavailable(self, why: str) -> MetastoreUnavailableError:
        what = f"the metastore does not answer ({why})"
        return MetastoreUnavailableError(what, self._database.place, self._database.remedy)
