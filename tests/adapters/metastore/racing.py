"""What a process of `test_races` does: the same as every other one at the same moment, and it says what it won."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable
from dataclasses import replace
from multiprocessing.synchronize import Barrier

from sexton.adapters.metastore import open_metastore
from sexton.ports.metastore import AlreadyExistsError, ConfigScope, Metastore, StaleError
from tests.adapters.metastore.rows import broker, partitions, topic

ROUNDS = 30
SHARED = topic("shared", 1)
Won = dict[str, list[object]]


async def _wins(attempt: Awaitable[object]) -> bool:
    try:
        result = await attempt
    except (StaleError, AlreadyExistsError):
        return False
    return result != [None]


async def race(store: Metastore, mine: int) -> Won:
    won: Won = {"row": [], "term": [], "topic": [], "settings": [], "id": [], "broker": []}
    own = await store.register_broker(broker(mine), None)
    if await _wins(store.register_broker(broker(100), None)):
        won["broker"].append(mine)
    rows = partitions(SHARED, ROUNDS)
    for number in range(ROUNDS):
        if await _wins(store.update_partitions([replace(rows[number], leader=mine)])):
            won["row"].append(number)
        if await _wins(store.claim_controller(mine, own.epoch, number)):
            won["term"].append(number)
        new = topic(f"t{number}", 10_000 * mine + number)
        if await _wins(store.create_topic(new, partitions(new, 1), {})):
            won["topic"].append(number)
        before = {"n": str(number - 1)} if number else {}
        if await _wins(store.change_settings(ConfigScope.GROUP, "g", {"n": str(number)}, expected=before)):
            won["settings"].append(number)
        won["id"].append(await store.allocate_producer_ids(10))
    return won


def race_in_process(url: str, mine: int, start: Barrier) -> Won:
    async def run() -> Won:
        store = open_metastore(url, timeout_ms=30_000)
        await store.open_cluster(uuid.UUID(int=mine))
        start.wait()
        try:
            return await race(store, mine)
        finally:
            await store.close()

    return asyncio.run(run())
