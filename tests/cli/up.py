"""`sexton up` as people run it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from sexton.harness.brokers import ENVIRONMENT

TIMEOUT_S = 120


class Up:
    """`sexton up` as a process, with what it has printed so far."""

    def __init__(self, folder: Path, *options: object) -> None:
        self.folder = folder
        self._output = folder.with_suffix(".out")
        command = [sys.executable, "-m", "sexton.cli.main", "up", "--dir", str(folder), *map(str, options)]
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                command, env={**os.environ, **ENVIRONMENT}, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def said(self) -> str:
        return self._output.read_text()

    def wait_for(self, pattern: str) -> str:
        deadline_s = time.monotonic() + TIMEOUT_S
        while not re.search(pattern, self.said):
            assert time.monotonic() < deadline_s, self.said
            assert self.process.poll() is None, self.said
            time.sleep(0.05)
        return self.said

    def broker(self, number: int) -> psutil.Process:
        """Looked for among its own children only: other clusters may run on this machine."""
        for each in psutil.Process(self.process.pid).children():
            if any(part.endswith(f"broker-{number}.properties") for part in each.cmdline()):
                return each
        raise AssertionError(f"no broker {number}: {self.said}")

    def stop(self) -> str:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(TIMEOUT_S) == 0, self.said
        return self.said

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(TIMEOUT_S)
