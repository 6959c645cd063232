"""Rate-limited log lines about mistakes of clients, so that a client cannot fill the disk with them."""

from __future__ import annotations

import logging

from sexton.ports.clock import Clock

LINES_MAX = 10
PERIOD_MS = 10_000


class Complaints:
    """At most LINES_MAX lines of one kind in PERIOD_MS. The next period's first line says how many were left out."""

    def __init__(self, logger: logging.Logger, clock: Clock) -> None:
        self._logger = logger
        self._clock = clock
        self._kinds: dict[str, tuple[int, int]] = {}
        """When the current period of a kind (the message's format) began, and the number of messages in it."""

    def log(self, level: int, message: str, *values: object) -> None:
        now_ms = self._clock.monotonic_ms()
        began_ms, count = self._kinds.get(message, (now_ms, 0))
        if now_ms - began_ms >= PERIOD_MS:
            if count > LINES_MAX:
                self._logger.log(level, "%d more lines like the next one were left out", count - LINES_MAX)
            began_ms, count = now_ms, 0
        self._kinds[message] = began_ms, count + 1
        if count < LINES_MAX:
            self._logger.log(level, message, *values)
