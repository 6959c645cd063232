"""One limit for all tasks that read from a broker, as long as they run on one machine.

Which tasks read from which broker at the same time nobody knows beforehand. So what was taken from each broker is kept
in a file that all tasks update, and a limit is reached by as few as one of them, and kept by all together. On a Spark
cluster of several machines there is no such file, and each task gets its part of the limit, as if all read from one
broker.
"""

from __future__ import annotations

import fcntl
import math
import os
import struct
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sexton.audit.live.pace import Pace

_FREE_AT: Final = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class Limit:
    """Travels to tasks. Infinite: as fast as it goes."""

    bytes_per_s: float = math.inf
    """From a broker, by all tasks that share a folder; by each task, if there is none."""
    folder: str | None = None

    def of(self, broker: str, now_s: float) -> Pace | SharedPace:
        if self.folder is None or math.isinf(self.bytes_per_s):
            return Pace(self.bytes_per_s, now_s)
        return SharedPace(self.bytes_per_s, Path(self.folder) / broker.replace("/", "_"))


@dataclass(frozen=True, slots=True)
class Limits:
    """What a job's tasks get; its folder lives as long as this."""

    limit: Limit
    _folder: tempfile.TemporaryDirectory[str] | None = field(default=None, repr=False)

    @classmethod
    def of_job(cls, bytes_per_s: float, master: str, tasks_count: int) -> Limits:
        if math.isinf(bytes_per_s):
            return cls(Limit())
        if not master.startswith("local"):
            return cls(Limit(bytes_per_s / tasks_count))
        folder = tempfile.TemporaryDirectory(prefix="sexton-pace-")
        return cls(Limit(bytes_per_s, folder.name), folder)


class SharedPace:
    """`Pace`, with its state in a file. Its time must be the machine's monotonic one."""

    def __init__(self, bytes_per_s: float, path: Path) -> None:
        self._bytes_per_s = bytes_per_s
        self._path = path

    def pause_s(self, taken_bytes: int, now_s: float) -> float:
        """How long to wait after so many bytes have come."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            known = os.pread(descriptor, _FREE_AT.size, 0)
            pace = Pace(self._bytes_per_s, _FREE_AT.unpack(known)[0] if known else now_s)
            pause_s = pace.pause_s(taken_bytes, now_s)
            os.pwrite(descriptor, _FREE_AT.pack(pace.free_at_s), 0)
        finally:
            os.close(descriptor)
        return pause_s
