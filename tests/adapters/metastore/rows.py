"""Rows for tests, with everything filled in that a test does not care about."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from sexton.ports.metastore import BrokerRow, BrokerStatus, Metastore, PartitionRow, Storage, TopicRow
from sexton.types import NO_LEADER, LeaderEpoch

CLUSTER = uuid.UUID(int=0xC1)


def broker(broker_id: int, *, port: int = 9092, rack: str | None = None, lease_ms: int = 6000) -> BrokerRow:
    """As a broker proposes itself: epoch, renewals and status are the metastore's to say."""
    data_id = uuid.UUID(int=0xB0000 + broker_id)
    return BrokerRow(broker_id, -1, "127.0.0.1", port, rack, data_id, lease_ms, 77, BrokerStatus.FENCED)


def topic(name: str, number: int = 1, *, is_internal: bool = False) -> TopicRow:
    return TopicRow(uuid.UUID(int=0xA0000 + number), name, is_internal)


def partitions(
    of: TopicRow,
    count: int,
    *,
    first: int = 0,
    replicas: Sequence[int] = (1, 2, 3),
    storage: Storage = Storage.LOCAL,
) -> list[PartitionRow]:
    return [
        PartitionRow(
            of.topic_id,
            index,
            tuple(replicas),
            tuple(replicas),
            replicas[0] if replicas else NO_LEADER,
            LeaderEpoch(0),
            0,
            storage=storage,
        )
        for index in range(first, first + count)
    ]


async def register(store: Metastore, broker_id: int, status: BrokerStatus = BrokerStatus.ACTIVE) -> BrokerRow:
    row = await store.register_broker(broker(broker_id), None)
    return row if status is row.status else await store.set_broker_status(broker_id, row.epoch, status)


async def broker_in(store: Metastore, broker_id: int) -> BrokerRow:
    changes = await store.read_changes(0)
    return next(row for row in changes.brokers if row.broker_id == broker_id)
