"""ConsumerGroupDescribe, versions 0 and 1 (KIP-848): a group's epochs and members, with their current and target
assignments. Version 1 says which members still use the classic protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sexton.broker.api.group_common import authorized_operations
from sexton.coordinators.groups.messages import DescribedConsumerGroup, DescribedConsumerMember
from sexton.coordinators.groups.records import Partitions
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.broker.network.request import Body, Request

API_KEY = 69
VERSIONS = (0, 1)

CLASSIC_MEMBER = 0
CONSUMER_MEMBER = 1


async def handle(broker: Broker, request: Request) -> Body:
    return {"groups": [await _describe(broker, request, group) for group in request.body.group_ids]}


async def _describe(broker: Broker, request: Request, group: str) -> Body:
    try:
        if group == "":
            raise KafkaError(ErrorCode.invalid_group_id)
        found = await broker.groups.describe_consumer(group)
        if found is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {group} is not a consumer group or not found.")
    except KafkaError as error:
        return {"group_id": group, "error_code": error.code, "error_message": error.message or None}
    return {
        "error_code": ErrorCode.none,
        "group_id": group,
        "group_state": found.state,
        "group_epoch": found.group_epoch,
        "assignment_epoch": found.assignment_epoch,
        "assignor_name": found.assignor,
        "members": [_member(found, one) for one in found.members],
        "authorized_operations": authorized_operations(request),
    }


def _member(group: DescribedConsumerGroup, one: DescribedConsumerMember) -> Body:
    return {
        "member_id": one.member_id,
        "instance_id": one.instance_id,
        "rack_id": one.rack_id,
        "member_epoch": one.member_epoch,
        "client_id": one.client.client_id,
        "client_host": one.client.host,
        "subscribed_topic_names": one.topics,
        "subscribed_topic_regex": one.regex,
        "assignment": {"topic_partitions": _listed(group, one.assigned)},
        "target_assignment": {"topic_partitions": _listed(group, one.target)},
        "member_type": CLASSIC_MEMBER if one.is_classic else CONSUMER_MEMBER,
    }


def _listed(group: DescribedConsumerGroup, partitions: Partitions) -> list[Body]:
    """Deleted topics are left out: they have no name to show."""
    return [
        {
            "topic_id": topic_id,
            "topic_name": group.topic_names[topic_id],
            "partitions": sorted(partitions[topic_id]),
        }
        for topic_id in sorted(partitions)
        if topic_id in group.topic_names
    ]
