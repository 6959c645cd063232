"""Options of the tests against real Kafka."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from sexton.pipelines import session


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sexton")
    group.addoption("--seed", type=int, default=1, help="Seed of the random workloads against real Kafka.")
    group.addoption("--crashes", type=int, default=6, help="How often `sexton compact` is killed in test_crash.py.")


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--seed"))


@pytest.fixture(scope="session")
def crash_count(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--crashes"))


@pytest.fixture(scope="session")
def spark() -> SparkSession:
    """The process's session, started once; it ends with the process."""
    return session.start("tests", "local[2]")
