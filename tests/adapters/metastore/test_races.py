"""Several at once: of those who want the same thing, exactly one gets it."""

from __future__ import annotations

import asyncio
import multiprocessing
import uuid
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor

import pytest

from sexton.adapters.metastore import open_metastore
from sexton.ports.metastore import LeaseLostError, Metastore, StaleError
from tests.adapters.metastore.conftest import Opener
from tests.adapters.metastore.racing import ROUNDS, SHARED, Won, race, race_in_process
from tests.adapters.metastore.rows import CLUSTER, partitions, register

RACERS = 3


def check_that_each_thing_was_won_once(won: Sequence[Won]) -> None:
    for what in ("row", "term", "topic", "settings"):
        assert sorted(number for racer in won for number in racer[what]) == list(range(ROUNDS)), what  # type: ignore[type-var]
    assert len([1 for racer in won if racer["broker"]]) == 1
    ids = [first for racer in won for first in racer["id"]]
    assert sorted(ids) == list(range(0, 10 * len(ids), 10))  # type: ignore[type-var]


async def test_stores_in_one_process_that_race_for_the_same_things_win_each_once(opener: Opener) -> None:
    stores = [opener() for _ in range(RACERS)]
    await stores[0].open_cluster(CLUSTER)
    await stores[0].create_topic(SHARED, partitions(SHARED, ROUNDS), {})
    won = await asyncio.gather(*(race(store, mine) for mine, store in enumerate(stores, start=1)))
    check_that_each_thing_was_won_once(won)


def test_processes_that_race_for_the_same_things_win_each_once(url: str) -> None:
    async def prepare() -> None:
        store = open_metastore(url)
        await store.open_cluster(CLUSTER)
        await store.create_topic(SHARED, partitions(SHARED, ROUNDS), {})
        await store.close()

    asyncio.run(prepare())
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, ProcessPoolExecutor(RACERS, mp_context=context) as pool:
        start = manager.Barrier(RACERS)
        racers = [pool.submit(race_in_process, url, mine, start) for mine in range(1, RACERS + 1)]  # type: ignore[arg-type]
        won = [racer.result() for racer in racers]
    check_that_each_thing_was_won_once(won)


async def test_brokers_that_start_together_on_an_empty_database_make_one_cluster(opener: Opener) -> None:
    stores = [opener() for _ in range(6)]
    names = await asyncio.gather(*(store.open_cluster(uuid.UUID(int=n)) for n, store in enumerate(stores, start=1)))
    assert len(set(names)) == 1


@pytest.mark.parametrize("round_", range(10))
async def test_a_lease_is_either_renewed_or_fenced(opener: Opener, round_: int) -> None:
    """A broker that renewed with success is not fenced on the count from before, however close the two come."""
    broker_store, controller_store = opener(), opener()
    await broker_store.open_cluster(CLUSTER)
    row = await register(broker_store, 1)
    await asyncio.gather(broker_store.read_leases(), controller_store.read_leases())  # both connected
    renewed, fenced = await asyncio.gather(
        broker_store.renew_lease(1, row.epoch), controller_store.fence_broker(1, row.epoch, 0), return_exceptions=True
    )
    assert renewed == 1 or isinstance(renewed, LeaseLostError)
    assert (renewed == 1) != (fenced is None)
    assert await _is_live(broker_store) == (renewed == 1)
    assert fenced is None or isinstance(fenced, StaleError)


async def _is_live(store: Metastore) -> bool:
    return 1 in await store.read_leases()
