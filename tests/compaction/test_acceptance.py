"""What a broker accepts as the result of a compaction, from batch headers alone. `tests/log/test_swapping.py` and
`tests/log/test_adopted.py` have the same on disk, where what is refused must leave a log as it was."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from sexton.compaction import acceptance
from sexton.compaction.acceptance import AdoptedSegment, OwnSegment, SwapTerms, may_adopt, may_commit
from sexton.compaction.contract import NewSegment
from sexton.compaction.rules import LastOfProducer
from sexton.compaction.swap import SwapRefusedError
from sexton.compaction.watermarks.replica import Pair, ReplicaWatermarks
from sexton.records.header import CONTROL, DELETE_HORIZON, TRANSACTIONAL, Head
from sexton.types import INT32_MAX, LeaderEpoch, ProducerEpoch, ProducerId

MARKER = CONTROL | TRANSACTIONAL
PID = 7


def head(base_offset: int, count: int = 1, attributes: int = 0, producer_id: int = -1, **fields: Any) -> Head:
    made = Head(
        position=0,
        size_bytes=100,
        base_offset=base_offset,
        last_offset=base_offset + count - 1,
        leader_epoch=LeaderEpoch(3),
        magic=2,
        crc=0,
        attributes=attributes,
        base_timestamp_ms=50,
        max_timestamp_ms=60,
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(0),
        base_sequence=-1,
        record_count=count,
    )
    return made._replace(**fields)


# --- does a compaction fit the replica ---

REPLICA = ReplicaWatermarks(uuid.UUID(int=1), generation=1, compacted=Pair(5, 5))


def test_an_own_compaction_commits_from_mcco_up_to_the_lso_in_its_generation() -> None:
    fits = [bound for bound in range(10) if may_commit(REPLICA, generation=1, bound=bound, last_stable_offset=7)]
    assert fits == [5, 6, 7]
    assert not may_commit(REPLICA, generation=0, bound=6, last_stable_offset=7)


def adopts(generation: int = 1, bound: int = 6, planned: int = 8, stable: int = 7, reached: int = 8) -> bool:
    return may_adopt(
        REPLICA,
        generation=generation,
        bound=bound,
        planned_high_watermark=planned,
        last_stable_offset=stable,
        high_watermark=reached,
    )


def test_a_foreign_compaction_is_adopted_from_mcco_up_to_the_lso_in_its_generation() -> None:
    assert [bound for bound in range(10) if adopts(bound=bound)] == [5, 6, 7]
    assert not adopts(generation=2)


def test_a_foreign_compaction_waits_for_the_high_watermark_up_to_which_its_makers_log_was_compacted() -> None:
    assert not adopts(planned=9, stable=8, reached=8)
    assert adopts(planned=9, stable=9, reached=9)


# --- made of the own log ---

OWN = (
    head(0, 3),
    head(3, 1, TRANSACTIONAL, PID),
    head(4, 1, MARKER, PID),
    head(5, 2, 0, 9, base_sequence=4),
    head(8, 1),
)
"""A value, a transaction with its marker at 4, another producer's last batch, and, after a gap, the segment's end."""
SETTLED = OWN[1]._replace(attributes=0)
TERMS = SwapTerms(bound=9, mxro=4)
NEW = NewSegment(0, 9, (0,))


def own(staged: Iterable[Head], terms: SwapTerms = TERMS, new: NewSegment = NEW, size_bytes: int = 500) -> OwnSegment:
    segment = OwnSegment("orders-0", new, terms, {9: LastOfProducer(9, 0, 6)})
    for _ in segment.check(size_bytes, iter(OWN), staged):
        pass
    return segment


def test_batches_may_stay_shrink_settle_or_go() -> None:
    emptied = OWN[3]._replace(record_count=0)
    assert own([OWN[0], SETTLED, *OWN[2:]]).surviving_markers == {4}
    assert own([OWN[2], emptied, OWN[4]]).surviving_markers == {4}
    assert own([OWN[2]._replace(attributes=MARKER | DELETE_HORIZON), *OWN[3:]]).surviving_markers == {4}
    assert own([OWN[0]._replace(record_count=1), *OWN[2:]]).new == NEW


def test_a_marker_below_mxro_may_go_and_one_at_mxro_may_not() -> None:
    below = replace(TERMS, mxro=5)
    emptied = OWN[2]._replace(record_count=0)
    for staged in (OWN[3:], [emptied, *OWN[3:]]):
        assert own(staged, below).surviving_markers == set()
        with pytest.raises(SwapRefusedError, match="rule 6: the marker at 4 is gone, and MXRO is 4"):
            own(staged)


def test_what_settles_nothing_may_leave_transactions() -> None:
    own(OWN, replace(TERMS, settles_from=None))


@pytest.mark.parametrize(
    ("staged", "why"),
    [
        ((), "the last batch is missing"),
        (OWN[2:4], "the last batch is missing"),
        ((*OWN[2:], head(9)), "no batch at offset 9"),
        ((OWN[2], OWN[3], head(7), OWN[4]), "no batch at offset 7"),
        ((OWN[2], OWN[3], OWN[2], OWN[4]), "comes after"),
        ((OWN[2], OWN[4]), "last batch of producer 9, at 5, is gone"),
        (OWN, "at 3 is still transactional"),
        ((OWN[0]._replace(attributes=TRANSACTIONAL), *OWN[2:]), "has become transactional"),
        ((OWN[0]._replace(record_count=4), *OWN[2:]), "not what was left"),
        ((OWN[0]._replace(last_offset=1), *OWN[2:]), "not what was left"),
        ((OWN[0]._replace(leader_epoch=LeaderEpoch(4)), *OWN[2:]), "not what was left"),
        ((OWN[2], OWN[3]._replace(base_sequence=5), OWN[4]), "not what was left"),
        ((OWN[2], OWN[3]._replace(producer_epoch=ProducerEpoch(1)), OWN[4]), "not what was left"),
        ((OWN[0]._replace(attributes=CONTROL), *OWN[2:]), "not what was left"),
        ((OWN[0]._replace(attributes=2), *OWN[2:]), "not what was left"),
    ],
)
def test_what_could_not_have_become_of_the_own_segments_is_refused(staged: Sequence[Head], why: str) -> None:
    with pytest.raises(SwapRefusedError, match=why):
        own(staged)


def test_an_emptied_batch_has_no_codec() -> None:
    packed = [one._replace(attributes=one.attributes | 2) for one in OWN]
    segment = OwnSegment("orders-0", NEW, replace(TERMS, mxro=9), {})
    emptied = packed[4]._replace(attributes=0, record_count=0)
    assert all(size_bytes >= 0 for size_bytes in segment.check(500, iter(packed), [emptied]))


def test_the_end_is_the_one_that_was_announced_and_not_above_the_bound() -> None:
    staged = OWN[2:]
    with pytest.raises(SwapRefusedError, match="ends at 9; announced was 8"):
        own(staged, new=NewSegment(0, 8, (0,)))
    with pytest.raises(SwapRefusedError, match="the bound is 8"):
        own(staged, replace(TERMS, bound=8))


def test_a_check_pauses_after_every_header_old_or_new() -> None:
    segment = OwnSegment("orders-0", NEW, replace(TERMS, mxro=9), {})
    assert list(segment.check(500, iter(OWN), [OWN[4]])) == [0] * 5 + [100]


# --- adopted ---

BOUND = 6
ABOVE = (head(6, 2), head(8, 1, MARKER, PID))
LOCAL = (head(0, 3), head(3, 1, TRANSACTIONAL, PID), head(4, 1, MARKER, PID), head(5), *ABOVE)
"""What the adopting replica holds: all of it in one segment that reaches beyond the bound."""


def adopted(staged: Iterable[Head], mxro: int = 4, last_old: range = range(9), size_bytes: int = 500) -> AdoptedSegment:
    terms = SwapTerms(BOUND, mxro, is_adopted=True)
    segment = AdoptedSegment("orders-0", NewSegment(0, -1, (0,)), terms)
    for _ in segment.check(size_bytes, last_old, iter(ABOVE), LOCAL, staged):
        pass
    return segment


def test_an_adopted_segment_need_not_resemble_this_log_below_the_bound() -> None:
    segment = adopted([head(1, 4, 0, 11)._replace(record_count=0), *ABOVE], mxro=5)
    assert segment.surviving_markers == {8}, "only the one above the bound is left"
    assert segment.new == NewSegment(0, 9, (0,)), "its end was determined"


def test_markers_that_mxro_protects_must_be_in_what_is_adopted() -> None:
    assert adopted([LOCAL[2], *ABOVE]).surviving_markers == {4, 8}
    for staged in (ABOVE, [LOCAL[2]._replace(record_count=0), *ABOVE]):
        with pytest.raises(SwapRefusedError, match="rule 6: the marker at 4 is gone, and MXRO is 4"):
            adopted(staged)


@pytest.mark.parametrize(
    ("staged", "why"),
    [
        ((), "above the bound is missing"),
        ((LOCAL[2], ABOVE[0]), "above the bound is missing"),
        ((LOCAL[2], *ABOVE, head(9)), "above the bound, is not this log's"),
        ((LOCAL[2], ABOVE[0]._replace(size_bytes=99), ABOVE[1]), "above the bound, is not this log's"),
        ((LOCAL[2], LOCAL[0], *ABOVE), "comes where 5 or more was due"),
        ((LOCAL[1], LOCAL[2], *ABOVE), "at 3 is still transactional"),
        ((LOCAL[2], head(5, 2), *ABOVE), "lies across the bound 6"),
    ],
)
def test_what_could_not_be_this_log_compacted_by_another_is_refused(staged: Sequence[Head], why: str) -> None:
    with pytest.raises(SwapRefusedError, match=why):
        adopted(staged)


def test_an_adopted_segment_ends_inside_the_last_one_that_it_replaces() -> None:
    for last_old in (range(9, 12), range(8)):
        with pytest.raises(SwapRefusedError, match="not inside"):
            adopted([LOCAL[2], *ABOVE], last_old=last_old)


# --- the result as a whole ---


def test_what_no_index_can_express_is_refused() -> None:
    with pytest.raises(SwapRefusedError, match="too large for one segment"):
        own(OWN[2:], size_bytes=INT32_MAX + 1)
    with pytest.raises(SwapRefusedError, match="too large for one segment"):
        adopted([LOCAL[2], *ABOVE], size_bytes=INT32_MAX + 1)
    with pytest.raises(SwapRefusedError, match="too large for one segment"):
        adopted([LOCAL[2], *ABOVE], last_old=range(INT32_MAX + 1))


def test_segments_that_are_left_as_they_were_must_be_settled() -> None:
    assert list(acceptance.check_settled("orders-0", [OWN[0], *OWN[2:]])) == [100] * 4
    with pytest.raises(SwapRefusedError, match="at 3 is transactional and was left as it was"):
        list(acceptance.check_settled("orders-0", OWN))


def test_new_segments_replace_adjacent_planned_ones_in_order() -> None:
    planned = [0, 10, 20, 30]

    def replaced(*olds: tuple[int, ...]) -> list[slice]:
        return acceptance.check_replaced("orders-0", [NewSegment(old[0], 99, old) for old in olds], planned)

    assert replaced((0,), (20, 30)) == [slice(0, 1), slice(2, 4)]
    for olds in ([(10,), (0,)], [(0, 20)], [(5,)], [(0, 10), (10, 20)], [(30, 40)]):
        with pytest.raises(SwapRefusedError, match="planned on"):
            replaced(*olds)
    with pytest.raises(SwapRefusedError, match="planned on"):
        acceptance.check_replaced("orders-0", [NewSegment(0, 99, ())], planned)
    with pytest.raises(SwapRefusedError, match="planned on"):
        acceptance.check_replaced("orders-0", [NewSegment(0, 99, (10,))], planned)
