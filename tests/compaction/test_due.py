"""When a replica is due for a pass, and what the next pass waits for."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

from sexton.compaction.due import (
    CLOCKS_DIFFER_MS,
    UNKNOWN,
    Due,
    Leftovers,
    is_due,
    looks_different_ms,
    must_close_active,
)
from sexton.compaction.eligibility import SegmentSummary
from sexton.compaction.watermarks.replica import NOTHING, Pair, ReplicaWatermarks
from sexton.settings.topic import TopicConfig
from sexton.types import INT64_MAX

CONFIG = TopicConfig(cleanup_policy=frozenset({"compact"}))
CLEAN = ReplicaWatermarks(uuid.UUID(int=1), compacted=Pair(20, 20))
SEGMENTS = [SegmentSummary(base, 100, 1000, 1000) for base in (0, 10, 20)]


def due(watermarks: ReplicaWatermarks = CLEAN, leftovers: Leftovers | None = None, **changes: Any) -> Due:
    facts: dict[str, Any] = {
        "log_start": 0,
        "log_end": 25,
        "last_stable_offset": 25,
        "high_watermark": 25,
        "now_ms": 5000,
        "config": CONFIG,
        "is_requested": False,
    }
    return is_due(SEGMENTS, watermarks, leftovers, **{**facts, **changes})


def test_a_clean_replica_is_not_due_and_a_dirty_one_is() -> None:
    assert not due().is_due
    dirty = due(replace(CLEAN, compacted=Pair(0, 0)))
    assert dirty.is_due
    assert dirty.bound == 20, "never the active segment"


def test_what_is_not_settled_counts_as_dirty() -> None:
    assert due(replace(CLEAN, compacted=Pair(20, 0))).is_due
    independent = replace(CONFIG, compaction_coordination="independent")
    assert not due(replace(CLEAN, compacted=Pair(20, 0)), config=independent).is_due


def test_nothing_above_the_last_stable_offset_is_due() -> None:
    assert due(replace(CLEAN, compacted=Pair(0, 0)), last_stable_offset=12).bound == 10


def test_who_asks_gets_a_pass_over_what_is_clean() -> None:
    assert due(is_requested=True).is_due
    assert not due(is_requested=True, last_stable_offset=5).is_due, "there is nothing that may be touched"
    assert not due(is_requested=True, config=TopicConfig()).is_due, "the topic is not compacted"


def test_a_copied_log_whose_active_segment_was_compacted_elsewhere_is_not_due() -> None:
    """A compaction that ends below an earlier one is refused: it would be planned again and again. Seed 968."""
    copied = replace(CLEAN, compacted=Pair(22, 0), removable=Pair(22, 22))
    for found in (due(copied, UNKNOWN), due(copied, is_requested=True)):
        assert not found.is_due
        assert found.why == "it is compacted up to 22 already, beyond 20 (the active segment is never cleaned)"
    assert due(replace(copied, compacted=Pair(20, 20)), UNKNOWN).is_due


def leftovers(removable: Pair = NOTHING, now_ms: int = 5000, **fates: int) -> Leftovers:
    return Leftovers.of_pass(None, fates, removable, now_ms, 1000)


def test_tombstones_that_waited_for_replicas_are_due_when_mtro_rises() -> None:
    waiting = leftovers(tombstone_waits_for_replicas=3)
    assert not due(CLEAN, waiting).is_due
    assert due(replace(CLEAN, removable=Pair(15, 0)), waiting).is_due
    assert not due(replace(CLEAN, removable=Pair(15, 0)), leftovers(newest=3)).is_due, "nothing waits"


def test_what_is_kept_for_ever_is_due_when_delete_retention_is_shortened() -> None:
    fates = {"tombstone_waits_for_horizon": 1}
    for_ever = Leftovers.of_pass(None, fates, NOTHING, 5000, INT64_MAX)
    assert not due(CLEAN, for_ever, now_ms=10**15, config=replace(CONFIG, delete_retention_ms=INT64_MAX)).is_due
    assert due(CLEAN, for_ever, config=replace(CONFIG, delete_retention_ms=1000)).is_due


def test_when_time_alone_changes_the_answer_is_known() -> None:
    def changes_ms(leftovers: Leftovers | None = None, compacted: int = 20, **changes: Any) -> int:
        found = due(replace(CLEAN, compacted=Pair(compacted, compacted)), leftovers, **changes)
        config, now_ms = changes.get("config", CONFIG), changes.get("now_ms", 5000)
        return looks_different_ms(found, SEGMENTS, leftovers, now_ms, config)

    assert changes_ms() == INT64_MAX
    overdue = replace(CONFIG, max_compaction_lag_ms=7000, min_cleanable_dirty_ratio=1.0)
    assert changes_ms(config=overdue) == 8001, "the active segment must be closed then"
    assert changes_ms(config=overdue, compacted=0) == 8001
    assert not due(replace(CLEAN, compacted=Pair(0, 0)), config=overdue, now_ms=8000).is_due
    assert due(replace(CLEAN, compacted=Pair(0, 0)), config=overdue, now_ms=8001).is_due
    assert changes_ms(config=overdue, now_ms=9000) == INT64_MAX, "it has passed"
    fresh = replace(CONFIG, min_compaction_lag_ms=6000)
    assert changes_ms(config=fresh, compacted=0) == 7000
    assert not due(replace(CLEAN, compacted=Pair(0, 0)), config=fresh, now_ms=6999).is_due
    assert due(replace(CLEAN, compacted=Pair(0, 0)), config=fresh, now_ms=7000).is_due
    assert changes_ms(leftovers(tombstone_starts_horizon=1)) == 6000


def test_how_many_tombstones_and_markers_wait_is_told_apart() -> None:
    found = leftovers(
        newest=9,
        superseded=5,
        tombstone_waits_for_replicas=1,
        tombstone_starts_horizon=2,
        tombstone_waits_for_horizon=4,
        tombstone_expired=8,
        marker_waits_for_replicas=10,
        marker_has_data=20,
        marker_waits_for_horizon=40,
    )
    assert (found.tombstones_count, found.markers_count) == (7, 70)


def test_what_waits_for_its_horizon_is_due_when_that_has_passed() -> None:
    waiting = leftovers(marker_starts_horizon=1)
    assert not due(CLEAN, waiting, now_ms=5999).is_due
    assert due(CLEAN, waiting, now_ms=6000).is_due


def test_a_horizon_that_an_earlier_pass_started_is_not_forgotten() -> None:
    first = leftovers(tombstone_starts_horizon=1)
    second = Leftovers.of_pass(first, {"tombstone_waits_for_horizon": 1}, Pair(0, 0), 5500, 1000)
    assert second.horizon_ms == 6000
    third = Leftovers.of_pass(second, {}, Pair(0, 0), 6500, 1000)
    assert third.horizon_ms == INT64_MAX


def test_a_horizon_that_others_started_has_passed_at_the_latest_after_the_whole_retention() -> None:
    """A log that was copied holds tombstones whose horizon runs already."""
    for before in (None, UNKNOWN, leftovers(newest=1)):
        found = Leftovers.of_pass(before, {"tombstone_waits_for_horizon": 1}, Pair(0, 0), 5500, 1000)
        assert found.horizon_ms == 6500


def test_a_horizon_that_a_faster_clock_has_written_is_not_looked_at_all_the_time() -> None:
    waiting = {"tombstone_waits_for_horizon": 1}
    first = Leftovers.of_pass(None, waiting, Pair(0, 0), 5500, 0)
    assert first.may_go_on(Pair(0, 0), 5500), "by this clock it must have passed"
    second = Leftovers.of_pass(first, waiting, Pair(0, 0), 5501, 0)
    assert not second.may_go_on(Pair(0, 0), 5501 + CLOCKS_DIFFER_MS - 1)
    assert second.may_go_on(Pair(0, 0), 5501 + CLOCKS_DIFFER_MS)


def test_a_log_of_which_nobody_remembers_what_waits_is_due_once_anything_may_go() -> None:
    assert not due(CLEAN, UNKNOWN).is_due
    assert due(replace(CLEAN, removable=Pair(0, 5)), UNKNOWN).is_due


def test_the_active_segment_is_closed_when_a_record_has_waited_too_long_in_it() -> None:
    config = replace(CONFIG, max_compaction_lag_ms=100)
    active = SegmentSummary(20, 100, 1000, 1000)
    assert must_close_active(active, 1101, config)
    assert not must_close_active(active, 1100, config)
    assert not must_close_active(replace(active, size_bytes=0), 9999, config)
    assert not must_close_active(active, 9999, CONFIG)
    assert not must_close_active(active, 9999, replace(config, cleanup_policy=frozenset({"delete"})))
