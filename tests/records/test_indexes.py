"""Index files: bytes as Kafka lays them out. How a broker reads them is in `tests/log/test_sparse.py`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.records import indexes

ABORTS = indexes.make_transaction_entries([7, 8], [990, 1010], [1012, 1031], [1010, 1032])

int64 = st.integers(-(2**63), 2**63 - 1)


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


@given(rows=st.lists(st.tuples(int64, int64, int64, int64)))
def test_a_transaction_index_comes_back(rows: list[tuple[int, int, int, int]]) -> None:
    columns = [[row[i] for row in rows] for i in range(4)]
    made = indexes.make_transaction_entries(*columns)
    np.testing.assert_array_equal(indexes.decode_transaction_index(indexes.encode(made)), made)


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


@pytest.mark.parametrize("cut", range(68))
def test_a_transaction_index_cut_inside_an_entry_has_the_whole_entries(cut: int) -> None:
    np.testing.assert_array_equal(indexes.decode_transaction_index(indexes.encode(ABORTS)[:cut]), ABORTS[: cut // 34])
