"""Whether a broker runs on a log directory, asked without taking its lock, making it, or writing anything."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from pathlib import Path

from sexton.log.stopped.locks import LOCK_FILE

_FLOCK = struct.Struct("hhqqi4x")  # Linux: type, whence, start, length, pid


def is_running(log_dir: Path) -> bool:
    """Whether another process holds the lock, in this container or another. A copy of a directory has none; where locks
    cannot be asked for (another machine's disk, mounted) it looks like a copy."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        descriptor = os.open(log_dir / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return int(_FLOCK.unpack(answer)[0]) != fcntl.F_UNLCK
