"""Two replicas held against each other byte by byte, however they are cut into segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from sexton.errors import CorruptLogError
from sexton.log.stopped.identical import compare
from sexton.log.stopped.partition import PartitionLog, open_partition
from sexton.records.batch import Record, encode, make_batch
from sexton.records.names import log_file_name


def batch(offset: int, value: bytes) -> bytes:
    return encode(make_batch([Record(offset, 1000, b"key", value)]))


def replica(path: Path, *segments: dict[int, bytes]) -> PartitionLog:
    directory = path / "t-0"
    directory.mkdir(parents=True)
    for one in segments:
        content = b"".join(batch(offset, value) for offset, value in one.items())
        (directory / log_file_name(min(one))).write_bytes(content)
    return open_partition(directory)


def test_logs_that_are_cut_differently_are_the_same(tmp_path: Path) -> None:
    a = replica(tmp_path / "a", {0: b"x", 3: b"y"}, {7: b"z"})
    b = replica(tmp_path / "b", {0: b"x"}, {3: b"y", 7: b"z"})
    found = compare(a, b, 10)
    assert found.is_same
    assert found.sha256_a == found.sha256_b
    assert found.size_a_bytes == found.size_b_bytes > 0


def test_the_first_batch_that_differs_is_named(tmp_path: Path) -> None:
    a = replica(tmp_path / "a", {0: b"x", 3: b"y", 7: b"z"})
    b = replica(tmp_path / "b", {0: b"x", 3: b"Y", 7: b"z"})
    found = compare(a, b, 10)
    assert found.first_difference == 3
    assert found.sha256_a != found.sha256_b


def test_only_what_lies_below_counts(tmp_path: Path) -> None:
    a = replica(tmp_path / "a", {0: b"x", 3: b"y"}, {7: b"z"})
    b = replica(tmp_path / "b", {0: b"x", 3: b"y", 7: b"Z", 8: b"more"})
    assert compare(a, b, 7).is_same
    assert compare(a, b, 8).first_difference == 7


def test_a_batch_that_one_of_them_lacks_is_a_difference(tmp_path: Path) -> None:
    a = replica(tmp_path / "a", {0: b"x", 3: b"y"})
    b = replica(tmp_path / "b", {0: b"x"})
    found = compare(a, b, 10)
    assert found.first_difference == 3
    assert found.size_a_bytes > found.size_b_bytes


def test_what_lies_below_a_log_start_is_left_out(tmp_path: Path) -> None:
    a = replica(tmp_path / "a", {0: b"x"}, {3: b"y"})
    b = replica(tmp_path / "b", {3: b"y"})
    assert compare(a, b, 10).is_same


def test_a_batch_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    a = replica(tmp_path / "a", {0: b"x"})
    a.segments[0].path.write_bytes(batch(0, b"x")[:-1])
    with pytest.raises(CorruptLogError, match="cut off"):
        compare(open_partition(a.directory), a, 10)
