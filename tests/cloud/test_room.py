"""Batches that have to wait before they are appended: for room, in order, for as long as their requests do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sexton.cloud import room, uploads
from sexton.cloud.log import CloudLog
from sexton.cloud.room import EXTENTS_SLOW, SLOW_MS_MAX, slow_ms
from sexton.protocol.errors import ErrorCode
from tests.broker.serving import Client, ServingBroker, batch_of
from tests.broker.test_cloud_topics import create, led, with_broker, write
from tests.cloud.test_uploads import Scene, scene
from tests.cloud.worlds import MemoryStore, away, until
from tests.log.helpers import plain

BATCH = 3_000
LIMIT = 10_000
FULL_COUNT = 3
"""Batches that there is room for."""


def sequenced(number: int) -> bytes:
    return plain(b"x" * BATCH, producer_id=5, producer_epoch=0, base_sequence=number)


async def held(operation: str, key: str) -> None:
    """A store that is slow, and not away."""
    await asyncio.Event().wait()


async def write_all(broker: ServingBroker, count: int) -> list[asyncio.Task[Any]]:
    """One after the other, as a client sends them, none of which waits for an answer."""
    tasks = []
    for number in range(count):
        tasks.append(asyncio.ensure_future(write(Client(broker), sequenced(number))))
        await asyncio.sleep(0)
    return tasks


def test_requests_wait_for_room_and_are_appended_in_their_order() -> None:
    store = MemoryStore()
    goes_on = asyncio.Event()

    async def slow(operation: str, key: str) -> None:
        await goes_on.wait()

    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        await led(broker)
        assert broker.replicas.cloud is not None
        parts = broker.replicas.cloud.parts
        store.trouble = slow
        tasks = await write_all(broker, 8)
        await until(lambda: parts.uploads.waiting_count == 8 - FULL_COUNT)
        assert parts.uploads.batches_bytes <= LIMIT
        goes_on.set()
        answers = await asyncio.gather(*tasks)
        assert [(answer.error_code, answer.base_offset) for answer in answers] == [(0, number) for number in range(8)]
        assert parts.uploads.waiting_count == 0

    with_broker(work, store, cloud_pending_bytes_max=LIMIT)


def test_a_batch_that_waited_too_long_is_not_appended_and_holds_back_those_behind_it() -> None:
    """T6: what a client sends after a batch that was not taken is not taken either, until that one comes again."""
    store = MemoryStore()
    goes_on = asyncio.Event()

    async def slow(operation: str, key: str) -> None:
        await goes_on.wait()

    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        replica = await led(broker)
        store.trouble = slow
        first = await write_all(broker, FULL_COUNT)
        late = await write(client, sequenced(FULL_COUNT), timeout=20)
        assert (late.error_code, late.base_offset) == (ErrorCode.request_timed_out, -1)
        behind = asyncio.ensure_future(write(Client(broker), sequenced(FULL_COUNT + 1)))
        await asyncio.sleep(0)
        goes_on.set()
        assert [answer.base_offset for answer in await asyncio.gather(*first)] == [0, 1, 2]
        assert (await behind).error_code != 0
        assert replica.high_watermark == FULL_COUNT
        again = [await write(client, sequenced(number)) for number in (FULL_COUNT, FULL_COUNT + 1)]
        assert [(answer.error_code, answer.base_offset) for answer in again] == [(0, 3), (0, 4)]

    with_broker(work, store, cloud_pending_bytes_max=LIMIT)


def test_a_store_that_is_away_refuses_at_once_also_those_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        replica = await led(broker)
        assert broker.replicas.cloud is not None
        monkeypatch.setattr(uploads, "AWAY_MS", 10**12)
        store.trouble = away
        first = await write_all(broker, FULL_COUNT + 2)
        await until(lambda: len(store.puts) > FULL_COUNT)
        monkeypatch.setattr(uploads, "AWAY_MS", 0)
        refused = await write(client, batch_of(b"y" * BATCH))
        assert refused.error_code == ErrorCode.not_enough_replicas
        told = [await task for task in first[FULL_COUNT:]]
        assert [answer.error_code for answer in told] == [ErrorCode.not_enough_replicas] * 2
        store.trouble = None
        assert [answer.base_offset for answer in await asyncio.gather(*first[:FULL_COUNT])] == [0, 1, 2]
        assert replica.high_watermark == FULL_COUNT

    with_broker(work, store, cloud_pending_bytes_max=LIMIT)


def test_whoever_waits_for_a_partition_that_is_led_elsewhere_now_is_told_at_once() -> None:
    store = MemoryStore()

    async def work(broker: ServingBroker, client: Client) -> None:
        await create(client, storage_mode="cloud")
        await led(broker)
        store.trouble = held
        tasks = await write_all(broker, FULL_COUNT + 2)
        await broker.change(topic="c", leader=2, replicas=(1, 2), isr=(1, 2), leader_epoch=1)
        answers = await asyncio.gather(*tasks)
        assert {answer.error_code for answer in answers} == {ErrorCode.not_leader_or_follower}

    with_broker(work, store, cloud_pending_bytes_max=LIMIT)


@pytest.mark.parametrize(
    ("extents_count", "expected"),
    [(0, 0), (EXTENTS_SLOW - 1, 0), (EXTENTS_SLOW, 1), (EXTENTS_SLOW * 3 // 2, 50), (EXTENTS_SLOW * 9, SLOW_MS_MAX)],
)
def test_a_partition_with_many_extents_is_slowed_down_the_more_it_has(extents_count: int, expected: float) -> None:
    assert slow_ms(extents_count) == expected


def test_batches_that_are_slowed_down_come_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """T15, also when the partition gets better meanwhile: the last one is not slowed down and still comes last."""

    async def work(on: Scene) -> None:
        log: CloudLog = await on.lead()
        on.append(log, plain(b"an extent"))
        await on.idle()
        monkeypatch.setattr(room, "EXTENTS_SLOW", 1)
        came: list[int] = []
        for number in range(5):
            assert on.uploads.must_wait(log, 100)
            on.uploads.wait_for_room(log, 100, lambda number=number: came.append(number))  # type: ignore[misc]
        monkeypatch.setattr(room, "EXTENTS_SLOW", 10**6)
        assert on.uploads.must_wait(log, 100)
        on.uploads.wait_for_room(log, 100, lambda: came.append(5))
        assert not came
        await until(lambda: len(came) == 6)
        assert came == [0, 1, 2, 3, 4, 5]
        assert not on.uploads.must_wait(log, 100)

    scene(work)
