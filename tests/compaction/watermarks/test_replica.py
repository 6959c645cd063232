"""What one replica knows: every row of the table in `replica.py`, and that nothing ever goes back."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.compaction.watermarks.replica import NOTHING, Pair, ReplicaWatermarks

ONE = uuid.UUID(int=1)

offsets = st.integers(0, 20)
pairs = st.builds(Pair, offsets, offsets)


def known(
    compacted: Pair = NOTHING, removable: Pair = NOTHING, planned: int = 0, generation: int = 0, fence_below: int = 0
) -> ReplicaWatermarks:
    return ReplicaWatermarks(ONE, generation, compacted, removable, planned, fence_below)


def test_an_empty_log_starts_at_mtro_and_mxro_even_above_its_end() -> None:
    begun = ReplicaWatermarks.of_empty_log(ONE, 2, Pair(80, 70))
    assert (begun.compacted, begun.removable, begun.generation) == (Pair(80, 70), Pair(80, 70), 2)


def test_what_an_empty_log_is_told_counts_as_compacted() -> None:
    assert known().with_received_while_empty(0, Pair(8, 7)).compacted == Pair(8, 7)


def test_a_log_with_content_is_told_and_has_compacted_no_more_than_before() -> None:
    told = known(compacted=Pair(3, 3)).with_received(0, Pair(8, 7))
    assert (told.compacted, told.removable) == (Pair(3, 3), Pair(8, 7))


def test_an_empty_log_takes_a_newer_generation_and_ignores_an_older_one() -> None:
    before = known(Pair(9, 9), Pair(9, 9), generation=1)
    newer = before.with_received_while_empty(2, Pair(4, 4), fence_below=1, planned_high_watermark=5)
    assert newer == known(Pair(4, 4), Pair(4, 4), planned=5, generation=2, fence_below=1)
    assert before.with_received_while_empty(0, Pair(20, 20)) is before


def test_an_empty_log_that_has_begun_does_not_go_back_under_a_leader_that_knows_less() -> None:
    begun = known().with_received_while_empty(0, Pair(8, 8))
    assert begun.with_received_while_empty(0, Pair(5, 5)) is begun


def test_a_compaction_raises_mcco_and_mxfo_to_its_bound() -> None:
    assert known().with_compaction(7).compacted == Pair(7, 7)


def test_an_adopted_compaction_brings_mtro_mxro_and_the_fence_of_its_maker() -> None:
    adopted = known(removable=Pair(2, 6), fence_below=1).with_compaction(7, Pair(5, 5), 3)
    assert (adopted.removable, adopted.fence_below) == (Pair(5, 6), 3)


def test_a_replica_may_compact_again_up_to_the_same_bound() -> None:
    before = known(compacted=Pair(7, 7))
    assert before.with_compaction(7) is before


def test_a_compaction_below_the_own_mcco_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="compacted up to"):
        known(compacted=Pair(7, 7)).with_compaction(6)


def test_a_compaction_raises_the_one_that_lags() -> None:
    """A directory of Kafka's is clean further than it is free of transactions."""
    assert known(compacted=Pair(7, 2)).with_compaction(7).compacted == Pair(7, 7)


def test_a_telling_of_another_generation_is_ignored_whether_older_or_newer() -> None:
    replica = known(removable=Pair(3, 3), generation=1)
    assert replica.with_received(0, Pair(9, 9)) is replica
    assert replica.with_received(2, Pair(9, 9)) is replica


def test_a_late_telling_of_an_old_leader_changes_nothing() -> None:
    replica = known(removable=Pair(8, 8))
    assert replica.with_received(0, Pair(5, 5)) is replica


def test_what_was_copied_brings_the_high_watermark_it_was_compacted_at() -> None:
    assert known(planned=4).with_received(0, NOTHING, planned_high_watermark=9).planned_high_watermark == 9


def test_compaction_without_coordination_raises_mcco_and_the_fence_alone() -> None:
    alone = known(Pair(2, 2), Pair(1, 1)).with_independent_compaction(9)
    assert alone == known(Pair(9, 2), Pair(1, 1), fence_below=9)


def test_a_log_whose_values_are_lost_vouches_for_nothing_and_fences_up_to_its_end() -> None:
    assert ReplicaWatermarks.of_unknown_past(ONE, 12) == known(fence_below=12)


def test_the_log_start_raises_what_is_compacted_below_it() -> None:
    assert known(compacted=Pair(2, 9)).with_log_start(5).compacted == Pair(5, 9)


def test_the_high_watermark_of_a_plan_is_kept() -> None:
    assert known().with_plan(6).with_plan(4).planned_high_watermark == 6


def test_a_forced_election_cuts_everything_to_the_new_leaders_end() -> None:
    forced = known(Pair(9, 3), Pair(8, 2), planned=9, fence_below=7).with_forced_election(1, 5)
    assert forced == known(Pair(5, 3), Pair(5, 2), planned=5, generation=1, fence_below=5)


def test_a_forced_election_needs_a_newer_generation() -> None:
    with pytest.raises(ValueError, match="does not follow"):
        known(generation=2).with_forced_election(2, 5)


def test_a_value_that_went_back_is_noticed() -> None:
    with pytest.raises(AssertionError, match="rule 7"):
        known(compacted=Pair(4, 4)).check_follows(known(compacted=Pair(5, 4)))


@given(pairs, pairs)
def test_join_and_meet_are_the_bounds_of_two_pairs(one: Pair, other: Pair) -> None:
    assert one.join(other).covers(one)
    assert one.covers(one.meet(other))
    assert one.join(other) == other.join(one)
    assert one.meet(one.join(other)) == one
    assert one.covers(other) == (one.join(other) == one)


events = st.one_of(
    st.tuples(st.just("compaction"), offsets, pairs, offsets),
    st.tuples(st.just("received"), st.integers(0, 2), pairs, offsets, offsets),
    st.tuples(st.just("received_while_empty"), st.just(1), pairs, offsets, offsets),
    st.tuples(st.just("log_start"), offsets),
    st.tuples(st.just("plan"), offsets),
    st.tuples(st.just("independent_compaction"), offsets),
)


def after(replica: ReplicaWatermarks, event: tuple[str, *tuple[object, ...]]) -> ReplicaWatermarks:
    name, *arguments = event
    if name == "compaction" and arguments[0] < replica.compacted.keys:  # type: ignore[operator]
        return replica
    method = getattr(replica, f"with_{name}")
    return method(*arguments)  # type: ignore[no-any-return]


@given(st.lists(events, max_size=12))
def test_within_a_generation_nothing_goes_back_whatever_comes_in_whatever_order(
    history: list[tuple[str, *tuple[object, ...]]],
) -> None:
    replica = known(generation=1)
    for event in history:
        before, replica = replica, after(replica, event)
        replica.check_follows(before)


@given(st.lists(st.tuples(st.integers(0, 2), pairs, offsets, offsets), max_size=8), st.randoms())
def test_tellings_may_be_repeated_and_reordered(tellings: list[tuple[int, Pair, int, int]], rng: object) -> None:
    shuffled = [*tellings, *tellings]
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    one = other = known(generation=1)
    for telling in tellings:
        one = one.with_received(*telling)
    for telling in shuffled:
        other = other.with_received(*telling)
    assert one == other
