"""Chooses the work that a compactor takes next. Pure.

Work is taken in lanes that run beside each other, so that none starves: many small partitions per job, because
starting a job costs Spark about as much as compacting ten megabytes; and the large ones, one or a few per job.

Within a lane it is first come, first served, but some work counts as due for longer than it is: work that was requested
by an operator, is overdue (max.compaction.lag.ms), or is very dirty. That is all they gain. So due work waits only for
work that was due before it or within `AHEAD_MS_MAX` after it, however much urgent work comes later.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from sexton.ports.work_queue import CloudWork, WorkKey, WorkRow

REQUESTED_MS: Final = 600_000
OVERDUE_MS: Final = 300_000
DIRTY_MS: Final = 60_000
"""For a log that is all dirty; proportionally less for a lower dirty ratio."""

AHEAD_MS_MAX: Final = REQUESTED_MS + OVERDUE_MS + DIRTY_MS


class Lane(Enum):
    SMALL = "small"
    LARGE = "large"
    LEVEL = "level"
    """Of cloud topics: short jobs, for which others wait."""


@dataclass(frozen=True, slots=True)
class Limits:
    large_bytes: int = 256 << 20
    """A partition of this size or more is large."""
    job_bytes_max: int = 1 << 30
    """Maximum bytes of one job. A larger partition is alone in its job."""
    job_partitions_max: int = 500
    bytes_per_second: int | None = None
    """Average rate at which compactors may read from the brokers' disks."""


def lane_of(row: WorkRow, limits: Limits) -> Lane:
    if row.key.broker_id == CloudWork.LEVEL:
        return Lane.LEVEL
    return Lane.LARGE if row.total_bytes >= limits.large_bytes else Lane.SMALL


def turn_ms(row: WorkRow) -> int:
    """Since when the work counts as due: the earlier, the sooner it is chosen."""
    ahead_ms = DIRTY_MS * min(row.dirty_ratio_ppm, 1_000_000) // 1_000_000
    return row.since_ms - ahead_ms - (REQUESTED_MS if row.is_requested else 0) - (OVERDUE_MS if row.overdue_ms else 0)


def choose(
    rows: Sequence[WorkRow],
    lane: Lane,
    limits: Limits,
    skipped: Collection[object] = (),
    company: Mapping[WorkKey, int] | None = None,
) -> list[WorkRow]:
    """Returns the work of the lane's next job; empty if nothing is due. `skipped` are keys to leave alone for now,
    `company` limits for some keys how many partitions a job with them may have."""
    waiting = [row for row in rows if lane_of(row, limits) is lane and row.key not in skipped]
    waiting.sort(key=turn_ms)
    # One job is on brokers' disks or in the store: it is that of the work whose turn it is.
    waiting = [row for row in waiting if row.key.is_cloud is waiting[0].key.is_cloud]
    chosen: list[WorkRow] = []
    size_bytes, count_max = 0, limits.job_partitions_max
    for row in waiting:
        count_max = min(count_max, (company or {}).get(row.key, count_max))
        if chosen and (len(chosen) >= count_max or size_bytes + row.total_bytes > limits.job_bytes_max):
            break
        chosen.append(row)
        size_bytes += row.total_bytes
    return chosen
