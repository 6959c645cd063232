"""The compactor of `sexton up`: a child process that is started again when it ends, and stopped with the brokers.

A cluster serves without it: whatever becomes of the compactor is told, and stops nothing else."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from sexton.cli.supervisor import Restarts

STOP_TIMEOUT_S: Final = 20.0
"""How long Spark is given to stop. Work in progress is lost, which costs time only."""


def command(metastore_url: str, log_path: Path, store_url: str = "") -> Sequence[str]:
    """`store_url` is empty for a cluster without a store."""
    python = [sys.executable, "-m", "sexton.cli.main", "compactor", "--metastore", metastore_url]
    if store_url:
        python += ["--store", store_url]
    return [*python, "--log-file", str(log_path), "--parent", str(os.getpid())]


class CompactorProcess:
    def __init__(self, command: Sequence[str], report: Callable[[str], None]) -> None:
        self._command = command
        self._report = report
        self._process: asyncio.subprocess.Process | None = None
        self._is_stopping = asyncio.Event()

    async def run(self) -> None:
        """Runs and restarts the compactor until `stop` is called."""
        restarts = Restarts()
        loop = asyncio.get_running_loop()
        while not self._is_stopping.is_set():
            started_s = loop.time()
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                start_new_session=True,
            )
            code = await self._ended(self._process)
            if self._is_stopping.is_set():
                return
            delay_s = restarts.crashed(loop.time() - started_s)
            self._report(f"ended with exit code {code}; {restarts}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopping.wait(), delay_s)

    def stop(self) -> None:
        self._is_stopping.set()

    async def _ended(self, process: asyncio.subprocess.Process) -> int:
        waiting = asyncio.ensure_future(process.wait())
        stopping = asyncio.ensure_future(self._is_stopping.wait())
        await asyncio.wait([waiting, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not waiting.done():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            await asyncio.wait([waiting], timeout=STOP_TIMEOUT_S)
        if not waiting.done():
            with suppress(ProcessLookupError):
                process.kill()
        return await waiting
