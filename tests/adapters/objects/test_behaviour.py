"""One behaviour suite for every object store."""

from __future__ import annotations

import asyncio
import random
import uuid

import pytest

from sexton.errors import DamagedObjectError
from sexton.ports.object_names import MARKER_KEY, ObjectName, claim_store, encode_marker, is_claimed, new_object_id
from sexton.ports.objects import Buffer, ListedObject, ObjectMissingError, ObjectStore, StoreRefusedError
from sexton.records.objects import Level
from tests.adapters.objects.conftest import Runner

CLUSTER = uuid.UUID(int=1)


def key(number: int, level: Level = Level.L0) -> str:
    return ObjectName(CLUSTER, level, new_object_id(1_700_000_000_000, random.Random(number))).key


async def listed(store: ObjectStore, prefix: str = "") -> list[ListedObject]:
    return sorted([one async for one in store.list(prefix)])


def test_what_is_put_is_there_whole_and_in_parts(run: Runner) -> None:
    async def scenario(store: ObjectStore) -> None:
        data = random.Random(1).randbytes(100_000)
        await store.put(key(1), data)
        assert bytes(await store.get(key(1), 0, len(data))) == data
        assert bytes(await store.get(key(1), 0, 1)) == data[:1]
        assert bytes(await store.get(key(1), 99_999, 1)) == data[-1:]
        assert bytes(await store.get(key(1), 1_000, 70_000)) == data[1_000:71_000]
        assert await store.size_bytes(key(1)) == len(data)

    run(scenario)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_put(run: Runner, kind: type) -> None:
    async def scenario(store: ObjectStore) -> None:
        data: Buffer = kind(b"some bytes")
        await store.put(key(1), data)
        assert bytes(await store.get(key(1), 0, 10)) == b"some bytes"

    run(scenario)


def test_an_object_may_be_as_large_as_an_l0_object_gets(run: Runner) -> None:
    async def scenario(store: ObjectStore) -> None:
        data = random.Random(2).randbytes(8 << 20)
        await store.put(key(1), data)
        assert bytes(await store.get(key(1), 0, len(data))) == data
        assert bytes(await store.get(key(1), (8 << 20) - 5, 5)) == data[-5:]

    run(scenario)


def test_fewer_bytes_than_asked_for_are_never_returned(run: Runner) -> None:
    """T21: stores answer a range beyond the end with what there is, and no error."""

    async def scenario(store: ObjectStore) -> None:
        await store.put(key(1), b"0123456789")
        for start, size in ((0, 11), (9, 2), (10, 1), (50, 5)):
            with pytest.raises(DamagedObjectError):
                await store.get(key(1), start, size)

    run(scenario)


def test_an_object_that_is_not_there_is_missing(run: Runner) -> None:
    async def scenario(store: ObjectStore) -> None:
        for ask in (store.get(key(1), 0, 1), store.size_bytes(key(1))):
            with pytest.raises(ObjectMissingError) as caught:
                await ask
            assert key(1) in str(caught.value)

    run(scenario)


def test_putting_the_same_again_changes_nothing(run: Runner) -> None:
    """C10: what gets no answer is sent again as it was."""

    async def scenario(store: ObjectStore) -> None:
        for _ in range(3):
            await store.put(key(1), b"same")
        assert await listed(store) == [ListedObject(key(1), 4)]
        await asyncio.gather(*(store.put(key(2), b"at once") for _ in range(5)))
        assert bytes(await store.get(key(2), 0, 7)) == b"at once"

    run(scenario)


def test_what_is_deleted_is_gone_and_what_was_not_there_counts_as_gone(run: Runner) -> None:
    async def scenario(store: ObjectStore) -> None:
        for number in range(5):
            await store.put(key(number), b"x")
        asked = [key(0), key(77), key(2)]
        assert sorted(await store.delete(asked)) == sorted(asked)
        assert [one.key for one in await listed(store)] == sorted([key(1), key(3), key(4)])
        with pytest.raises(ObjectMissingError):
            await store.get(key(0), 0, 1)
        assert list(await store.delete([])) == []

    run(scenario)


def test_what_was_deleted_may_come_again(run: Runner) -> None:
    """T20: a late PUT lands after the DELETE. Nothing may break; the scrub takes it."""

    async def scenario(store: ObjectStore) -> None:
        await store.put(key(1), b"x")
        await store.delete([key(1)])
        await store.put(key(1), b"x")
        assert await listed(store) == [ListedObject(key(1), 1)]
        assert await store.delete([key(1)]) == [key(1)]
        assert await listed(store) == []

    run(scenario)


def test_many_are_listed_and_deleted_with_each_ones_outcome(run: Runner) -> None:
    async def scenario(store: ObjectStore) -> None:
        keys = [key(number) for number in range(150)]
        await asyncio.gather(*(store.put(one, one.encode()) for one in keys))
        assert await listed(store) == sorted(ListedObject(one, len(one)) for one in keys)
        assert sorted(await store.delete(keys[:140])) == sorted(keys[:140])
        assert [one.key for one in await listed(store)] == sorted(keys[140:])

    run(scenario)


def test_a_prefix_is_a_directory(run: Runner) -> None:
    async def scenario(store: ObjectStore) -> None:
        first, second = key(1, Level.L0), key(2, Level.L1)
        for one in (first, second, "0001/x", "000/y"):
            await store.put(one, b"x")
        assert await listed(store, f"{CLUSTER}/l0/") == [ListedObject(first, 1)]
        assert [one.key for one in await listed(store, f"{CLUSTER}/")] == sorted([first, second])
        assert [one.key for one in await listed(store, "000/")] == ["000/y"]
        assert await listed(store, "nothing/here/") == []
        assert len(await listed(store)) == 4

    run(scenario)


def test_the_marker_is_made_once_and_stays_the_firsts(run: Runner) -> None:
    async def scenario(store: ObjectStore) -> None:
        assert await store.read_marker(MARKER_KEY) is None
        assert not await is_claimed(store, CLUSTER)
        assert await store.create_marker(MARKER_KEY, b"first") == b"first"
        assert await store.create_marker(MARKER_KEY, b"second") == b"first"
        assert await store.read_marker(MARKER_KEY) == b"first"

    run(scenario)


def test_of_many_who_claim_a_store_one_gets_it(run: Runner) -> None:
    async def scenario(store: ObjectStore) -> None:
        clusters = [uuid.UUID(int=number) for number in range(1, 7)]
        outcomes = await asyncio.gather(*(claim_store(store, one) for one in clusters), return_exceptions=True)
        winners = [one for one, outcome in zip(clusters, outcomes, strict=True) if outcome is None]
        assert len(winners) == 1
        assert all(isinstance(outcome, StoreRefusedError) for outcome in outcomes if outcome is not None)
        assert await store.read_marker(MARKER_KEY) == encode_marker(winners[0])
        await claim_store(store, winners[0])
        assert await is_claimed(store, winners[0])
        with pytest.raises(StoreRefusedError, match=f"belongs to cluster {winners[0]}"):
            await is_claimed(store, uuid.UUID(int=99))

    run(scenario)


def test_a_store_says_where_it_is(run: Runner) -> None:
    async def scenario(store: ObjectStore) -> None:
        assert store.place
        assert "?" not in store.place

    run(scenario)


def test_a_call_that_is_cancelled_harms_no_other(run: Runner) -> None:
    async def scenario(store: ObjectStore) -> None:
        data = random.Random(3).randbytes(1 << 20)
        calls = [asyncio.ensure_future(store.put(key(number), data)) for number in range(8)]
        await asyncio.sleep(0)
        for call in calls[::2]:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        for number in range(1, 8, 2):
            assert bytes(await store.get(key(number), 0, len(data))) == data
        # A cancelled one is there whole or not at all, now or soon.
        for number in range(0, 8, 2):
            await store.put(key(number), data)
            assert bytes(await store.get(key(number), 0, len(data))) == data

    run(scenario)
