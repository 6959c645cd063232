"""The brokers under test and the options: `pytest tests/interop --against kafka` judges the tests by Apache Kafka."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from sexton.harness.brokers import SextonCluster
from sexton.harness.jars import DEFAULT_VERSION
from sexton.harness.kafka import KafkaCluster
from sexton.harness.properties import Settings
from tests.interop import page
from tests.interop.clients import Client, Worker
from tests.storage import store_for

BROKERS: Final = 3
SETTINGS: Final[Settings] = {
    "auto.create.topics.enable": False,
    # Members of KIP-848 groups hear of a rebalance with their next heartbeat.
    "group.consumer.heartbeat.interval.ms": 300,
    "group.consumer.min.heartbeat.interval.ms": 100,
}

CLIENTS_AT_ONCE: Final = 4
"""Scenarios mostly wait; brokers have many clients in life, too."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sexton interop")
    group.addoption(
        "--against",
        default="sexton",
        help="sexton (default), kafka, kafka:VERSION, or the addresses of a cluster of three that runs already",
    )
    group.addoption("--write-clients-doc", action="store_true", help="Write docs/clients.md from this run's results.")
    group.addoption("--chaos-seconds", type=int, default=60, help="How long test_chaos.py goes on.")
    group.addoption("--chaos-seed", type=int, default=0, help="Of its faults; 0: a new one each time.")


@dataclass(frozen=True)
class ClusterUnderTest:
    """What a test may know about the brokers: where they are, and, if this run started them, their files."""

    bootstrap: str
    brokers: int
    kind: str
    running: KafkaCluster | SextonCluster | None = None

    @property
    def fields(self) -> dict[str, object]:
        """What a scenario is told (`common.Cluster`)."""
        log_dirs = [str(self.running.log_dir(number)) for number in self.running.node_ids] if self.running else []
        return {"bootstrap": self.bootstrap, "brokers": self.brokers, "log_dirs": log_dirs}

    @property
    def is_kafka_4(self) -> bool:
        return isinstance(self.running, KafkaCluster) and self.running.version.startswith("4")


def against(config: pytest.Config) -> str:
    # A conftest below the tests' root is read too late to have its options parsed, unless it was asked for by path.
    return str(config.getoption("--against", "sexton"))


@contextmanager
def start_cluster(
    request: pytest.FixtureRequest,
    directory: Path,
    brokers: int,
    settings: Settings,
    node_settings: Mapping[int, Settings] | None = None,
) -> Iterator[ClusterUnderTest]:
    """Brokers of the kind that --against asks for; Sexton's where it names addresses, since those have their own
    settings. After a failure their logs stay."""
    kind = against(request.config).partition(":")
    running: KafkaCluster | SextonCluster
    with store_for(request.config, directory.with_name(f"{directory.name}-store")) as store:
        if kind[0] == "kafka":
            running = KafkaCluster(kind[2] or DEFAULT_VERSION, brokers, directory, settings, node_settings, heap="512m")
        else:
            running = SextonCluster(brokers, directory, settings, node_settings, store=store)
        with running:
            running.keep = True  # unless nothing fails, in here or before
            yield ClusterUnderTest(running.bootstrap, brokers, kind[0], running)
            running.keep = request.session.testsfailed > 0


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterUnderTest]:
    """Three brokers for the whole run; tests take new topics and groups, and leave the brokers alone."""
    asked = against(request.config)
    if ":" in asked and not asked.startswith("kafka:"):
        yield ClusterUnderTest(asked, BROKERS, "given")
        return
    with start_cluster(request, tmp_path_factory.mktemp("interop") / "cluster", BROKERS, SETTINGS) as started:
        yield started


class Scenarios:
    """Runs what the selected tests will ask for, a few clients at a time, each client's scenarios in the tests' order.

    A test then waits for its own result. One after the other the scenarios would take three times as long."""

    def __init__(self, cluster: ClusterUnderTest, directory: Path, wanted: dict[Client, list[str]]) -> None:
        self._results: dict[tuple[str, str], Future[None]] = {
            (client.label, feature): Future() for client, features in wanted.items() for feature in features
        }
        self._cluster = cluster
        self._directory = directory
        self._is_closing = False
        self._pool = ThreadPoolExecutor(CLIENTS_AT_ONCE)
        for client, features in wanted.items():
            self._pool.submit(self._run_all, client, features, dict(self._results))

    def check(self, client: Client, feature: str) -> None:
        """Waits for the scenario's end; raises what it raised. Asked a second time, runs it again, in a process of its
        own: others may be using the client's first one."""
        result = self._results.pop((client.label, feature), None)
        if result is not None:
            result.result()
            return
        worker = self._worker(client, "again")
        try:
            worker.run(feature, self._cluster.fields)
        finally:
            worker.close()

    def close(self) -> None:
        self._is_closing = True
        self._pool.shutdown(cancel_futures=True)

    def _worker(self, client: Client, name: str = "client") -> Worker:
        log_path = self._directory / f"{client.label.replace(' ', '-')}-{name}.log"
        log_path.touch()
        return Worker(client, log_path)

    def _run_all(self, client: Client, features: list[str], results: dict[tuple[str, str], Future[None]]) -> None:
        worker = self._worker(client)
        for feature in features:
            result = results[client.label, feature]
            try:
                if self._is_closing:
                    raise RuntimeError("the run was ended")
                worker.run(feature, self._cluster.fields)
                result.set_result(None)
            except BaseException as error:
                result.set_exception(error)
        worker.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keeps what docs/clients.md is written from."""
    report = yield
    page.note(item, report)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.getoption("--write-clients-doc", False):
        page.write(session.config)


@pytest.fixture(scope="session")
def scenarios(
    cluster: ClusterUnderTest, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Scenarios]:
    wanted: dict[Client, list[str]] = {}
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if {"client", "feature"} <= parameters.keys() and not out_of_reach(
            parameters["client"], parameters["feature"], cluster
        ):
            wanted.setdefault(parameters["client"], []).append(parameters["feature"])
    running = Scenarios(cluster, tmp_path_factory.mktemp("clients"), wanted)
    yield running
    running.close()


def out_of_reach(client: Client, feature: str, cluster: ClusterUnderTest) -> str:
    """Why this cannot be tried with these brokers; empty if it can. Never so with Sexton."""
    if client.broker_before_4 and cluster.is_kafka_4:
        return f"{client.label} cannot speak with Apache Kafka 4 (KIP-896)"
    if feature == "tool_dump" and cluster.running is None:
        return "the brokers' files are out of reach"
    return ""
