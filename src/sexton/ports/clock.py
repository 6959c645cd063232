"""Reads the time. Waiting is `asyncio.sleep`: the event loop is part of the outside world too; the simulator has its
own."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time, as in Kafka's record timestamps. It may jump in either direction; do not use it for
        decisions on which two machines must agree."""
        ...

    def monotonic_ms(self) -> int:
        """Time since some moment. It never goes back, and runs on while the process is stopped. Used for leases."""
        ...
