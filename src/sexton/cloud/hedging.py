"""When an upload takes long, and is begun a second time.

A store answers most PUTs in a tenth of a second and a few in several, and one that is slow holds up all that is to be
committed behind it. A second one under another id is as slow by chance only. What it costs is what it saves: PUTs that
are much slower than usual are few.
"""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

REMEMBERED_COUNT: Final = 64
"""PUTs that say what is usual: the last few seconds of a busy broker."""

TIMES_USUAL: Final = 3
SLOW_S_MIN: Final = 0.25
"""A store that is fast has nothing to gain."""


class Hedging:
    def __init__(self, is_on: bool) -> None:
        self.is_on = is_on
        self._taken_s: deque[float] = deque(maxlen=REMEMBERED_COUNT)

    def took(self, seconds: float) -> None:
        """A PUT was answered, from its first attempt on."""
        self._taken_s.append(seconds)

    @property
    def slow_s(self) -> float:
        """A PUT that has no answer for so long is begun a second time."""
        return max(SLOW_S_MIN, TIMES_USUAL * median(self._taken_s)) if self._taken_s else SLOW_S_MIN
