"""Times of rows that lie ahead of this compactor's clock.

Since when something waits is written by whoever made it wait: a broker, or another compactor. One whose clock is a day
ahead would keep a partition from being leveled, or compacted, for that day. Such a time counts from when it was seen
here first; what it says then is what the clock here says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from sexton.ports.cloud import CloudPartitionRow
from sexton.types import PartitionId


class FutureTimes:
    def __init__(self) -> None:
        self._seen: dict[tuple[PartitionId, str, int], int] = {}
        """By partition, column and the time in it: when it was seen first, by the clock here."""

    def corrected(self, rows: Iterable[CloudPartitionRow], now_ms: int) -> Iterator[CloudPartitionRow]:
        """The rows, with times that are not later than now."""
        known, self._seen = self._seen, {}
        for row in rows:
            changes: dict[str, Any] = {}
            for column in ("l0_since_ms", "dirty_since_ms"):
                key = (row.topic_id, row.partition), column, getattr(row, column)
                if key[-1] > now_ms or key in known:
                    changes[column] = self._seen[key] = min(now_ms, known.get(key, now_ms))
            yield replace(row, **changes) if changes else row
