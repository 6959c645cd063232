"""A segment's index in memory: it comes back from its files, and files that lie are not believed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.log.sparse import SparseIndex
from sexton.records import indexes

BASE = 1000
END = 1040
SIZE_BYTES = 15000
OFFSETS = indexes.make_offset_entries(BASE, [1009, 1024, 1031], [4200, 8500, 12801])
TIMES = indexes.make_time_entries(BASE, [50, 70, 90], [1009, 1020, 1031])
OFFSET_DATA = indexes.encode(OFFSETS)
TIME_DATA = indexes.encode(TIMES)


def loaded(offset_data: bytes = OFFSET_DATA, time_data: bytes = TIME_DATA) -> SparseIndex | None:
    index = SparseIndex(BASE)
    if index.load(offset_data, time_data, END, SIZE_BYTES):
        return index
    assert len(index.offsets) == len(index.times) == 0, "what is refused is not loaded"
    return None


def changed(entries: indexes.Entries, column: str, entry: int, value: int) -> bytes:
    copy = entries.copy()
    copy[column][entry] = value
    return indexes.encode(copy)


def test_entries_are_read_as_compaction_writes_them() -> None:
    index = loaded()
    assert index is not None
    assert (list(index.offsets), list(index.positions)) == ([1009, 1024, 1031], [4200, 8500, 12801])
    assert (list(index.times), list(index.time_offsets)) == ([50, 70, 90], [1009, 1020, 1031])
    assert (index.encode_offsets(), index.encode_times()) == (OFFSET_DATA, TIME_DATA)


@given(
    base=st.integers(0, 2**63 - 2**31),
    relative=st.sets(st.integers(0, 2**31 - 2)),
    padding_count=st.integers(0, 5),
    data=st.data(),
)
def test_an_index_comes_back_without_its_padding(
    base: int, relative: set[int], padding_count: int, data: st.DataObject
) -> None:
    rising = st.sets(st.integers(1, 2**31 - 2), min_size=len(relative), max_size=len(relative))
    written = SparseIndex(base)
    for offset, position, timestamp_ms in zip(
        sorted(relative), sorted(data.draw(rising)), sorted(data.draw(rising)), strict=True
    ):
        written.add(base + offset, position)
        written.add_time(timestamp_ms, base + offset)
    padding = 0 if padding_count == 1 and not relative else padding_count
    read = SparseIndex(base)
    offset_data, time_data = written.encode_offsets() + bytes(8 * padding), written.encode_times() + bytes(12 * padding)
    assert read.load(offset_data, time_data, base + 2**31 - 1, 2**31 - 1)
    assert [getattr(read, name) for name in SparseIndex.__slots__] == [
        getattr(written, name) for name in SparseIndex.__slots__
    ]


def test_a_freshly_preallocated_index_has_no_entries() -> None:
    ten_mebibytes = 10 * 1024 * 1024
    index = loaded(bytes(ten_mebibytes), bytes(ten_mebibytes // 12 * 12))
    assert index is not None
    assert (len(index.offsets), len(index.times)) == (0, 0)


def test_a_time_index_of_one_zero_entry_is_believed_because_it_was_cut_to_size() -> None:
    index = loaded(time_data=bytes(12))
    assert index is not None
    assert (list(index.times), list(index.time_offsets)) == ([0], [BASE])


@pytest.mark.parametrize("cut", [*range(1, 8), *range(9, 16), *range(17, 24)])
def test_an_offset_index_cut_inside_an_entry_is_refused(cut: int) -> None:
    assert loaded(offset_data=OFFSET_DATA[:cut]) is None


@pytest.mark.parametrize("cut", [*range(1, 12), *range(13, 24), *range(25, 36)])
def test_a_time_index_cut_inside_an_entry_is_refused(cut: int) -> None:
    assert loaded(time_data=TIME_DATA[:cut]) is None


@pytest.mark.parametrize(
    ("column", "entry", "value"),
    [
        ("relative_offset", 0, -1),
        ("relative_offset", 2, 40),
        ("relative_offset", 2, 24),
        ("position", 0, -5),
        ("position", 0, 0),
        ("position", 2, SIZE_BYTES),
        ("position", 1, 4200),
    ],
)
def test_an_offset_index_that_lies_is_refused(column: str, entry: int, value: int) -> None:
    assert loaded(offset_data=changed(OFFSETS, column, entry, value)) is None


@pytest.mark.parametrize(
    ("column", "entry", "value"),
    [
        ("timestamp_ms", 0, -1),
        ("timestamp_ms", 1, 50),
        ("relative_offset", 0, -1),
        ("relative_offset", 1, 8),
        ("relative_offset", 2, 40),
    ],
)
def test_a_time_index_that_lies_is_refused(column: str, entry: int, value: int) -> None:
    assert loaded(time_data=changed(TIMES, column, entry, value)) is None


@given(offset_data=st.binary(max_size=200), time_data=st.binary(max_size=200))
def test_any_bytes_are_loaded_or_refused(offset_data: bytes, time_data: bytes) -> None:
    loaded(offset_data, time_data)
