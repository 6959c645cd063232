"""A real compactor beside real brokers: the process that `sexton compactor` is, with Spark on this machine."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from sexton.harness.brokers import ENVIRONMENT
from sexton.harness.cloud_store import CloudStore
from sexton.harness.processes import ServerProcess

STOP_TIMEOUT_S: Final = 60
"""How long Spark is given to stop. Work in progress is lost, which costs time only."""


class CompactorProcess:
    """Runs from when it is made until it is stopped or killed. What it says is in the directory, `<name>.log`."""

    def __init__(
        self,
        metastore_url: str,
        directory: Path,
        *options: str,
        name: str = "compactor",
        store: CloudStore | None = None,
    ) -> None:
        """With a store, the compactor works on cloud topics, too."""
        self.log_path = directory / f"{name}.log"
        if store is not None:
            options = (*options, "--store", store.url)
        self._environment = {**ENVIRONMENT, **({} if store is None else store.environment)}
        command = [sys.executable, "-m", "sexton.cli.main", "compactor", "--metastore", metastore_url, *options]
        self._command = [*command, "--log-file", str(self.log_path)]
        self._output = directory / f"{name}.out"
        self.start()

    def start(self) -> None:
        """Again, once it has ended."""
        self._process = ServerProcess(self._command, self._output, self._environment)

    @property
    def pid(self) -> int:
        return self._process.pid

    def kill(self) -> None:
        self._process.kill()

    def pause(self) -> None:
        self._process.pause()

    def resume(self) -> None:
        self._process.resume()

    def stop(self) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_TIMEOUT_S)
        self._process.kill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
