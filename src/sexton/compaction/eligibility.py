"""When a partition is due for compaction, how far a compaction may go, and what limits it.

*Clean* is what lies below the first dirty offset (the cleaner's checkpoint): at most one record per key. *Dirty* is
what lies above it, up to the bound. The dirty ratio compares their bytes, in closed segments only; it says nothing
about how many duplicates there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sexton.settings.topic import TopicConfig
from sexton.types import INT64_MAX


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """What is needed to know of a segment. The last segment of a log is its active one."""

    base_offset: int
    size_bytes: int
    first_timestamp_ms: int
    max_timestamp_ms: int


@dataclass(frozen=True, slots=True)
class Bound:
    """How far a compaction may go (a segment's base offset, exclusive), and what limits it there."""

    offset: int
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Eligibility:
    is_eligible: bool
    because: str
    first_dirty_offset: int
    bound: Bound
    clean_bytes: int
    dirty_bytes: int
    dirty_ratio: float
    overdue_ms: int
    """How long the oldest dirty record has waited beyond max.compaction.lag.ms."""


def first_dirty_offset(checkpoint: int | None, log_start_offset: int, log_end_offset: int) -> int:
    """Where the dirty section begins. A checkpoint outside the log is void, and then all of the log counts as dirty."""
    if checkpoint is None or not log_start_offset <= checkpoint <= log_end_offset:
        return log_start_offset
    return checkpoint


def cleanable_bound(
    segments: Sequence[SegmentSummary],
    first_dirty: int,
    last_stable_offset: int,
    high_watermark: int,
    now_ms: int,
    config: TopicConfig,
) -> Bound:
    """The base offset of the first segment that must not be compacted."""
    active = segments[-1]
    limits = [(active.base_offset, "the active segment is never cleaned")]
    stable = _segment_holding(segments, last_stable_offset)
    if stable < active.base_offset:
        held_by = (
            f"the high watermark is {high_watermark}"
            if last_stable_offset >= high_watermark
            else f"a transaction has been open since offset {last_stable_offset}"
        )
        limits.append((stable, held_by))
    if config.min_compaction_lag_ms > 0:
        fresh = [
            segment.base_offset
            for segment in segments[:-1]
            if segment.base_offset >= _segment_holding(segments, first_dirty)
            and segment.max_timestamp_ms > now_ms - config.min_compaction_lag_ms
        ]
        if fresh:
            limits.append((min(fresh), f"newer than min.compaction.lag.ms={config.min_compaction_lag_ms}"))
    offset, because = min(limits)
    return Bound(offset, because)


def eligibility_of(
    segments: Sequence[SegmentSummary], first_dirty: int, bound: Bound, now_ms: int, config: TopicConfig
) -> Eligibility:
    """Whether Kafka's cleaner would select this partition now, and if not, why not."""
    dirty_start = _segment_holding(segments, first_dirty)
    dirty = [s for s in segments if dirty_start <= s.base_offset < bound.offset]
    clean_bytes = sum(s.size_bytes for s in segments if s.base_offset < min(dirty_start, bound.offset))
    dirty_bytes = sum(s.size_bytes for s in dirty)
    if first_dirty >= bound.offset:
        clean_bytes = sum(s.size_bytes for s in segments if s.base_offset < bound.offset)
        dirty, dirty_bytes = [], 0
    total = clean_bytes + dirty_bytes
    ratio = dirty_bytes / total if total else 0.0
    overdue_ms = _overdue_ms(dirty, now_ms, config)
    is_eligible, because = _decide(config, bound, dirty_bytes, ratio, overdue_ms)
    return Eligibility(
        is_eligible=is_eligible,
        because=because,
        first_dirty_offset=first_dirty,
        bound=bound,
        clean_bytes=clean_bytes,
        dirty_bytes=dirty_bytes,
        dirty_ratio=ratio,
        overdue_ms=overdue_ms,
    )


def _decide(config: TopicConfig, bound: Bound, dirty_bytes: int, ratio: float, overdue_ms: int) -> tuple[bool, str]:
    if not config.compacts:
        return False, f"cleanup.policy is {','.join(sorted(config.cleanup_policy))}, not compact"
    if dirty_bytes == 0:
        return False, f"nothing is dirty below offset {bound.offset} ({bound.because})"
    if overdue_ms > 0:
        return True, f"max.compaction.lag.ms passed {overdue_ms} ms ago"
    if ratio > config.min_cleanable_dirty_ratio:
        return True, f"its dirty ratio {ratio:.2f} is above {config.min_cleanable_dirty_ratio}"
    return (
        False,
        f"its dirty ratio {ratio:.2f} is not above min.cleanable.dirty.ratio={config.min_cleanable_dirty_ratio}",
    )


def _overdue_ms(dirty: Sequence[SegmentSummary], now_ms: int, config: TopicConfig) -> int:
    if config.max_compaction_lag_ms == INT64_MAX:
        return 0
    first = [s.first_timestamp_ms for s in dirty if s.first_timestamp_ms > 0]
    return max(0, now_ms - config.max_compaction_lag_ms - min(first)) if first else 0


def _segment_holding(segments: Sequence[SegmentSummary], offset: int) -> int:
    """Base offset of the segment that contains an offset (the first segment for offsets before the log)."""
    holding = segments[0].base_offset
    for segment in segments:
        if segment.base_offset > offset:
            break
        holding = segment.base_offset
    return holding
