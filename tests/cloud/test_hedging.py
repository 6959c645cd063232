"""Uploads that are slow, and begun a second time; and those that need not wait for company."""

from __future__ import annotations

import asyncio

import pytest

from sexton.cloud import hedging
from sexton.cloud.gather import GatherLimits
from sexton.cloud.hedging import SLOW_S_MIN, Hedging
from sexton.ports.cloud import ObjectState
from sexton.ports.objects import StoreUnavailableError
from tests.cloud.test_uploads import Scene, scene
from tests.cloud.worlds import until
from tests.log.helpers import plain

LONG_MS = 3_600_000


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hedging, "SLOW_S_MIN", 0.01)


def test_slow_is_three_times_the_usual_and_never_less_than_a_quarter_of_a_second() -> None:
    watched = Hedging(True)
    assert watched.slow_s == SLOW_S_MIN
    for seconds in (0.01, 0.02, 9.0):
        watched.took(seconds)
    assert watched.slow_s == SLOW_S_MIN
    for _ in range(hedging.REMEMBERED_COUNT):
        watched.took(0.2)
    assert watched.slow_s == pytest.approx(0.6)


@pytest.mark.usefixtures("impatient")
def test_a_slow_put_is_begun_again_under_another_id_and_the_first_is_released() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()
        never = asyncio.Event()

        async def hold_first(operation: str, key: str) -> None:
            if key == on.store.puts[0]:
                await never.wait()

        on.store.trouble = hold_first
        on.append(log, plain(b"a"))
        await on.idle()
        assert log.committed_offset == 1
        assert len(set(on.store.puts)) == 2
        assert on.host.stats.hedged_puts_count == 1
        await until(lambda: on.host.metastore.calls.count("release_objects") == 1)
        first = on.store.puts[0].rpartition("/")[2]
        tables = await on.world.check()
        assert {str(id_): row.state for id_, row in tables.objects.items()}[first] is ObjectState.GARBAGE

    scene(work, hedges=True)


@pytest.mark.usefixtures("impatient")
def test_the_first_may_still_win_and_the_second_is_released() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()
        go_on = asyncio.Event()

        async def hold(operation: str, key: str) -> None:
            if key == on.store.puts[0]:
                await go_on.wait()
            else:
                go_on.set()
                await asyncio.Event().wait()

        on.store.trouble = hold
        on.append(log, plain(b"a"))
        await on.idle()
        assert log.committed_offset == 1
        assert list(on.store.objects) == [on.store.puts[0]]
        await until(lambda: on.host.metastore.calls.count("release_objects") == 1)

    scene(work, hedges=True)


@pytest.mark.usefixtures("impatient")
def test_a_store_that_is_away_gets_one_object_when_it_is_back() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()
        is_back = False

        async def away(operation: str, key: str) -> None:
            if not is_back:
                raise StoreUnavailableError("away", key)

        on.store.trouble = away
        on.append(log, plain(b"a"))
        await until(lambda: len(set(on.store.puts)) == 2)
        is_back = True
        await on.idle()
        assert log.committed_offset == 1
        await until(lambda: on.host.metastore.calls.count("release_objects") == 1)
        assert (await on.objects()).count(ObjectState.LIVE) == 1

    scene(work, hedges=True)


@pytest.mark.usefixtures("impatient")
def test_who_stops_in_the_middle_of_both_leaves_no_task_behind() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()

        async def hold(operation: str, key: str) -> None:
            await asyncio.Event().wait()

        on.store.trouble = hold
        on.append(log, plain(b"a"))
        await until(lambda: len(on.store.puts) == 2)
        await on.uploads.stop()
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        assert not left
        assert log.is_dropped

    scene(work, hedges=True)


def test_an_eager_broker_sends_at_once_and_gathers_while_something_is_on_its_way() -> None:
    async def work(on: Scene) -> None:
        log = await on.lead()
        release = asyncio.Event()

        async def hold(operation: str, key: str) -> None:
            await release.wait()

        on.store.trouble = hold
        on.append(log, plain(b"a"))
        on.append(log, plain(b"b"))
        await until(lambda: len(on.store.puts) == 1)
        on.append(log, plain(b"c"))
        await asyncio.sleep(0.02)
        assert len(on.store.puts) == 1
        release.set()
        await on.idle()
        assert log.committed_offset == 3
        assert len(on.store.puts) == 2

    scene(work, gather=GatherLimits(LONG_MS, 4096, 50, is_eager=True))
