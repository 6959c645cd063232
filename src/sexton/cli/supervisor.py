"""Brokers as child processes: started, watched, started again after a crash, stopped together.

A supervisor that has seen its child end (waitpid) knows what others must wait a whole lease to believe. It says so in
the metastore at once (`fence_broker`), and leadership moves in a fraction of a second.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from sexton.cli.broker import READY
from sexton.errors import SextonError
from sexton.ports.metastore import Metastore, StaleError

BACKOFF_S: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Before a restart, by how many crashes came shortly before it."""

STEADY_S: Final = 60.0
"""A broker that ran this long has earned an immediate restart."""

FENCE_TIMEOUT_S: Final = 2.0
STOP_TIMEOUT_S: Final = 60.0
"""What a controlled shutdown may take; then the process is killed."""

FINAL_EXIT_CODES: Final = frozenset({64, 65, 66, 69, 76, 78})
"""A mistake in the settings, corrupt or foreign data, a module that is not installed: the next attempt would end the
same way."""

TAIL_LINES: Final = 20


class Restarts:
    """How long to wait before a child that has crashed is started again: at once, then longer each time."""

    def __init__(self) -> None:
        self._crashes_count = 0
        self.delay_s = 0.0

    def crashed(self, ran_s: float) -> float:
        if ran_s > STEADY_S:
            self._crashes_count = 0
        self.delay_s = BACKOFF_S[min(self._crashes_count, len(BACKOFF_S) - 1)]
        self._crashes_count += 1
        return self.delay_s

    def __str__(self) -> str:
        return f"it is started again in {self.delay_s:g} s" if self.delay_s else "it is started again at once"


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"
    WAITING = "waiting"
    """Crashed; it will be started again."""
    FAILED = "failed"
    """Ended for a reason that a restart does not mend."""


@dataclass(slots=True)
class Child:
    broker_id: int
    config_path: Path
    log_path: Path
    state: State = State.STOPPED
    process: asyncio.subprocess.Process | None = None
    exit_code: int | None = None
    restarts: Restarts = field(default_factory=Restarts)
    started_s: float = 0.0
    ready_after_s: float = 0.0
    last_words: deque[str] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    """What it printed to stderr before it ended."""


Report = Callable[[Child], None]
"""Called after each change of a child's state."""


def broker_command(child: Child) -> Sequence[str]:
    python = [sys.executable, "-m", "sexton.cli.main", "broker", "--config", str(child.config_path)]
    return [*python, "--log-file", str(child.log_path), "--parent", str(os.getpid())]


class Supervisor:
    def __init__(
        self,
        children: list[Child],
        metastore: Metastore,
        report: Report,
        command: Callable[[Child], Sequence[str]] = broker_command,
    ) -> None:
        self.children = children
        self._command = command
        self._metastore = metastore
        self._report = report
        self._is_stopping = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Returns when all children have ended for good: stopped by `stop`, or failed."""
        self._tasks = [asyncio.ensure_future(self._keep(child)) for child in self.children]
        await asyncio.gather(*self._tasks)

    def stop(self) -> None:
        """Asks for a controlled shutdown of all. Called again, it ends them at once."""
        is_second = self._is_stopping.is_set()
        self._is_stopping.set()
        for child in self.children:
            if child.process is not None and child.process.returncode is None:
                child.process.send_signal(signal.SIGKILL if is_second else signal.SIGTERM)
                self._enter(child, State.STOPPING)

    def _enter(self, child: Child, state: State) -> None:
        child.state = state
        self._report(child)

    async def _keep(self, child: Child) -> None:
        while not self._is_stopping.is_set():
            await self._start(child)
            child.exit_code = await self._wait(child)
            if self._is_stopping.is_set() or child.exit_code == 0:
                break
            if child.exit_code in FINAL_EXIT_CODES:
                self._enter(child, State.FAILED)
                return
            delay_s = child.restarts.crashed(asyncio.get_running_loop().time() - child.started_s)
            await self._fence(child.broker_id)
            self._enter(child, State.WAITING)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), delay_s)
        self._enter(child, State.STOPPED)

    async def _start(self, child: Child) -> None:
        loop = asyncio.get_running_loop()
        child.started_s = loop.time()
        child.last_words.clear()
        child.process = await asyncio.create_subprocess_exec(
            *self._command(child),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for us; we pass it on in our own words
        )
        if self._is_stopping.is_set():  # asked while it was being made
            child.process.send_signal(signal.SIGTERM)
        self._enter(child, State.STARTING)

    async def _wait(self, child: Child) -> int:
        process = child.process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        listening = asyncio.gather(self._listen(child, process.stdout), self._remember(child, process.stderr))
        exit_code = await self._ended(process)
        await listening
        return exit_code

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        """Patient until it is told to stop; from then on for as long as a controlled shutdown may take."""
        waiting = asyncio.ensure_future(process.wait())
        stopping = asyncio.ensure_future(self._is_stopping.wait())
        await asyncio.wait([waiting, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not waiting.done():
            await asyncio.wait([waiting], timeout=STOP_TIMEOUT_S)
        if not waiting.done():
            process.kill()
        return await waiting

    async def _listen(self, child: Child, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            if line.decode(errors="replace").startswith(READY) and child.state is State.STARTING:
                child.ready_after_s = asyncio.get_running_loop().time() - child.started_s
                self._enter(child, State.READY)

    async def _remember(self, child: Child, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            child.last_words.append(line.decode(errors="replace").rstrip())

    async def _fence(self, broker_id: int) -> None:
        """Says in the metastore that the broker is gone. If that fails, the lease runs out a few seconds later."""
        try:
            async with asyncio.timeout(FENCE_TIMEOUT_S):
                lease = (await self._metastore.read_leases()).get(broker_id)
                if lease is not None:
                    await self._metastore.fence_broker(broker_id, *lease)
        except (TimeoutError, StaleError, SextonError):
            return
