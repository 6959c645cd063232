"""Peak memory of a process and everything it started, sampled while it works."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

import psutil

SAMPLE_EVERY_S = 0.2


class PeakMemory:
    """The largest sum of proportional set sizes (shared pages counted once) seen in the block."""

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
            for member in members:
                try:
                    info = member.memory_full_info()
                    total += info.pss - getattr(info, "shared_file", 0)
                except psutil.Error:
                    continue
        return total
