"""A wall clock of its own for each broker, that can be set while the broker runs.

Debian's libfaketime, loaded into the process, answers instead of the kernel when it asks for the time of day. By how
much the answer is wrong is in a file, which is read each time. Monotonic clocks and the times of files stay as they
are: it is the time of day that administrators and NTP set.

Under Debian's version 0.9.10 Python's `time.sleep` fails with EINVAL. Brokers do not call it: they wait for events.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from sexton.harness.errors import HarnessError
from sexton.harness.undoing import Undoing, Undone

LIBRARIES: Final = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")
"""Where distributions have it, by machine or not."""

START: Final = (
    'echo $$ >>"$1"; export LD_PRELOAD="$2" FAKETIME_TIMESTAMP_FILE="$3"; shift 3; '
    "export FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 FAKETIME_FORCE_MONOTONIC_FIX=0; "
    'export NO_FAKE_STAT=1 FAKE_UTIME=0; exec "$@"'
)
"""Becomes the process that is to have the clock, under the same id. Without the third of these settings a wait by the
monotonic clock ends at once: Python's threads then spin while they wait for each other."""

UNDO: Final = 'while read -r pid; do rm -f "/dev/shm/faketime_shm_$pid" "/dev/shm/sem.faketime_sem_$pid"; done <"$1"'
"""The library leaves these behind in processes that are killed."""


class Clocks(Undone):
    """Right when they are made. Those who run by them must have ended before this is left."""

    def __init__(self, node_ids: Sequence[int], directory: Path) -> None:
        self._directory = directory
        self._node_ids = list(node_ids)
        self._pids = directory / "pids"
        self._lowest_s = self._highest_s = 0.0

    @staticmethod
    def check() -> None:
        library()

    @property
    def skew_ms(self) -> int:
        """The most that two of them, or one of them at two times, have ever been apart."""
        return round((self._highest_s - self._lowest_s) * 1000)

    def prefix(self, node_id: int) -> tuple[str, ...]:
        """Prefix of a command that is to run by this clock."""
        return ("/bin/sh", "-c", START, "clock", str(self._pids), str(library()), str(self._path(node_id)))

    def set(self, node_id: int, offset_s: float) -> None:
        """From now on it shows so many seconds more than it is, or less. In force for the process's next question."""
        self._lowest_s, self._highest_s = min(self._lowest_s, offset_s), max(self._highest_s, offset_s)
        path = self._path(node_id)
        new = path.with_suffix(".new")
        new.write_text(f"{offset_s:+.3f}\n")
        os.replace(new, path)  # it is read at any moment, and half a number is another one

    def __enter__(self) -> Self:
        self.check()
        self._directory.mkdir(parents=True, exist_ok=True)
        self._pids.write_text("")
        for node_id in self._node_ids:
            self.set(node_id, 0)
        self._undoing = Undoing(UNDO, str(self._pids))
        return self

    def _path(self, node_id: int) -> Path:
        return self._directory / f"node-{node_id}.offset"


def library() -> Path:
    found = sorted(path for pattern in LIBRARIES for path in glob.glob(pattern))
    if not found:
        raise HarnessError("a clock for each broker needs libfaketime", "", "apt-get install libfaketime")
    return Path(found[0])
