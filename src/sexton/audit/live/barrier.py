"""The barrier: which replicas have everything that had ended in the leader's log at one moment. Pure: takes the time.

One replica has said, in one answer, its last stable offset (`cut`) and its high watermark (`barrier`). Every
transaction that begins below the cut has ended below the barrier in its log. A replica whose own high watermark has
passed the barrier has all of that, so if its last stable offset is below the cut, it is stuck: not behind, stuck.

The one that is held against the others is the one whose last stable offset is the highest, which is the leader, unless
the leader is the one that is stuck.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

PATIENCE_MS: Final = 30_000
"""A follower in sync needs half a second to hear of a high watermark; longer means that it lags."""


class Standing(Enum):
    WAITED_FOR = auto()
    PASSED = auto()
    LAGS = auto()
    """Judged only as far as it has come."""


@dataclass(slots=True)
class Barrier:
    """Of one partition. Replicas that are not in sync are not waited for: they pass or lag as they stand."""

    cut: int
    barrier: int
    in_sync: frozenset[int]
    started_ms: int
    patience_ms: int = PATIENCE_MS
    _standing: dict[int, Standing] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        offsets: Mapping[int, tuple[int, int]],
        in_sync: frozenset[int],
        started_ms: int,
        patience_ms: int = PATIENCE_MS,
    ) -> Barrier:
        """`offsets` are (last stable offset, high watermark) by broker; there is one at least."""
        cut, barrier = max(offsets.values())
        return cls(cut, barrier, in_sync, started_ms, patience_ms)

    def heard(self, broker: int, high_watermark: int, now_ms: int) -> Standing:
        """What a replica has said of itself. Who has passed stays so, for high watermarks do not go back."""
        if self._standing.get(broker) is not Standing.PASSED:
            self._standing[broker] = self._judged(broker, high_watermark, now_ms)
        return self._standing[broker]

    def _judged(self, broker: int, high_watermark: int, now_ms: int) -> Standing:
        if high_watermark >= self.barrier:
            return Standing.PASSED
        is_worth_waiting = broker in self.in_sync and now_ms - self.started_ms < self.patience_ms
        return Standing.WAITED_FOR if is_worth_waiting else Standing.LAGS

    def has_passed(self, broker: int) -> bool:
        return self._standing.get(broker) is Standing.PASSED
