"""How fast a task may read, so that the brokers' consumers do not notice. Pure: takes the time."""

from __future__ import annotations

import math

BURST_S = 0.25
"""So much may be read at once after a pause."""


class Pace:
    """A bucket that fills at a rate. What was taken beyond it is waited for afterwards: nobody knows beforehand how
    much a broker sends."""

    def __init__(self, bytes_per_s: float, now_s: float) -> None:
        """Infinite: as fast as it goes."""
        self._bytes_per_s = bytes_per_s
        self.free_at_s = now_s
        """When what was taken will have taken as long as it should."""

    def pause_s(self, taken_bytes: int, now_s: float) -> float:
        """How long to wait after so many bytes have come."""
        if math.isinf(self._bytes_per_s):
            return 0.0
        self.free_at_s = max(self.free_at_s, now_s - BURST_S) + taken_bytes / self._bytes_per_s
        return max(0.0, self.free_at_s - now_s)
