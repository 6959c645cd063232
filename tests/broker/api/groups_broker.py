"""A broker with groups: the admin tests' broker, a group service whose log is in memory, requests as clients send them.

Answers go through the real encoder and back, in every version, so that a field that does not exist or has the wrong
type is noticed.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import AsyncIterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

from sexton.broker.network.request import Request
from sexton.coordinators.groups.service import GroupService
from sexton.coordinators.groups.view_topics import ViewTopics
from sexton.coordinators.log import EndMarker
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.protocol import embedded
from sexton.protocol.messages import request_reader, request_type, response_reader, response_type
from sexton.settings.broker import GroupSettings
from sexton.settings.group import GroupConfig
from sexton.types import ProducerIdAndEpoch
from tests.broker.api.admin_broker import OWN_ID, FakeBroker, broker_in_a_cluster, encode
from tests.coordinators.hosts import LoopClock

DELAY_MS = 5


class MemoryLog:
    """Commits at once; nobody reads it again."""

    async def append(self, records: Sequence[tuple[bytes, bytes | None]], now_ms: int) -> None:
        await asyncio.sleep(0)

    async def append_in_transaction(
        self, owner: ProducerIdAndEpoch, records: Sequence[tuple[bytes, bytes | None]], now_ms: int
    ) -> None:
        await asyncio.sleep(0)

    async def append_marker(self, marker: EndMarker, now_ms: int) -> None:
        await asyncio.sleep(0)

    def check_owner(self, owner: ProducerIdAndEpoch) -> None:
        """Everybody is who they say."""

    def check_marker(self, marker: EndMarker) -> bool:
        return True

    def check_writable(self) -> None:
        """It always is."""

    async def read(self) -> AsyncIterator[bytes]:
        nothing: list[bytes] = []
        for data in nothing:
            yield data


class GroupsBroker:
    """What the group APIs see of a broker."""

    def __init__(self, inner: FakeBroker, settings: GroupSettings) -> None:
        self.inner = inner
        self.view = inner.view
        self.config = inner.config
        self.clock = LoopClock()
        self.supervisor = inner.supervisor
        self.rng = random.Random(5)
        self.groups = GroupService(self, settings, ViewTopics(self.view))
        self.creations: list[str] = []

    def lease_is_valid(self) -> bool:
        return True

    def is_elected(self, topic: str, partition: int) -> bool:
        return False

    def partitions_count(self, topic: str) -> int:
        return self.view.partitions_count(topic)

    def group_config(self, group: str) -> GroupConfig | None:
        return None

    async def catch_up(self) -> None:
        """Its view is never behind."""

    async def ensure_internal_topic(self, name: str) -> None:
        self.creations.append(name)
        await self.inner.add_topic(name, (OWN_ID,), (2,), (3,))

    async def ask(self, api: ModuleType, version: int | None = None, **body: Any) -> Any:
        """Sends a request as a client would and returns kio's entity of the answer."""
        version = api.VERSIONS[1] if version is None else version
        entity = request_reader(api.API_KEY, version)(encode(request_type(api.API_KEY, version), body), 0)
        connection: Any = SimpleNamespace(peer="127.0.0.1:55555")
        request = Request(api.API_KEY, version, 1, "app", entity, connection)
        answer = api.handle(self, request)
        if inspect.isawaitable(answer):
            answer = await answer
        return response_reader(api.API_KEY, version)(encode(response_type(api.API_KEY, version), answer), 0)


async def groups_broker(**settings: int) -> GroupsBroker:
    """Keeps every group itself; has the topics `t` (two partitions) and `u` (one)."""
    inner = await broker_in_a_cluster(3)
    made = GroupsBroker(inner, GroupSettings(group_initial_rebalance_delay_ms=DELAY_MS, **settings))  # type: ignore[arg-type]
    await inner.add_topic(OFFSETS_TOPIC, (OWN_ID,))
    await inner.add_topic("t", (OWN_ID,), (OWN_ID,))
    await inner.add_topic("u", (OWN_ID,))
    await made.groups.load(0, MemoryLog())
    return made


def subscription(*topics: str) -> bytes:
    return embedded.write_subscription(embedded.Subscription(topics))


def versions(api: ModuleType) -> range:
    return range(api.VERSIONS[0], api.VERSIONS[1] + 1)
