"""The judge on Spark finds what the reference finds, however the history is cut."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sexton.checker import reference
from sexton.checker.planted import correct
from sexton.checker.sabotage import sabotage
from sexton.errors import CorruptHistoryError, EnvironmentFailure
from sexton.history import run
from sexton.history.lines import from_line, to_line
from sexton.history.op import Op, Run
from sexton.history.run import Description
from sexton.spark.check import Operations, Range, _checked, _flatten, check

pytestmark = pytest.mark.spark

CUTS = ((1, 1 << 30), (2, 99_991), (7, 50_021))
"""Bundles, and bytes of a range."""


def written(directory: Path, ops: list[Op], a_run: Run) -> Path:
    directory.mkdir(exist_ok=True)
    run.write(directory, Description(a_run))
    (directory / "history.jsonl").write_bytes(b"".join(map(to_line, ops)))
    return directory


@pytest.mark.parametrize(
    "name", ["torn-transaction", "fractured-read", "stale-value", "eos-loss", "group-skip", "replicas-disagree"]
)
def test_results_do_not_depend_on_how_it_is_cut(spark: SparkSession, tmp_path: Path, name: str) -> None:
    planted = sabotage(name, 1)
    path = written(tmp_path / name, list(planted.history.ops), planted.history.run)
    read = [from_line(line) for line in (path / "history.jsonl").read_bytes().splitlines(keepends=True)]
    expected = reference.judge(read, planted.history.run, options=planted.options).canonical()
    for bundles, range_bytes in CUTS:
        found = check(spark.sparkContext, path, options=planted.options, bundle_count=bundles, range_bytes=range_bytes)
        assert found.canonical() == expected


def test_a_history_that_executors_cannot_see_is_told_apart_from_one_that_is_corrupt(tmp_path: Path) -> None:
    history = correct(1)
    path = written(tmp_path / "run", list(history.ops), history.run)
    unseen = Operations(0, b"", [""], 0, is_readable=False, not_seen="No such file or directory")
    rows = list(_flatten(str(tmp_path / "elsewhere"), 2, Range(0, 0, 100, is_last=True)))
    assert rows == [(-1, unseen)]
    with pytest.raises(EnvironmentFailure, match="an executor cannot read it: No such file or directory"):
        _checked(path / "history.jsonl", [unseen])


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
