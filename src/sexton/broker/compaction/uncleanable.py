"""Replicas that no compaction can process, because of their contents: Kafka calls them uncleanable. Pure.

Another attempt would read the whole log again and fail again. So there is none until something has changed: the
segments that the failed compaction read (retention removed one, the replica adopted its leader's, it was wiped), the
topic's configs, or this process; until an operator requests it; or until an hour has passed, because the compactors may
be others then. A full disk or a broker that does not respond is no such reason: compactors retry by themselves.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sexton.settings.topic import TopicConfig

RETRY_MS: Final = 3_600_000

Sizes = frozenset[tuple[int, int]]
"""Base offset and size of closed segments."""


@dataclass(frozen=True, slots=True)
class Uncleanable:
    why: str
    since_ms: int
    """When the first of these attempts failed, by this broker's clock."""
    attempts_count: int


@dataclass(frozen=True, slots=True)
class _Failed:
    shown: Uncleanable
    segments: Sizes
    config: TopicConfig
    tried_ms: int
    may_be_tried: bool = False


class UncleanableReplicas:
    def __init__(self) -> None:
        self._failed: dict[uuid.UUID, _Failed] = {}
        """By incarnation: a new log of the same partition starts without failures."""

    def failed(
        self, log: uuid.UUID, segments: Sizes, config: TopicConfig, why: str, now_ms: int, monotonic_ms: int
    ) -> None:
        """A compaction of these segments found contents that it cannot read."""
        before = self._failed.get(log)
        since_ms, attempts_count = (now_ms, 0)
        if before is not None:
            since_ms, attempts_count = before.shown.since_ms, before.shown.attempts_count
        shown = Uncleanable(why, since_ms, attempts_count + 1)
        self._failed[log] = _Failed(shown, segments, config, monotonic_ms)

    def of(self, log: uuid.UUID) -> Uncleanable | None:
        """Returned until a compaction succeeds, also while one is being tried again."""
        found = self._failed.get(log)
        return None if found is None else found.shown

    def bars(self, log: uuid.UUID, segments: Sizes, config: TopicConfig, monotonic_ms: int) -> bool:
        """Whether another attempt would fail too, as far as known."""
        found = self._failed.get(log)
        return (
            found is not None
            and not found.may_be_tried
            and monotonic_ms - found.tried_ms < RETRY_MS
            and found.segments <= segments
            and found.config == config
        )

    def requested(self, log: uuid.UUID) -> None:
        found = self._failed.get(log)
        if found is not None:
            self._failed[log] = _Failed(found.shown, found.segments, found.config, found.tried_ms, may_be_tried=True)

    def succeeded(self, log: uuid.UUID) -> None:
        self._failed.pop(log, None)

    def keep_only(self, logs: Collection[uuid.UUID]) -> None:
        self._failed = {log: found for log, found in self._failed.items() if log in logs}
