"""Peak memory of a process and everything it started, sampled while it works."""

from __future__ import annotations

import threading
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

SAMPLE_EVERY_S = 0.2


class PeakMemory:
    """The largest sum of anonymous memory (pages that processes share counted once) seen in the block."""

    def __init__(self, *pids: int) -> None:
        self._roots = [psutil.Process(pid) for pid in pids]
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._done.wait(SAMPLE_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, self._total())

    def _total(self) -> int:
        total = 0
        for root in self._roots:
            try:
                members = [root, *root.children(recursive=True)]
            except psutil.Error:
                continue
            total += sum(_own_bytes(member.pid) for member in members)
        return total


def _own_bytes(pid: int) -> int:
    """A process's share of its anonymous and shared memory. Mapped files are page cache, which the system can drop."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has just ended
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("Pss_Anon", "Pss_Shmem") if name in fields)
