"""What is due, who works on it, and what became of it: the same on every metastore."""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import replace

import pytest

from sexton.ports.metastore import BrokerStatus, LeaseLostError, Metastore, StaleError
from sexton.ports.work_queue import CloudWork, CompactorRow, RunRow, WorkKey, WorkRow
from tests.adapters.metastore.conftest import Opener
from tests.adapters.metastore.rows import register

TOPIC = uuid.UUID(int=5)
ONE, TWO = uuid.UUID(int=1), uuid.UUID(int=2)


def due(broker_id: int, partition: int, **fields: int) -> WorkRow:
    return replace(
        WorkRow(
            key=WorkKey(broker_id, TOPIC, partition),
            topic="orders",
            why="dirty",
            dirty_ratio_ppm=600_000,
            dirty_bytes=60,
            total_bytes=100,
            overdue_ms=0,
            is_requested=False,
            since_ms=1000,
        ),
        **fields,  # type: ignore[arg-type]
    )


def compactor(id_: uuid.UUID) -> CompactorRow:
    return CompactorRow(id_, "here", 5000, 0)


def run_of(number: int) -> RunRow:
    return RunRow(
        run_id=uuid.UUID(int=100 + number),
        finished_ms=number,
        broker_id=1,
        topic="orders",
        partition=0,
        outcome="done",
        bound=10,
        bytes_before=100,
        bytes_after=40,
        duration_ms=7,
        fates={"newest": "3"},
    )


async def published(store: Metastore) -> list[WorkKey]:
    broker = await register(store, 1)
    rows = [due(1, 0), due(1, 1), due(1, 2)]
    await store.publish_work(1, broker.epoch, rows)
    await store.register_compactor(compactor(ONE))
    await store.register_compactor(compactor(TWO))
    return [row.key for row in rows]


async def test_what_a_broker_publishes_takes_the_place_of_what_it_published_before(store: Metastore) -> None:
    first, second = await register(store, 1), await register(store, 2)
    await store.publish_work(1, first.epoch, [due(1, 0), due(1, 1)])
    await store.publish_work(2, second.epoch, [due(2, 0)])
    assert await store.read_work() == [due(1, 0), due(1, 1), due(2, 0)]
    await store.publish_work(1, first.epoch, [due(1, 1, dirty_bytes=70), due(1, 5)])
    assert await store.read_work() == [due(1, 1, dirty_bytes=70), due(1, 5), due(2, 0)]
    await store.publish_work(1, first.epoch, [])
    assert await store.read_work() == [due(2, 0)]


async def test_a_broker_that_was_fenced_publishes_nothing(store: Metastore) -> None:
    broker = await register(store, 1)
    with pytest.raises(LeaseLostError):
        await store.publish_work(1, broker.epoch + 1, [due(1, 0)])
    await store.set_broker_status(1, broker.epoch, BrokerStatus.FENCED)
    with pytest.raises(LeaseLostError):
        await store.publish_work(1, broker.epoch, [due(1, 0)])
    assert await store.read_work() == []


async def test_what_one_compactor_holds_another_does_not_get(store: Metastore) -> None:
    keys = await published(store)
    assert await store.lease_work(ONE, keys[:2]) == keys[:2]
    assert await store.lease_work(TWO, keys) == keys[2:]
    assert [row.holder for row in await store.read_work()] == [ONE, ONE, TWO]


async def test_what_is_published_again_stays_with_its_holder(store: Metastore) -> None:
    keys = await published(store)
    await store.lease_work(ONE, keys[:1])
    broker = next(row for row in (await store.read_changes(0)).brokers if row.broker_id == 1)
    await store.publish_work(1, broker.epoch, [due(1, 0, dirty_bytes=99)])
    (row,) = await store.read_work()
    assert (row.holder, row.dirty_bytes) == (ONE, 99)


async def test_what_is_done_is_no_longer_due_and_leaves_a_trace(store: Metastore) -> None:
    keys = await published(store)
    await store.lease_work(ONE, keys[:2])
    await store.end_work(ONE, keys, [run_of(1), run_of(2)])
    assert [row.key for row in await store.read_work()] == keys[2:], "what it did not hold is not its to end"
    assert await store.read_runs(10) == [run_of(2), run_of(1)]
    assert await store.read_runs(1) == [run_of(2)]


async def test_runs_can_be_asked_for_by_topic(store: Metastore) -> None:
    other = replace(run_of(3), topic="payments", first_dirty_offset=4)
    await store.end_work(ONE, [], [run_of(1), other, run_of(2)])
    assert await store.read_runs(10, "payments") == [other]
    assert await store.read_runs(1, "orders") == [run_of(2)], "the limit is of those that were asked for"
    assert await store.read_runs(10, "nobody") == []


async def test_what_a_dead_compactor_held_is_free_again(store: Metastore) -> None:
    keys = await published(store)
    await store.lease_work(ONE, keys)
    await store.renew_compactor(ONE)
    with pytest.raises(StaleError):
        await store.remove_compactor(ONE, 0)
    await store.remove_compactor(ONE, 1)
    with pytest.raises(LeaseLostError):
        await store.renew_compactor(ONE)
    assert [row.compactor_id for row in await store.read_compactors()] == [TWO]
    assert await store.lease_work(TWO, keys) == keys


async def test_what_a_compactor_took_while_it_was_being_removed_is_free(store: Metastore) -> None:
    keys = await published(store)
    await store.remove_compactor(ONE, 0)
    await store.lease_work(ONE, keys)
    assert await store.lease_work(TWO, keys) == keys


async def test_of_many_compactors_that_take_at_once_each_piece_goes_to_one(opener: Opener, store: Metastore) -> None:
    keys = await published(store)
    others = [opener() for _ in range(4)]
    ids = [uuid.UUID(int=50 + index) for index in range(4)]
    for id_ in ids:
        await store.register_compactor(compactor(id_))
    taken = await asyncio.gather(*(one.lease_work(id_, keys) for one, id_ in zip(others, ids, strict=True)))
    assert sorted(key for part in taken for key in part) == keys


async def test_it_is_no_change_of_the_cluster(store: Metastore) -> None:
    keys = await published(store)
    revision = (await store.read_changes(0)).revision
    await store.lease_work(ONE, keys)
    await store.renew_compactor(ONE)
    await store.end_work(ONE, keys, [run_of(1)])
    assert (await store.read_changes(revision)).revision == revision


async def test_a_compactor_may_take_again_what_it_holds_already(store: Metastore) -> None:
    """The answer to its first request may have been lost."""
    keys = await published(store)
    await store.lease_work(ONE, keys)
    assert await store.lease_work(ONE, keys) == keys
    assert await store.lease_work(TWO, keys) == []


async def test_work_on_cloud_partitions_is_published_by_whoever_finds_it_due(store: Metastore) -> None:
    keys = await published(store)
    level, compact = due(CloudWork.LEVEL, 0), due(CloudWork.COMPACT, 0)
    await store.publish_cloud_work([level, compact])
    assert await store.lease_work(ONE, [level.key]) == [level.key]
    await store.publish_cloud_work([due(CloudWork.LEVEL, 0, since_ms=2000, dirty_bytes=99)])
    found = [row for row in await store.read_work() if row.key.is_cloud]
    assert found == [replace(level, dirty_bytes=99, holder=ONE)], "it keeps its time and its holder"
    await store.publish_cloud_work([])
    assert [row.key for row in await store.read_work() if row.key.is_cloud] == [level.key], "somebody works on it"
    await store.end_work(ONE, [level.key], [])
    assert [row.key for row in await store.read_work()] == keys, "a broker's work is its own"


async def test_what_an_operator_requests_stays_until_it_is_done(store: Metastore) -> None:
    await published(store)
    compact = due(CloudWork.COMPACT, 0)
    await store.request_cloud_work([compact])
    await store.publish_cloud_work([])
    await store.publish_cloud_work([due(CloudWork.COMPACT, 0, since_ms=9), due(CloudWork.COMPACT, 1)])
    await store.request_cloud_work([due(CloudWork.COMPACT, 1)])
    found = [row for row in await store.read_work() if row.key.is_cloud]
    assert [(row.is_requested, row.since_ms) for row in found] == [(True, 1000), (True, 1000)]
    assert await store.lease_work(TWO, [compact.key]) == [compact.key]
    await store.end_work(TWO, [compact.key], [])
    assert [row.key.partition for row in await store.read_work() if row.key.is_cloud] == [1]


async def test_compactors_that_find_the_same_due_at_once_publish_it_once(store: Metastore) -> None:
    rows = [due(CloudWork.LEVEL, number) for number in range(20)]
    await asyncio.gather(*(store.publish_cloud_work(rows) for _ in range(4)))
    assert await store.read_work() == rows
