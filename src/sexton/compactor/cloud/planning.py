"""Plans, read from the metastore: each from one moment, however many pages it takes.

What moves between two pages (another compactor has leveled or compacted, the start has moved) makes the pages not fit
together: then there is no plan, and the work is looked at again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from sexton.cloud.extents import summaries_of
from sexton.compaction.cloud_due import MERGE_BYTES, MERGE_RUNS, overdue_ms
from sexton.compaction.eligibility import SegmentSummary, cleanable_bound
from sexton.compaction.terms import Terms
from sexton.compactor.cloud.plans import HORIZON_MS_MIN, L1_BYTES, PartitionPlan
from sexton.ports.cloud import (
    AbortedRow,
    CloudPartitionRow,
    CloudStore,
    Extent,
    Level,
    hash_of_settings,
)
from sexton.settings.topic import TopicConfig
from sexton.types import OFFSET_MAX, PartitionId

PAGE: Final = 1_000
PLAN_EXTENTS_MAX: Final = 20_000
"""Of one partition's L0 in one job: what is left is leveled by the next."""
COMPACTION_EXTENTS_MAX: Final = 200_000
"""Of one partition's L1 in one job, which must read all of it from the start on: 12 TB of full extents."""

PLAN_BYTES_MAX: Final = 512 << 20
"""Of one partition's L0 in one job."""


async def plan_level(metastore: CloudStore, key: PartitionId, topic: str) -> PartitionPlan | None:
    """L0 from the leveled offset up to the end of the last extent that ends at or below the stable offset."""
    found = await _read(metastore, key, lambda row: row.leveled_offset, lambda row: row.stable_offset, Level.L0)
    if found is None:
        return None
    row, extents, aborted = found
    size_bytes, count = 0, 0
    while count < len(extents) and (count == 0 or size_bytes < PLAN_BYTES_MAX):
        size_bytes += extents[count].size_bytes
        count += 1
    return PartitionPlan(topic=topic, row=row, extents=tuple(extents[:count]), aborted=tuple(aborted))


async def plan_compaction(
    metastore: CloudStore,
    key: PartitionId,
    topic: str,
    settings: dict[str, str],
    config: TopicConfig,
    now_ms: int,
    slack_ms: int = 0,
) -> PartitionPlan | None:
    """L1 from the start up to the bound: the leveled offset, or the first extent that min.compaction.lag.ms forbids.
    `slack_ms` is how long the job may take."""
    if not config.compacts:
        return None
    limit = COMPACTION_EXTENTS_MAX
    found = await _read(metastore, key, lambda row: row.start_offset, lambda row: row.leveled_offset, Level.L1, limit)
    if found is None:
        return None
    row, extents, _ = found
    bound = _bound(row, extents, config, now_ms)
    below = tuple(extent for extent in extents if extent.end_offset <= bound)
    if not below:
        return None
    return PartitionPlan(
        topic=topic,
        row=row,
        extents=below,
        settings_hash=hash_of_settings(settings),
        terms=Terms(
            now_ms=now_ms,  # by this compactor's clock; what another's may do to horizons: docs/cloud.md, Compaction
            bound=bound,
            delete_retention_ms=max(config.delete_retention_ms, HORIZON_MS_MIN + slack_ms),  # C8
            mtro=OFFSET_MAX,
            mxro=OFFSET_MAX,
            settle_below=bound,
        ),
    )


async def plan_merge(
    metastore: CloudStore, key: PartitionId, topic: str, settings: dict[str, str]
) -> PartitionPlan | None:
    """The first stretch of many small neighbours. What is clean ends with an extent: nothing is merged across that."""
    found = await _read(metastore, key, lambda row: row.start_offset, lambda row: row.leveled_offset, Level.L1)
    if found is None:
        return None
    row, extents, _ = found
    clean = [extent for extent in extents if extent.end_offset <= row.cleaned_offset]
    small = small_neighbours(clean) or small_neighbours(extents[len(clean) :])
    if not small:
        return None
    return PartitionPlan(topic=topic, row=row, extents=small, settings_hash=hash_of_settings(settings))


def why_not(plan: PartitionPlan, config: TopicConfig, now_ms: int) -> str:
    """Empty if a compaction is worth its while, by the extents below its bound: what min.compaction.lag.ms keeps back
    counts as dirty in the partition's row, and would make it due for ever."""
    row, dirty_bytes = plan.row, 0
    for extent in plan.extents:
        dirty_bytes += extent.size_bytes if extent.end_offset > row.cleaned_offset else 0
    if row.horizon_ms and now_ms >= row.horizon_ms:
        return ""
    if not dirty_bytes:
        return "nothing below its bound is dirty"
    ratio = dirty_bytes / plan.size_bytes
    if ratio > config.min_cleanable_dirty_ratio or overdue_ms(row, config, now_ms):
        return ""
    return f"its dirty ratio {ratio:.2f} below the bound is not above {config.min_cleanable_dirty_ratio}"


def small_neighbours(extents: Sequence[Extent]) -> tuple[Extent, ...]:
    stretch: list[Extent] = []
    size_bytes = 0
    for extent in extents:
        if extent.size_bytes >= MERGE_BYTES:
            if len(stretch) > MERGE_RUNS:
                break
            stretch, size_bytes = [], 0
        else:
            stretch.append(extent)
            size_bytes += extent.size_bytes
            if size_bytes >= L1_BYTES:
                break
    return tuple(stretch) if len(stretch) > MERGE_RUNS else ()


def _bound(row: CloudPartitionRow, extents: Sequence[Extent], config: TopicConfig, now_ms: int) -> int:
    """What was not read becomes no cleaner: the bound is never above the last extent that was."""
    leveled = extents[-1].end_offset
    summaries = [*summaries_of(extents), SegmentSummary(leveled, 0, -1, now_ms)]
    return cleanable_bound(
        summaries, max(row.cleaned_offset, row.start_offset), leveled, leveled, now_ms, config
    ).offset


async def _read(
    metastore: CloudStore,
    key: PartitionId,
    first: Callable[[CloudPartitionRow], int],
    last: Callable[[CloudPartitionRow], int],
    level: Level,
    limit: int = PLAN_EXTENTS_MAX,
) -> tuple[CloudPartitionRow, list[Extent], list[AbortedRow]] | None:
    """The extents of a level between two offsets of the row, and what is aborted among them. None if there is nothing,
    or it has moved meanwhile."""
    page = await metastore.read_extents(key, 0, 1)
    if page is None:
        return None
    row, extents, aborted = page.row, list[Extent](), dict[int, AbortedRow]()
    at, end = first(row), last(row)
    while at < end and len(extents) < limit:
        page = await metastore.read_extents(key, at, PAGE)
        if page is None or _has_moved(row, page.row):
            return None
        some = [extent for extent in page.extents if extent.level is level and extent.end_offset <= end]
        if not some or (extents and some[0].base_offset != extents[-1].end_offset):
            break
        extents += some
        aborted |= {one.marker_offset: one for one in page.aborted}
        at = extents[-1].end_offset
    return (replace(row), extents, list(aborted.values())) if extents else None


def _has_moved(before: CloudPartitionRow, now: CloudPartitionRow) -> bool:
    names = ("leveled_offset", "compaction_epoch", "start_offset", "cleaned_offset")
    return any(getattr(before, name) != getattr(now, name) for name in names)
