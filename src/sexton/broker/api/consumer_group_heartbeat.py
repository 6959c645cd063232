"""ConsumerGroupHeartbeat, versions 0 and 1 (KIP-848): a member joins, stays in the group, changes its subscription,
receives its assignment, and leaves. Version 1 adds regular expressions and member ids that the client chooses.

Assignors are `uniform` (the default) and `range`. How members move to a new assignment is in
`coordinators/groups/reconcile.py`, what regular expressions may hold in `coordinators/patterns.py`.

Deviations from Kafka: a regular expression is resolved at once, not some seconds later, and against all topics, for
there are no ACLs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sexton.broker.api.group_common import client_of
from sexton.broker.network.request import Body, milliseconds
from sexton.coordinators.groups.messages import ConsumerHeartbeatRequest
from sexton.coordinators.groups.records import Partitions
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Request

API_KEY = 68
VERSIONS = (0, 1)

MEMBER_ID_REQUIRED_SINCE = 1


async def handle(broker: Broker, request: Request) -> Body:
    body = request.body
    beat = ConsumerHeartbeatRequest(
        group=body.group_id,
        member_id=body.member_id,
        member_epoch=body.member_epoch,
        client=client_of(request),
        instance_id=body.instance_id,
        rack_id=body.rack_id,
        rebalance_timeout_ms=milliseconds(body.rebalance_timeout),
        topics=None if body.subscribed_topic_names is None else tuple(body.subscribed_topic_names),
        regex=getattr(body, "subscribed_topic_regex", None),
        server_assignor=body.server_assignor,
        owned=None if body.topic_partitions is None else _owned(body.topic_partitions),
        requires_member_id=request.version >= MEMBER_ID_REQUIRED_SINCE,
    )
    try:
        answer = await broker.groups.consumer_heartbeat(beat)
    except KafkaError as error:
        return {"error_code": error.code, "error_message": error.message or None}
    return {
        "error_code": ErrorCode.none,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval": answer.heartbeat_interval_ms,
        "assignment": None if answer.assignment is None else {"topic_partitions": _listed(answer.assignment)},
    }


def _owned(topics: Any) -> Partitions:
    owned = {topic.topic_id: frozenset(topic.partitions) for topic in topics if topic.topic_id is not None}
    return {topic_id: numbers for topic_id, numbers in owned.items() if numbers}


def _listed(partitions: Partitions) -> list[Body]:
    return [{"topic_id": topic_id, "partitions": sorted(partitions[topic_id])} for topic_id in sorted(partitions)]
