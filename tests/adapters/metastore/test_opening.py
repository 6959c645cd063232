"""Finding the metastore: addresses, files that are none, and places where nobody answers."""

from __future__ import annotations

import socket
import sqlite3
import uuid
from pathlib import Path

import pytest

from sexton.adapters.metastore import MetastoreUrlError, open_metastore, sqlite_url
from sexton.adapters.metastore.session import Session
from sexton.adapters.metastore.store import SqlMetastore
from sexton.ports.metastore import MetastoreUnavailableError
from tests.adapters.metastore.conftest import Opener
from tests.adapters.metastore.rows import CLUSTER, register


@pytest.mark.parametrize("url", ["", "nonsense", "mysql://host/db", "http://x", "/a/path", "sqlite:/one/slash.db"])
def test_an_address_that_makes_no_sense_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(MetastoreUrlError, match="sqlite:///path/to/file"):
        open_metastore(url)


async def test_a_password_is_not_shown_in_errors() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        store = open_metastore(f"postgresql://me:s3cret@127.0.0.1:{probe.getsockname()[1]}/db")
        with pytest.raises(MetastoreUnavailableError, match="refused") as raised:
            await store.read_leases()
    assert "s3cret" not in str(raised.value)
    assert "me:***@127.0.0.1" in raised.value.place
    await store.close()


async def test_a_host_whose_packets_vanish_is_unavailable_like_any_other() -> None:
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for occupant in (first, second):  # the queue holds one more than its length; then the kernel drops
            occupant.setblocking(False)
            occupant.connect_ex(full.getsockname())
        store = open_metastore(f"postgresql://me@127.0.0.1:{full.getsockname()[1]}/db")
        with pytest.raises(MetastoreUnavailableError, match="timed out"):
            await store.read_leases()
        await store.close()


async def test_a_file_that_is_no_database_is_reported_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database at all, but somebody's notes\n" * 100)
    before = path.read_bytes()
    store = open_metastore(f"sqlite:///{path}")
    with pytest.raises(MetastoreUnavailableError, match="not a database"):
        await store.open_cluster(CLUSTER)
    assert path.read_bytes() == before
    await store.close()


async def test_a_folder_that_does_not_exist_is_reported_and_found_once_it_does(tmp_path: Path) -> None:
    store = open_metastore(f"sqlite:///{tmp_path}/later/metastore.db")
    with pytest.raises(MetastoreUnavailableError, match="folder exists"):
        await store.open_cluster(CLUSTER)
    (tmp_path / "later").mkdir()
    assert await store.open_cluster(CLUSTER) == CLUSTER
    await store.close()


async def test_reading_before_there_is_a_cluster_is_unavailable_not_a_crash(opener: Opener) -> None:
    store = opener()
    with pytest.raises(MetastoreUnavailableError):
        await store.read_changes(0)
    with pytest.raises(MetastoreUnavailableError):
        await store.allocate_producer_ids(1)
    await store.open_cluster(CLUSTER)
    assert (await store.read_changes(0)).is_snapshot


async def test_a_sqlite_file_is_in_wal_mode_and_outlives_its_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/metastore.db"
    store = open_metastore(url)
    await store.open_cluster(CLUSTER)
    row = await register(store, 1)
    await store.close()
    with sqlite3.connect(tmp_path / "metastore.db") as direct:
        assert direct.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    again = open_metastore(url)
    assert await again.open_cluster(uuid.UUID(int=7)) == CLUSTER
    assert await again.read_leases() == {1: (row.epoch, 0)}
    await again.close()


async def test_a_sqlite_file_that_another_process_keeps_locked_is_unavailable_in_time(tmp_path: Path) -> None:
    store = open_metastore(f"sqlite:///{tmp_path}/metastore.db", timeout_ms=2_000)
    await store.open_cluster(CLUSTER)
    row = await register(store, 1)
    blocker = sqlite3.connect(tmp_path / "metastore.db", isolation_level=None)
    blocker.execute("BEGIN EXCLUSIVE")
    with pytest.raises(MetastoreUnavailableError):
        await store.renew_lease(1, row.epoch)
    assert len((await store.read_changes(0)).brokers) == 1  # readers do not wait for a writer
    blocker.execute("ROLLBACK")
    await store.renew_lease(1, row.epoch)
    blocker.close()
    await store.close()


async def test_a_file_that_may_only_be_read_is_unavailable_for_changes(tmp_path: Path) -> None:
    path = tmp_path / "metastore.db"
    store = open_metastore(f"sqlite:///{path}")
    await store.open_cluster(CLUSTER)
    row = await register(store, 1)
    read_only = open_metastore(f"sqlite:///file:{path}?mode=ro&uri=true")
    assert await read_only.read_leases() == {1: (row.epoch, 0)}
    with pytest.raises(MetastoreUnavailableError, match="readonly"):
        await read_only.renew_lease(1, row.epoch)
    await read_only.close()
    await store.close()


async def test_any_path_can_be_told_as_an_address(tmp_path: Path) -> None:
    folder = tmp_path / "50% of what? #1 ä"
    folder.mkdir()
    store = open_metastore(sqlite_url(f"{folder}/metastore.db"))
    await store.open_cluster(CLUSTER)
    await store.close()
    assert (folder / "metastore.db").exists()


async def test_an_operation_gets_its_arguments_by_name_too(opener: Opener) -> None:
    def named(session: Session, *, what: str) -> str:
        return what

    store = opener()
    assert isinstance(store, SqlMetastore)
    assert await store.run(named, what="this") == "this"


async def test_a_closed_metastore_answers_no_more(tmp_path: Path) -> None:
    store = open_metastore(f"sqlite:///{tmp_path}/metastore.db")
    await store.open_cluster(CLUSTER)
    await store.close()
    with pytest.raises(MetastoreUnavailableError, match="closed"):
        await store.read_leases()
    await store.close()
