"""PostgreSQL stopped, killed, paused, restarted and cut off, under a metastore that is in use and is never restarted.

Nothing here measures time, except that everything hangs together with the bound of a call: what should fail must fail
with MetastoreUnavailableError (which the adapter's timeout makes sure of), and the first call after the return must
work.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from sexton.adapters.metastore import open_metastore
from sexton.adapters.metastore.session import Session
from sexton.adapters.metastore.threaded import ThreadedMetastore
from sexton.harness.postgres import Postgres
from sexton.ports.metastore import BrokerRow, Changes, ConfigScope, Metastore, MetastoreUnavailableError
from tests.adapters.metastore.proxy import proxy_to
from tests.adapters.metastore.rows import CLUSTER, partitions, register, topic
from tests.postgres import running_postgres

pytestmark = pytest.mark.postgres

SHORT_MS = 700
"""A call's timeout here: the tests wait for it often."""


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """Not the one that other tests use: this one suffers."""
    with running_postgres() as started:
        yield started


async def opened(url: str, timeout_ms: int = SHORT_MS) -> tuple[ThreadedMetastore, BrokerRow]:
    patient = open_metastore(url)  # tables are made in their own time, however busy the machine is
    await patient.open_cluster(CLUSTER)
    row = await register(patient, 1)
    await patient.close()
    store = open_metastore(url, timeout_ms=timeout_ms)
    assert isinstance(store, ThreadedMetastore)
    return store, row


async def fails(store: Metastore) -> MetastoreUnavailableError:
    with pytest.raises(MetastoreUnavailableError) as raised:
        await store.read_changes(0)
    return raised.value


def metastore_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("metastore-")]


async def threads_end(at_most: int) -> None:
    for _ in range(1000):
        if len(metastore_threads()) <= at_most:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"threads are left: {metastore_threads()}")


async def answers_again(store: Metastore) -> None:
    """Where calls wait for a moment only, the first after an outage may not be answered in it on a busy machine."""
    for _ in range(40):
        with suppress(MetastoreUnavailableError):
            await store.read_changes(0)
            return
    raise AssertionError("it is not answered any more")


async def test_a_stopped_server_is_reported_with_what_to_do_and_found_again_after_its_return(server: Postgres) -> None:
    store, row = await opened(server.new_database())
    server.stop()
    error = await fails(store)
    assert "PostgreSQL is running" in error.remedy
    assert f":{server.port}/" in error.place
    with pytest.raises(MetastoreUnavailableError):
        await store.renew_lease(1, row.epoch)
    server.start()
    await store.renew_lease(1, row.epoch)
    assert await store.read_leases() == {1: (row.epoch, 1)}
    await store.close()


async def test_a_restart_between_two_calls_goes_unnoticed(server: Postgres) -> None:
    store, row = await opened(server.new_database())
    before = await store.read_changes(0)
    server.stop()
    server.start()
    assert await store.read_changes(0) == before
    server.stop()
    server.start()
    await store.renew_lease(1, row.epoch)
    server.kill()
    server.start()
    await store.change_settings(ConfigScope.GROUP, "g", {"a": "1"})
    await store.renew_lease(1, row.epoch)
    await store.close()


async def test_a_paused_server_fails_calls_in_time_and_works_at_once_when_it_goes_on(server: Postgres) -> None:
    store, row = await opened(server.new_database())
    server.pause()
    for _ in range(3):
        await fails(store)
    errors = await asyncio.gather(*(store.renew_lease(1, row.epoch) for _ in range(20)), return_exceptions=True)
    assert all(isinstance(error, MetastoreUnavailableError) for error in errors)
    server.resume()
    await store.read_changes(0)
    await asyncio.gather(*(store.renew_lease(1, row.epoch) for _ in range(20)))
    await store.close()
    await threads_end(at_most=0)


async def test_calls_under_way_when_a_paused_server_goes_on_are_answered(server: Postgres) -> None:
    store, row = await opened(server.new_database(), timeout_ms=20_000)
    server.pause()
    calls = [asyncio.create_task(store.renew_lease(1, row.epoch)) for _ in range(10)]
    await asyncio.sleep(0.2)
    assert not any(call.done() for call in calls)
    server.resume()
    await asyncio.gather(*calls)
    assert (await store.read_leases())[1][1] == 10
    await store.close()


async def test_a_change_that_was_not_answered_is_made_or_not_but_never_half(server: Postgres) -> None:
    """The server gets the request, is stopped before it answers, and goes on after the client has given up."""
    store, _ = await opened(server.new_database())
    orders = topic("orders")
    for number in range(5):
        server.pause()
        with pytest.raises(MetastoreUnavailableError, match="unknown"):
            await store.create_topic(replace(orders, name=f"t{number}"), partitions(orders, 3), {"a": "b"})
        server.resume()
        changes = await store.read_changes(0)
        whole = (len(changes.topics), len(changes.partitions), len(changes.configs))
        assert whole in ((0, 0, 0), (1, 3, 1))
        if changes.topics:
            await store.delete_topic(orders.topic_id)
    await store.close()


async def test_threads_do_not_pile_up_in_a_long_outage(server: Postgres) -> None:
    store, _ = await opened(server.new_database(), timeout_ms=250)
    server.pause()
    most = 0
    for _ in range(16):
        await asyncio.gather(*(store.read_changes(0) for _ in range(6)), return_exceptions=True)
        most = max(most, len(metastore_threads()))
    server.resume()
    assert most <= 4 + 16
    await answers_again(store)
    await threads_end(at_most=4)
    await store.close()
    await threads_end(at_most=0)


async def test_a_connection_that_was_cut_without_a_word_is_replaced(server: Postgres) -> None:
    database = server.new_database()
    async with proxy_to(server.port) as proxy:
        store, row = await opened(database.replace(f":{server.port}/", f":{proxy.port}/"))
        proxy.cut()
        await fails(store)
        proxy.heal()
        await store.renew_lease(1, row.epoch)
        await store.close()


async def test_a_writer_that_was_cut_off_does_not_keep_the_others_from_writing(server: Postgres) -> None:
    """It holds the lock that every writer needs, and the server does not hear that it is gone."""
    database = server.new_database()
    async with proxy_to(server.port) as proxy:
        lost, _ = await opened(database.replace(f":{server.port}/", f":{proxy.port}/"))
        has_lock = threading.Event()

        def write_slowly(session: Session) -> None:
            with session.writing():
                has_lock.set()
                time.sleep(0.5)

        call = asyncio.create_task(lost.run(write_slowly))
        await asyncio.to_thread(has_lock.wait)
        proxy.cut()
        other = open_metastore(database, timeout_ms=10_000)
        await other.change_settings(ConfigScope.GROUP, "g", {"a": "1"})
        with pytest.raises(MetastoreUnavailableError):
            await call
        await other.close()
        await lost.close()


async def test_followers_and_writers_go_on_through_stops_kills_and_pauses(server: Postgres) -> None:
    url = server.new_database()
    store, row = await opened(url)
    is_over = asyncio.Event()

    async def keep_renewing() -> int:
        renewed = 0
        while not is_over.is_set():
            try:
                await store.renew_lease(1, row.epoch)
                renewed += 1
            except MetastoreUnavailableError:
                pass
            await asyncio.sleep(0.02)
        return renewed

    async def keep_writing() -> dict[str, str]:
        """Only what was acknowledged."""
        written: dict[str, str] = {}
        number = 0
        while not is_over.is_set():
            number += 1
            try:
                await store.change_settings(ConfigScope.GROUP, "g", {str(number): "x"})
                written[str(number)] = "x"
            except MetastoreUnavailableError:
                pass
            await asyncio.sleep(0.02)
        return written

    async def follow() -> Changes:
        revision = 0
        while not is_over.is_set():
            try:
                changes = await store.read_changes(revision)
                assert changes.revision >= revision
                revision = changes.revision
            except MetastoreUnavailableError:
                pass
            await asyncio.sleep(0.02)
        return await store.read_changes(0)

    tasks = asyncio.gather(keep_renewing(), keep_writing(), follow())
    for stop, start in [(server.stop, server.start), (server.pause, server.resume), (server.kill, server.start)] * 2:
        await asyncio.sleep(0.3)
        stop()
        await asyncio.sleep(0.8)
        await asyncio.to_thread(start)
    await asyncio.sleep(0.3)
    is_over.set()
    renewed, written, last = await tasks
    assert renewed <= (await store.read_leases())[1][1]
    (settings,) = (config.settings for config in last.configs)
    assert written.items() <= settings.items()
    await store.close()


def test_a_standby_that_still_has_yesterdays_rows_is_not_asked(server: Postgres) -> None:
    """After a failover an address, or one of several, may lead to what can only be read. An object that it does not
    know may be part of a log by now, and a broker that it calls fenced may lead."""

    async def work() -> None:
        url = server.new_database()
        store, _ = await opened(url, timeout_ms=3_000)
        assert await store.find_unknown([CLUSTER]) == [CLUSTER]
        server.stop()
        signal = server.data / "standby.signal"
        signal.touch()
        server.start()
        try:
            assert "standby" in (await fails(store)).what
            with pytest.raises(MetastoreUnavailableError):
                await store.find_unknown([CLUSTER])
            wished = open_metastore(f"{url}?target_session_attrs=any")
            assert await wished.find_cluster() == CLUSTER
            await wished.close()
        finally:
            server.stop()
            signal.unlink()
            server.start()
        assert await store.find_unknown([CLUSTER]) == [CLUSTER]
        await store.close()

    asyncio.run(work())
