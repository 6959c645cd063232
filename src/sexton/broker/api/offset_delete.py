"""OffsetDelete, version 0 (KIP-496): deletes a group's offsets of topics that it is not subscribed to any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 47
VERSIONS = (0, 0)


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    asked = [(topic.name, tuple(one.partition_index for one in topic.partitions)) for topic in body.topics]
    known = [(name, partitions) for name, partitions in asked if broker.view.topic(name) is not None]
    codes: dict[tuple[str, int], ErrorCode] = {}
    try:
        for name, results in await broker.groups.delete_offsets(body.group_id, known):
            codes.update({(name, partition): code for partition, code in results})
    except KafkaError as error:
        return {"error_code": error.code}
    return {
        "error_code": ErrorCode.none,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": partition,
                        "error_code": codes.get((name, partition), ErrorCode.unknown_topic_or_partition),
                    }
                    for partition in partitions
                ],
            }
            for name, partitions in asked
        ],
    }
