"""What all tests share."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from sexton.harness import class_archives
from sexton.spark import session
from tests import storage

# Spark's JVMs live for seconds here, and the optimizing compiler would take a third of their CPU time. Child processes
# inherit it: the harness copies the environment.
QUICK_START = ("-XX:TieredStopAtLevel=1", *class_archives.options("spark", class_archives.spark_jar_dir()))
os.environ.setdefault("SPARK_SUBMIT_OPTS", " ".join(QUICK_START))
os.environ.setdefault("SPARK_LAUNCHER_OPTS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# A first call may have to compile a kernel, and machines are busy: how long an example takes says nothing.
settings.register_profile("sexton", deadline=None, print_blob=True)
settings.load_profile("sexton")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak", action="store_true", help="Tests that kill or wait go on for minutes.")
    parser.addoption(
        "--storage",
        choices=("local", storage.CLOUD),
        default="local",
        help="Where the topics of tests with clients are: on brokers' disks, or in an S3 on this machine.",
    )


@pytest.fixture(scope="session")
def is_soak(pytestconfig: pytest.Config) -> bool:
    return bool(pytestconfig.getoption("--soak"))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One small local Spark for the whole run: starting it takes longer than most jobs."""
    running = session.start("sexton tests", "local[2]")
    yield running
    running.stop()


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """For mistakes that a command tells at once, and not after the half minute that a session may take to start."""

    def start(*arguments: object) -> None:
        raise AssertionError("a Spark session was started")

    monkeypatch.setattr(session, "start", start)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skipped test is a failure: what it would have shown has not been shown."""
    report = yield
    if report.skipped and os.environ.get("CI"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and CI skips nothing: {report.longrepr}"
    return report


def pytest_collection_finish() -> None:
    """What is loaded now stays, and is not looked through each time that a simulated cluster collects its garbage."""
    gc.collect()
    gc.freeze()


REAL_PROCESSES = ("cluster", "kafka", "postgres")
EARLY = (*REAL_PROCESSES, "spark", "long")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Files that wait for servers come first, and such as take long: with several processes, the last one to finish
    then finishes sooner.

    Brokers are real processes that share two cores with everything else, and their clients have timeouts. In CI, one
    more try tells a passing shortage from a fault; the summary counts what needed it."""
    storage.deselect(config, items)
    early = {item.path for item in items if any(item.get_closest_marker(name) for name in EARLY)}
    items.sort(key=lambda item: item.path not in early)
    if not os.environ.get("CI"):
        return
    for item in items:
        if any(item.get_closest_marker(name) for name in REAL_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=1))
