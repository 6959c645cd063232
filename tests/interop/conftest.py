"""The brokers under test and the options: `pytest tests/interop --against kafka` judges the tests by Apache Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from tests.interop.clients import Client, Worker
from tests.kafka import KafkaCluster
from tests.kafka.cluster import Settings
from tests.kafka.jars import DEFAULT_VERSION
from tests.sexton_cluster import SextonCluster

BROKERS: Final = 3
SETTINGS: Final[Settings] = {
    "auto.create.topics.enable": False,
    # Members of KIP-848 groups hear of a rebalance with their next heartbeat.
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 100,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sexton interop")
    group.addoption(
        "--against",
        default="sexton",
        help="sexton (default), kafka, kafka:VERSION, or the addresses of a cluster of three that runs already",
    )
    group.addoption(
        "--write-clients-doc", action="store_true", help="Write docs/clients.md from the results of this run."
    )
    group.addoption("--chaos-seconds", type=int, default=60, help="How long test_chaos.py goes on.")


@dataclass(frozen=True)
class ClusterUnderTest:
    """What a test may know about the brokers: where they are, and, if this run started them, their files."""

    bootstrap: str
    brokers: int
    kind: str
    running: KafkaCluster | SextonCluster | None = None

    @property
    def is_kafka_4(self) -> bool:
        return isinstance(self.running, KafkaCluster) and self.running.version.startswith("4")


def against(config: pytest.Config) -> str:
    # A conftest below the tests' root is read too late to have its options parsed, unless it was asked for by path.
    return str(config.getoption("--against", "sexton"))


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    """Three brokers for the whole run; tests take new topics and groups, and leave the brokers alone."""
    kind = against(request.config)
    if ":" in kind and not kind.startswith("kafka:"):
        yield ClusterUnderTest(kind, BROKERS, "given")
        return
    directory = tmp_path_factory.mktemp("interop") / "cluster"
    running: KafkaCluster | SextonCluster
    if kind.startswith("kafka"):
        version = kind.partition(":")[2] or DEFAULT_VERSION
        running = KafkaCluster(version, BROKERS, directory, SETTINGS, heap="512m")
    else:
        running = SextonCluster(nodes=BROKERS, base_dir=directory, settings=SETTINGS)
    with running:
        yield ClusterUnderTest(running.bootstrap, BROKERS, kind.partition(":")[0], running)


@pytest.fixture(scope="session")
def worker_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Client], Worker]]:
    """A client's process, the same for all its scenarios."""
    directory = tmp_path_factory.mktemp("clients")
    workers: dict[str, Worker] = {}

    def find(client: Client) -> Worker:
        if client.label not in workers:
            workers[client.label] = Worker(client, _touched(directory / f"{client.label.replace(' ', '-')}.log"))
        return workers[client.label]

    yield find
    for worker in workers.values():
        worker.close()


def _touched(path: Path) -> Path:
    path.touch()
    return path
