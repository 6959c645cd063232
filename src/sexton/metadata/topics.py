"""The metastore rows of a new topic, or of new partitions. Pure: the caller writes the rows."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterable, Mapping, Sequence

from sexton.metadata.incarnations import new_id
from sexton.metadata.placement import Brokers, check_assignments, is_usable, place
from sexton.ports.metastore import PartitionRow, TopicRow
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.names import TOPIC_LENGTH_MAX
from sexton.types import LeaderEpoch

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, "__share_group_state"})

PARTITIONS_PER_REQUEST_MAX = 10_000
"""Kafka's limit for one request: more would make a transaction that is too large for every broker that follows."""

_LEGAL = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


def check_topic_name(name: str, existing: Iterable[str] = ()) -> None:
    """Kafka's rules. Names that differ only in '.' and '_' collide in the names of metrics, which have no '.'."""
    problem = None
    if not name:
        problem = "is empty"
    elif name in (".", ".."):
        problem = "is a folder's name"
    elif len(name) > TOPIC_LENGTH_MAX:
        problem = f"is longer than {TOPIC_LENGTH_MAX} characters"
    elif not _LEGAL.issuperset(name):
        problem = "has characters other than ASCII letters, digits, '.', '_' and '-'"
    if problem is not None:
        raise KafkaError(ErrorCode.invalid_topic_exception, f"the topic name '{name[:TOPIC_LENGTH_MAX]}' {problem}")
    if "." in name or "_" in name:
        folded = name.replace(".", "_")
        for other in existing:
            if other != name and other.replace(".", "_") == folded:
                what = f"topic '{name}' collides with '{other}': they differ only in '.' and '_'"
                raise KafkaError(ErrorCode.invalid_topic_exception, what)


def new_topic_rows(
    name: str,
    partitions: int,
    replication_factor: int,
    brokers: Brokers,
    rng: random.Random,
    *,
    assignments: Mapping[int, Sequence[int]] | None = None,
    existing: Iterable[str] = (),
    is_internal: bool = False,
) -> tuple[TopicRow, list[PartitionRow]]:
    """If `assignments` (partition to replicas) are given, `partitions` and `replication_factor` are ignored."""
    check_topic_name(name, existing)
    topic = TopicRow(new_id(rng), name, is_internal)
    if assignments:
        rows = assigned_partition_rows(topic.topic_id, 0, assignments, brokers, rng)
    else:
        rows = new_partition_rows(topic.topic_id, 0, partitions, replication_factor, brokers, rng)
    return topic, rows


def new_partition_rows(
    topic_id: uuid.UUID, first: int, count: int, replication_factor: int, brokers: Brokers, rng: random.Random
) -> list[PartitionRow]:
    """Partitions from `first` on, placed automatically."""
    _check_size(count)
    placed = place(brokers, count, replication_factor, rng)
    return [_first_row(topic_id, first + number, replicas, brokers, rng) for number, replicas in enumerate(placed)]


def assigned_partition_rows(
    topic_id: uuid.UUID, first: int, assignments: Mapping[int, Sequence[int]], brokers: Brokers, rng: random.Random
) -> list[PartitionRow]:
    """Partitions from `first` on, placed by an operator."""
    _check_size(len(assignments))
    check_assignments(assignments, first, brokers)
    return [_first_row(topic_id, index, tuple(assignments[index]), brokers, rng) for index in sorted(assignments)]


def _check_size(partitions_count: int) -> None:
    if partitions_count > PARTITIONS_PER_REQUEST_MAX:
        what = f"{partitions_count} partitions in one request are more than {PARTITIONS_PER_REQUEST_MAX}"
        raise KafkaError(ErrorCode.policy_violation, what)


def _first_row(
    topic_id: uuid.UUID, index: int, replicas: tuple[int, ...], brokers: Brokers, rng: random.Random
) -> PartitionRow:
    """All replicas on active brokers are in sync: there is nothing yet that they could have missed."""
    isr = tuple(broker_id for broker_id in replicas if is_usable(brokers[broker_id]))
    incarnations = {broker_id: new_id(rng) for broker_id in replicas}
    return PartitionRow(
        topic_id,
        index,
        replicas,
        isr,
        leader=isr[0],
        leader_epoch=LeaderEpoch(0),
        partition_epoch=0,
        incarnations=incarnations,
    )
