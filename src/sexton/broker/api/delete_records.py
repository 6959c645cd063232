"""DeleteRecords, versions 0 to 2: deletes records below an offset; -1 means the high watermark.

The leader moves its log start; followers take it over with their next fetch, and the response does not wait for them. A
deletion goes on to its end even if the request times out.

Deviation from Kafka: the low watermark in the response is the leader's new log start. Kafka waits until all live
replicas have followed; the request's timeout limits that wait only, so even with a timeout of 0 the leader's own log is
waited for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from sexton.broker.network.request import Body, milliseconds
from sexton.metadata.topics import INTERNAL_TOPICS
from sexton.protocol.errors import ErrorCode, KafkaError, StorageError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Request
    from sexton.replication.replica import Replica

API_KEY = 21
VERSIONS = (0, 2)

NO_LOW_WATERMARK = -1

OWN_LOG_MS = 5_000
"""The least time that the leader's own log is given. Limited, since a hanging disk must not block the connection."""


async def handle(broker: Broker, request: Request) -> Body:
    topics = []
    timeout_ms = max(milliseconds(request.body.timeout), OWN_LOG_MS)
    for topic in request.body.topics:
        partitions = []
        for asked in topic.partitions:
            low_watermark, error = NO_LOW_WATERMARK, ErrorCode.none
            try:
                low_watermark = await _delete(broker, topic.name, asked.partition_index, asked.offset, timeout_ms)
            except KafkaError as failed:
                error = failed.code
            partitions.append(
                {"partition_index": asked.partition_index, "low_watermark": low_watermark, "error_code": error}
            )
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


async def _delete(broker: Broker, topic: str, partition: int, offset: int, timeout_ms: int) -> int:
    if broker.view.partition(topic, partition) is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.invalid_topic_exception, f"Cannot delete records of internal topic {topic}")
    replica = broker.replicas.leader(topic, partition)
    outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    deletion = _delete_to_the_end(replica, offset, outcome)
    broker.supervisor.work(deletion, "deleting records", f"{topic}-{partition}")
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            return await outcome
    except TimeoutError:
        raise KafkaError(ErrorCode.request_timed_out) from None


async def _delete_to_the_end(replica: Replica, offset: int, outcome: asyncio.Future[int]) -> None:
    try:
        low_watermark = await replica.delete_records(offset)
        if not outcome.done():
            outcome.set_result(low_watermark)
    except KafkaError as error:
        if not outcome.done():
            outcome.set_exception(error)
    except OSError as error:
        if not outcome.done():
            outcome.set_exception(StorageError("cannot move the log start", error))
