"""ListGroups, versions 0 to 5: the groups that this broker coordinates. From version 4 on filtered by state, from 5 on
by type; case does not matter, and an empty filter lets all pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 16
VERSIONS = (0, 5)


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    try:
        listed = await broker.groups.list_groups(getattr(body, "states_filter", ()), getattr(body, "types_filter", ()))
    except KafkaError as error:
        return {"error_code": error.code}
    return {
        "error_code": ErrorCode.none,
        "groups": [
            {
                "group_id": one.group,
                "protocol_type": one.protocol_type,
                "group_state": one.state,
                "group_type": one.type,
            }
            for one in listed
        ],
    }
