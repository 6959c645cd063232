"""`kill -9` of `sexton compact` at random moments, then Sexton's recovery or Kafka's: the fold never changes.

`make soak` does it a hundred times; another series: `pytest tests/kafka/test_crash.py --seed 7`.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
import pytest
from pyspark.sql import SparkSession

from sexton.logdir import locks, swap
from sexton.pipelines.offline import Coordination, Options, compact_directories
from tests.kafka import KafkaCluster
from tests.kafka.command import LOOPBACK
from tests.kafka.directories import Fold, Name, fold_dir, partition_dirs
from tests.kafka.jars import PROJECT_DIR
from tests.kafka.workload import consume_committed, create_topics, draw_mixes, fold_rows, write_all

NO_CLEANING: Final = {"log.cleaner.min.cleanable.ratio": 1.0}
TOPICS: Final = 6
COPIES_PER_DRIVER: Final = 2

BEGIN_TIMEOUT_S: Final = 120
"""A driver begins five seconds after its start on a quiet machine."""

GONE_TIMEOUT_S: Final = 60
"""What Spark leaves running when only its driver was killed notices within a second or two."""

PASS_SECONDS: Final = 1.5
COMMIT_SECONDS: Final = 0.8
"""About how long the passes and the commits of a copy take here: kills fall within."""

Folds = Mapping[Name, Fold]


@pytest.mark.kafka
@pytest.mark.spark
def test_a_kill_at_any_moment_leaves_the_fold_as_it_was(
    seed: int, crash_count: int, spark: SparkSession, tmp_path: Path
) -> None:
    rng = random.Random(seed)
    base = write_logs(seed, tmp_path / "base")
    folds = {name: fold_dir(path) for name, path in partition_dirs(base / "node-1" / "data", "mix-").items()}
    interrupted = 0
    for number in range(crash_count):
        copies = [tmp_path / f"crash-{number}" / f"copy-{index}" for index in range(COPIES_PER_DRIVER)]
        for copy in copies:
            shutil.copytree(base, copy)
        crash(copies, rng)
        interrupted += any(half_done(copy) for copy in copies)
        for copy in copies:
            if not marker(copy, "begun").exists():
                continue
            RECOVERIES[number % len(RECOVERIES)](copy, folds, spark)
            assert {name: fold_dir(copy_dir(copy, name)) for name in folds} == folds, f"crash {number}, {copy}"
            assert half_done(copy) == []
        shutil.rmtree(tmp_path / f"crash-{number}")
    assert interrupted > 0, "no kill fell between the first and the last step of anything"


def write_logs(seed: int, base: Path) -> Path:
    """Six random logs and more, in several segments, with transactions."""
    mixes = [replace(mix, leaves_open=False, min_compaction_lag_ms=0) for mix in draw_mixes(seed, TOPICS)]
    with KafkaCluster(base_dir=base, settings=NO_CLEANING, keep=True) as kafka:
        create_topics(kafka, mixes)
        write_all(kafka, mixes)
        kafka.stop()
    return base


# ---- The crash.


def crash(copies: list[Path], rng: random.Random) -> None:
    """Start a driver, wait for it to be in the passes or the commits of one copy, and a little longer, and kill it."""
    target, moment = rng.choice(copies), rng.choice(["begun", "committing", "committing"])
    with running_driver([copy / "node-1" / "data" for copy in copies]) as driver:
        wait_until(lambda: marker(target, moment).exists() or driver.poll() is not None, f"{moment} of {target}")
        time.sleep(rng.uniform(0, PASS_SECONDS if moment == "begun" else COMMIT_SECONDS))
        assert driver.poll() in (None, 0), f"the driver failed: see {copies[0].parent}/driver.log"
        kill(driver, everything=rng.random() < 0.5)


@contextmanager
def running_driver(data_dirs: list[Path]) -> Iterator[subprocess.Popen[bytes]]:
    log = data_dirs[0].parents[2] / "driver.log"
    with log.open("wb") as output:
        driver = subprocess.Popen(
            [sys.executable, "-m", "tests.kafka.crash_driver", *map(str, data_dirs)],
            cwd=PROJECT_DIR,
            env={**os.environ, **LOOPBACK},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield driver
    finally:
        kill(driver, everything=True)


def kill(driver: subprocess.Popen[bytes], everything: bool) -> None:
    """Only the process that a person would kill, or the JVM and its Python workers at the same time.

    Either way it returns when all of them are gone: nobody writes any more.
    """
    family = _family(driver)
    driver.kill()
    if everything:
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
    driver.wait(GONE_TIMEOUT_S)
    _, alive = psutil.wait_procs(family, GONE_TIMEOUT_S)
    assert alive == [], "what Spark started outlives its driver"


def _family(driver: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Spark's JVM and the workers, which are in process groups of their own."""
    if driver.poll() is not None:
        return []
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(driver.pid).children(recursive=True)
    return []


def marker(copy: Path, moment: str) -> Path:
    return copy / "node-1" / f"data.{moment}"


def half_done(copy: Path) -> list[str]:
    """Files of a replacement that did not come to its end."""
    return [
        str(path.relative_to(copy))
        for path in sorted(copy.glob("node-1/data/mix-*/*"))
        if path.suffix in (".cleaned", ".swap")
    ]


# ---- The recoveries.


def recover_with_swap(copy: Path, folds: Folds, spark: SparkSession) -> None:
    with locks.hold(copy / "node-1" / "data"):
        for name in folds:
            swap.recover(copy_dir(copy, name))


def recover_with_kafka(copy: Path, folds: Folds, spark: SparkSession) -> None:
    with KafkaCluster.adopt(copy, settings=NO_CLEANING) as kafka:
        served = consume_committed(kafka.bootstrap, folds)
        assert {name: fold_rows(rows) for name, rows in served.items()} == folds
        kafka.stop()


def recover_with_the_next_run(copy: Path, folds: Folds, spark: SparkSession) -> None:
    options = Options(time.time_ns() // 1_000_000, Coordination.INDEPENDENT)
    reports = compact_directories(spark.sparkContext, [copy / "node-1" / "data"], options)
    assert [report.failure for report in reports if report.failure is not None] == []


RECOVERIES: Final[list[Callable[[Path, Folds, SparkSession], None]]] = [
    recover_with_swap,
    recover_with_kafka,
    recover_with_the_next_run,
    recover_with_kafka,
]


def copy_dir(copy: Path, name: Name) -> Path:
    return copy / "node-1" / "data" / f"{name[0]}-{name[1]}"


def wait_until(reached: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + BEGIN_TIMEOUT_S
    while not reached():
        assert time.monotonic() < deadline_s, f"waited {BEGIN_TIMEOUT_S} s for {what}"
        time.sleep(0.01)
