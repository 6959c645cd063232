"""DeleteGroups, versions 0 to 2: deletes groups that have no members, with their offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 42
VERSIONS = (0, 2)


async def handle(broker: Broker, request: Request) -> Body:
    names = dict.fromkeys(request.body.groups_names)
    return {"results": [{"group_id": name, "error_code": await _delete(broker, name)} for name in names]}


async def _delete(broker: Broker, name: str) -> ErrorCode:
    try:
        await broker.groups.delete_group(name)
    except KafkaError as error:
        return error.code
    return ErrorCode.none
