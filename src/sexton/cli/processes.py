"""What the operating system says about processes, ports and folders."""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sexton.errors import LogInUseError

_PR_SET_PDEATHSIG = 1
_AUTOGROUP_PATH = Path("/proc/self/autogroup")


def die_with(parent_pid: int) -> None:
    """From now on this process is killed when its parent ends, however that ends. Linux only; elsewhere, nothing.

    Killed, not asked: whoever starts the cluster again must not find ports and folders in use by the former one."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # it ended before we could ask
        os.kill(os.getpid(), signal.SIGKILL)


def step_back(niceness: int) -> None:
    """This process and those that it starts leave the processors to others, as with nice(1).

    Linux shares them out among sessions first, and by niceness only within each (sched(7), "the autogroup feature"):
    a session of our own steps back as a whole. One that is not ours, a shell's, keeps its share."""
    niceness = os.nice(niceness)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # not Linux, or a kernel without
            _AUTOGROUP_PATH.write_text(str(niceness))


def is_free(host: str, port: int) -> bool:
    """Whether a broker could listen there. An old connection in TIME_WAIT is no obstacle."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError:
            return False
    return True


@contextmanager
def exclusively(lock_path: Path, remedy: str) -> Iterator[None]:
    """Holds a lock file, which names the holder. LogInUseError if another process has it."""
    with lock_path.open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip()
            who = f"by process {holder}" if holder else "by another process"
            raise LogInUseError(f"this folder is in use {who}", str(lock_path.parent), remedy) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield
