"""Keeps brokers out of a log directory while we change it.

A broker takes `<log_dir>/.lock` before it loads anything and keeps it until it ends; if another process has it, the
broker refuses to start. Taking the same lock in the same way (a POSIX record lock over the whole file, which is what
Java's `FileChannel.tryLock` is on Unix) therefore works both ways: we see a running broker, and a broker that is
started meanwhile, by hand or by a supervisor, refuses to start instead of reading a log that is being changed.

POSIX record locks have two traps. They belong to the process, so asking twice in one process succeeds twice; and
closing *any* descriptor of the file drops them. A table of the locks that this process holds guards against both.

A lock on a file that was unlinked excludes no other process. We never delete the file, but Kafka does, whenever it
stops: so a lock counts only if the name still refers to the file that was locked. And since Kafka leaves no file, the
one that we create stays: the broker's user must be able to open it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sexton.errors import EnvironmentFailure, LogInUseError, NotALogError
from sexton.records.ownership import Owner

LOCK_FILE: Final = ".lock"

_FLOCK = struct.Struct("hhqqi4x")  # Linux: type, whence, start, length, pid
_WHILE_WE_WORK = "Stop the broker (its log directory must not change under us) or wait, then run this again"

_held: set[tuple[int, int]] = set()
_held_guard = threading.Lock()


ATTEMPTS_MAX: Final = 10
"""How often the file may be deleted while we try to lock it. A broker does so once, when it stops."""


@contextlib.contextmanager
def hold(log_dir: Path) -> Iterator[None]:
    """While this is held, no broker runs on the log directory and none can start. Fails at once if one runs.

    A partition directory has no lock of its own; the lock is its parent's.
    """
    descriptor = _take(log_dir)
    try:
        yield
    finally:
        _release(descriptor)


def _take(log_dir: Path) -> int:
    for _ in range(ATTEMPTS_MAX):
        with _held_guard:
            # Looked up by name first: opening and closing the file again would drop a lock that we hold.
            if _named_identity(log_dir) in _held:
                raise LogInUseError("this process already works on the log directory", str(log_dir), _WHILE_WE_WORK)
            descriptor = _open(log_dir)
            identity = _identity(os.fstat(descriptor))
            _held.add(identity)
        try:
            _lock(descriptor, log_dir)
            if _named_identity(log_dir) == identity:
                _leave_to_broker(descriptor, log_dir)
                return descriptor
        except BaseException:
            _release(descriptor)
            raise
        _release(descriptor)
    raise LogInUseError("its lock file is deleted as often as it is made", str(log_dir), _WHILE_WE_WORK)


def _release(descriptor: int) -> None:
    with _held_guard:
        _held.discard(_identity(os.fstat(descriptor)))
        os.close(descriptor)


def _leave_to_broker(descriptor: int, log_dir: Path) -> None:
    """Makes the lock file accessible to the broker's user. A broker that locks its own log directory may lack the
    permission, which does no harm: on a mounted volume the directory may belong to another user."""
    try:
        Owner.of_broker(log_dir).give(descriptor)
    except PermissionError:
        return
    except OSError as error:
        raise _environment(log_dir, error) from error


def _open(log_dir: Path) -> int:
    if not log_dir.is_dir():
        raise NotALogError(
            "no such directory", str(log_dir), "Name one of the directories in the broker's log.dirs setting"
        )
    if not os.access(log_dir, os.W_OK | os.X_OK):
        raise _environment(log_dir, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    try:
        return os.open(log_dir / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise _environment(log_dir, error) from error


def _lock(descriptor: int, log_dir: Path) -> None:
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise _environment(log_dir, error) from error
        pid = _holder(descriptor)
        who = "a Kafka broker (or another sexton compact)" + (f" with pid {pid}" if pid else "")
        raise LogInUseError(f"{who} holds the log directory's lock", str(log_dir), _WHILE_WE_WORK) from error


def _holder(descriptor: int) -> int | None:
    if not sys.platform.startswith("linux"):
        return None
    question = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, question)
    except OSError:
        return None
    kind, _, _, _, pid = _FLOCK.unpack(answer)
    # The process of another container shows as 0 here, and a lock of an open file description as -1.
    return pid if kind != fcntl.F_UNLCK and pid > 0 else None


def _named_identity(log_dir: Path) -> tuple[int, int] | None:
    try:
        return _identity(os.stat(log_dir / LOCK_FILE))
    except OSError:
        return None


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _environment(log_dir: Path, error: OSError) -> EnvironmentFailure:
    return EnvironmentFailure(
        f"the log directory cannot be locked: {error.strerror}",
        str(log_dir),
        "Run as the user the broker runs as, on a file system that is mounted writable and supports locks",
    )
