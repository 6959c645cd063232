"""DescribeTopicPartitions, version 0 (KIP-966): topics and partitions, page by page, in the order of topic names.

A page has at most `response_partition_limit` partitions, and never more than `max.request.partition.size.limit`. The
cursor names the topic and partition to go on with.

Deviations from Kafka: eligible leader replicas do not exist here; both lists are empty (null, which the schema allows,
makes Java's client fail). Without ACLs, all operations are authorized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.admin import TOPIC_OPERATIONS, is_valid_topic_name, serving_ids
from sexton.broker.api.metadata import describe_partition
from sexton.metadata.topics import INTERNAL_TOPICS
from sexton.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 75
VERSIONS = (0, 0)


def handle(broker: Broker, request: Request) -> Body:
    view, body = broker.view, request.body
    wants_all = not body.topics
    cursor = body.cursor
    names = {topic.name for topic in (view.topics() if wants_all else body.topics)}
    names = {name for name in names if cursor is None or name >= cursor.topic_name}
    if cursor is not None and (cursor.partition_index < 0 or (not wants_all and cursor.topic_name not in names)):
        return {"topics": [_unknown(topic.name, ErrorCode.invalid_request) for topic in body.topics]}
    room = max(min(broker.config.max_request_partition_size_limit, body.response_partition_limit), 1)
    serving = serving_ids(view)
    described: list[Body] = []
    for name in sorted(names):
        topic = view.topic(name)
        if topic is None:
            if not wants_all:
                described.append(_unknown(name, _error_of(name)))
            continue
        if room == 0:
            return {"topics": described, "next_cursor": {"topic_name": name, "partition_index": 0}}
        first = cursor.partition_index if cursor is not None and cursor.topic_name == name else 0
        rows = [row for row in view.partitions_of(topic.topic_id) if row.partition >= first]
        described.append(
            {
                "error_code": ErrorCode.none,
                "name": name,
                "topic_id": topic.topic_id,
                "is_internal": topic.is_internal,
                "partitions": [_without_error(describe_partition(row, serving)) for row in rows[:room]],
                "topic_authorized_operations": TOPIC_OPERATIONS,
            }
        )
        if len(rows) > room:
            next_cursor = {"topic_name": name, "partition_index": rows[room].partition}
            return {"topics": described, "next_cursor": next_cursor}
        room -= len(rows)
    return {"topics": described, "next_cursor": None}


def _without_error(partition: Body) -> Body:
    """A partition without a leader says so by its leader id alone, as in Kafka."""
    return {**partition, "error_code": ErrorCode.none, "eligible_leader_replicas": (), "last_known_elr": ()}


def _error_of(name: str) -> ErrorCode:
    return ErrorCode.unknown_topic_or_partition if is_valid_topic_name(name) else ErrorCode.invalid_topic_exception


def _unknown(name: str, error: ErrorCode) -> Body:
    return {"error_code": error, "name": name, "topic_id": None, "is_internal": name in INTERNAL_TOPICS}
