"""How work is cut up and put together again: nothing twice, nothing left out, nothing too large."""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.compaction import chunking, survey
from sexton.compaction.chunking import EMPTIED_RATIO, Extent, Output, Rewritten, Slice, cut, group_outputs
from sexton.compaction.contract import NewSegment
from sexton.compaction.survey import LogSurvey, join_surveys, survey_segment
from sexton.records.batch import encode
from sexton.types import INT32_MAX
from tests import logs

some = settings(max_examples=80)


# --- cutting ---


def survey_log(log: logs.Log) -> LogSurvey:
    contents = [np.frombuffer(b"".join(map(encode, batches)), dtype=np.uint8) for batches in log.segments]
    pairs = zip(contents, log.bases, strict=True)
    return join_surveys([survey_segment(content, base, "a segment") for content, base in pairs], "a log")


def cut_log(
    rng: random.Random, log: logs.Log, bound: int, first_dirty: int, target_bytes: int
) -> list[tuple[bool, tuple[Slice, ...]]]:
    patch = pytest.MonkeyPatch()
    patch.setattr(survey, "GRAIN_BYTES", rng.choice([1, 200, 1 << 20]))
    patch.setattr(chunking, "CHUNK_RECORDS_MAX", rng.choice([1, 8, 1 << 20]))
    try:
        return cut(survey_log(log), [f"{base}.log" for base in log.bases], bound, first_dirty, target_bytes)
    finally:
        patch.undo()


@some
@given(st.randoms(use_true_random=False))
def test_chunks_cover_every_batch_below_the_bound_exactly_once(rng: random.Random) -> None:
    log = logs.random_log(rng)
    bound = rng.choice(log.bases)
    first_dirty = rng.choice([log.bases[0], bound, rng.randint(log.bases[0], log.end_offset)])
    target_bytes = rng.choice([1, 500, 1 << 30])
    chunks = cut_log(rng, log, bound, first_dirty, target_bytes)
    slices = [piece for _, pieces in chunks for piece in pieces]
    below = [index for index, base in enumerate(log.bases) if base < bound]
    for index in below:
        mine = [piece for piece in slices if piece.segment == index]
        sizes = [len(encode(batch)) for batch in log.segments[index]]
        starts = np.cumsum([0, *sizes]).tolist()
        assert [piece.start for piece in mine] == [0, *(piece.end for piece in mine)][: len(mine)], "no gap, no overlap"
        assert (mine[-1].end if mine else 0) == starts[-1]
        for piece in mine:
            batches = log.segments[index][starts.index(piece.start) : starts.index(piece.end)]
            row = starts.index(piece.start)
            before = log.segments[index][row - 1].last_offset if row else log.bases[index] - 1
            assert piece.path == f"{log.bases[index]}.log"
            assert piece.previous_offset == before
            assert piece.record_count == sum(len(batch.records) for batch in batches)
    assert {piece.segment for piece in slices} <= set(below)
    assert slices == sorted(slices, key=lambda piece: (piece.segment, piece.start))


@some
@given(st.randoms(use_true_random=False))
def test_a_segment_that_reaches_into_the_dirty_section_is_dirty_altogether(rng: random.Random) -> None:
    log = logs.random_log(rng)
    bound, first_dirty = rng.choice(log.bases), rng.randint(log.bases[0], log.end_offset)
    for is_dirty, pieces in cut_log(rng, log, bound, first_dirty, 1 << 30):
        for piece in pieces:
            segment_end = log.bases[piece.segment + 1]
            assert is_dirty == (first_dirty < bound and segment_end > first_dirty)


def test_a_chunk_is_as_large_as_asked_for_or_a_single_grain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "GRAIN_BYTES", 1)
    batches = [logs.data((b"a", b"x" * 50), at=offset) for offset in range(20)]
    size = len(encode(batches[0]))
    log = logs.Log([0, 20], [batches, []])
    chunks = cut(survey_log(log), ["0.log", "20.log"], 20, 0, 3 * size)
    assert [sum(piece.size_bytes for piece in pieces) for _, pieces in chunks] == [3 * size] * 6 + [2 * size]
    tiny = cut(survey_log(log), ["0.log", "20.log"], 20, 0, 1)
    assert len(tiny) == 20


def test_a_chunk_holds_no_more_records_than_a_task_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "GRAIN_BYTES", 1)
    monkeypatch.setattr(chunking, "CHUNK_RECORDS_MAX", 5)
    log = logs.Log([0, 20], [[logs.data((b"a", b""), (b"b", b""), at=2 * i) for i in range(10)], []])
    chunks = cut(survey_log(log), ["0.log", "20.log"], 20, 0, 1 << 30)
    assert [sum(piece.record_count for piece in pieces) for _, pieces in chunks] == [4] * 5


def test_empty_segments_need_no_work() -> None:
    log = logs.Log([0, 5, 9, 12], [[logs.data((b"a", b""), at=0)], [], [logs.data((b"a", b""), at=9)], []])
    paths = [f"{base}.log" for base in log.bases]
    ((is_dirty, pieces),) = cut(survey_log(log), paths, 12, 0, 1 << 30)
    assert is_dirty
    assert [piece.segment for piece in pieces] == [0, 2]
    assert cut(survey_log(log), paths, 0, 0, 1 << 30) == []


def test_chunks_are_neither_tiny_nor_huge_and_whole_segments_where_there_are_many() -> None:
    assert chunking.chunk_bytes([10], 8) == chunking.CHUNK_BYTES_MIN
    assert chunking.chunk_bytes([1 << 40], 1) == chunking.CHUNK_BYTES_MAX
    assert chunking.chunk_bytes([100 << 20], 1) == (100 << 20) // 4
    assert chunking.chunk_bytes([100 << 20] * 8, 4) == 100 << 20


def test_small_pieces_share_tasks_and_large_ones_do_not() -> None:
    assert chunking.task_count([], 2) == 1
    assert chunking.task_count([100], 2) == 1
    assert chunking.task_count([1 << 20] * 1000, 2) == 125
    assert chunking.task_count([1000] * 1000, 2) == 8, "every core is busy, and one that is slow does not hold up all"
    assert chunking.task_count([chunking.CHUNK_BYTES_MIN] * 1000, 2) == 1000


def test_buckets_follow_the_number_of_dirty_records() -> None:
    assert chunking.bucket_count(0) == 1
    assert chunking.bucket_count(chunking.BUCKET_ENTRIES) == 1
    assert chunking.bucket_count(chunking.BUCKET_ENTRIES + 1) == 2


# --- grouping ---


def rewritten(
    base: int, size: int, *, old_size: int | None = None, unchanged: bool = False, span: int = 9
) -> Rewritten:
    old = size if old_size is None else old_size
    extents = (Extent(f"{base}.log", 0, size),) if size else ()
    return Rewritten(
        base_offset=base,
        last_offset=base + span if old else -1,
        is_unchanged=unchanged,
        extents=extents,
        size_bytes=size,
        old_size_bytes=old,
    )


def empty(base: int) -> Rewritten:
    return rewritten(base, 0, unchanged=True)


def grouped(*segments: Rewritten, segment_bytes: int = 100) -> list[tuple[int, ...]]:
    return [output.new.old_base_offsets for output in group_outputs(segments, segment_bytes)]


def test_neighbours_that_were_small_are_merged_up_to_the_segment_size() -> None:
    assert grouped(rewritten(0, 40), rewritten(10, 40), rewritten(20, 40)) == [(0, 10), (20,)]
    assert grouped(rewritten(0, 50), rewritten(10, 50)) == [(0, 10)]
    assert grouped(rewritten(0, 10, old_size=80), rewritten(10, 10, old_size=80)) == [(0,), (10,)]


def test_segments_of_which_next_to_nothing_is_left_are_merged_however_large_they_were() -> None:
    """A fetch that finds nothing but an emptied batch has no record, and librdkafka complains after ten of them."""
    emptied = [rewritten(base, 3, old_size=100) for base in range(0, 100, 10)]
    assert grouped(*emptied) == [tuple(range(0, 100, 10))]
    assert grouped(*emptied, rewritten(100, 60, old_size=90)) == [tuple(range(0, 110, 10))]
    assert grouped(*emptied, rewritten(100, 80, old_size=90)) == [tuple(range(0, 100, 10)), (100,)]
    assert grouped(rewritten(0, 60, old_size=90), *emptied[1:3], rewritten(30, 60, old_size=90)) == [(0, 10, 20), (30,)]
    assert grouped(*(rewritten(base, 10, old_size=100) for base in range(0, 40, 10))) == [(0,), (10,), (20,), (30,)]


def test_a_merged_segment_has_everything_in_order_and_ends_with_its_last() -> None:
    (output,) = group_outputs([rewritten(0, 40), rewritten(10, 40, unchanged=True)], 100)
    assert output == Output(NewSegment(0, 20, (0, 10)), (Extent("0.log", 0, 40), Extent("10.log", 0, 40)), False, 80)


def test_an_unchanged_segment_that_is_half_full_stays_as_it_is() -> None:
    assert grouped(rewritten(0, 20), rewritten(10, 50, unchanged=True), rewritten(20, 20)) == [(0,), (10,), (20,)]
    assert grouped(rewritten(0, 20), rewritten(10, 49, unchanged=True), rewritten(20, 20)) == [(0, 10, 20)]
    outputs = group_outputs([rewritten(0, 50, unchanged=True)], 100)
    assert [output.is_unchanged for output in outputs] == [True]


def test_a_segment_never_spans_more_offsets_than_an_index_can_hold() -> None:
    near, far = rewritten(INT32_MAX - 9, 10), rewritten(INT32_MAX - 8, 10)
    assert grouped(rewritten(0, 10), near) == [(0, INT32_MAX - 9)]
    assert grouped(rewritten(0, 10), far) == [(0,), (INT32_MAX - 8,)]


def test_an_empty_segment_goes_only_with_what_follows_it_and_changes() -> None:
    assert grouped(empty(0), rewritten(10, 20)) == [(0, 10)]
    assert grouped(empty(0), empty(5), rewritten(10, 20)) == [(0, 5, 10)]
    assert grouped(empty(0), rewritten(10, 20, unchanged=True)) == [(10,)]
    assert grouped(rewritten(0, 20), empty(10)) == [(0,)]
    assert grouped(rewritten(0, 20), empty(10), rewritten(20, 20)) == [(0,), (10, 20)]
    assert grouped(empty(0)) == []


segment_lists = st.lists(st.tuples(st.integers(0, 120), st.integers(0, 120), st.booleans()), max_size=12)


@given(segment_lists, st.integers(1, 200))
def test_every_segment_with_content_goes_into_exactly_one_new_one(
    drawn: Iterable[tuple[int, int, bool]], segment_bytes: int
) -> None:
    segments = []
    for index, (old, left, unchanged) in enumerate(drawn):
        size = old if unchanged else max(1, min(left, old)) if old else 0
        segments.append(rewritten(10 * index, size, old_size=old, unchanged=unchanged or old == 0))
    outputs = group_outputs(segments, segment_bytes)
    bases = [base for output in outputs for base in output.new.old_base_offsets]
    assert bases == sorted(set(bases))
    assert {segment.base_offset for segment in segments if segment.old_size_bytes} <= set(bases)
    by_base = {segment.base_offset: segment for segment in segments}
    for output in outputs:
        members = [by_base[base] for base in output.new.old_base_offsets]
        filled = [member for member in members if member.old_size_bytes]
        assert output.new.base_offset == members[0].base_offset
        assert output.new.end_offset == members[-1].last_offset + 1 > output.new.old_base_offsets[-1]
        assert output.size_bytes == sum(extent.end - extent.start for extent in output.extents)
        assert output.is_unchanged == (len(members) == 1 and members[0].is_unchanged)
        assert len(filled) == 1 or output.size_bytes <= segment_bytes
        kept = [member for member in filled if member.size_bytes * EMPTIED_RATIO > member.old_size_bytes]
        assert len(filled) == 1 or sum(member.old_size_bytes for member in kept) <= segment_bytes
