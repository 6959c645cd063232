"""ListPartitionReassignments, version 0 (KIP-455): the replicas being added and removed; null topics means all.

Deviations from Kafka: none known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.metadata.reassignment import is_in_progress
from sexton.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 46
VERSIONS = (0, 0)


def handle(broker: Broker, request: Request) -> Body:
    view = broker.view
    asked = request.body.topics
    wanted: dict[str, frozenset[int] | None] = dict.fromkeys(sorted(view.topic_names()))
    if asked is not None:
        wanted = {topic.name: frozenset(topic.partition_indexes) for topic in asked}
    topics = []
    for name, indexes in wanted.items():
        topic = view.topic(name)
        rows = view.partitions_of(topic.topic_id) if topic is not None else ()
        partitions = [
            {
                "partition_index": row.partition,
                "replicas": row.replicas,
                "adding_replicas": row.adding,
                "removing_replicas": row.removing,
            }
            for row in rows
            if is_in_progress(row) and (indexes is None or row.partition in indexes)
        ]
        if partitions:
            topics.append({"name": name, "partitions": partitions})
    return {"error_code": ErrorCode.none, "topics": topics}
