"""Brokers and partitions for tests of decisions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from sexton.ports.metastore import BrokerRow, BrokerStatus, PartitionRow, TopicRow
from sexton.types import NO_LEADER, LeaderEpoch

STATUSES = {
    "A": BrokerStatus.ACTIVE,
    "S": BrokerStatus.STARTING,
    "D": BrokerStatus.DRAINING,
    "F": BrokerStatus.FENCED,
}


def broker(
    broker_id: int, status: BrokerStatus = BrokerStatus.ACTIVE, *, rack: str | None = None, epoch: int = 0
) -> BrokerRow:
    epoch = epoch or 100 + broker_id
    return BrokerRow(broker_id, epoch, f"host{broker_id}", 9092, rack, uuid.UUID(int=broker_id), 6000, 0, status)


def brokers(statuses: str) -> dict[int, BrokerRow]:
    """Brokers 1, 2, 3...: A(ctive), S(tarting), D(raining), F(enced); - is one that was never there."""
    return {
        number: broker(number, STATUSES[letter]) for number, letter in enumerate(statuses, start=1) if letter != "-"
    }


TOPIC = TopicRow(uuid.UUID(int=0x70), "orders", False)


def partition(
    replicas: Sequence[int] = (1, 2, 3),
    isr: Sequence[int] | None = None,
    leader: int | None = None,
    *,
    index: int = 0,
    leader_epoch: int = 5,
    partition_epoch: int = 10,
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
    incarnations: Mapping[int, uuid.UUID] | None = None,
    topic: TopicRow = TOPIC,
) -> PartitionRow:
    """In sync are all, and the first leads, unless said otherwise."""
    isr = tuple(replicas if isr is None else isr)
    return PartitionRow(
        topic.topic_id,
        index,
        tuple(replicas),
        isr,
        isr[0] if leader is None else leader,
        LeaderEpoch(leader_epoch),
        partition_epoch,
        tuple(adding),
        tuple(removing),
        {id_: log_id(id_) for id_ in replicas} if incarnations is None else incarnations,
    )


def log_id(number: int) -> uuid.UUID:
    return uuid.UUID(int=number, version=4)


def told(row: PartitionRow | None) -> tuple[int, int, tuple[int, ...]] | None:
    """(leader, leader epoch, ISR): what elections are about."""
    return None if row is None else (row.leader, row.leader_epoch, row.isr)


__all__ = ["NO_LEADER", "TOPIC", "broker", "brokers", "log_id", "partition", "told"]
