"""Processes of a cluster: a port of their own, and an end that comes for certain.

Brokers of any kind (Kafka's JVMs, Sexton's Pythons) are stopped, killed and paused in the same way.
"""

from __future__ import annotations

import fcntl
import os
import random
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from sexton.harness.errors import HarnessError

HOST: Final = "127.0.0.1"
PORTS: Final = range(20_000, 32_000)
"""Below Linux's ephemeral range, so that no outgoing connection takes a stopped node's port."""

PORT_ATTEMPTS_COUNT: Final = 1_000

KILL_TIMEOUT_S: Final = 20

WATCHDOG: Final = 'read -r _; grep -qaF -- "$2" "/proc/$1/cmdline" && kill -KILL "$1"'
"""Waits for the end of its input, which is the end of the process that started it, however that came (SIGTERM and
SIGKILL run no atexit), and takes the server along, if its pid is still the server's."""


class Port:
    """A loopback port that is ours until released, though nothing may be listening on it.

    Two test processes choose ports at the same time, and a stopped node must find its own again: a locked
    file per port keeps other harnesses away, a trial bind shows what anyone else has taken.
    """

    def __init__(self) -> None:
        directory = Path(tempfile.gettempdir()) / f"sexton-ports-{os.getuid()}"
        directory.mkdir(exist_ok=True)
        for number in random.sample(PORTS, PORT_ATTEMPTS_COUNT):
            lock = (directory / str(number)).open("w")
            if self._try_lock(lock) and self._is_free(number):
                self.number, self._lock = number, lock
                return
            lock.close()
        raise HarnessError(f"none of {PORT_ATTEMPTS_COUNT} ports tried in {PORTS} is free: too many clusters running?")

    def release(self) -> None:
        self._lock.close()

    @staticmethod
    def _try_lock(file: IO[str]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    @staticmethod
    def _is_free(number: int) -> bool:
        with socket.socket() as trial:
            # As Kafka does: an old connection in TIME_WAIT is no obstacle.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((HOST, number))
            except OSError:
                return False
        return True


class ServerProcess:
    """A server, out of reach of the terminal's Ctrl-C, and the watchdog that ends it if we die."""

    def __init__(
        self,
        command: Sequence[str],
        console: Path,
        environment: Mapping[str, str] | None = None,
        *,
        watchdog: str = WATCHDOG,
    ) -> None:
        """The last word of the command must be one that no other process has in its command line."""
        with console.open("ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd=console.parent,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", watchdog, "watchdog", str(self.pid), command[-1]],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.is_paused = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def send_signal(self, how: signal.Signals) -> None:
        self._process.send_signal(how)

    def terminate(self) -> None:
        self._process.terminate()
        self.resume()  # a paused process would not see the signal

    def pause(self) -> None:
        """Returns when every thread of it has stopped (or it ended)."""
        self._process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.is_paused = True

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        self.is_paused = False

    def wait(self, timeout_s: float) -> None:
        self._process.wait(timeout_s)

    def kill(self) -> None:
        """End it at once, paused or not, and dismiss the watchdog. Does no harm to one that has ended."""
        self._process.kill()
        self._process.wait(KILL_TIMEOUT_S)
        self._watchdog.kill()
        self._watchdog.wait(KILL_TIMEOUT_S)
        if self._watchdog.stdin is not None:
            self._watchdog.stdin.close()
