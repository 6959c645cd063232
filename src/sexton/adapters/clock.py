"""The machine's own clocks."""

from __future__ import annotations

import time
from typing import Final

_STEADY: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""This clock runs on while the machine sleeps: a broker that was suspended must find that its lease has expired."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(_STEADY) // 1_000_000
