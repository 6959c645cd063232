"""How long a follower that is due waits for its leader's compaction before it compacts by itself. Pure.

| what it receives from its leader                 | how long it waits from then on                                  |
|--------------------------------------------------|-----------------------------------------------------------------|
| a compaction is coming                           | as long as it receives that, but at most `PATIENCE_MS`          |
| none is coming, and none is there to be adopted  | `NOTHING_MS`: it may have become due a moment before its leader |
| nothing: no response, or we are catching up      | `GRACE_MS`                                                      |
| offers that cannot be adopted, `ATTEMPTS_MAX` x  | not at all                                                      |

With its next compaction, own or adopted, all of that is reset.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sexton.types import PartitionId

GRACE_MS: Final = 60_000
NOTHING_MS: Final = 10_000
PATIENCE_MS: Final = 30 * 60_000
"""Whatever keeps the leader from compacting, the follower itself may succeed."""

ATTEMPTS_MAX: Final = 3


@dataclass(slots=True)
class _Wait:
    since_ms: int
    heard_ms: int
    nothing_since_ms: int | None = None
    failures_count: int = 0


class Patience:
    def __init__(self) -> None:
        self._waits: dict[PartitionId, _Wait] = {}

    def waits(self, key: PartitionId, now_ms: int) -> bool:
        """Called for a follower that is due."""
        wait = self._waits.setdefault(key, _Wait(now_ms, now_ms))
        if wait.failures_count >= ATTEMPTS_MAX or now_ms - wait.since_ms >= PATIENCE_MS:
            return False
        if wait.nothing_since_ms is not None and now_ms - wait.nothing_since_ms >= NOTHING_MS:
            return False
        return now_ms - wait.heard_ms < GRACE_MS

    @property
    def waiting(self) -> list[PartitionId]:
        """All followers that are due, also those that no longer wait: an offer may still come."""
        return list(self._waits)

    def heard(self, key: PartitionId, now_ms: int, *, is_coming: bool) -> None:
        wait = self._waits.get(key)
        if wait is None:
            return
        wait.heard_ms = now_ms
        if is_coming:
            wait.nothing_since_ms = None
        elif wait.nothing_since_ms is None:
            wait.nothing_since_ms = now_ms

    def failed(self, key: PartitionId) -> None:
        if key in self._waits:
            self._waits[key].failures_count += 1

    def keep_only(self, keys: Collection[PartitionId]) -> None:
        self._waits = {key: wait for key, wait in self._waits.items() if key in keys}

    def forget(self, key: PartitionId) -> None:
        """Called when it has been compacted, one way or the other, or is no longer due."""
        self._waits.pop(key, None)
