"""Heartbeat, versions 0 to 4: keeps a member of a classic group alive, and tells it whether it must rejoin.

While the group is being loaded every heartbeat succeeds: loading starts the member's session timeout afresh.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.coordinators.groups.messages import HeartbeatRequest
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 12
VERSIONS = (0, 4)


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    beat = HeartbeatRequest(body.group_id, body.member_id, getattr(body, "group_instance_id", None), body.generation_id)
    try:
        await broker.groups.heartbeat(beat)
    except KafkaError as error:
        is_loading = error.code is ErrorCode.coordinator_load_in_progress
        return {"error_code": ErrorCode.none if is_loading else error.code}
    return {"error_code": ErrorCode.none}
