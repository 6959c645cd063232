"""A metastore in process, checked after every step, a store in memory that can be away, and logs between the two."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

from sexton.adapters.clock import SystemClock
from sexton.adapters.metastore import InProcessMetastore
from sexton.cloud.gather import GatherLimits
from sexton.cloud.host import CloudSettings
from sexton.cloud.log import CloudLog, Piece
from sexton.cloud.metered import CloudStats
from sexton.ports.cloud import Claimed, Extent
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.ports.objects import Buffer, ListedObject, ObjectMissingError, StoreUnavailableError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.topic import TopicConfig
from sexton.supervision import Supervisor
from sexton.types import PartitionId
from tests.adapters.metastore.cloud.world import A, World

CLUSTER = uuid.UUID(int=77)
NOW_MS = 1_700_000_000_000

SETTINGS = CloudSettings(gather=GatherLimits(linger_ms=1, bytes_max=4096, partitions_max=50), pending_bytes_max=1 << 20)


class MemoryStore:
    """`trouble` is asked before each call whether it shall fail; it may also wait."""

    place = "memory"

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.trouble: Callable[[str, str], Awaitable[None]] | None = None
        self.puts: list[str] = []
        self.gets: list[tuple[str, int, int]] = []

    async def _may(self, operation: str, key: str) -> None:
        await asyncio.sleep(0)
        if self.trouble is not None:
            await self.trouble(operation, key)

    async def put(self, key: str, data: Buffer) -> None:
        self.puts.append(key)
        await self._may("put", key)
        assert self.objects.setdefault(key, bytes(data)) == data, "a key was put with two contents"

    async def get(self, key: str, start: int, size_bytes: int) -> Buffer:
        self.gets.append((key, start, size_bytes))
        await self._may("get", key)
        if key not in self.objects:
            raise ObjectMissingError("there is no such object", key)
        return self.objects[key][start : start + size_bytes]

    async def size_bytes(self, key: str) -> int:
        return len(self.objects[key])

    async def delete(self, keys: Sequence[str]) -> Sequence[str]:
        for key in keys:
            self.objects.pop(key, None)
        return keys

    async def list(self, prefix: str) -> AsyncIterator[ListedObject]:
        for key, data in list(self.objects.items()):
            if key.startswith(prefix):
                yield ListedObject(key, len(data))

    async def create_marker(self, key: str, data: bytes) -> bytes:
        return self.objects.setdefault(key, data)

    async def read_marker(self, key: str) -> bytes | None:
        return self.objects.get(key)

    async def close(self) -> None: ...


async def away(operation: str, key: str) -> None:
    raise StoreUnavailableError("away", key)


class Forgetful:
    """A metastore whose calls may get no answer: carried out or not, as `loses` says for each by its name."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.loses: Callable[[str], str | None] = lambda operation: None
        """Returns "before" (nothing is done), "after" (all is done), or None."""
        self.calls: list[str] = []

    def __getattr__(self, operation: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any) -> Any:
            await asyncio.sleep(0)
            self.calls.append(operation)
            when = self.loses(operation)
            if when == "before":
                raise MetastoreUnavailableError("away")
            result = await self._world.do(operation, *arguments)
            if when == "after":
                raise MetastoreUnavailableError("the answer is lost")
            return result

        return call


class Host:
    """A broker, as far as cloud partitions can see."""

    def __init__(self, world: World, broker_id: int = 1) -> None:
        self.world = world
        self.broker_id = broker_id
        self.clock = SystemClock()
        self.rng = random.Random(5)
        self.supervisor = Supervisor()
        self.metastore: Any = Forgetful(world)
        self.objects: Any = MemoryStore()
        self.stats = CloudStats()
        self.cluster_id = CLUSTER
        self.is_leased = True
        self.store_refusal = None
        self.configs: dict[str, TopicConfig] = {}

    @property
    def identity(self) -> tuple[int, int]:
        return self.broker_id, self.world.brokers[self.broker_id].epoch

    def lease_is_valid(self) -> bool:
        return self.is_leased

    async def check_store(self) -> None: ...

    def topic_config(self, topic: str) -> TopicConfig:
        return self.configs.get(topic, TopicConfig())


class Heard:
    """Listens to commits."""

    def __init__(self) -> None:
        self.extents: list[Extent] = []
        self.error: KafkaError | None = None

    def committed(self, piece: Piece, extent: Extent) -> None:
        self.extents.append(extent)

    def lost(self, error: KafkaError) -> None:
        self.error = error

    @property
    def code(self) -> ErrorCode | None:
        return None if self.error is None else self.error.code


class NoTail:
    def keep(self, object_id: uuid.UUID, data: memoryview) -> None: ...


async def make_world(partitions_count: int = 2) -> World:
    store = InProcessMetastore()
    await store.open_cluster(CLUSTER)
    return await World(store).start(partitions_count)


async def claim_log(
    world: World, epoch: int = 1, key: PartitionId = A, broker_id: int = 1, now_ms: int = NOW_MS, **settings: Any
) -> CloudLog:
    (claimed,) = await world.claim(broker_id, epoch, key)
    assert isinstance(claimed, Claimed), claimed
    return CloudLog(claimed, f"orders-{key[1]}", TopicConfig(**settings), producer_expiry_ms=86_400_000, now_ms=now_ms)


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Waits for what the loop brings about."""
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.001)
