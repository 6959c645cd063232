"""ConsumerGroupHeartbeat, and looking at groups, in every version."""

from __future__ import annotations

from typing import Any

import pytest

from sexton.broker.admin import NO_AUTHORIZED_OPERATIONS
from sexton.broker.api import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    list_groups,
)
from sexton.broker.api.group_common import GROUP_OPERATIONS
from sexton.protocol.errors import ErrorCode
from tests.broker.api.groups_broker import GroupsBroker, groups_broker, versions
from tests.broker.api.test_groups_classic import join


async def beat(broker: GroupsBroker, version: int = 1, **body: Any) -> Any:
    asked = {
        "group_id": "c",
        "member_id": "m",
        "member_epoch": 0,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": 60_000,
        "subscribed_topic_names": ["t"],
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": [],
    } | body
    return await broker.ask(consumer_group_heartbeat, version, **asked)


@pytest.mark.parametrize("version", versions(consumer_group_heartbeat))
async def test_a_member_joins_stays_and_leaves(version: int) -> None:
    broker = await groups_broker()
    row = broker.view.topic("t")
    assert row is not None
    answer = await beat(broker, version)
    assert (answer.error_code, answer.member_id, answer.member_epoch) == (ErrorCode.none, "m", 1)
    assert answer.heartbeat_interval.total_seconds() == 5
    (assigned,) = answer.assignment.topic_partitions
    assert (assigned.topic_id, sorted(assigned.partitions)) == (row.topic_id, [0, 1])
    same = {"rebalance_timeout": -1, "subscribed_topic_names": None, "topic_partitions": None}
    answer = await beat(broker, version, member_epoch=1, **same)
    assert (answer.member_epoch, answer.assignment) == (1, None)
    answer = await beat(broker, version, member_epoch=-1, **same)
    assert answer.member_epoch == -1


@pytest.mark.parametrize("version", versions(consumer_group_heartbeat))
async def test_a_refusal_says_why(version: int) -> None:
    broker = await groups_broker()
    answer = await beat(broker, version, server_assignor="lucky")
    assert answer.error_code is ErrorCode.unsupported_assignor
    assert "uniform, range" in answer.error_message


async def test_only_version_0_is_given_an_id() -> None:
    broker = await groups_broker()
    assert len((await beat(broker, 0, member_id="")).member_id) == 22
    assert (await beat(broker, 1, member_id="")).error_code is ErrorCode.invalid_request


async def test_regular_expressions_come_with_version_1() -> None:
    broker = await groups_broker()
    answer = await beat(broker, 1, subscribed_topic_names=None, subscribed_topic_regex="[tu]")
    assert len(answer.assignment.topic_partitions) == 2
    answer = await beat(broker, 1, member_id="n", subscribed_topic_regex="[")
    assert answer.error_code is ErrorCode.invalid_regular_expression


@pytest.mark.parametrize("version", versions(consumer_group_describe))
async def test_consumer_groups_are_described(version: int) -> None:
    broker = await groups_broker()
    await beat(broker, instance_id="i", rack_id="r")
    answer = await broker.ask(
        consumer_group_describe, version, group_ids=["c", "nobody", ""], include_authorized_operations=True
    )
    found, missing, empty = answer.groups
    assert (missing.error_code, empty.error_code) == (ErrorCode.group_id_not_found, ErrorCode.invalid_group_id)
    assert (found.group_state, found.group_epoch, found.assignment_epoch) == ("Stable", 1, 1)
    assert (found.assignor_name, found.authorized_operations) == ("uniform", GROUP_OPERATIONS)
    (member,) = found.members
    assert (member.member_id, member.instance_id, member.rack_id, member.member_epoch) == ("m", "i", "r", 1)
    assert (member.client_id, member.client_host) == ("app", "/127.0.0.1")
    assert member.assignment == member.target_assignment
    assert member.assignment.topic_partitions[0].topic_name == "t"
    if version >= 1:
        assert member.member_type == 1


@pytest.mark.parametrize("version", versions(describe_groups))
async def test_classic_groups_are_described(version: int) -> None:
    broker = await groups_broker()
    await join(broker)
    await beat(broker)
    answer = await broker.ask(describe_groups, version, groups=["g", "c", "nobody"])
    found, consumer, missing = answer.groups
    assert (found.error_code, found.group_state, found.protocol_type) == (
        ErrorCode.none,
        "CompletingRebalance",
        "consumer",
    )
    assert [one.client_host for one in found.members] == ["/127.0.0.1"]
    if version >= 3:
        assert found.authorized_operations == NO_AUTHORIZED_OPERATIONS
    expected = ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none
    for other in (consumer, missing):
        assert (other.error_code, other.group_state) == (expected, "Dead")


@pytest.mark.parametrize("version", versions(list_groups))
async def test_groups_are_listed(version: int) -> None:
    broker = await groups_broker()
    await join(broker)
    await beat(broker)
    answer = await broker.ask(list_groups, version, states_filter=[], types_filter=[])
    assert [(one.group_id, one.protocol_type) for one in answer.groups] == [("g", "consumer"), ("c", "consumer")]
    if version >= 4:
        answer = await broker.ask(list_groups, version, states_filter=["Stable"], types_filter=[])
        assert [(one.group_id, one.group_state) for one in answer.groups] == [("c", "Stable")]
    if version >= 5:
        answer = await broker.ask(list_groups, version, states_filter=[], types_filter=["Classic"])
        assert [(one.group_id, one.group_type) for one in answer.groups] == [("g", "classic")]
    broker.groups.led[0].is_loaded = False
    answer = await broker.ask(list_groups, version, states_filter=[], types_filter=[])
    assert answer.error_code is ErrorCode.coordinator_load_in_progress


@pytest.mark.parametrize("version", versions(delete_groups))
async def test_groups_are_deleted(version: int) -> None:
    broker = await groups_broker()
    await join(broker)
    await beat(broker)
    await beat(broker, member_epoch=-1)
    answer = await broker.ask(delete_groups, version, groups_names=["g", "c", "nobody", "c"])
    assert [(one.group_id, one.error_code) for one in answer.results] == [
        ("g", ErrorCode.non_empty_group),
        ("c", ErrorCode.none),
        ("nobody", ErrorCode.group_id_not_found),
    ]
