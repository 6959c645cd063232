"""Who waits before a batch is appended, and for what (C11).

Two things make a client's batch wait: more than `cloud.pending.bytes.max` is on its way to the store, or the
partition has so many extents that whoever levels them does not keep up (trap T15). A batch that waits holds up those
that came after it, so that nobody is overtaken: all of them for want of room, those of its partition for its extents.
Its request waits with it, and its connection is not read beyond the broker's budget.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from sexton.cloud.log import CloudLog

EXTENTS_SLOW: Final = 20_000
"""From so many extents of a partition on its batches are slowed down, the more the more there are."""
SLOW_MS_MAX: Final = 100
"""Of one batch, at twice as many."""
_APART_S: Final = 0.000_01
"""Between two batches of a partition: timers that end at the same time come in any order."""


class Waiting:
    __slots__ = ("_go_on", "log", "size_bytes")

    def __init__(self, log: CloudLog, size_bytes: int, go_on: Callable[[], None]) -> None:
        self.log = log
        self.size_bytes = size_bytes
        self._go_on: Callable[[], None] | None = go_on

    @property
    def is_over(self) -> bool:
        return self._go_on is None

    def end(self) -> None:
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on()


def slow_ms(extents_count: int) -> float:
    """By how much a batch is delayed, so that leveling may catch up."""
    above = extents_count - EXTENTS_SLOW
    return 0.0 if above < 0 else min(SLOW_MS_MAX, max(1.0, SLOW_MS_MAX * above / EXTENTS_SLOW))


class Room:
    """`fits` says whether a batch of that size can be appended now."""

    def __init__(self, fits: Callable[[int], bool]) -> None:
        self._fits = fits
        self._queue: deque[Waiting] = deque()
        self._is_admitting = False
        self._slowed_until_s: dict[CloudLog, float] = {}

    def __len__(self) -> int:
        return sum(not one.is_over for one in self._queue)

    def must_wait(self, log: CloudLog, size_bytes: int, *, is_away: bool) -> bool:
        """Who has no room does not wait for a store that is away: he is refused, and so are those who wait already, in
        their order."""
        if is_away:
            while self._queue:
                self._queue.popleft().end()
        if self._queue or (not is_away and not self._fits(size_bytes)):
            return True
        return len(log.extents) >= EXTENTS_SLOW or log in self._slowed_until_s

    def wait(self, log: CloudLog, size_bytes: int, go_on: Callable[[], None]) -> Callable[[], None]:
        waiting = Waiting(log, size_bytes, go_on)
        delay_ms = slow_ms(len(log.extents))
        if delay_ms or log in self._slowed_until_s:
            self._slow_down(waiting, delay_ms / 1000)
        else:
            self._queue.append(waiting)
        return waiting.end

    def _slow_down(self, waiting: Waiting, delay_s: float) -> None:
        loop, log = asyncio.get_running_loop(), waiting.log
        at_s = max(loop.time() + delay_s, self._slowed_until_s.get(log, 0.0) + _APART_S)
        self._slowed_until_s[log] = at_s

        def enter() -> None:
            if self._slowed_until_s.get(log) == at_s:
                del self._slowed_until_s[log]
            self._queue.append(waiting)
            self.look()

        loop.call_at(at_s, enter)

    def look(self) -> None:
        """There may be room. Whoever fits goes on in a turn of the loop of its own, not in the middle of a change."""
        if self._queue and not self._is_admitting:
            self._is_admitting = True
            asyncio.get_running_loop().call_soon(self._admit)

    def _admit(self) -> None:
        self._is_admitting = False
        while self._queue and (
            self._queue[0].is_over or self._queue[0].log.is_dropped or self._fits(self._queue[0].size_bytes)
        ):
            self._queue.popleft().end()

    def forget(self, log: CloudLog) -> None:
        """The log is dropped: who waits for it is told at once, and not when others have made room."""
        its = [one for one in self._queue if one.log is log]
        self._queue = deque(one for one in self._queue if one.log is not log)
        for one in its:
            one.end()
