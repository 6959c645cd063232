"""What is due of a cloud partition, by its row alone: the metastore's counters and the topic's settings. Pure.

| work    | due when                                                                                              |
|---------|-------------------------------------------------------------------------------------------------------|
| level   | 32 MiB of L0 wait; or the oldest for `cloud.level.ms` (half of max.compaction.lag.ms, if that is less); |
|         | or there are 5,000 extents of it                                                                      |
| compact | enough of L1 is dirty, or for too long; or a delete horizon has passed                                |
| merge   | not compacted, and 17 or more small runs in a row: looked for after each leveling                     |

A leveling ends below the last stable offset: behind an open transaction nothing is due.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sexton.ports.cloud import CloudPartitionRow
from sexton.ports.work_queue import CloudWork, WorkKey, WorkRow
from sexton.settings.topic import TopicConfig
from sexton.types import INT64_MAX

STORE: Final = "store"
"""Stands where a replica's broker stands: a cloud partition has one copy."""

LEVEL_BYTES: Final = 32 << 20
LEVEL_EXTENTS: Final = 5_000
LEVEL_MS: Final = 300_000
"""(`cloud.level.ms`)"""

MERGE_BYTES: Final = 16 << 20
"""A run of L1 below this size is small."""
MERGE_RUNS: Final = 16
"""So many small neighbours are merged."""


def key_of(kind: CloudWork, row: CloudPartitionRow) -> WorkKey:
    return WorkKey(int(kind), row.topic_id, row.partition)


@dataclass(frozen=True, slots=True)
class DueLimits:
    level_ms: int = LEVEL_MS
    level_bytes: int = LEVEL_BYTES


DEFAULT_LIMITS: Final = DueLimits()


def due_work(row: CloudPartitionRow, topic: str, config: TopicConfig, now_ms: int, limits: DueLimits) -> list[WorkRow]:
    found = level_work(row, topic, config, now_ms, limits), compact_work(row, topic, config, now_ms)
    return [one for one in found if one is not None]


def level_work(
    row: CloudPartitionRow, topic: str, config: TopicConfig, now_ms: int, limits: DueLimits
) -> WorkRow | None:
    why = why_level(row, config, now_ms, limits)
    if not why:
        return None
    wait_ms, waited_ms = _level_wait_ms(row, config, now_ms, limits)
    return WorkRow(
        key=key_of(CloudWork.LEVEL, row),
        topic=topic,
        why=why,
        dirty_ratio_ppm=min(1_000_000, row.l0_bytes * 1_000_000 // LEVEL_BYTES),
        dirty_bytes=row.l0_bytes,
        total_bytes=row.l0_bytes,
        overdue_ms=max(0, waited_ms - 2 * wait_ms),
        is_requested=False,
        since_ms=now_ms,
    )


def why_level(row: CloudPartitionRow, config: TopicConfig, now_ms: int, limits: DueLimits = DEFAULT_LIMITS) -> str:
    """Empty if nothing is due."""
    if not row.l0_extents_count or row.stable_offset <= row.leveled_offset:
        return ""
    wait_ms, waited_ms = _level_wait_ms(row, config, now_ms, limits)
    if row.l0_bytes >= limits.level_bytes:
        return f"{row.l0_bytes} bytes wait to be leveled"
    if waited_ms >= wait_ms:
        return f"its oldest record has waited to be leveled for {waited_ms} ms"
    if row.l0_extents_count >= LEVEL_EXTENTS:
        return f"it has {row.l0_extents_count} extents in L0"
    return ""


def _level_wait_ms(row: CloudPartitionRow, config: TopicConfig, now_ms: int, limits: DueLimits) -> tuple[int, int]:
    """How long L0 may wait, and how long it has."""
    wait_ms = min(limits.level_ms, config.max_compaction_lag_ms // 2) if config.compacts else limits.level_ms
    return wait_ms, max(0, now_ms - row.l0_since_ms) if row.l0_since_ms else 0


def compact_work(row: CloudPartitionRow, topic: str, config: TopicConfig, now_ms: int) -> WorkRow | None:
    why = why_compact(row, config, now_ms)
    if not why:
        return None
    ratio = row.dirty_bytes / row.l1_bytes if row.l1_bytes else 0.0
    return WorkRow(
        key=key_of(CloudWork.COMPACT, row),
        topic=topic,
        why=why,
        dirty_ratio_ppm=int(ratio * 1_000_000),
        dirty_bytes=row.dirty_bytes,
        total_bytes=row.l1_bytes,
        overdue_ms=overdue_ms(row, config, now_ms),
        is_requested=False,
        since_ms=now_ms,
    )


def why_compact(row: CloudPartitionRow, config: TopicConfig, now_ms: int) -> str:
    """Empty if nothing is due. What min.compaction.lag.ms forbids is known only when the extents are read."""
    if not config.compacts or not row.l1_bytes:
        return ""
    if overdue := overdue_ms(row, config, now_ms):
        return f"max.compaction.lag.ms passed {overdue} ms ago"
    ratio = row.dirty_bytes / row.l1_bytes
    if row.dirty_bytes and ratio > config.min_cleanable_dirty_ratio:
        return f"its dirty ratio {ratio:.2f} is above {config.min_cleanable_dirty_ratio}"
    if row.horizon_ms and now_ms >= row.horizon_ms:
        return "the delete horizon of tombstones has passed"
    return ""


def overdue_ms(row: CloudPartitionRow, config: TopicConfig, now_ms: int) -> int:
    """A record waits in L0 for half of max.compaction.lag.ms at most, and then in L1 for the other half."""
    if config.max_compaction_lag_ms == INT64_MAX or not row.dirty_bytes or not row.dirty_since_ms:
        return 0
    return max(0, now_ms - row.dirty_since_ms - config.max_compaction_lag_ms // 2)
