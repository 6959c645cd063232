"""Several at once, in threads, on databases that several can share: who wins wins whole, and nothing is torn."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import pytest

from sexton.adapters.metastore import open_metastore
from sexton.adapters.metastore.cloud.checks import CloudTables, read_tables, violations
from sexton.adapters.metastore.session import Session
from sexton.adapters.metastore.store import SqlMetastore
from sexton.ports.cloud import Claimed, Gather, Level, ObjectId, ObjectState, Outcome
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.types import LeaderEpoch, PartitionId
from tests.adapters.metastore.cloud.world import (
    ACCEPTED,
    FENCED,
    GONE,
    LOST,
    MISPLACED,
    NOW_MS,
    TOPIC,
    A,
    B,
    World,
    gather,
    l1,
    leveled,
    objects_of,
    run,
)
from tests.adapters.metastore.rows import CLUSTER

TIMEOUT_MS = 30_000
ROUNDS = 8
PARTITIONS = 6


class Shared:
    """One database, many who have opened it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._opened: list[SqlMetastore] = []

    def open(self) -> SqlMetastore:
        store = open_metastore(self._url, TIMEOUT_MS)
        assert isinstance(store, SqlMetastore)
        self._opened.append(store)
        return store

    async def world(self, partitions_count: int = 2) -> World:
        store = self.open()
        await store.open_cluster(CLUSTER)
        return await World(store).start(partitions_count)

    async def close(self) -> None:
        for store in self._opened:
            await store.close()


@pytest.fixture
def shared(url: str) -> Shared:
    return Shared(url)


async def both(one: Awaitable[Any], other: Awaitable[Any]) -> Any:
    return await asyncio.gather(one, other)


async def test_a_commit_and_the_expiry_of_its_object_never_both_win(shared: Shared) -> None:
    """C3: pending becomes live or garbage. (The broker was fenced, and does not know.)"""
    world = await shared.world()
    controller = shared.open()
    await world.claim(1, 1)
    await controller.read_collection()  # connected
    end = 0
    ids = [await world.pending() for _ in range(ROUNDS)]
    await world.fence(1)
    for object_id in ids:
        sent = gather(object_id, run(A, end, end + 10))
        (((told,),), _) = await both(
            world.store.commit_l0(world.brokers[1], [sent], NOW_MS), controller.expire_owners(1)
        )
        state = await world.state(object_id)
        assert (told, state) in ((ACCEPTED, ObjectState.LIVE), (LOST, ObjectState.GARBAGE))
        end += 10 if told is ACCEPTED else 0
        assert (await world.row(A)).end_offset == end
    await shared.close()


async def test_of_two_who_claim_one_epoch_one_has_it(shared: Shared) -> None:
    world = await shared.world()
    other = shared.open()
    for epoch in range(ROUNDS):
        wanted = [(A, LeaderEpoch(epoch)), (B, LeaderEpoch(epoch))]
        one, two = await both(
            world.store.claim_partitions(1, world.brokers[1].epoch, wanted),
            other.claim_partitions(2, world.brokers[2].epoch, wanted[::-1]),
        )
        won = [isinstance(found, Claimed) for found in (*one, *two[::-1])]
        assert won in ([True, True, False, False], [False, False, True, True], [True, False, False, True])
        await world.check()
    await shared.close()


async def test_of_two_levelers_at_once_one_wins(shared: Shared) -> None:
    world = await shared.world()
    other = shared.open()
    await world.claim(1, 1)
    for number in range(ROUNDS):
        base = number * 10
        await world.write(A, base, base + 10)
        ids = [await world.pending(world.compactor, Level.L1) for _ in range(2)]
        parts = [[leveled(A, l1(base, base + 10, id_))] for id_ in ids]
        told = await both(
            world.store.commit_level(world.compactor, objects_of(*parts[0]), parts[0], NOW_MS),
            other.commit_level(world.compactor, objects_of(*parts[1]), parts[1], NOW_MS),
        )
        assert sorted(outcome.name for (outcome,) in told) == ["ACCEPTED", "MISPLACED"]
        await world.check()
    await shared.close()


async def test_a_topic_that_is_purged_while_it_is_written_leaves_nothing(shared: Shared) -> None:
    world = await shared.world()
    controller = shared.open()
    await world.claim(1, 1)
    ids = [await world.pending() for _ in range(ROUNDS)]

    async def write() -> list[Outcome]:
        told: list[Outcome] = []
        for number, id_ in enumerate(ids):
            sent = gather(id_, run(A, number * 10, number * 10 + 10), run(B, number, number + 1))
            told += (await world.store.commit_l0(world.brokers[1], [sent], NOW_MS))[0]
        return told

    async def delete() -> None:
        await controller.delete_topic(TOPIC.topic_id)
        while await controller.purge_topic(TOPIC.topic_id, 2):
            pass

    told, _ = await both(write(), delete())
    assert set(told) <= {ACCEPTED, GONE}
    while await controller.purge_topic(TOPIC.topic_id, 100):
        pass
    tables = await world.store.run(_tables)
    assert (tables.partitions, tables.extents) == ({}, {})
    assert {row.state for row in tables.objects.values()} == {ObjectState.GARBAGE}
    await shared.close()


class Truth:
    """What was acknowledged, by partition: [base, end) and the object it was acknowledged in."""

    def __init__(self) -> None:
        self.spans: dict[PartitionId, dict[int, tuple[int, ObjectId]]] = {}

    def note(self, sent: Gather, told: list[Outcome]) -> None:
        for one, outcome in zip(sent.runs, told, strict=True):
            if outcome is ACCEPTED:
                its = self.spans.setdefault((one.topic_id, one.partition), {})
                assert sent.object_id is not None
                assert one.base_offset not in its, "rule 2: one offset was acknowledged twice"
                its[one.base_offset] = (one.end_offset, sent.object_id)


async def _lead(world: World, store: SqlMetastore, broker_id: int, rng: random.Random, truth: Truth) -> int:
    """Claims and commits as a broker would, in fights with the other; each commit is sent twice, as if the first answer
    had been lost."""
    me = world.brokers[broker_id]
    ends: dict[PartitionId, tuple[int, int]] = {}
    epochs = iter(range(broker_id, 1000, 2))
    accepted = 0
    for number in range(ROUNDS):
        keys = [(TOPIC.topic_id, index) for index in range(PARTITIONS)]
        rng.shuffle(keys)
        if number % 4 == 0:
            epoch = next(epochs)
            claimed = await store.claim_partitions(broker_id, me.epoch, [(key, LeaderEpoch(epoch)) for key in keys])
            for key, found in zip(keys, claimed, strict=True):
                if isinstance(found, Claimed):
                    ends[key] = (found.row.end_offset, epoch)
        ids = [uuid.UUID(int=rng.getrandbits(120)) for _ in range(2)]
        await store.register_objects(me, Level.L0, ids)
        gathers = []
        for object_id in ids:
            some = [key for key in keys if key in ends][: rng.randint(1, PARTITIONS)]
            runs = [run(key, ends[key][0], ends[key][0] + 5, epoch=ends[key][1]) for key in some]
            gathers += [gather(object_id, *runs)] if runs else []
            ends.update({key: (ends[key][0] + 5, ends[key][1]) for key in some})
        if not gathers:
            continue
        first = await store.commit_l0(me, gathers, NOW_MS)
        again = await store.commit_l0(me, gathers, NOW_MS)
        assert [[one is ACCEPTED for one in told] for told in again] == [
            [one is ACCEPTED for one in told] for told in first
        ], "C10: asked again, and told something else"
        for sent, told in zip(gathers, first, strict=True):
            truth.note(sent, list(told))
            accepted += list(told).count(ACCEPTED)
            for one, outcome in zip(sent.runs, told, strict=True):
                assert outcome in (ACCEPTED, FENCED, MISPLACED)
                if outcome is not ACCEPTED:
                    ends.pop((one.topic_id, one.partition), None)
    return accepted


async def _tend(world: World, store: SqlMetastore, rng: random.Random, is_over: Callable[[], bool]) -> None:
    """Leveling, rounds, expiry and collection meanwhile."""
    while not is_over():
        key = (TOPIC.topic_id, rng.randrange(PARTITIONS))
        page = await store.read_extents(key, 0, 1000)
        assert page is not None
        l0 = [one for one in page.extents if one.level is Level.L0 and one.end_offset <= page.row.stable_offset]
        if l0:
            object_id = uuid.UUID(int=rng.getrandbits(120))
            await store.register_objects(world.compactor, Level.L1, [object_id])
            part = leveled(key, l1(l0[0].base_offset, l0[-1].end_offset, object_id))
            await store.commit_level(world.compactor, objects_of(part), [part], NOW_MS)
        await store.expire_owners(10)
        await store.advance_round((await store.read_collection()).round)
        garbage = [row.object_id for row in await store.collect(1, 100)]
        await store.forget_objects(garbage)


@pytest.mark.parametrize("seed", range(2))
async def test_leaders_that_fight_over_partitions_commit_each_offset_once(shared: Shared, seed: int) -> None:
    """C5, C10, rule 2: with leveling, expiry and collection at the same time, and every commit sent twice."""
    world = await shared.world(PARTITIONS)
    truth = Truth()
    rng = random.Random(seed)
    leaders = [
        asyncio.create_task(_lead(world, shared.open(), broker_id, random.Random(rng.random()), truth))
        for broker_id in (1, 2)
    ]
    tending = asyncio.create_task(
        _tend(world, shared.open(), random.Random(rng.random()), lambda: all(one.done() for one in leaders))
    )
    accepted = sum([await one for one in leaders])
    await tending
    tables = await world.store.run(_tables)
    assert accepted == sum(len(its) for its in truth.spans.values()) > 0
    for key, its in truth.spans.items():
        ends = sorted((base, end) for base, (end, _) in its.items())
        assert ends[0][0] == 0
        assert all(one[1] == other[0] for one, other in pairwise(ends))
        assert tables.partitions[key].end_offset == ends[-1][1]
        by_base = {extent.base_offset: extent for extent in tables.extents[key] if extent.level is Level.L0}
        assert all(by_base[base].object_id == its[base][1] for base in by_base)
    await shared.close()


def _tables(session: Session) -> CloudTables:
    tables = read_tables(session)
    assert list(violations(tables)) == []
    return tables


async def test_objects_and_partitions_in_any_order_never_wait_in_a_circle(shared: Shared) -> None:
    """Commits that name the same partitions in opposite orders, and objects that share extents which go."""
    world = await shared.world(PARTITIONS)
    keys = [(TOPIC.topic_id, index) for index in range(PARTITIONS)]
    await world.claim(1, 1, *keys)
    ids = [await world.pending() for _ in range(ROUNDS)]
    for number, id_ in enumerate(ids):
        await world.commit(gather(id_, *(run(key, number, number + 1) for key in keys)))
    stores = [shared.open() for _ in range(PARTITIONS)]
    await asyncio.gather(*(store.read_collection() for store in stores))

    async def trim(store: SqlMetastore, key: PartitionId) -> None:
        for offset in range(1, ROUNDS + 1):
            assert (await store.advance_start(key, LeaderEpoch(1), offset)).outcome is ACCEPTED

    try:
        await asyncio.gather(*(trim(store, key) for store, key in zip(stores, keys, strict=True)))
    except MetastoreUnavailableError as error:
        pytest.fail(f"they waited for each other: {error}")
    tables = await world.store.run(_tables)
    assert {row.state for row in tables.objects.values()} == {ObjectState.GARBAGE}
    await shared.close()
