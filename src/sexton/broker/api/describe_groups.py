"""DescribeGroups, versions 0 to 6: state and members of classic groups.

A group that does not exist, or is a consumer group, has state Dead; from version 6 on also GROUP_ID_NOT_FOUND.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.api.group_common import authorized_operations
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 15
VERSIONS = (0, 6)

NOT_FOUND_SINCE = 6
DEAD = "Dead"


async def handle(broker: Broker, request: Request) -> Body:
    return {"groups": [await _describe(broker, request, group) for group in request.body.groups]}


async def _describe(broker: Broker, request: Request, group: str) -> Body:
    try:
        found = await broker.groups.describe_classic(group)
    except KafkaError as error:
        return {"group_id": group, "error_code": error.code, "error_message": error.message or None}
    if found is None:
        if request.version >= NOT_FOUND_SINCE:
            message = f"Group {group} not found."
            code = ErrorCode.group_id_not_found
            return {"group_id": group, "error_code": code, "error_message": message, "group_state": DEAD}
        return {"group_id": group, "error_code": ErrorCode.none, "group_state": DEAD}
    return {
        "error_code": ErrorCode.none,
        "group_id": group,
        "group_state": found.state,
        "protocol_type": found.protocol_type,
        "protocol_data": found.protocol,
        "members": [
            {
                "member_id": one.member_id,
                "group_instance_id": one.instance_id,
                "client_id": one.client.client_id,
                "client_host": one.client.host,
                "member_metadata": one.metadata,
                "member_assignment": one.assignment,
            }
            for one in found.members
        ],
        "authorized_operations": authorized_operations(request),
    }
