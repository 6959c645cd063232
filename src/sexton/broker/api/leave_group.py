"""LeaveGroup, versions 0 to 5: members leave a classic group. From version 3 on many at once, static members also by
instance id alone, as administrators do; each has its own error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.coordinators.groups.messages import LeavingMember
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 13
VERSIONS = (0, 5)

BATCHED_SINCE = 3


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    is_batched = request.version >= BATCHED_SINCE
    if is_batched:
        leaving = [LeavingMember(one.member_id, one.group_instance_id) for one in body.members]
    else:
        leaving = [LeavingMember(body.member_id, None)]
    try:
        answer = await broker.groups.leave(body.group_id, leaving)
    except KafkaError as error:
        return {"error_code": error.code}
    if not is_batched:
        return {"error_code": answer.members[0].error}
    return {
        "error_code": ErrorCode.none,
        "members": [
            {"member_id": one.member_id, "group_instance_id": one.instance_id, "error_code": one.error}
            for one in answer.members
        ],
    }
