"""The budget of a compactor's memory decides how many tasks run at once."""

from __future__ import annotations

import pytest

from sexton.compaction.chunking import CHUNK_RECORDS_MAX
from sexton.compactor.cloud.plans import RUN_BYTES_MAX
from sexton.compactor.memory import TASK_BYTES, BadMemoryError, master_within, parse_size, tasks_within

GB = 1 << 30


@pytest.mark.parametrize(("text", "size"), [("512m", 512 << 20), ("2g", 2 * GB), ("2GB", 2 * GB), ("64k", 64 << 10)])
def test_sizes_are_read_as_spark_reads_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "2", "g", "0g", "-1g", "2.5g", "two"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(BadMemoryError, match="is no size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("master", "budget", "expected"),
    [
        ("local[*]", 64 * GB, "local[8]"),
        ("local[*]", 4 * GB, "local[5]"),
        ("local[2]", 4 * GB, "local[2]"),
        ("local", 4 * GB, "local[1]"),
        ("local[*]", 2_200_000_000, "local[1]"),
    ],
)
def test_as_many_tasks_run_at_once_as_fit(master: str, budget: int, expected: str) -> None:
    assert master_within(master, budget, GB, 8) == expected


def test_less_than_one_task_needs_is_refused_with_what_it_needs() -> None:
    with pytest.raises(BadMemoryError, match=r"2000 MB are less.*Give it 2123 MB") as refused:
        tasks_within(2_000_000_000, GB)
    assert refused.value.exit_code == 64


def test_a_cluster_bounds_its_executors_itself() -> None:
    with pytest.raises(BadMemoryError, match=r"spark://h:7077.*own settings"):
        master_within("spark://h:7077", 4 * GB, GB, 8)


def test_what_a_task_holds_fits_into_what_is_counted_for_it() -> None:
    """Of the numbers that are known: 24 bytes an entry, twice, and a byte a slot; a run as it is read and as it is
    written, each a little longer than it should be."""
    chunk_bytes = CHUNK_RECORDS_MAX * (2 * 24 + 2 * 8)
    assert chunk_bytes + 2 * (RUN_BYTES_MAX + (16 << 20)) + (16 << 20) + 100_000_000 < TASK_BYTES
