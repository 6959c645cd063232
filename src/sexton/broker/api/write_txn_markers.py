"""WriteTxnMarkers, versions 1 and 2: sent by a transaction's coordinator to the leaders of its partitions when the
transaction ends. Operators use it too, through Kafka's tools, to end a hanging transaction (KIP-664).

A partition's result is sent when its marker is on all in-sync replicas. From version 2 on a marker says that it raises
the producer's epoch (transaction version 2): then a marker that arrives twice is written once, and one that arrives so
late that the next transaction has begun is refused with INVALID_PRODUCER_EPOCH. Older markers that are late are
recognized by their connection (`coordinators/transactions/connection_binding.py`). A marker of a former coordinator:
TRANSACTION_COORDINATOR_FENCED.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from sexton.broker.api.txn_common import OLD_CLIENT_VERSION
from sexton.broker.lifecycle.peers import CLIENT_ID
from sexton.broker.transactions.markers import write_marker
from sexton.coordinators.log import EndMarker
from sexton.protocol.errors import ErrorCode
from sexton.types import TRANSACTION_VERSION_2, ProducerIdAndEpoch, TopicPartition

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 27
VERSIONS = (1, 2)


async def handle(broker: Broker, request: Request) -> Body:
    places = [
        (marker, (topic.name, partition))
        for marker in request.body.markers
        for topic in marker.topics
        for partition in topic.partition_indexes
    ]
    codes = iter(await asyncio.gather(*(_write(broker, request, marker, place) for marker, place in places)))
    return {
        "markers": [
            {
                "producer_id": marker.producer_id,
                "topics": [
                    {
                        "name": topic.name,
                        "partitions": [
                            {"partition_index": partition, "error_code": next(codes)}
                            for partition in topic.partition_indexes
                        ],
                    }
                    for topic in marker.topics
                ],
            }
            for marker in request.body.markers
        ]
    }


async def _write(broker: Broker, request: Request, asked: Any, place: TopicPartition) -> ErrorCode:
    version = getattr(asked, "transaction_version", OLD_CLIENT_VERSION)
    owner = ProducerIdAndEpoch(asked.producer_id, asked.producer_epoch)
    is_from_broker = (request.client_id or "").startswith(CLIENT_ID)
    if version < TRANSACTION_VERSION_2 and is_from_broker:
        connection = request.connection
        if broker.transactions.is_late_marker(place, *owner, asked.coordinator_epoch, connection):
            return ErrorCode.not_leader_or_follower  # a live coordinator sends it again, over a new connection
    return await write_marker(
        broker, EndMarker(owner, asked.transaction_result, asked.coordinator_epoch, version), place
    )
