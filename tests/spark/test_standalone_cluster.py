"""The same job on a Spark standalone cluster."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

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


def snapshot(log_dir: Path) -> dict[str, dict[str, bytes]]:
    """Every file of the log directory and its partitions."""
    directories = [log_dir, *(log_dir / f"t-{partition}" for partition in range(PARTITIONS))]
    return {directory.name if directory != log_dir else "": contents(directory) for directory in directories}


def compact(log_dir: Path, master: str) -> None:
    options = ("--config", "cleanup.policy=compact", "--high-watermark", "end", "--now-ms", str(NOW_MS))
    done = subprocess.run(
        [sys.executable, "-m", "sexton.cli.main", "compact", str(log_dir), "--master", master, "--json", *options],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=RUN_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
