"""Three real brokers with versitygw behind a proxy, for the tests of one file."""

from __future__ import annotations

import asyncio
import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sexton.adapters.metastore import open_metastore
from sexton.adapters.objects import open_store
from sexton.cloud.checking import Found, check
from sexton.harness.brokers import SextonCluster
from sexton.harness.cloud_store import CloudStore
from sexton.harness.postgres import Postgres
from tests.postgres import running_postgres
from tests.project import PYTHON_PATH

SETTINGS = {
    "auto.create.topics.enable": False,
    "broker.lease.ms": 3_000,
    "broker.lease.renew.ms": 500,
    "cloud.linger.ms": 5,
    "cloud.put.timeout.ms": 2_000,
    "cloud.get.timeout.ms": 2_000,
    "cloud.cache.bytes.max": 50_000,
}
"""Most of what is read must come from the store, so hardly anything is kept in memory."""


@dataclass(frozen=True)
class CloudPlace:
    cluster: SextonCluster
    store: CloudStore
    postgres: Postgres | None

    @contextmanager
    def without_metastore(self) -> Iterator[None]:
        """Nobody gets an answer: PostgreSQL is stopped in its tracks, or somebody has locked SQLite's file."""
        if self.postgres is not None:
            self.postgres.pause()
            try:
                yield
            finally:
                self.postgres.resume()
            return
        path = self.cluster.metastore_url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, timeout=60, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            yield
            connection.execute("ROLLBACK")

    def check(self) -> Found:
        """As `sexton cloud check --deep` does."""

        async def go() -> Found:
            metastore, objects = open_metastore(self.cluster.metastore_url), open_store(self.store.url)
            try:
                return await check(metastore, objects, await metastore.open_cluster(uuid.uuid4()), is_deep=True)
            finally:
                await objects.close()
                await metastore.close()

        return asyncio.run(go())


@pytest.fixture(
    scope="module",
    params=["SQLite", pytest.param("PostgreSQL", marks=[pytest.mark.postgres, pytest.mark.soak])],
)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CloudPlace]:
    is_haunted = getattr(request.module, "IS_HAUNTED", False)
    if request.param == "SQLite":
        yield from _started(tmp_path_factory.mktemp("failures"), None, is_haunted)
    else:
        with running_postgres() as server:
            yield from _started(tmp_path_factory.mktemp("failures"), server, is_haunted)


def _started(directory: Path, postgres: Postgres | None, is_haunted: bool) -> Iterator[CloudPlace]:
    url = None if postgres is None else postgres.new_database()
    with (
        CloudStore(directory / "store") as store,
        pytest.MonkeyPatch.context() as patch,
    ):
        for name, value in store.environment.items():
            patch.setenv(name, value)
        cluster = SextonCluster(3, directory / "cluster", SETTINGS, metastore_url=url, store=store)
        if is_haunted:
            cluster.run_instead(("-m", "tests.cloud.failures.dying"), PYTHON_PATH)
        with cluster:
            yield CloudPlace(cluster, store, postgres)


@pytest.fixture(autouse=True)
def healed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Whatever a test has broken works again for the next one."""
    yield
    if "place" in request.fixturenames:
        place: CloudPlace = request.getfixturevalue("place")
        place.store.heal()
        for node_id in place.cluster.node_ids:
            if not place.cluster.is_running(node_id):
                place.cluster.start_node(node_id)
