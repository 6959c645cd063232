"""The same jobs on a Spark standalone cluster."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from sexton.checker.sabotage import sabotage
from sexton.history import run
from sexton.history.lines import to_line
from sexton.history.run import Description
from tests.logs import NOW_MS, contents, random_log, write_partition
from tests.standalone_spark import ENVIRONMENT, LAUNCHED, standalone_cluster

RUN_TIMEOUT_S: Final = 240

PARTITIONS: Final = 4
STEPS: Final = 700


@pytest.mark.spark
def test_a_cluster_of_two_workers_writes_what_a_local_run_writes_byte_for_byte(tmp_path: Path) -> None:
    on_cluster, locally = tmp_path / "cluster", tmp_path / "local"
    for partition in range(PARTITIONS):
        write_partition(random_log(random.Random(partition), STEPS), on_cluster / f"t-{partition}")
    shutil.copytree(on_cluster, locally)
    before = snapshot(on_cluster)

    with standalone_cluster(tmp_path) as (master, worker_logs):
        compact(on_cluster, master)
        assert [bool(LAUNCHED.search(log.read_text())) for log in worker_logs] == [True, True]
    compact(locally, "local[2]")

    assert snapshot(on_cluster) == snapshot(locally)
    assert snapshot(on_cluster) != before


@pytest.mark.spark
def test_a_history_is_judged_on_a_cluster_as_it_is_here(tmp_path: Path) -> None:
    planted = sabotage("stale-value", 1).history
    results = []
    with standalone_cluster(tmp_path) as (master, worker_logs):
        for number, options in enumerate([["--master", master], []]):
            directory = tmp_path / f"run-{number}"
            directory.mkdir()
            run.write(directory, Description(planted.run))
            (directory / "history.jsonl").write_bytes(b"".join(map(to_line, planted.ops)))
            assert "stale-value" in sexton("verify", "check", str(directory), *options, exit_code=1)
            results.append((directory / "results.json").read_text())
        assert any(LAUNCHED.search(log.read_text()) for log in worker_logs)
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
