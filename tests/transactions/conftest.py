"""The brokers and clients under test; `pytest tests/transactions --against kafka` judges the tests themselves."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

from sexton.harness.brokers import SextonCluster
from sexton.harness.jars import DEFAULT_VERSION
from sexton.harness.kafka import KafkaCluster
from sexton.harness.properties import Settings
from tests.interop import page
from tests.interop.clients import Client
from tests.storage import store_for
from tests.transactions.clients import ClientProcess, client_named, newest
from tests.transactions.kit import Kit
from tests.transactions.together import FIXTURE, Together, client_of
from tests.transactions.under_test import OLD_KAFKA, UnderTest

BROKERS: Final = 3
SETTINGS: Final[Settings] = {"auto.create.topics.enable": False}
KAFKA_SETTINGS: Final[Settings] = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 200}
"""Kafka looks for transactions that took too long every 10 s; tests would rather not wait. Sexton knows when."""

SOAK_SECONDS: Final = 120
SUITE_SECONDS: Final = 20


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("sexton transactions")
    with suppress(ValueError):  # tests/interop has one of the same name and meaning
        group.addoption(
            "--against",
            default="sexton",
            help="sexton (default), kafka, kafka:VERSION, or the addresses of a cluster of three that runs already",
        )


def against(config: pytest.Config) -> str:
    # A conftest below the tests' root is read too late to have its options parsed, unless it was asked for by path.
    return str(config.getoption("--against", "sexton"))


@pytest.fixture(scope="session")
def kill_seconds(is_soak: bool) -> int:
    return SOAK_SECONDS if is_soak else SUITE_SECONDS


@contextmanager
def started_cluster(
    config: pytest.Config, directory: Path, settings: Settings | None = None
) -> Iterator[KafkaCluster | SextonCluster]:
    """Of the kind that `--against` names."""
    wanted = {**SETTINGS, **(settings or {})}
    kind = against(config)
    running: KafkaCluster | SextonCluster
    with store_for(config, directory / "store") as store:
        if kind.startswith("kafka"):
            version = kind.partition(":")[2] or DEFAULT_VERSION
            all_settings = {**KAFKA_SETTINGS, **wanted}
            running = KafkaCluster(version, BROKERS, directory / "cluster", all_settings, heap="512m")
        else:
            running = SextonCluster(BROKERS, directory / "cluster", wanted, store=store)
        with running:
            yield running


@pytest.fixture(scope="session")
def cluster(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnderTest]:
    """Three brokers for the whole run; tests take new topics, groups and ids, and leave the brokers alone."""
    kind = against(pytestconfig)
    if ":" in kind and not kind.startswith("kafka:"):
        yield UnderTest(kind, "given")
        return
    with started_cluster(pytestconfig, tmp_path_factory.mktemp("transactions")) as running:
        yield UnderTest(running.bootstrap, kind, running)


@pytest.fixture(scope="session")
def mortal(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnderTest]:
    """Brokers that may be killed, so nobody else uses them."""
    kind = against(pytestconfig)
    if ":" in kind and not kind.startswith("kafka:"):
        pytest.skip("kills need brokers of their own")
    settings = {"broker.session.timeout.ms": 3_000} if kind.startswith("kafka") else {"broker.lease.ms": 2_000}
    with started_cluster(pytestconfig, tmp_path_factory.mktemp("mortal"), settings) as running:
        yield UnderTest(running.bootstrap, kind, running)


@pytest.fixture(scope="session")
def old_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[UnderTest]:
    """Apache Kafka before transaction version 2: one broker, to show what a test shows there."""
    with KafkaCluster(OLD_KAFKA, 1, tmp_path_factory.mktemp("old") / "kafka", heap="512m") as running:
        yield UnderTest(running.bootstrap, f"kafka:{OLD_KAFKA}", running, replication=1)


@contextmanager
def client_processes(directory: Path) -> Iterator[Callable[[Client], ClientProcess]]:
    """A client's process, started when it is first asked for, and again if a test has ended it."""
    running: dict[str, ClientProcess] = {}

    def process(client: Client) -> ClientProcess:
        known = running.get(client.label)
        if known is None or not known.is_running:
            path = directory / f"{client.label.replace(' ', '-')}.log"
            running[client.label] = ClientProcess(client, path)
        return running[client.label]

    yield process
    for each in running.values():
        each.end()


@pytest.fixture(scope="session")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Client], ClientProcess]]:
    """For tests that run together: each is used by one thread at a time."""
    with client_processes(tmp_path_factory.mktemp("clients")) as process:
        yield process


@pytest.fixture(scope="session")
def own_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Client], ClientProcess]]:
    """For tests that do not, while those of `processes` are in use."""
    with client_processes(tmp_path_factory.mktemp("clients")) as process:
        yield process


@pytest.fixture
def kits(cluster: UnderTest, own_processes: Callable[[Client], ClientProcess]) -> Iterator[Callable[[Client], Kit]]:
    made: list[Kit] = []

    def kit(client: Client) -> Kit:
        if cluster.is_out_of_reach(client):
            pytest.skip(f"{client.label} cannot speak with Apache Kafka 4 (KIP-896)")
        made.append(Kit(own_processes(client), cluster.bootstrap))
        return made[-1]

    yield kit
    for each in made:
        each.close()


@pytest.fixture(scope="session", name=FIXTURE)
def together_(
    cluster: UnderTest,
    processes: Callable[[Client], ClientProcess],
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Together]:
    running = Together(
        cluster, processes, lambda: tmp_path_factory.mktemp("client"), request.getfixturevalue, request.session.items
    )
    yield running
    running.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keeps what docs/clients.md is written from."""
    report = yield
    page.note(item, report)
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that runs with its client's others has been started before its turn comes."""
    together = pyfuncitem.funcargs.get(FIXTURE)
    if not isinstance(together, Together):
        return None
    client = client_of(pyfuncitem)
    if together.cluster.is_out_of_reach(client):
        pytest.skip(f"{client.label} cannot speak with Apache Kafka 4 (KIP-896)")
    together.check(pyfuncitem)
    return True


@pytest.fixture
def kit(client: Client) -> None:
    """Made by Together, as is `directory`."""


@pytest.fixture
def directory() -> None: ...


@pytest.fixture
def java(kits: Callable[[Client], Kit]) -> Kit:
    """Java's newest client, where one client shows it for all."""
    return kits(client_named("Java client 4.3.0"))


@pytest.fixture
def rdkafka(kits: Callable[[Client], Kit]) -> Kit:
    """librdkafka's newest."""
    return kits(newest("confluent-kafka"))
