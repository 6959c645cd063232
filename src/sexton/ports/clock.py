"""What time it is. Waiting is `asyncio.sleep`: the event loop is part of the world too; the simulator has its own."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Wall-clock time, as Kafka stamps it into records. It may jump in either direction; decide nothing by it that
        two machines must agree on."""
        ...

    def monotonic_ms(self) -> int:
        """Time since some moment, never backwards, running on while the process is stopped. Leases are judged by it."""
        ...
