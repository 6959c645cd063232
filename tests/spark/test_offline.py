"""`sexton compact --replicas` in small: who counts as a replica, and what the second round may do."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from sexton.cli.demo import write_sample
from sexton.compaction.fates import Fate
from sexton.spark.offline import OfflineCoordination, Options, compact_directories

pytestmark = pytest.mark.spark

NODES = 3


def options() -> Options:
    settings = {"cleanup.policy": "compact"}
    return Options(
        time.time_ns() // 1_000_000, OfflineCoordination.REPLICAS, settings, replica_count=NODES, trust_log_end=True
    )


def write_replicas(tmp_path: Path) -> list[Path]:
    """The same partition on every node."""
    first = write_sample(tmp_path / "node1")
    others = [tmp_path / f"node{number}" for number in range(2, NODES + 1)]
    for node in others:
        shutil.copytree(tmp_path / "node1", node)
    return [first, *(node / first.name for node in others)]


def test_replicas_given_as_partition_directories_start_the_horizons_in_one_run(
    spark: SparkSession, tmp_path: Path
) -> None:
    reports = compact_directories(spark.sparkContext, write_replicas(tmp_path), options())
    assert [report.failure for report in reports] == [None] * NODES
    for report in reports:
        assert report.mtro == report.mxro == report.bound
        assert report.tally.of(Fate.TOMBSTONE_STARTS_HORIZON) > 0
        assert report.tally.of(Fate.TOMBSTONE_WAITS_FOR_REPLICAS) == 0


def test_a_partition_that_one_node_lacks_is_left_alone_and_the_others_go_on(
    spark: SparkSession, tmp_path: Path
) -> None:
    replicas = write_replicas(tmp_path)
    only_here = replicas[0].parent / "extra-0"
    shutil.copytree(replicas[0], only_here)
    before = {path.name: path.read_bytes() for path in only_here.iterdir()}
    reports = compact_directories(spark.sparkContext, [path.parent for path in replicas], options())
    by_name = {(report.name, report.failure is None) for report in reports}
    assert by_name == {("orders-0", True), ("extra-0", False)}
    assert {path.name: path.read_bytes() for path in only_here.iterdir()} == before
