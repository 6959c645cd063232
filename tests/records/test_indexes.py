"""Index files: bytes as Kafka lays them out, zeros that are not entries, and files that lie."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.records import indexes
from sexton.records.indexes import IndexFault, IndexProblem, SegmentFacts

BASE = 1000
OFFSETS = indexes.make_offset_entries(BASE, [1009, 1024, 1031], [4200, 8500, 12801])
TIMES = indexes.make_time_entries(BASE, [50, 70, 90], [1009, 1020, 1031])
ABORTS = indexes.make_transaction_entries([7, 8], [990, 1010], [1012, 1031], [1010, 1032])
CLOSED = SegmentFacts(BASE, 1040, 15000, max_timestamp_ms=90, max_timestamp_offset=1031)
OPEN = SegmentFacts(BASE, 1040, 15000, max_timestamp_ms=90, max_timestamp_offset=1031, closed=False)

int32 = st.integers(0, 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)


def faults(problems: tuple[IndexProblem, ...]) -> set[IndexFault]:
    return {problem.fault for problem in problems}


def changed(entries: indexes.Entries, column: str, entry: int, value: int) -> bytes:
    copy = entries.copy()
    copy[column][entry] = value
    return indexes.encode(copy)


def test_an_offset_entry_is_two_big_endian_ints() -> None:
    entries = indexes.make_offset_entries(100, [103], [4100])
    assert indexes.encode(entries) == bytes.fromhex("00000003 00001004")


def test_a_time_entry_is_a_long_and_an_int() -> None:
    entries = indexes.make_time_entries(100, [0x0102030405060708], [103])
    assert indexes.encode(entries) == bytes.fromhex("0102030405060708 00000003")


def test_a_transaction_entry_is_thirty_four_bytes_of_version_zero() -> None:
    encoded = indexes.encode(indexes.make_transaction_entries([1], [2], [3], [4]))
    assert encoded == bytes(2) + b"".join(n.to_bytes(8, "big") for n in (1, 2, 3, 4))
    assert len(encoded) == 34


@given(
    base=st.integers(0, 2**63 - 2**31),
    rows=st.lists(st.tuples(int32, st.integers(1, 2**31 - 1))),
    padding_count=st.integers(0, 5),
)
def test_an_offset_index_comes_back_without_its_padding(
    base: int, rows: list[tuple[int, int]], padding_count: int
) -> None:
    made = indexes.make_offset_entries(base, [base + o for o, _ in rows], [p for _, p in rows])
    padding = bytes(8 * padding_count) if padding_count != 1 or rows else b""
    read = indexes.decode_offset_index(indexes.encode(made) + padding)
    np.testing.assert_array_equal(read, made)


@given(rows=st.lists(st.tuples(int64, int32)).filter(lambda rows: not rows or rows[-1] != (0, 0)))
def test_a_time_index_comes_back_without_its_padding(rows: list[tuple[int, int]]) -> None:
    made = indexes.make_time_entries(0, [t for t, _ in rows], [o for _, o in rows])
    np.testing.assert_array_equal(indexes.decode_time_index(indexes.encode(made)), made)
    np.testing.assert_array_equal(indexes.decode_time_index(indexes.encode(made) + bytes(12 * 9)), made)


@given(rows=st.lists(st.tuples(int64, int64, int64, int64)))
def test_a_transaction_index_comes_back(rows: list[tuple[int, int, int, int]]) -> None:
    columns = [[row[i] for row in rows] for i in range(4)]
    made = indexes.make_transaction_entries(*columns)
    np.testing.assert_array_equal(indexes.decode_transaction_index(indexes.encode(made)), made)


def test_a_freshly_preallocated_index_has_no_entries() -> None:
    ten_mebibytes = 10 * 1024 * 1024
    assert len(indexes.decode_offset_index(bytes(ten_mebibytes))) == 0
    assert len(indexes.decode_time_index(bytes(ten_mebibytes // 12 * 12))) == 0


def test_a_time_index_of_one_zero_entry_is_believed_because_it_was_cut_to_size() -> None:
    made = indexes.make_time_entries(BASE, [0], [BASE])
    np.testing.assert_array_equal(indexes.decode_time_index(indexes.encode(made)), made)
    facts = SegmentFacts(BASE, BASE + 1, 80, max_timestamp_ms=0, max_timestamp_offset=BASE)
    assert indexes.check_time_index(indexes.encode(made), facts) == ()


def test_a_memoryview_is_as_good_as_bytes() -> None:
    data = memoryview(bytearray(indexes.encode(OFFSETS) + bytes(80)))
    np.testing.assert_array_equal(indexes.decode_offset_index(data), OFFSETS)


def test_an_offset_too_far_from_its_base_is_never_written() -> None:
    with pytest.raises(OverflowError, match="cannot hold"):
        indexes.make_offset_entries(0, [2**31], [0])
    with pytest.raises(OverflowError, match="cannot hold"):
        indexes.make_time_entries(10, [0], [9])
    with pytest.raises(OverflowError, match="position"):
        indexes.make_offset_entries(0, [0], [2**31])


def test_columns_of_different_lengths_are_a_bug() -> None:
    with pytest.raises(ValueError, match="different lengths"):
        indexes.make_offset_entries(0, [1, 2], [1])
    with pytest.raises(TypeError, match="layout"):
        indexes.encode(np.zeros(1, np.dtype([("x", "<i4")])))


def test_sound_indexes_have_no_problems() -> None:
    for facts in (CLOSED, OPEN):
        assert indexes.check_offset_index(indexes.encode(OFFSETS), facts) == ()
        assert indexes.check_time_index(indexes.encode(TIMES), facts) == ()
        assert indexes.check_transaction_index(indexes.encode(ABORTS), facts) == ()
    assert indexes.check_offset_index(b"", CLOSED) == ()
    assert indexes.check_transaction_index(b"", CLOSED) == ()
    assert indexes.check_time_index(b"", SegmentFacts(BASE, BASE, 0)) == ()
    assert indexes.check_time_index(b"", OPEN) == ()


@pytest.mark.parametrize("cut", range(1, 24))
def test_an_offset_index_cut_inside_an_entry_is_noticed(cut: int) -> None:
    data = indexes.encode(OFFSETS)[:cut]
    expected = {IndexFault.SIZE_NOT_MULTIPLE} if cut % 8 else set()
    assert faults(indexes.check_offset_index(data, CLOSED)) == expected
    np.testing.assert_array_equal(indexes.decode_offset_index(data), OFFSETS[: cut // 8])


@pytest.mark.parametrize("cut", range(36))
def test_a_time_index_cut_anywhere_is_noticed_because_its_last_entry_counts(cut: int) -> None:
    found = faults(indexes.check_time_index(indexes.encode(TIMES)[:cut], CLOSED))
    last = IndexFault.LAST_TIMESTAMP_WRONG if cut >= 12 else IndexFault.LAST_TIMESTAMP_MISSING
    assert found == ({last, IndexFault.SIZE_NOT_MULTIPLE} if cut % 12 else {last})


@pytest.mark.parametrize("cut", range(1, 68))
def test_a_transaction_index_cut_inside_an_entry_is_noticed(cut: int) -> None:
    data = indexes.encode(ABORTS)[:cut]
    expected = {IndexFault.SIZE_NOT_MULTIPLE} if cut % 34 else set()
    assert faults(indexes.check_transaction_index(data, CLOSED)) == expected
    np.testing.assert_array_equal(indexes.decode_transaction_index(data), ABORTS[: cut // 34])


@pytest.mark.parametrize(
    ("column", "entry", "value", "fault"),
    [
        ("relative_offset", 0, -1, IndexFault.OFFSET_OUT_OF_RANGE),
        ("relative_offset", 2, 40, IndexFault.OFFSET_OUT_OF_RANGE),
        ("relative_offset", 2, 24, IndexFault.OFFSETS_OUT_OF_ORDER),
        ("position", 0, -5, IndexFault.POSITION_OUT_OF_RANGE),
        ("position", 2, 15000, IndexFault.POSITION_OUT_OF_RANGE),
        ("position", 1, 4200, IndexFault.POSITIONS_OUT_OF_ORDER),
    ],
)
def test_an_offset_index_that_lies_is_found_out(column: str, entry: int, value: int, fault: IndexFault) -> None:
    problems = indexes.check_offset_index(changed(OFFSETS, column, entry, value), CLOSED)
    assert [(p.fault, p.entry, p.count) for p in problems] == [(fault, entry, 1)]


@pytest.mark.parametrize(
    ("column", "entry", "value", "fault"),
    [
        ("timestamp_ms", 0, -1, IndexFault.TIMESTAMP_NEGATIVE),
        ("timestamp_ms", 1, 50, IndexFault.TIMESTAMPS_OUT_OF_ORDER),
        ("timestamp_ms", 2, 89, IndexFault.LAST_TIMESTAMP_WRONG),
        ("timestamp_ms", 2, 91, IndexFault.LAST_TIMESTAMP_WRONG),
        ("relative_offset", 0, -1, IndexFault.OFFSET_OUT_OF_RANGE),
        ("relative_offset", 1, 8, IndexFault.OFFSETS_OUT_OF_ORDER),
        ("relative_offset", 2, 32, IndexFault.LAST_TIMESTAMP_TOO_LATE),
    ],
)
def test_a_time_index_that_lies_is_found_out(column: str, entry: int, value: int, fault: IndexFault) -> None:
    problems = indexes.check_time_index(changed(TIMES, column, entry, value), CLOSED)
    assert [(p.fault, p.entry) for p in problems] == [(fault, entry)]


def test_the_time_index_of_an_open_segment_may_lag_but_not_lead() -> None:
    assert indexes.check_time_index(indexes.encode(TIMES[:2]), OPEN) == ()
    ahead = indexes.check_time_index(changed(TIMES, "timestamp_ms", 2, 91), OPEN)
    assert faults(ahead) == {IndexFault.LAST_TIMESTAMP_WRONG}


def test_a_time_index_that_starts_the_search_inside_the_right_batch_is_sound() -> None:
    assert indexes.check_time_index(changed(TIMES, "relative_offset", 2, 29), CLOSED) == ()


@pytest.mark.parametrize(
    ("column", "entry", "value", "fault"),
    [
        ("version", 1, 1, IndexFault.UNKNOWN_VERSION),
        ("last_offset", 1, 1040, IndexFault.OFFSET_OUT_OF_RANGE),
        ("first_offset", 0, 1013, IndexFault.FIRST_OFFSET_OUT_OF_RANGE),
        ("first_offset", 0, -1, IndexFault.FIRST_OFFSET_OUT_OF_RANGE),
        ("last_stable_offset", 0, 1014, IndexFault.STABLE_OFFSET_OUT_OF_RANGE),
        ("last_stable_offset", 1, 1009, IndexFault.STABLE_OFFSETS_OUT_OF_ORDER),
    ],
)
def test_a_transaction_index_that_lies_is_found_out(column: str, entry: int, value: int, fault: IndexFault) -> None:
    problems = indexes.check_transaction_index(changed(ABORTS, column, entry, value), CLOSED)
    assert fault in faults(problems)


def test_a_marker_below_the_segment_is_what_makes_a_broker_rebuild() -> None:
    entries = indexes.make_transaction_entries([7], [900], [999], [900])
    problems = indexes.check_transaction_index(indexes.encode(entries), CLOSED)
    assert faults(problems) == {IndexFault.OFFSET_OUT_OF_RANGE}


def test_padding_is_a_problem_only_once_the_segment_is_closed() -> None:
    for check, entries in ((indexes.check_offset_index, OFFSETS), (indexes.check_time_index, TIMES)):
        padded = indexes.encode(entries) + bytes(entries.dtype.itemsize * 3)
        assert check(padded, OPEN) == ()
        assert faults(check(padded, CLOSED)) == {IndexFault.NOT_CUT_TO_SIZE}


def test_a_problem_names_the_entry_what_it_holds_and_how_many_more_there_are() -> None:
    facts = SegmentFacts(BASE, 1040, 8000, max_timestamp_ms=90)
    (problem,) = indexes.check_offset_index(indexes.encode(OFFSETS), facts)
    assert str(problem) == "entry 1: position outside the log file ((24, 8500), and 1 more)"
    (problem,) = indexes.check_offset_index(b"abc", facts)
    assert str(problem) == "file: size is not a multiple of the entry size (3 bytes in entries of 8)"


@given(
    data=st.binary(max_size=400),
    base=st.integers(0, 2**63 - 1),
    next_offset=st.integers(0, 2**63 - 1),
    closed=st.booleans(),
)
def test_no_bytes_crash_a_check_and_each_fault_is_told_once(
    data: bytes, base: int, next_offset: int, closed: bool
) -> None:
    facts = SegmentFacts(base, next_offset, 4096, max_timestamp_ms=5, max_timestamp_offset=base, closed=closed)
    for check in (indexes.check_offset_index, indexes.check_time_index, indexes.check_transaction_index):
        problems = check(data, facts)
        assert len(faults(problems)) == len(problems)
