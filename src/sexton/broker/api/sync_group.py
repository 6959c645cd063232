"""SyncGroup, versions 0 to 5: the group's leader sends the assignment, the other members wait for it.

From version 5 on a request must have protocol type and name, and they must be the group's.

Deviations from Kafka: a SyncGroup that is waiting when its member is removed, or is sent a second time, gets
UNKNOWN_MEMBER_ID or REBALANCE_IN_PROGRESS; Kafka never answers it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.coordinators.groups.messages import SyncAnswer, SyncRequest
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 14
VERSIONS = (0, 5)

PROTOCOL_REQUIRED_SINCE = 5


async def handle(broker: Broker, request: Request) -> Body:
    try:
        answer = await _sync(broker, request)
    except KafkaError as error:
        answer = SyncAnswer(error.code)
    return {
        "error_code": answer.error,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name,
        "assignment": answer.assignment,
    }


async def _sync(broker: Broker, request: Request) -> SyncAnswer:
    body = request.body
    protocol_type = getattr(body, "protocol_type", None)
    protocol_name = getattr(body, "protocol_name", None)
    if request.version >= PROTOCOL_REQUIRED_SINCE and (protocol_type is None or protocol_name is None):
        raise KafkaError(ErrorCode.inconsistent_group_protocol)
    sync = SyncRequest(
        group=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        generation=body.generation_id,
        protocol_type=protocol_type,
        protocol_name=protocol_name,
        assignments={one.member_id: bytes(one.assignment) for one in body.assignments},
    )
    del body
    request.release()
    return await broker.groups.sync(sync)
