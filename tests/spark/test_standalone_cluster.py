"""The same jobs on a Spark standalone cluster."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from sexton.checker.sabotage import sabotage
from sexton.history import run
from sexton.history.lines import to_line
from sexton.history.run import Description
from sexton.spark.offline import Options, compact_directories
from tests.logs import NOW_MS, contents, random_log, write_partition
from tests.standalone_spark import ENVIRONMENT, LAUNCHED, standalone_cluster

RUN_TIMEOUT_S: Final = 240

PARTITIONS: Final = 4
STEPS: Final = 700


Standalone = tuple[str, list[Path]]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """The master's address and its workers' logs."""
    with standalone_cluster(tmp_path_factory.mktemp("standalone")) as running:
        yield running


def launched_counts(standalone: Standalone) -> list[int]:
    """How many executors each worker was asked for."""
    return [len(LAUNCHED.findall(log.read_text())) for log in standalone[1]]


@pytest.mark.spark
def test_a_cluster_of_two_workers_writes_what_a_local_run_writes_byte_for_byte(
    standalone: Standalone, spark: SparkSession, tmp_path: Path
) -> None:
    on_cluster, locally = tmp_path / "cluster", tmp_path / "local"
    for partition in range(PARTITIONS):
        write_partition(random_log(random.Random(partition), STEPS), on_cluster / f"t-{partition}")
    shutil.copytree(on_cluster, locally)
    before, launched = snapshot(on_cluster), launched_counts(standalone)

    compact(on_cluster, standalone[0])
    assert all(now > then for now, then in zip(launched_counts(standalone), launched, strict=True))
    options = Options(NOW_MS, settings={"cleanup.policy": "compact"}, trust_log_end=True)
    compact_directories(spark.sparkContext, [locally], options)

    assert snapshot(on_cluster) == snapshot(locally)
    assert snapshot(on_cluster) != before


@pytest.mark.spark
def test_a_history_is_judged_on_a_cluster_as_it_is_here(standalone: Standalone, tmp_path: Path) -> None:
    planted = sabotage("stale-value", 1).history
    results, launched = [], launched_counts(standalone)
    for number, options in enumerate([["--master", standalone[0]], []]):
        directory = tmp_path / f"run-{number}"
        directory.mkdir()
        run.write(directory, Description(planted.run))
        (directory / "history.jsonl").write_bytes(b"".join(map(to_line, planted.ops)))
        assert "stale-value" in sexton("verify", "check", str(directory), *options, exit_code=1)
        results.append((directory / "results.json").read_text())
    assert sum(launched_counts(standalone)) > sum(launched)
    assert results[0] == results[1]


def snapshot(log_dir: Path) -> dict[str, dict[str, bytes]]:
    """Every file of the log directory and its partitions."""
    directories = [log_dir, *(log_dir / f"t-{partition}" for partition in range(PARTITIONS))]
    return {directory.name if directory != log_dir else "": contents(directory) for directory in directories}


def compact(log_dir: Path, master: str) -> None:
    options = ("--config", "cleanup.policy=compact", "--high-watermark", "end", "--now-ms", str(NOW_MS))
    sexton("compact", str(log_dir), "--master", master, "--json", *options)


def sexton(*arguments: str, exit_code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "sexton.cli.main", *arguments],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done.stdout
