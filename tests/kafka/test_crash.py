"""`kill -9` of `sexton compact` at random moments, then Sexton's recovery or Kafka's: the fold never changes.

`make soak` does it a hundred times; another series: `pytest tests/kafka/test_crash.py --seed 7`.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

import psutil
import pytest
from pyspark.sql import SparkSession

from sexton.harness.kafka import KafkaCluster
from sexton.log.stopped import locks, swap
from sexton.spark.offline import OfflineCoordination, Options, compact_directories
from tests.kafka.command import ENVIRONMENT
from tests.kafka.conftest import ENOUGH_CRASHES
from tests.kafka.directories import Fold, Name, fold_dir, partition_dirs
from tests.kafka.workload import (
    NO_CLEANING,
    consume_committed,
    create_topics,
    draw_mixes,
    fold_rows,
    write_all,
)
from tests.project import PROJECT_DIR

MIXES: Final = (0, 1, 4)
"""Records without keys, plain and idempotent producers, transactions of several producers over three partitions."""

BEGIN_TIMEOUT_S: Final = 120
"""A driver begins five seconds after its start on a quiet machine."""

GONE_TIMEOUT_S: Final = 60
"""What Spark leaves running when only its driver was killed notices within a second or two."""

PASS_SECONDS: Final = 2.0
COMMIT_SECONDS: Final = 1.0
"""About how long the passes and the commits take: kills fall within."""

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
    with ExitStack() as drivers:
        upcoming = drivers.enter_context(Driver(base, tmp_path / "crash-0"))
        for number in range(crash_count):
            driver = upcoming
            driver.crash(rng)
            if number + 1 < crash_count:
                # The next one starts Spark while this one's logs are recovered.
                upcoming = drivers.enter_context(Driver(base, tmp_path / f"crash-{number + 1}"))
            interrupted += half_done(driver.copy) != []
            RECOVERIES[number % len(RECOVERIES)](driver.copy, folds, spark)
            assert half_done(driver.copy) == []
            assert {name: fold_dir(copy_dir(driver.copy, name)) for name in folds} == folds, f"crash {number}"
            shutil.rmtree(driver.copy)
    assert interrupted > 0 or crash_count < ENOUGH_CRASHES, "no kill fell between a first and a last step"


def write_logs(seed: int, base: Path) -> Path:
    """Five random logs or more, each of several segments, all of them cleanable."""
    drawn = draw_mixes(seed, max(MIXES) + 1)
    mixes = [replace(drawn[number], leaves_open=False, min_compaction_lag_ms=0) for number in MIXES]
    with KafkaCluster(base_dir=base, settings=NO_CLEANING, keep=True) as kafka:
        create_topics(kafka, mixes)
        write_all(kafka, mixes)
        kafka.stop()
    return base


# ---- The crash.


class Driver:
    """A process that compacts a copy of the logs, and does not live to tell."""

    def __init__(self, base: Path, copy: Path) -> None:
        self.copy = copy
        shutil.copytree(base, copy)
        self._log = copy / "driver.log"
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.kafka.crash_driver", str(copy / "node-1" / "data")],
                cwd=PROJECT_DIR,
                env=ENVIRONMENT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        kill(self._process, everything=True)

    def crash(self, rng: random.Random) -> None:
        """Let it get into the passes or the commits, and a little further, and kill it."""
        moment = rng.choice(["begun", "committing", "committing"])
        marker(self.copy, "go").touch()
        self._wait_for(marker(self.copy, moment))
        time.sleep(rng.uniform(0, PASS_SECONDS if moment == "begun" else COMMIT_SECONDS))
        kill(self._process, everything=rng.random() < 0.5)

    def _wait_for(self, path: Path) -> None:
        deadline_s = time.monotonic() + BEGIN_TIMEOUT_S
        while not path.exists():
            assert self._process.poll() is None, f"the driver ended before {path}:\n{self._log.read_text()}"
            assert time.monotonic() < deadline_s, f"waited {BEGIN_TIMEOUT_S} s for {path}"
            time.sleep(0.01)


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
    options = Options(time.time_ns() // 1_000_000, OfflineCoordination.INDEPENDENT)
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
