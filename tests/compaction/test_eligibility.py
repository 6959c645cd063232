"""When a partition is due for cleaning and how far cleaning may go: Kafka's rules, one scenario each."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sexton.compaction.eligibility import (
    Bound,
    Eligibility,
    SegmentSummary,
    cleanable_bound,
    eligibility_of,
    first_dirty_offset,
)
from sexton.settings.schema import BadSettingError
from sexton.settings.topic import TopicConfig, topic_names
from sexton.types import INT64_MAX

NOW_MS = 1_000_000
COMPACT = frozenset({"compact"})
CONFIG = TopicConfig(cleanup_policy=COMPACT)


def segments(*bases: int, size: int = 100, written_ms: int = 0) -> list[SegmentSummary]:
    """Segments of equal size, each written at the given time; the last one is active."""
    return [SegmentSummary(base, size, written_ms, written_ms) for base in bases]


def bound_of(
    log: Sequence[SegmentSummary],
    *,
    lso: int = 1000,
    high_watermark: int = 1000,
    first_dirty: int = 0,
    config: TopicConfig = CONFIG,
) -> Bound:
    return cleanable_bound(log, first_dirty, lso, high_watermark, NOW_MS, config)


def eligibility(
    log: Sequence[SegmentSummary], first_dirty: int, bound: int, config: TopicConfig = CONFIG
) -> Eligibility:
    return eligibility_of(log, first_dirty, Bound(bound, "a test says so"), NOW_MS, config)


# --- where the dirty section begins ---


@pytest.mark.parametrize(
    ("checkpoint", "expected"),
    [(None, 10), (9, 10), (10, 10), (50, 50), (100, 100), (101, 10)],
)
def test_a_checkpoint_outside_the_log_means_that_all_of_it_is_dirty(checkpoint: int | None, expected: int) -> None:
    assert first_dirty_offset(checkpoint, log_start_offset=10, log_end_offset=100) == expected


# --- how far cleaning may go ---


def test_the_active_segment_is_never_cleaned() -> None:
    bound = bound_of(segments(0, 10, 20))
    assert bound.offset == 20
    assert "active" in bound.because


def test_a_log_of_one_segment_offers_nothing() -> None:
    assert bound_of(segments(5)).offset == 5


@pytest.mark.parametrize(("lso", "expected"), [(25, 20), (20, 20), (19, 10), (10, 10), (9, 0), (0, 0), (-1, 0)])
def test_cleaning_stops_before_the_segment_that_holds_the_last_stable_offset(lso: int, expected: int) -> None:
    assert bound_of(segments(0, 10, 20, 30), lso=lso).offset == min(expected, 30)


def test_an_open_transaction_and_the_high_watermark_are_told_apart() -> None:
    assert "open since offset 12" in bound_of(segments(0, 10, 20), lso=12, high_watermark=15).because
    assert "high watermark is 12" in bound_of(segments(0, 10, 20), lso=12, high_watermark=12).because


def test_segments_with_a_record_younger_than_the_minimum_lag_wait() -> None:
    old, young = segments(0, 10, written_ms=NOW_MS - 500), segments(20, 30, 40, written_ms=NOW_MS - 499)
    config = TopicConfig(cleanup_policy=COMPACT, min_compaction_lag_ms=500)
    bound = bound_of([*old, *young], config=config)
    assert bound.offset == 20
    assert "min.compaction.lag.ms=500" in bound.because
    assert bound_of([*old, *young]).offset == 40


def test_a_young_segment_in_the_clean_section_does_not_matter() -> None:
    log = [
        *segments(0, written_ms=NOW_MS),
        *segments(10, 20, written_ms=0),
    ]
    config = TopicConfig(cleanup_policy=COMPACT, min_compaction_lag_ms=500)
    assert bound_of(log, first_dirty=10, config=config).offset == 20
    assert bound_of(log, first_dirty=9, config=config).offset == 0


def test_an_old_segment_behind_a_young_one_waits_with_it() -> None:
    log = [*segments(0, written_ms=NOW_MS), *segments(10, 20, written_ms=0)]
    config = TopicConfig(cleanup_policy=COMPACT, min_compaction_lag_ms=1)
    assert bound_of(log, config=config).offset == 0


# --- whether it is due ---


def test_a_dirty_ratio_above_the_minimum_makes_it_due() -> None:
    log = segments(0, 10, 20, 30, 40)
    assert eligibility(log, 20, 40).dirty_ratio == 0.5
    assert not eligibility(log, 20, 40).is_eligible, "0.5 is not above 0.5"
    assert eligibility(log, 10, 40).is_eligible
    assert eligibility(log, 10, 40).clean_bytes == 100
    assert eligibility(log, 10, 40).dirty_bytes == 300


def test_a_checkpoint_within_a_segment_leaves_that_segment_dirty() -> None:
    assert eligibility(segments(0, 10, 20), 15, 20).dirty_bytes == 100
    assert eligibility(segments(0, 10, 20), 15, 20).clean_bytes == 100


def test_bytes_above_the_bound_are_neither_clean_nor_dirty() -> None:
    verdict = eligibility(segments(0, 10, 20, 30), 10, 20)
    assert (verdict.clean_bytes, verdict.dirty_bytes) == (100, 100)


@pytest.mark.parametrize(("first_dirty", "bound"), [(20, 20), (25, 20), (20, 10)])
def test_what_is_clean_up_to_the_bound_is_not_due(first_dirty: int, bound: int) -> None:
    verdict = eligibility(segments(0, 10, 20, 30), first_dirty, bound)
    assert not verdict.is_eligible
    assert verdict.dirty_bytes == 0
    assert verdict.clean_bytes == 10 * bound
    assert "a test says so" in verdict.because


def test_a_dirty_record_older_than_the_maximum_lag_makes_it_due_whatever_the_ratio() -> None:
    log = [*segments(0, size=10_000), *segments(10, 20, written_ms=NOW_MS - 601)]
    config = TopicConfig(cleanup_policy=COMPACT, max_compaction_lag_ms=600)
    verdict = eligibility(log, 10, 20, config)
    assert verdict.is_eligible
    assert verdict.overdue_ms == 1
    on_time = [*segments(0, size=10_000), *segments(10, 20, written_ms=NOW_MS - 600)]
    assert not eligibility(on_time, 10, 20, config).is_eligible


def test_the_maximum_lag_does_not_count_what_is_clean_or_has_no_time() -> None:
    log = [*segments(0, size=10_000, written_ms=1), *segments(10, 20, written_ms=-1)]
    config = TopicConfig(cleanup_policy=COMPACT, max_compaction_lag_ms=600)
    assert eligibility(log, 10, 20, config).overdue_ms == 0


def test_without_a_maximum_lag_nothing_is_overdue() -> None:
    assert eligibility(segments(0, 10, written_ms=1), 0, 10).overdue_ms == 0
    assert CONFIG.max_compaction_lag_ms == INT64_MAX


def test_a_topic_that_is_not_compacted_is_never_due() -> None:
    verdict = eligibility(segments(0, 10), 0, 10, TopicConfig())
    assert not verdict.is_eligible
    assert "cleanup.policy is delete" in verdict.because


def test_a_minimum_ratio_of_one_is_never_reached() -> None:
    assert not eligibility(segments(0, 10), 0, 10, TopicConfig(COMPACT, min_cleanable_dirty_ratio=1.0)).is_eligible


def test_empty_dirty_segments_are_not_worth_a_pass() -> None:
    assert not eligibility(segments(0, 10, size=0), 0, 10).is_eligible


# --- the settings ---


def test_settings_come_in_layers_under_kafka_s_names() -> None:
    broker = topic_names({"log.cleaner.delete.retention.ms": "5", "log.segment.bytes": "77", "node.id": "1"})
    config = TopicConfig.of(broker, {"delete.retention.ms": "6", "cleanup.policy": "compact, delete", "unknown": "x"})
    assert config.delete_retention_ms == 6
    assert config.segment_bytes == 77
    assert config.compacts
    assert config.deletes


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", "shred"),
        ("min.cleanable.dirty.ratio", "1.5"),
        ("min.cleanable.dirty.ratio", "half"),
        ("delete.retention.ms", "-2"),
        ("segment.bytes", "1e6"),
        ("retention.ms", str(2**63)),
    ],
)
def test_a_setting_that_kafka_would_refuse_is_refused(name: str, text: str) -> None:
    with pytest.raises(BadSettingError, match=name):
        TopicConfig.of({name: text})
