"""OffsetForLeaderEpoch, versions 2 to 4: where a leader epoch ended, so that a consumer can detect truncation
(KIP-320).

Served by the leader; for replica id -2 (debugging) by any replica. An epoch that the leader does not know gets epoch
and offset -1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sexton.broker.network.request import Request, Response
from sexton.protocol.errors import KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

API_KEY = 23
VERSIONS = (2, 4)

_DEBUGGING = -2


def handle(broker: Broker, request: Request) -> Response:
    from_any = request.version >= 3 and request.body.replica_id == _DEBUGGING
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_end_of_epoch(broker, topic.topic, asked, from_any) for asked in topic.partitions],
            }
            for topic in request.body.topics
        ]
    }


def _end_of_epoch(broker: Broker, topic: str, asked: Any, from_any: bool) -> dict[str, int]:
    try:
        replica = broker.replicas.local(topic, asked.partition)
        replica.check_epoch(asked.current_leader_epoch)
        if not from_any:
            replica.check_serving_as_leader()
    except KafkaError as error:
        return {"partition": asked.partition, "error_code": error.code}
    found = replica.log.epochs.end_offset_of(asked.leader_epoch, replica.log.end_offset)
    epoch, end_offset = found if found is not None else (-1, -1)
    return {"partition": asked.partition, "leader_epoch": epoch, "end_offset": end_offset}
