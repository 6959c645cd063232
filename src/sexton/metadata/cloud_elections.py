"""Elections of cloud partitions: who leads, where every broker can, because none holds anything.

`replicas` of a cloud partition are those who are asked first, and all of them count as in sync: what is committed is in
the store. So there is no unclean election, no shrinking of the ISR, nothing to copy, and a reassignment is done at
once. If none of them is ACTIVE, another broker takes the place of the last one.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

from sexton.metadata.elections import Brokers
from sexton.ports.metastore import BrokerStatus, PartitionRow
from sexton.types import NO_LEADER, LeaderEpoch


def elect_cloud(row: PartitionRow, brokers: Brokers) -> PartitionRow | None:
    """What the controller does: keeps a leader that can lead, else elects another. None if nothing changes."""
    settled = _settled(row)
    active = _active(brokers)
    leader = row.leader
    if leader not in active or leader not in settled.replicas:
        others = _in_order(settled, active)
        broker = brokers.get(leader)
        if others:
            leader = others[0]
        elif broker is None or not broker.is_live or leader not in settled.replicas:
            leader = NO_LEADER  # a broker that starts or stops keeps what it leads, if no other can take it
    return _changed(row, settled, leader)


def hand_over_cloud(
    row: PartitionRow, broker_id: int, brokers: Brokers, answering: Collection[int]
) -> PartitionRow | None:
    """What a broker that shuts down does with each partition that it leads. None if nobody else can lead it."""
    others = [id_ for id_ in _in_order(row, _active(brokers)) if id_ != broker_id and id_ in answering]
    if row.leader != broker_id or not others:
        return None
    return _changed(row, _settled(row), others[0])


def decline_cloud(row: PartitionRow, broker_id: int, brokers: Brokers, rng: random.Random) -> PartitionRow | None:
    """What a broker does that cannot use the store: any other leads, and it is asked last from now on. Which one is
    drawn, for others may be no better off. None if there is no other."""
    others = [id_ for id_ in _active(brokers) if id_ != broker_id]
    if row.leader != broker_id or not others:
        return None
    chosen = rng.choice(others)
    settled = _settled(row)
    rest = [id_ for id_ in settled.replicas if id_ not in (chosen, broker_id)]
    replicas = (chosen, *rest, broker_id)[: len(settled.replicas)]
    return _changed(row, replace(settled, replicas=replicas, isr=replicas), chosen)


def restart_cloud(row: PartitionRow, broker_id: int) -> PartitionRow | None:
    """What a (re)starting broker writes: what its former process led is led in another epoch, for that one may still
    have commits on their way."""
    if row.leader not in (broker_id, NO_LEADER):
        return None
    return replace(row, leader=broker_id, leader_epoch=LeaderEpoch(row.leader_epoch + 1))


def _active(brokers: Brokers) -> list[int]:
    return sorted(id_ for id_, broker in brokers.items() if broker.status is BrokerStatus.ACTIVE)


def _in_order(row: PartitionRow, active: list[int]) -> list[int]:
    """Those who may lead, in order of preference; the others in an order that differs from partition to partition."""
    preferred = [id_ for id_ in row.replicas if id_ in active]
    others = [id_ for id_ in active if id_ not in row.replicas]
    turn = (row.topic_id.int + row.partition) % max(1, len(others))
    return [*preferred, *others[turn:], *others[:turn]]


def _settled(row: PartitionRow) -> PartitionRow:
    """Without a reassignment, and all in sync."""
    replicas = tuple(id_ for id_ in row.replicas if id_ not in row.removing)
    return replace(row, replicas=replicas, isr=replicas, adding=(), removing=())


def _changed(row: PartitionRow, settled: PartitionRow, leader: int) -> PartitionRow | None:
    if leader != NO_LEADER and leader not in settled.replicas:
        replicas = (*settled.replicas[:-1], leader)
        settled = replace(settled, replicas=replicas, isr=replicas)
    leader_epoch = LeaderEpoch(row.leader_epoch + (leader != row.leader))
    changed = replace(settled, leader=leader, leader_epoch=leader_epoch)
    return None if changed == row else changed
