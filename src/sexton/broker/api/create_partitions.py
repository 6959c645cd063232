"""CreatePartitions, versions 0 to 3: adds partitions to existing topics. Partitions cannot be removed.

New partitions get as many replicas as the first one has, on brokers that the request names or that are chosen here.
`validate_only` changes nothing.

Deviation from Kafka: internal topics keep the number of partitions that they were created with. A group's or
transaction's coordinator is found by that number, so changing it would make half of all groups lose their offsets.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sexton.broker.admin import failure, make_change, outcome, repeated
from sexton.broker.network.request import Body, milliseconds
from sexton.broker.topics import in_cloud, wait_for_leaders
from sexton.metadata.placement import check_assignment
from sexton.metadata.topics import INTERNAL_TOPICS, assigned_partition_rows, new_partition_rows
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Request
    from sexton.ports.metastore import PartitionRow, TopicRow

API_KEY = 37
VERSIONS = (0, 3)


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    twice = repeated(topic.name for topic in body.topics)
    results: dict[str, Body] = {}
    for topic in body.topics:
        if topic.name in twice:
            made = failure(KafkaError(ErrorCode.invalid_request, "Duplicate topic name."))
        else:
            made = await outcome(_grow(broker, topic, body.validate_only, milliseconds(body.timeout)))
        results[topic.name] = {"name": topic.name, **made}
    return {"results": list(results.values())}


async def _grow(broker: Broker, asked: Any, validate_only: bool, timeout_ms: int) -> None:
    async def attempt() -> TopicRow:
        topic, rows = _plan(broker, asked)
        if not validate_only:
            first = rows[0].partition
            await broker.metastore.add_partitions(topic.topic_id, first, rows)
        return topic

    if validate_only:
        await attempt()
        return
    topic = await make_change(broker, attempt, ErrorCode.not_controller)
    await wait_for_leaders(broker, topic.topic_id, timeout_ms)


def _plan(broker: Broker, asked: Any) -> tuple[TopicRow, list[PartitionRow]]:
    topic = broker.view.topic(asked.name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition, "This server does not host this topic-partition.")
    if topic.name in INTERNAL_TOPICS:
        what = (
            f"{topic.name} keeps the number of partitions it was created with: groups and transactions are found by it."
        )
        raise KafkaError(ErrorCode.invalid_topic_exception, what)
    existing = broker.view.partitions_of(topic.topic_id)
    count = len(existing)
    if asked.count == count:
        raise KafkaError(ErrorCode.invalid_partitions, f"Topic already has {count} partition(s).")
    if asked.count < count:
        what = f"The topic {asked.name} currently has {count} partition(s); {asked.count} would not be an increase."
        raise KafkaError(ErrorCode.invalid_partitions, what)
    additional = asked.count - count
    replication_factor = len(existing[0].replicas)
    brokers, rng = broker.view.brokers, broker.rng
    if asked.assignments is None:
        rows = new_partition_rows(topic.topic_id, count, additional, replication_factor, brokers, rng)
        return topic, _stored(broker, topic, rows)
    if len(asked.assignments) != additional:
        what = (
            f"Attempted to add {additional} additional partition(s), but only {len(asked.assignments)} assignment(s) "
            "were specified."
        )
        raise KafkaError(ErrorCode.invalid_replica_assignment, what)
    assignments = dict(enumerate((assignment.broker_ids for assignment in asked.assignments), count))
    for replicas in assignments.values():
        check_assignment(replicas, brokers, replication_factor)
    return topic, _stored(broker, topic, assigned_partition_rows(topic.topic_id, count, assignments, brokers, rng))


def _stored(broker: Broker, topic: TopicRow, rows: list[PartitionRow]) -> list[PartitionRow]:
    """Where a partition is from its first record on."""
    return [in_cloud(row) for row in rows] if broker.view.wants_cloud(topic.name) else rows
