"""What `sexton compact` looks at before it changes a stopped broker's directory, and what it then leaves behind."""

from __future__ import annotations

import os
import random
import stat
import time
from pathlib import Path

import pytest

from sexton.cli.demo import write_sample
from sexton.errors import EnvironmentFailure
from sexton.logdir.locks import LOCK_FILE
from sexton.pipelines.compact import Report
from sexton.pipelines.offline import Coordination, Options, check_free, compact_directories
from tests.kafka.directories import digests
from tests.pipelines.local_context import LocalContext

COMPACTED = {"cleanup.policy": "compact"}


def compacting(coordination: Coordination = Coordination.ALONE, **more: object) -> Options:
    return Options(time.time_ns() // 1_000_000, coordination, **{"settings": COMPACTED, **more})  # type: ignore[arg-type]


def run(options: Options, *paths: Path) -> list[Report]:
    return compact_directories(LocalContext(random.Random(1)).as_spark, paths, options)


def modes(log_dir: Path) -> dict[str, int]:
    files = [path for path in log_dir.rglob("*") if path.is_file()]
    return {str(path.relative_to(log_dir)): stat.S_IMODE(path.stat().st_mode) for path in files}


# ---- Whose the files are.


def test_everything_that_a_run_leaves_has_the_mode_of_the_brokers_files(tmp_path: Path) -> None:
    partition = write_sample(tmp_path / "data")
    for path in [*partition.iterdir(), *(path for path in partition.parent.iterdir() if path.is_file())]:
        path.chmod(0o640)
    (report,) = run(compacting(), partition)
    assert report.is_changed
    left = modes(partition.parent)
    assert {LOCK_FILE, "cleaner-offset-checkpoint", "orders-0/00000000000000000000.index"} <= set(left)
    assert set(left.values()) == {0o640}


def test_a_user_who_is_neither_the_brokers_nor_root_is_sent_away_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = write_sample(tmp_path / "data")
    before = digests(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(EnvironmentFailure, match="Run as that user, or as root"):
        check_free([partition])
    with pytest.raises(EnvironmentFailure, match="who could not open what would be written"):
        run(compacting(), partition)
    assert digests(tmp_path) == before
    assert not (tmp_path / "data" / LOCK_FILE).exists()
