"""Options of the tests against real Kafka, for `pytest tests/kafka/...`; a run of everything takes the defaults."""

from __future__ import annotations

from typing import Final

import pytest

SEED: Final = 1
CRASHES: Final = 3
"""One for each recovery. `make soak` asks for a hundred."""

ENOUGH_CRASHES: Final = 6
"""Of so many, one at least falls between the first and the last step of something."""

TIMEOUT_S: Final = 300
CRASH_TIMEOUT_S: Final = 90
"""A crash and its recovery take ten seconds on two quiet cores."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sexton")
    group.addoption("--seed", type=int, default=SEED, help="Seed of the random workloads against real Kafka.")
    group.addoption("--crashes", type=int, default=CRASHES, help="How often test_crash.py kills `sexton compact`.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The more crashes, the longer it may take."""
    crashes = int(config.getoption("--crashes", CRASHES))
    for item in items:
        if "crash_count" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S + crashes * CRASH_TIMEOUT_S))


@pytest.fixture(scope="session")
def seed(request: pytest.FixtureRequest) -> int:
    # A conftest below the tests' root is read too late to have its options parsed, unless it was asked for by path.
    return int(request.config.getoption("--seed", SEED))


@pytest.fixture(scope="session")
def crash_count(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--crashes", CRASHES))
