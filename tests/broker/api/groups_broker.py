"""A real broker that coordinates groups (`tests.broker.serving`), and requests as clients send them."""

from __future__ import annotations

import asyncio
import uuid
from types import ModuleType
from typing import Any

from sexton.protocol import embedded
from tests.broker.serving import OTHER_IDS, Client, ManualClock, ServingBroker

DELAY_MS = 5
"""Before a new group's first rebalance."""


class RunningClock(ManualClock):
    """The loop's own time: rebalances wait."""

    def now_ms(self) -> int:
        return self.ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


class GroupsBroker(ServingBroker):
    clock_class = RunningClock

    async def ask(self, api: ModuleType, version: int | None = None, **body: Any) -> Any:
        """Over a connection of its own: others do not wait while it is parked."""
        client = Client(self, "127.0.0.1:55555")
        client.client_id = "app"
        return await client.call(api.API_KEY, api.VERSIONS[1] if version is None else version, body)


async def in_a_cluster(**settings: str | int) -> GroupsBroker:
    """One of three brokers, with the topics `t` (two partitions) and `u` (one)."""
    broker = GroupsBroker(None, None, None, group_initial_rebalance_delay_ms=DELAY_MS, **settings)
    await broker.start()
    for broker_id in OTHER_IDS:
        await broker.add_broker(broker_id)
    await broker.add_topic("t", uuid.UUID(int=1), 2)
    await broker.add_topic("u", uuid.UUID(int=2))
    return broker


async def groups_broker() -> GroupsBroker:
    """Coordinates every group itself."""
    broker = await in_a_cluster()
    await broker.coordinate_groups()
    return broker


def subscription(*topics: str) -> bytes:
    return embedded.write_subscription(embedded.Subscription(topics))


def versions(api: ModuleType) -> range:
    return range(api.VERSIONS[0], api.VERSIONS[1] + 1)
