"""What was done to this machine is undone when this process ends, however that comes: SIGKILL runs no atexit."""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import Final

TIMEOUT_S: Final = 30


class Undoing:
    """A shell that waits for the end of its input, which is `close` or the end of this process, and then runs the
    script with its arguments, $1 and so on."""

    def __init__(self, script: str, *arguments: str) -> None:
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", f"read -r _; {script}", "undoing", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def close(self) -> None:
        """Returns when it is undone."""
        assert self._shell.stdin is not None
        self._shell.stdin.close()
        self._shell.wait(TIMEOUT_S)


class Undone:
    """A context manager whose `__enter__` changes this machine; its end undoes that."""

    _undoing: Undoing | None = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        undoing, self._undoing = self._undoing, None
        if undoing is not None:
            undoing.close()
