"""Just enough of a broker for the admin APIs: a real view of a real metastore (SQLite in memory), no network, no disk.

Answers go through the real encoder and back, in the version that was asked for, so that a field that does not exist or
has the wrong type is noticed.
"""

from __future__ import annotations

import inspect
import random
import uuid
from collections.abc import Mapping
from types import ModuleType, SimpleNamespace
from typing import Any

from sexton.adapters.metastore import InProcessMetastore
from sexton.metadata.view import ClusterView
from sexton.ports.metastore import BrokerRow, BrokerStatus, MetastoreUnavailableError, PartitionRow, TopicRow
from sexton.protocol.encoder import encoder
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.protocol.messages import request_reader, request_type, response_reader, response_type
from sexton.settings.broker_config import BrokerConfig
from sexton.settings.layers import topic_config
from sexton.settings.topic import TopicConfig
from sexton.supervision import Supervisor
from sexton.types import LeaderEpoch

OWN_ID = 1


class FakeReplicas:
    """Replicas by topic and partition; tests put their own objects in."""

    cloud = None
    """No store: nothing of this broker's is in the cloud."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, int], Any] = {}

    def all(self) -> list[Any]:
        return list(self.known.values())

    def local(self, topic: str, partition: int) -> Any:
        if (topic, partition) not in self.known:
            raise KafkaError(ErrorCode.not_leader_or_follower)
        return self.known[topic, partition]

    leader = local


class FlakyMetastore:
    """A metastore that can be away, and before each of whose changes something else may happen."""

    def __init__(self, inner: InProcessMetastore) -> None:
        self._inner = inner
        self.is_away = False
        self.before_change: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.is_away:
                raise MetastoreUnavailableError("cut off by the test")
            if not name.startswith("read_") and self.before_change:
                await self.before_change.pop(0)()
            return await method(*args, **kwargs)

        return call


class FakeNews:
    told_count = 0

    async def tell(self) -> None:
        self.told_count += 1

    async def is_answered_by(self, row: BrokerRow, wait_ms: int) -> bool:
        return True


class FakeBroker:
    def __init__(self, settings: Mapping[str, str]) -> None:
        needed = {"node.id": str(OWN_ID), "log.dirs": "/data", "metastore.url": "sqlite://"}
        self.config = BrokerConfig.of({**needed, **settings})
        self.store = InProcessMetastore()
        self.metastore: Any = FlakyMetastore(self.store)
        self.view = ClusterView()
        self.cluster_id = uuid.UUID(int=7)
        self.rng = random.Random(3)
        self.replicas = FakeReplicas()
        self.news = FakeNews()
        self.supervisor = Supervisor()
        self.disk = SimpleNamespace(free_bytes=lambda directory: (40, 100))

    def topic_config(self, topic: str) -> TopicConfig:
        return topic_config(self.view, self.config.static, self.config.node_id, topic)

    async def catch_up(self) -> None:
        self.view.apply(await self.metastore.read_changes(self.view.revision))

    async def add_broker(self, broker_id: int, rack: str | None = None, *, is_seen: bool = True) -> BrokerRow:
        data_id = uuid.UUID(int=broker_id)
        proposed = BrokerRow(broker_id, 0, f"host{broker_id}", 9092, rack, data_id, 5000, 0, BrokerStatus.STARTING)
        row = await self.store.register_broker(proposed, self.view.broker(broker_id))
        row = await self.store.set_broker_status(broker_id, row.epoch, BrokerStatus.ACTIVE)
        if is_seen:
            await self.catch_up()
        return row

    async def fence(self, broker_id: int) -> None:
        row = self.view.broker(broker_id)
        assert row is not None
        await self.store.fence_broker(broker_id, row.epoch, row.renewals_count)
        await self.catch_up()

    async def add_topic(self, name: str, *replicas: tuple[int, ...], **settings: str) -> TopicRow:
        """A topic with one partition for each tuple of replicas, all in sync, the first leading."""
        topic = TopicRow(uuid.UUID(int=self.rng.getrandbits(128), version=4), name, name.startswith("__"))
        rows = [
            PartitionRow(topic.topic_id, index, given, given, given[0], LeaderEpoch(0), 0)
            for index, given in enumerate(replicas)
        ]
        texts = {key.replace("_", "."): text for key, text in settings.items()}
        await self.store.create_topic(topic, rows, texts)
        await self.catch_up()
        return topic

    async def put_partition(self, row: PartitionRow) -> None:
        (stored,) = await self.store.update_partitions([row])
        assert stored is not None
        await self.catch_up()

    async def ask(self, api: ModuleType, version: int | None = None, **body: Any) -> Any:
        """Sends a request as a client would and returns kio's entity of the answer."""
        version = api.VERSIONS[1] if version is None else version
        assert api.VERSIONS[0] <= version <= api.VERSIONS[1]
        entity = request_reader(api.API_KEY, version)(encode(request_type(api.API_KEY, version), body), 0)
        answer = api.handle(self, SimpleNamespace(version=version, body=entity, api_key=api.API_KEY))
        if inspect.isawaitable(answer):
            answer = await answer
        return response_reader(api.API_KEY, version)(encode(response_type(api.API_KEY, version), answer), 0)


def encode(entity: Any, values: Mapping[str, Any]) -> memoryview:
    out = bytearray()
    encoder(entity)(out, values)
    return memoryview(bytes(out))


async def broker_in_a_cluster(brokers: int = 3, **settings: str) -> FakeBroker:
    """A broker that has joined, with others that have. Settings are the broker's file."""
    broker = FakeBroker({name.replace("_", "."): text for name, text in settings.items()})
    await broker.store.open_cluster(broker.cluster_id)
    for broker_id in range(1, brokers + 1):
        await broker.add_broker(broker_id)
    return broker
