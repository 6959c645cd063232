"""The judge on Spark finds what the reference finds, however the history is cut."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sexton.checker import reference
from sexton.checker.planted import correct
from sexton.checker.sabotage import sabotage
from sexton.errors import CorruptHistoryError, EnvironmentFailure, NotAHistoryError
from sexton.history import run
from sexton.history.lines import from_line, to_line
from sexton.history.op import Op, Run
from sexton.history.order import Order
from sexton.history.run import Description
from sexton.spark.check import Operations, Range, check, checked, flatten_range
from tests.history import test_bad_input as bad_input
from tests.spark.local_context import LocalContext

pytestmark = pytest.mark.spark

CUTS = ((1, 1 << 30), (2, 99_991), (7, 50_021), (64, 30_011))
"""Bundles, and bytes of a range."""

ANOMALIES = ("torn-transaction", "fractured-read", "stale-value", "eos-loss", "group-skip", "replicas-disagree")
ON_SPARK = "torn-transaction"
"""Cut by Spark itself. What the others would show besides is that Spark does what its stand-in does."""


def written(directory: Path, ops: list[Op], a_run: Run) -> Path:
    directory.mkdir(exist_ok=True)
    run.write(directory, Description(a_run))
    (directory / "history.jsonl").write_bytes(b"".join(map(to_line, ops)))
    return directory


@pytest.mark.parametrize("name", ANOMALIES)
def test_results_do_not_depend_on_how_it_is_cut(tmp_path: Path, name: str) -> None:
    check_cuts(LocalContext(random.Random(1)).as_spark, tmp_path, name)


def test_on_spark_itself_neither(spark: SparkSession, tmp_path: Path) -> None:
    check_cuts(spark.sparkContext, tmp_path, ON_SPARK)


def check_cuts(context: SparkContext, tmp_path: Path, name: str) -> None:
    planted = sabotage(name, 1)
    path = written(tmp_path / name, list(planted.history.ops), planted.history.run)
    read = [from_line(line) for line in (path / "history.jsonl").read_bytes().splitlines(keepends=True)]
    expected = reference.judge(read, planted.history.run, options=planted.options).canonical()
    for bundles, range_bytes in CUTS:
        found = check(context, path, options=planted.options, bundle_count=bundles, range_bytes=range_bytes)
        assert found.canonical() == expected


def test_a_history_that_executors_cannot_see_is_told_apart_from_one_that_is_corrupt(tmp_path: Path) -> None:
    history = correct(1)
    path = written(tmp_path / "run", list(history.ops), history.run)
    unseen = Operations(0, 0, b"", [""], 0, is_readable=False, not_seen="No such file or directory")
    rows = list(flatten_range(str(tmp_path / "elsewhere"), 2, Range(0, 0, 100, is_last=True)))
    assert rows == [(-1, unseen)]
    with pytest.raises(EnvironmentFailure, match="an executor cannot read it: No such file or directory"):
        checked(path / "history.jsonl", [unseen], Order("x"))


def test_a_line_that_cannot_be_read_is_named(spark: SparkSession, tmp_path: Path) -> None:
    history = correct(1)
    path = written(tmp_path / "run", list(history.ops), history.run)
    lines = (path / "history.jsonl").read_bytes().splitlines(keepends=True)
    (path / "history.jsonl").write_bytes(b"".join([*lines[:300], b"{nonsense}\n", *lines[300:]]))
    with pytest.raises(CorruptHistoryError, match="line 301"):
        check(spark.sparkContext, path, bundle_count=2, range_bytes=10_000)
    (path / "history.jsonl").write_bytes(b"".join([*lines[:300], *lines[301:]]))
    with pytest.raises(CorruptHistoryError, match="line 301"):
        check(spark.sparkContext, path, bundle_count=2, range_bytes=10_000)


@pytest.mark.parametrize(("spoil", "format_", "reason"), bad_input.ERRORS)
def test_bad_input_is_the_same_error_as_without_spark(
    spark: SparkSession, tmp_path: Path, spoil: bad_input.Spoil, format_: str, reason: str
) -> None:
    path = bad_input.written(tmp_path, format_, spoil(format_))
    for range_bytes in (1 << 20, 100):
        with pytest.raises(CorruptHistoryError) as raised:
            check(spark.sparkContext, path, bundle_count=2, range_bytes=range_bytes)
        assert str(raised.value).startswith(f"{path}, {reason}")


@pytest.mark.parametrize(("spoil", "format_", "notes"), bad_input.COUNTED)
def test_what_was_let_pass_is_told_as_without_spark(
    spark: SparkSession, tmp_path: Path, spoil: bad_input.Spoil, format_: str, notes: dict[str, object]
) -> None:
    path = bad_input.written(tmp_path, format_, spoil(format_))
    for range_bytes in (1 << 20, 100):
        assert check(spark.sparkContext, path, bundle_count=2, range_bytes=range_bytes).notes == notes


def test_an_empty_file_is_no_history(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(NotAHistoryError, match="there is no operation in it"):
        check(spark.sparkContext, bad_input.written(tmp_path, "jsonl", []))


def test_a_line_that_is_too_long_is_named(spark: SparkSession, tmp_path: Path) -> None:
    path = bad_input.written(tmp_path, "jsonl", bad_input.whole("jsonl"))
    with path.open("r+b") as file:
        file.truncate(200 << 20)
    with pytest.raises(CorruptHistoryError, match="line 7: the line is longer than"):
        check(spark.sparkContext, path)
