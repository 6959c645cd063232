"""Requests to a transaction's coordinator, word by word, where a client would not send them or not tell the answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sexton.adapters.clock import SystemClock
from sexton.adapters.sockets import SocketNetwork
from sexton.client.apis import FIND_COORDINATOR
from sexton.client.client import Client, Peer
from sexton.protocol.errors import ErrorCode
from tests.transactions.under_test import UnderTest

T = TypeVar("T")


def asking(cluster: UnderTest, name: str, work: Callable[[Peer], Awaitable[T]]) -> T:
    """Of the coordinator of this transactional id."""

    async def run() -> T:
        addresses = [(part.rsplit(":", 1)[0], int(part.rsplit(":", 1)[1])) for part in cluster.bootstrap.split(",")]
        client = Client(SocketNetwork(), addresses, clock=SystemClock(), rng=random.Random(1))
        try:
            await client.open()
            return await work(await coordinator(client, name))
        finally:
            client.close()

    return asyncio.run(run())


async def coordinator(client: Client, name: str) -> Peer:
    while True:
        body = {"key_type": 1, "coordinator_keys": [name]}
        found = (await (await client.any_peer()).call(FIND_COORDINATOR, body)).coordinators[0]
        if found.error_code is ErrorCode.none:
            return await client.peer(found.node_id)
        await asyncio.sleep(0.1)
