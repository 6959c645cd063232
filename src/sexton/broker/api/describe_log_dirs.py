"""DescribeLogDirs, versions 1 to 5: this broker's log directory, its free space, and the size of each replica in it.

Deviations from Kafka: a broker has one log directory. Nothing is ever moved between directories, so there are no future
replicas, and no directory is cordoned. The store of cloud topics is shown as another directory, whose free space nobody
knows, with the partitions that this broker leads: so each is counted once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sexton.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request
    from sexton.replication.replica import Replica

API_KEY = 35
VERSIONS = (1, 5)


def handle(broker: Broker, request: Request) -> Body:
    asked = request.body.topics
    wanted = None if asked is None else {(topic.topic, index) for topic in asked for index in topic.partitions}
    folder = broker.config.log_dir
    result: Body = {"error_code": ErrorCode.none, "log_dir": folder}
    try:
        result["usable_bytes"], result["total_bytes"] = broker.disk.free_bytes(folder)
    except OSError:
        return {"results": [{"error_code": ErrorCode.kafka_storage_error, "log_dir": folder}]}
    result["topics"] = _topics(broker.replicas.all(), wanted)
    results = [result]
    if broker.replicas.cloud is not None and broker.objects is not None:
        led = _topics([replica for replica in broker.replicas.cloud.all() if replica.is_leader], wanted)
        results += [{"error_code": ErrorCode.none, "log_dir": broker.objects.place, "topics": led}] if led else []
    return {"error_code": ErrorCode.none, "results": results}


def _topics(replicas: Iterable[Replica], wanted: set[tuple[str, int]] | None) -> list[Body]:
    topics: dict[str, list[Body]] = {}
    for replica in sorted(replicas, key=lambda replica: (replica.topic, replica.partition)):
        if wanted is None or (replica.topic, replica.partition) in wanted:
            topics.setdefault(replica.topic, []).append(_describe(replica))
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


def _describe(replica: Replica) -> Body:
    """As in Kafka, the lag is how far the replica's log end is below the high watermark that it knows."""
    return {
        "partition_index": replica.partition,
        "partition_size": replica.log.size_bytes,
        "offset_lag": max(0, replica.high_watermark - replica.log.end_offset),
        "is_future_key": False,
    }
