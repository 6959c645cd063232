"""Where two logs part, judged by their epoch histories; the oracle compares offset by offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sexton.log.epochs import epoch_of
from sexton.records.checkpoints import EpochEntry
from sexton.replication.history import common_end, end_of_epoch, is_prefix
from sexton.types import NO_EPOCH, LeaderEpoch


def history(*entries: tuple[int, int]) -> list[EpochEntry]:
    return [EpochEntry(LeaderEpoch(epoch), start) for epoch, start in entries]


def test_an_empty_log_has_no_epoch() -> None:
    assert epoch_of(history((3, 0)), -1) == NO_EPOCH
    assert epoch_of([], 9) == NO_EPOCH


def test_the_epoch_of_the_last_record_ignores_an_epoch_that_has_written_nothing_yet() -> None:
    assert epoch_of(history((1, 0), (2, 10)), 9) == 1
    assert epoch_of(history((1, 0), (2, 10)), 10) == 2


def test_a_follower_that_wrote_past_the_leaders_end_is_cut_to_it() -> None:
    assert common_end(history((1, 0)), 0, 12, history((1, 0), (2, 8)), 0, 8) == 8


def test_records_of_an_epoch_that_the_leader_never_saw_are_cut() -> None:
    ours = history((1, 0), (2, 5))
    theirs = history((1, 0), (3, 7))
    assert common_end(ours, 0, 9, theirs, 0, 20) == 5


def test_a_follower_behind_the_leaders_start_shares_nothing_of_what_is_left() -> None:
    assert common_end(history((1, 0)), 0, 5, history((2, 8)), 8, 20) == 5


def test_a_log_is_a_prefix_only_if_its_last_epoch_agrees() -> None:
    leader = history((1, 0), (3, 7))
    assert is_prefix(7, LeaderEpoch(1), leader, 20)
    assert is_prefix(9, LeaderEpoch(3), leader, 20)
    assert not is_prefix(9, LeaderEpoch(1), leader, 20)
    assert not is_prefix(21, LeaderEpoch(3), leader, 20)
    assert is_prefix(0, NO_EPOCH, leader, 20)


def test_a_log_is_what_an_epochs_leader_knew_up_to_the_next_epochs_first_record() -> None:
    leader = history((1, 0), (3, 7), (4, 9))
    assert end_of_epoch(leader, LeaderEpoch(1), 20) == 7
    assert end_of_epoch(leader, LeaderEpoch(2), 20) == 7
    assert end_of_epoch(leader, LeaderEpoch(3), 20) == 9
    assert end_of_epoch(leader, LeaderEpoch(4), 20) == end_of_epoch(leader, LeaderEpoch(9), 20) == 20


@st.composite
def logs(draw: st.DrawFn) -> list[int]:
    """The epoch of each offset: never falling."""
    return sorted(draw(st.lists(st.integers(0, 6), max_size=12)))


def as_history(epochs: list[int]) -> list[EpochEntry]:
    return [EpochEntry(LeaderEpoch(e), i) for i, e in enumerate(epochs) if i == 0 or epochs[i - 1] != e]


@given(logs(), logs())
def test_common_end_is_the_first_offset_with_different_epochs(ours: list[int], theirs: list[int]) -> None:
    shared = min(len(ours), len(theirs))
    expected = next((i for i in range(shared) if ours[i] != theirs[i]), shared)
    assert common_end(as_history(ours), 0, len(ours), as_history(theirs), 0, len(theirs)) == expected
