"""Questions to a cluster by those who start and stop it: Sexton's own client, one connection a question.

Whoever asks is not part of an event loop, or of another one: each question has a thread and a loop of its own.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from sexton.adapters.clock import SystemClock
from sexton.adapters.connecting import network_of
from sexton.client.admin import Admin
from sexton.client.client import Client
from sexton.client.security.properties import OPEN, Security
from sexton.errors import SextonError
from sexton.harness.properties import Settings, text_of

REQUEST_TIMEOUT_MS: Final = 10_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Door:
    """Where a cluster is, and how to get in."""

    bootstrap: str
    security: Security = OPEN


def door_of(where: str | Door) -> Door:
    """A cluster that is named by its addresses alone is open."""
    return where if isinstance(where, Door) else Door(where)


def addresses_of(bootstrap: str) -> list[tuple[str, int]]:
    pairs = (each.rpartition(":") for each in bootstrap.split(","))
    return [(host.strip("[]"), int(port)) for host, _, port in pairs]


def client_of(where: str | Door, client_id: str = "sexton-clusters", timeout_ms: int = REQUEST_TIMEOUT_MS) -> Client:
    """Needs a running loop. Nodes that are down are what these clusters are about: they are given up at once."""
    door = door_of(where)
    return Client(
        network_of(door.security.tls),
        addresses_of(door.bootstrap),
        clock=SystemClock(),
        rng=random.Random(),
        client_id=client_id,
        timeout_ms=timeout_ms,
        connect_timeout_ms=timeout_ms,
        login=door.security.login,
    )


def ask(where: str | Door, question: Callable[[Client], Awaitable[T]], timeout_ms: int = REQUEST_TIMEOUT_MS) -> T:
    async def run() -> T:
        client = client_of(where, timeout_ms=timeout_ms)
        try:
            await client.open()
            return await question(client)
        finally:
            client.close()

    with ThreadPoolExecutor(max_workers=1) as pool:
        return pool.submit(asyncio.run, run()).result()


def sees_all(address: str, expected: set[int], timeout_ms: int) -> bool:
    """Whether the broker at this address answers, and lists these as live."""

    async def question(client: Client) -> set[int]:
        return set(client.metadata.brokers)

    try:
        return expected <= ask(address, question, timeout_ms)
    except SextonError:
        return False


def leaders_of(where: str | Door, topic: str) -> dict[int, int]:
    """Partition to leader, as the cluster says now; -1 where there is none. Nothing for a topic that it has not."""

    async def question(client: Client) -> dict[int, int]:
        known = (await client.refresh([topic])).topics.get(topic)
        return {} if known is None else {number: each.leader for number, each in sorted(known.partitions.items())}

    return ask(where, question)


def create_topic(
    bootstrap: str, topic: str, partitions: int, replication_factor: int, config: Settings | None = None
) -> None:
    settings: Mapping[str, str] = {key: text_of(value) for key, value in (config or {}).items()}

    async def question(client: Client) -> None:
        await Admin(client).create_topic(topic, partitions, replication_factor, settings)

    ask(bootstrap, question)
