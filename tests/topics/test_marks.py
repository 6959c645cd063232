"""Where a copy begins: what an earlier one has left decides, and nothing of somebody else's is mixed with it."""

from __future__ import annotations

import pytest

from sexton.topics.marks import Marks, Start, TargetInUseError, start_of

NONE = Marks({}, {})
COPIED = Marks({0: 100, 1: 200}, {0: 10, 1: 20, 2: 30})
UNDER_WAY = Marks(COPIED.source, COPIED.target, is_under_way=True)
SOURCE_ENDS = {0: 150, 1: 200}


def start(marks: Marks, ends: dict[int, int], *, may_repeat: bool = True, takes: bool = False) -> Start:
    return start_of("t", marks, ends, SOURCE_ENDS, may_repeat=may_repeat, takes_what_is_there=takes)


@pytest.mark.parametrize("marks", [NONE, COPIED])
def test_an_empty_target_is_copied_to_from_the_start(marks: Marks) -> None:
    """Also one that was deleted and made again since."""
    assert start(marks, {0: 0, 1: 0, 2: 0}) == Start({})


def test_a_target_with_records_of_others_is_refused_unless_told_otherwise() -> None:
    with pytest.raises(TargetInUseError, match="no earlier copy"):
        start(NONE, {0: 1, 1: 0, 2: 0})
    assert start(NONE, {0: 1, 1: 0, 2: 0}, takes=True).from_offsets == {}


def test_a_finished_copy_is_continued() -> None:
    assert start(COPIED, {0: 10, 1: 20, 2: 30}).from_offsets == COPIED.source


def test_a_round_that_was_broken_off_is_repeated_on_top_of_a_compacted_target() -> None:
    found = start(UNDER_WAY, {0: 10, 1: 25, 2: 30})
    assert found.from_offsets == COPIED.source
    assert "broken off" in found.note


def test_it_is_not_repeated_where_that_would_double_records() -> None:
    with pytest.raises(TargetInUseError, match="would double records"):
        start(UNDER_WAY, {0: 10, 1: 25, 2: 30}, may_repeat=False)


def test_a_target_that_was_made_anew_and_written_to_is_refused() -> None:
    with pytest.raises(TargetInUseError, match="made anew"):
        start(COPIED, {0: 3, 1: 20, 2: 30})


def test_a_source_that_was_made_anew_is_refused() -> None:
    with pytest.raises(TargetInUseError, match="source was made anew"):
        start(Marks({0: 100, 1: 900}, COPIED.target), {0: 10, 1: 20, 2: 30})


def test_nothing_is_written_over_what_somebody_has_written_since_unless_told_so() -> None:
    """Producers may have moved to the target already."""
    with pytest.raises(TargetInUseError, match="somebody has written"):
        start(COPIED, {0: 10, 1: 25, 2: 30})
    assert start(COPIED, {0: 10, 1: 25, 2: 30}, takes=True).from_offsets == COPIED.source
