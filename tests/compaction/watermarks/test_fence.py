"""The fetch fence: each condition, and whom it must never let in."""

from __future__ import annotations

import uuid

from hypothesis import given
from hypothesis import strategies as st

from sexton.compaction.watermarks import fence
from sexton.compaction.watermarks.replica import NOTHING, Pair, ReplicaWatermarks


def at(offset: int) -> Pair:
    return Pair(offset, offset)


def leading(removable: Pair = NOTHING, generation: int = 0, fence_below: int = 0) -> ReplicaWatermarks:
    compacted = removable.join(at(9))
    return ReplicaWatermarks(uuid.UUID(int=1), generation, compacted, removable, fence_below=fence_below)


def may_copy(
    leader: ReplicaWatermarks,
    end_offset: int,
    compacted: Pair,
    *,
    in_sync: bool,
    generation: int = 0,
    is_empty: bool = False,
) -> bool:
    return fence.may_copy(
        leader,
        end_offset=end_offset,
        is_empty=is_empty,
        generation=generation,
        compacted=compacted,
        in_sync=in_sync,
    )


def test_a_replica_in_sync_passes_the_fence_by_its_end() -> None:
    leader = leading(at(6))
    assert may_copy(leader, 6, NOTHING, in_sync=True)
    assert not may_copy(leader, 5, NOTHING, in_sync=True)


def test_a_replica_that_has_compacted_that_far_passes_wherever_it_ends() -> None:
    leader = leading(Pair(6, 4))
    assert may_copy(leader, 0, Pair(6, 4), in_sync=False)
    assert not may_copy(leader, 0, Pair(6, 3), in_sync=False)
    assert not may_copy(leader, 0, Pair(5, 4), in_sync=False)


def test_a_disk_that_went_back_in_time_is_turned_away_although_it_reaches_mtro() -> None:
    leader = leading(at(6))
    assert not may_copy(leader, 9, at(5), in_sync=False)


def test_a_replica_that_has_lost_the_end_of_what_it_compacted_is_turned_away() -> None:
    """What it would copy again is compacted up to MTRO, and not as far as it says."""
    leader = leading(at(6))
    assert not may_copy(leader, 7, at(8), in_sync=False)
    assert may_copy(leader, 8, at(8), in_sync=False)
    assert may_copy(leader, 3, at(6), in_sync=False), "a new one, on its way to what all have compacted"


def test_what_was_removed_without_coordination_counts_for_the_fence() -> None:
    leader = leading(NOTHING, fence_below=6)
    assert may_copy(leader, 6, NOTHING, in_sync=False)
    assert not may_copy(leader, 5, at(5), in_sync=False)
    assert may_copy(leader, 5, at(6), in_sync=True)


def test_another_generations_replica_never_passes() -> None:
    leader = leading(NOTHING, generation=1)
    assert not may_copy(leader, 9, at(9), in_sync=True)


def test_while_nothing_may_be_removed_everybody_passes() -> None:
    assert may_copy(leading(), 0, NOTHING, in_sync=False)


def test_an_empty_log_may_always_copy() -> None:
    leader = leading(at(6), generation=1, fence_below=8)
    assert may_copy(leader, 0, NOTHING, in_sync=False, is_empty=True)
    assert may_copy(leader, 4, at(9), in_sync=False, is_empty=True, generation=0)


offsets = st.integers(0, 12)
pairs = st.builds(Pair, offsets, offsets)


@given(pairs, offsets, offsets, pairs)
def test_the_fence_lets_nobody_in_who_may_hold_what_was_forgotten(
    removable: Pair, fence_below: int, end: int, compacted: Pair
) -> None:
    leader = leading(removable, fence_below=fence_below)
    if may_copy(leader, end, compacted, in_sync=False):
        assert compacted.covers(removable)
        assert end >= fence_below or min(compacted) >= fence_below
    if end >= max(*removable, fence_below):
        assert may_copy(leader, end, compacted, in_sync=True), "in sync, it is never turned away"
