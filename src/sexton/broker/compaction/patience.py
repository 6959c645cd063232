"""How long a follower that is due waits for its leader's compaction before it compacts by itself. Pure.

Its leader says whether one is coming. As long as it is, the follower waits, though not for ever; when the leader has
nothing in mind, or what it offers cannot be taken over, the follower goes its own way until its next pass.
"""

from __future__ import annotations

import uuid
from typing import Final

Key = tuple[uuid.UUID, int]

GRACE_MS: Final = 60_000
"""Without a word from the leader that a compaction is coming."""

PATIENCE_MS: Final = 30 * 60_000
"""In all. Whatever keeps the leader's from being done, a replica of its own may have more luck."""

ATTEMPTS_MAX: Final = 3
"""To take over what is offered."""


class Patience:
    def __init__(self) -> None:
        self._since_ms: dict[Key, int] = {}
        self._heard_ms: dict[Key, int] = {}
        self._failures_count: dict[Key, int] = {}

    def waits(self, key: Key, now_ms: int) -> bool:
        """Asked of a follower that is due."""
        since_ms = self._since_ms.setdefault(key, now_ms)
        heard_ms = max(since_ms, self._heard_ms.get(key, 0))
        return (
            self._failures_count.get(key, 0) < ATTEMPTS_MAX
            and now_ms - since_ms < PATIENCE_MS
            and now_ms - heard_ms < GRACE_MS
        )

    @property
    def waiting(self) -> list[Key]:
        return list(self._since_ms)

    def coming(self, key: Key, now_ms: int) -> None:
        self._heard_ms[key] = now_ms

    def failed(self, key: Key) -> None:
        self._failures_count[key] = self._failures_count.get(key, 0) + 1

    def forget(self, key: Key) -> None:
        """It has been compacted, one way or the other, or is not due any more."""
        for known in (self._since_ms, self._heard_ms, self._failures_count):
            known.pop(key, None)
