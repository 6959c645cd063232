"""Which work a compactor takes next. Pure.

Work is taken in two lanes that run beside each other, so that neither starves: many small partitions to a job, because
starting one costs Spark about as much as compacting ten megabytes; and the large ones, one or a few to a job. Within a
lane the most urgent comes first: what somebody asked for, then what is overdue (max.compaction.lag.ms), then by dirty
ratio and by how long it has waited, where a minute of waiting counts as much as all of a log being dirty.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sexton.ports.work_queue import WorkRow

WAIT_MS: Final = 60_000


class Lane(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass(frozen=True, slots=True)
class Limits:
    large_bytes: int = 256 << 20
    """A partition of this size or more is large."""
    job_bytes_max: int = 1 << 30
    """What a job takes together. One partition may be more: it is then alone in its job."""
    job_partitions_max: int = 500
    bytes_per_second: int | None = None
    """What compactors may read from the brokers' disks, on average."""


def lane_of(row: WorkRow, limits: Limits) -> Lane:
    return Lane.LARGE if row.total_bytes >= limits.large_bytes else Lane.SMALL


def urgency(row: WorkRow, now_ms: int) -> tuple[bool, int, float]:
    waited_ms = max(0, now_ms - row.since_ms)
    return row.is_requested, row.overdue_ms, row.dirty_ratio_ppm / 1_000_000 + waited_ms / WAIT_MS


def choose(
    rows: Sequence[WorkRow], lane: Lane, now_ms: int, limits: Limits, skipped: Collection[object]
) -> list[WorkRow]:
    """What the lane's next job takes; empty if nothing is due. `skipped` are keys to leave alone for now."""
    waiting = [row for row in rows if lane_of(row, limits) is lane and row.key not in skipped]
    waiting.sort(key=lambda row: urgency(row, now_ms), reverse=True)
    chosen: list[WorkRow] = []
    size_bytes = 0
    for row in waiting[: limits.job_partitions_max]:
        if chosen and size_bytes + row.total_bytes > limits.job_bytes_max:
            break
        chosen.append(row)
        size_bytes += row.total_bytes
    return chosen
