"""Administration of groups: list, describe, delete."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from sexton.client import apis
from sexton.client.client import Client
from sexton.client.errors import check
from sexton.client.groups import decode_assignment
from sexton.protocol.embedded import PROTOCOL_TYPE
from sexton.protocol.errors import ErrorCode
from sexton.types import TopicPartition

CLASSIC = "classic"
CONSUMER = "consumer"
DEAD = "Dead"


@dataclass(frozen=True, slots=True)
class GroupListing:
    group: str
    state: str
    kind: str
    """`classic` (clients assign) or `consumer` (KIP-848: the broker assigns)."""
    protocol: str


@dataclass(frozen=True, slots=True)
class Member:
    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assigned: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group: str
    state: str
    kind: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...]


async def list_groups(client: Client) -> list[GroupListing]:
    """Asks all brokers, each of which coordinates some groups."""
    metadata = await client.refresh(())

    async def of_broker(broker_id: int) -> list[GroupListing]:
        async def attempt() -> list[GroupListing]:
            answer = await (await client.peer(broker_id)).call(apis.LIST_GROUPS, {})
            check(answer.error_code, f"broker {broker_id}")
            return [
                GroupListing(each.group_id, each.group_state, getattr(each, "group_type", CLASSIC), each.protocol_type)
                for each in answer.groups
            ]

        return await client.retry(attempt)

    found = await asyncio.gather(*(of_broker(broker_id) for broker_id in sorted(metadata.brokers)))
    return sorted({each.group: each for part in found for each in part}.values(), key=lambda each: each.group)


async def describe_group(client: Client, group: str) -> GroupDescription:
    """Raises RefusedError (group_id_not_found) if there is no such group."""

    async def attempt() -> GroupDescription:
        peer = await client.coordinator(group)
        if peer.has(apis.CONSUMER_GROUP_DESCRIBE):
            answer = await peer.call(apis.CONSUMER_GROUP_DESCRIBE, {"group_ids": [group]})
            response = answer.groups[0]
            if response.error_code == ErrorCode.none:
                return _described(response, client.coordinator_id(group))
            if response.error_code not in (ErrorCode.group_id_not_found, ErrorCode.unsupported_version):
                check(response.error_code, f"group {group}", response.error_message)
        answer = await peer.call(apis.DESCRIBE_GROUPS, {"groups": [group]})
        response = answer.groups[0]
        check(response.error_code, f"group {group}")
        if response.group_state == DEAD:
            check(ErrorCode.group_id_not_found, f"group {group}")
        return _described_classic(response, client.coordinator_id(group))

    return await client.retry(attempt, group=group)


def _described(response: Any, coordinator: int) -> GroupDescription:
    members = tuple(
        Member(
            each.member_id,
            each.instance_id,
            each.client_id,
            each.client_host,
            tuple((part.topic_name, number) for part in each.assignment.topic_partitions for number in part.partitions),
        )
        for each in response.members
    )
    return GroupDescription(
        group=response.group_id,
        state=response.group_state,
        kind=CONSUMER,
        assignor=response.assignor_name,
        coordinator=coordinator,
        members=members,
    )


def _described_classic(response: Any, coordinator: int) -> GroupDescription:
    def assigned(data: bytes) -> tuple[TopicPartition, ...]:
        return tuple(decode_assignment(bytes(data))) if response.protocol_type == PROTOCOL_TYPE else ()

    members = tuple(
        Member(
            each.member_id,
            getattr(each, "group_instance_id", None),
            each.client_id,
            each.client_host,
            assigned(each.member_assignment),
        )
        for each in response.members
    )
    return GroupDescription(
        group=response.group_id,
        state=response.group_state,
        kind=CLASSIC,
        assignor=response.protocol_data,
        coordinator=coordinator,
        members=members,
    )


async def delete_group(client: Client, group: str) -> None:
    async def attempt() -> None:
        peer = await client.coordinator(group)
        answer = await peer.call(apis.DELETE_GROUPS, {"groups_names": [group]})
        check(answer.results[0].error_code, f"group {group}")

    await client.retry(attempt, group=group, is_repeatable=False)
