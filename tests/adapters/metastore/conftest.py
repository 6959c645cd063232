"""One behaviour suite over every metastore: a SQLite file, SQLite in process (the simulator's), PostgreSQL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sexton.adapters.metastore import InProcessMetastore, open_metastore
from sexton.harness.postgres import Postgres
from sexton.ports.metastore import Metastore
from tests.adapters.metastore.rows import CLUSTER
from tests.postgres import running_postgres

Opener = Callable[[], Metastore]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a new, empty database that many processes can share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/metastore.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def two_urls(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/one.db", f"sqlite:///{tmp_path}/other.db"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database(), server.new_database()


@pytest.fixture(params=["sqlite", "in process", pytest.param("postgres", marks=pytest.mark.postgres)])
def opener(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Opener]:
    """Opens the same new database again and again, as several brokers would."""
    opened: list[Metastore] = []
    if request.param == "in process":
        shared = InProcessMetastore()
        yield lambda: shared
        return
    url = f"sqlite:///{tmp_path}/metastore.db"
    if request.param == "postgres":
        server: Postgres = request.getfixturevalue("postgres")
        url = server.new_database()

    def open_another() -> Metastore:
        opened.append(open_metastore(url))
        return opened[-1]

    yield open_another
    for store in opened:
        asyncio.run(store.close())


@pytest.fixture
def store(opener: Opener) -> Metastore:
    store = opener()
    asyncio.run(store.open_cluster(CLUSTER))
    return store
