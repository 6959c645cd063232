"""Clocks that are wrong: each machine's wall clock is off and may jump; each oscillator runs a little fast or slow."""

from __future__ import annotations

from sexton.simulate.loop import MS, Process, SimulatedLoop

START_MS = 1_750_000_000_000
"""What a wall clock that is right shows at the beginning of a simulation."""

RATE_PPM_MAX = 45_000
"""4.5 %: the fastest and the slowest clock then differ by less than `ports.metastore.LEASE_MARGIN` allows for."""


class WallClock:
    """One machine's: it outlives the processes that read it."""

    def __init__(self, skew_ms: int = 0) -> None:
        self.skew_ms = skew_ms

    def jump(self, to_ms: int) -> None:
        """From now on the clock is off by that much."""
        self.skew_ms = to_ms


class SimulatedClock:
    """`ports.clock.Clock` of one process."""

    def __init__(self, wall: WallClock, process: Process, loop: SimulatedLoop) -> None:
        self._wall = wall
        self._process = process
        self._loop = loop

    def now_ms(self) -> int:
        true_ns = self._loop.now_ns
        drift_ns = true_ns * self._process.rate_ppm // 1_000_000
        return START_MS + self._wall.skew_ms + (true_ns + drift_ns) // MS

    def monotonic_ms(self) -> int:
        return self._process.local_ns(self._loop.now_ns) // MS
