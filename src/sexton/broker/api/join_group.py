"""JoinGroup, versions 0 to 9: a member joins a classic group, or takes part in its next rebalance.

The response is sent when the rebalance is over. Version 0 has no rebalance timeout (the session timeout is used); from
4 on a member must first ask for a member id (KIP-394); from 5 on there are static members (KIP-345); 9 tells a
returning static leader that it need not assign (KIP-814). A join to a consumer group (KIP-848) makes a mixed group; see
`coordinators/groups/migration.py`.

Deviations from Kafka: when a member sends a second JoinGroup while its first is waiting, the first gets
REBALANCE_IN_PROGRESS; Kafka never answers it. No record is written for a group that has had no members yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.api.group_common import client_of
from sexton.broker.network.request import Body, milliseconds
from sexton.coordinators.groups.messages import JoinAnswer, JoinRequest
from sexton.protocol.errors import KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Request

API_KEY = 11
VERSIONS = (0, 9)

MEMBER_ID_REQUIRED_SINCE = 4
NULL_PROTOCOL_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    session_timeout_ms = milliseconds(body.session_timeout)
    rebalance_timeout = getattr(body, "rebalance_timeout", None)
    join = JoinRequest(
        group=body.group_id,
        member_id=body.member_id,
        instance_id=getattr(body, "group_instance_id", None),
        client=client_of(request),
        protocol_type=body.protocol_type,
        protocols=tuple((protocol.name, bytes(protocol.metadata)) for protocol in body.protocols),
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=session_timeout_ms if rebalance_timeout is None else milliseconds(rebalance_timeout),
        requires_member_id=request.version >= MEMBER_ID_REQUIRED_SINCE,
        can_skip_assignment=request.version >= SKIP_ASSIGNMENT_SINCE,
        reason=getattr(body, "reason", None) or "",
    )
    member_id = body.member_id
    del body
    request.release()
    try:
        answer = await broker.groups.join(join)
    except KafkaError as error:
        answer = JoinAnswer(error.code, member_id)
    return {
        "error_code": answer.error,
        "generation_id": answer.generation,
        "protocol_type": answer.protocol_type,
        "protocol_name": answer.protocol_name if request.version >= NULL_PROTOCOL_SINCE else answer.protocol_name or "",
        "leader": answer.leader,
        "skip_assignment": answer.skip_assignment,
        "member_id": answer.member_id,
        "members": [
            {"member_id": one.member_id, "group_instance_id": one.instance_id, "metadata": one.metadata}
            for one in answer.members
        ],
    }
