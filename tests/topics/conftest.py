"""One broker of Apache Kafka and three of Sexton, for all tests of commands that read any cluster's topics."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

from sexton.cli.main import app
from sexton.harness.brokers import SextonCluster
from sexton.harness.cloud_store import CloudStore
from sexton.harness.kafka import KafkaCluster

KAFKA, SEXTON = "kafka", "sexton"

EAGER = {"log.cleaner.backoff.ms": 50, "group.initial.rebalance.delay.ms": 0}
"""A broker's settings with which a cleaner is at work within a second."""


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster(settings=EAGER, heap="400m") as cluster:
        yield cluster


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudStore]:
    with CloudStore(tmp_path_factory.mktemp("store")) as store:
        yield store


@pytest.fixture(scope="session")
def sexton_cluster(store: CloudStore) -> Iterator[SextonCluster]:
    with SextonCluster(settings={"default.storage.mode": "local"}, store=store) as cluster:
        yield cluster


KINDS = (pytest.param(KAFKA, marks=pytest.mark.kafka), pytest.param(SEXTON, marks=pytest.mark.cluster))

ON_KAFKA, ON_SEXTON = (pytest.mark.parametrize("bootstrap", [kind], indirect=True) for kind in KINDS)
"""For what need not be shown twice."""


@pytest.fixture(params=KINDS)
def bootstrap(request: pytest.FixtureRequest) -> str:
    """Of each kind of cluster."""
    name = "kafka" if request.param == KAFKA else "sexton_cluster"
    found: KafkaCluster | SextonCluster = request.getfixturevalue(name)
    return found.bootstrap


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(each) for each in arguments], env={"COLUMNS": "200"}, catch_exceptions=False)
