"""A real broker for the admin APIs (`tests.broker.serving`) in a cluster whose other brokers nobody reaches."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from types import ModuleType
from typing import Any

from sexton.ports.metastore import BrokerRow, BrokerStatus, PartitionRow, TopicRow
from sexton.types import LeaderEpoch
from tests.broker.serving import LEASE_MS, Client, LeavingMetastore, ServingBroker

CLUSTER_ID = uuid.UUID(int=7)


class OvertakenMetastore(LeavingMetastore):
    """Before each of its changes something else may happen."""

    def __init__(self) -> None:
        super().__init__()
        self.before_change: list[Callable[[], Awaitable[Any]]] = []
        self.changes_count = 0

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name not in CHANGES:
            return found

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.changes_count += 1
            if self.before_change:
                await self.before_change.pop(0)()
            return await found(*args, **kwargs)

        return call


CHANGES = frozenset(
    {
        "add_partitions",
        "change_settings",
        "create_topic",
        "delete_topic",
        "fence_broker",
        "register_broker",
        "remove_broker",
        "set_broker_status",
        "update_partitions",
    }
)


class AdminBroker(ServingBroker):
    metastore: OvertakenMetastore

    async def register(self, broker_id: int, rack: str | None = None, *, is_seen: bool = True) -> BrokerRow:
        """Another broker, or this one's next process."""
        row = BrokerRow(
            broker_id=broker_id,
            epoch=0,
            host=f"host{broker_id}",
            port=9092,
            rack=rack,
            data_id=uuid.UUID(int=broker_id),
            lease_ms=LEASE_MS,
            renewals_count=0,
            status=BrokerStatus.STARTING,
        )
        row = await self.metastore.register_broker(row, self.view.broker(broker_id))
        row = await self.metastore.set_broker_status(broker_id, row.epoch, BrokerStatus.ACTIVE)
        if is_seen:
            await self.catch_up()
        return row

    async def fence(self, broker_id: int) -> None:
        row = self.view.broker(broker_id)
        assert row is not None
        await self.metastore.fence_broker(broker_id, row.epoch, row.renewals_count)
        await self.catch_up()

    async def make_topic(self, name: str, *replicas: tuple[int, ...], **settings: str) -> TopicRow:
        """A topic with one partition for each tuple of replicas, all in sync, the first leading."""
        topic = TopicRow(uuid.UUID(int=self.rng.getrandbits(128), version=4), name, name.startswith("__"))
        rows = [
            PartitionRow(topic.topic_id, index, given, given, given[0], LeaderEpoch(0), 0)
            for index, given in enumerate(replicas)
        ]
        texts = {key.replace("_", "."): text for key, text in settings.items()}
        await self.metastore.create_topic(topic, rows, texts)
        await self.catch_up()
        return topic

    async def put_partition(self, row: PartitionRow) -> None:
        (stored,) = await self.metastore.update_partitions([row])
        assert stored is not None
        await self.catch_up()

    async def ask(self, api: ModuleType, version: int | None = None, **body: Any) -> Any:
        client = Client(self)
        return await client.call(api.API_KEY, api.VERSIONS[1] if version is None else version, body)


async def broker_in_a_cluster(brokers: int = 3, **settings: str) -> AdminBroker:
    """A broker that has joined, with others that have. Settings are the broker's file."""
    metastore = OvertakenMetastore()
    await metastore.open_cluster(CLUSTER_ID)
    broker = AdminBroker(
        None, None, metastore, advertised_listeners="PLAINTEXT://host1:9092", broker_rack="", **settings
    )
    await broker.start()
    for broker_id in range(2, brokers + 1):
        await broker.register(broker_id)
    return broker
