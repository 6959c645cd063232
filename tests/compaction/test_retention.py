"""Retention by time and by size, as Kafka does it: whole segments, from the front, never past the high watermark."""

from __future__ import annotations

import pytest

from sexton.compaction.eligibility import SegmentSummary
from sexton.compaction.retention import retained_from
from sexton.settings.topic import TopicConfig

NOW_MS = 1_000_000
KEEP_ALL = {"retention_ms": -1, "retention_bytes": -1}


def segments(*written_ms: int, size: int = 100) -> list[SegmentSummary]:
    """Segments at offsets 0, 10, 20, … written at the given times; the last one is active."""
    return [SegmentSummary(10 * index, size, time, time) for index, time in enumerate(written_ms)]


def start_of(log: list[SegmentSummary], high_watermark: int = 1000, policy: str = "delete", **limits: int) -> int:
    config = TopicConfig(cleanup_policy=frozenset(policy.split(",")), **{**KEEP_ALL, **limits})  # type: ignore[arg-type]
    return retained_from(log, config, high_watermark, NOW_MS)


def test_without_limits_everything_stays() -> None:
    assert start_of(segments(1, 1, 1)) == 0


def test_a_compacted_topic_loses_nothing_by_retention() -> None:
    assert start_of(segments(1, 1, 1), policy="compact", retention_ms=1, retention_bytes=0) == 0


def test_a_topic_may_be_compacted_and_deleted() -> None:
    assert start_of(segments(1, 1, 1), policy="compact,delete", retention_ms=1) == 20


def test_segments_whose_newest_record_is_older_than_the_retention_go() -> None:
    log = segments(NOW_MS - 501, NOW_MS - 500, NOW_MS)
    assert start_of(log, retention_ms=500) == 10


def test_a_young_segment_shields_the_old_ones_behind_it() -> None:
    assert start_of(segments(NOW_MS, 1, 1), retention_ms=500) == 0


def test_the_active_segment_always_stays() -> None:
    assert start_of(segments(1, 1, 1), retention_ms=500) == 20
    assert start_of(segments(1), retention_ms=500, retention_bytes=0) == 0


@pytest.mark.parametrize(
    ("retention_bytes", "expected"), [(400, 0), (399, 0), (301, 0), (300, 10), (200, 20), (100, 30), (0, 30)]
)
def test_a_segment_goes_by_size_when_the_log_without_it_still_has_enough(retention_bytes: int, expected: int) -> None:
    assert start_of(segments(1, 1, 1, 1), retention_bytes=retention_bytes) == expected


def test_what_goes_by_time_counts_towards_the_size() -> None:
    log = segments(NOW_MS - 501, NOW_MS, NOW_MS, NOW_MS)
    assert start_of(log, retention_ms=500, retention_bytes=300) == 10
    assert start_of(log, retention_ms=500, retention_bytes=200) == 20


@pytest.mark.parametrize(("high_watermark", "expected"), [(9, 0), (10, 10), (19, 10), (20, 20), (1000, 20)])
def test_nothing_goes_past_the_high_watermark(high_watermark: int, expected: int) -> None:
    assert start_of(segments(1, 1, 1), high_watermark, retention_ms=500) == expected
