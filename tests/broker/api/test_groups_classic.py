"""FindCoordinator and the classic group APIs, in every version."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest

from sexton.broker.api import find_coordinator, heartbeat, join_group, leave_group, sync_group
from sexton.coordinators.hashing import partition_for
from sexton.metadata.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from sexton.protocol.errors import ErrorCode
from tests.broker.api.groups_broker import (
    GroupsBroker,
    groups_broker,
    in_a_cluster,
    subscription,
    versions,
)
from tests.broker.serving import OTHER_IDS, OTHER_LEADS, Client, serving_broker


async def join(broker: GroupsBroker, version: int = 9, **body: Any) -> Any:
    """Joins as clients do: again with the id, if one is given first."""
    asked = {
        "group_id": "g",
        "session_timeout": 10_000,
        "rebalance_timeout": 20_000,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription("t")}],
    } | body
    answer = await broker.ask(join_group, version, **asked)
    if answer.error_code is ErrorCode.member_id_required:
        assert version >= 4
        answer = await broker.ask(join_group, version, **(asked | {"member_id": answer.member_id}))
    return answer


@pytest.mark.parametrize("version", versions(find_coordinator))
async def test_the_coordinator_is_the_leader_of_the_groups_partition(version: int) -> None:
    broker = await in_a_cluster(offsets_topic_num_partitions=3)
    assert broker.view.topic(OFFSETS_TOPIC) is None
    body = {"key": "g"} if version < 4 else {"coordinator_keys": ["g", "h"]}
    answer = await broker.ask(find_coordinator, version, **body)
    made = broker.view.topic(OFFSETS_TOPIC)
    assert made is not None
    found = [answer] if version < 4 else list(answer.coordinators)
    assert [one.error_code for one in found] == [ErrorCode.none] * len(found)
    for one, key in zip(found, ("g", "h"), strict=False):
        row = broker.view.partition(OFFSETS_TOPIC, partition_for(key, 3))
        assert row is not None
        leader = broker.view.broker(row.leader)
        assert leader is not None
        assert (one.node_id, one.host, one.port) == (leader.broker_id, leader.host, leader.port)
    await broker.ask(find_coordinator, version, **body)
    assert broker.view.topic(OFFSETS_TOPIC) == made


@pytest.mark.parametrize(("key_type", "code"), [(0, ErrorCode.invalid_group_id), (1, ErrorCode.invalid_request)])
async def test_nobody_coordinates_what_cannot_be_recorded(key_type: int, code: ErrorCode) -> None:
    """Nor is a name of megabytes hashed, which would hold up everybody."""
    broker = await groups_broker()
    answer = await broker.ask(find_coordinator, 6, key_type=key_type, coordinator_keys=["g" * 40_000])
    assert (answer.coordinators[0].error_code, answer.coordinators[0].node_id) == (code, -1)


async def test_without_a_leader_there_is_no_coordinator_for_now() -> None:
    broker = await groups_broker()
    await broker.change(topic=OFFSETS_TOPIC, **OTHER_LEADS)
    leader = broker.view.broker(OTHER_IDS[0])
    assert leader is not None
    await broker.metastore.fence_broker(leader.broker_id, leader.epoch, leader.renewals_count)
    await broker.catch_up()
    answer = await broker.ask(find_coordinator, 3, key="g")
    assert (answer.error_code, answer.node_id) == (ErrorCode.coordinator_not_available, -1)


async def test_a_transactional_id_has_a_coordinator_too() -> None:
    broker = await groups_broker()
    answer = await broker.ask(find_coordinator, 6, key_type=1, coordinator_keys=["x"])
    assert answer.coordinators[0].error_code is ErrorCode.none
    assert broker.view.topic(TRANSACTIONS_TOPIC) is not None


async def test_other_kinds_of_coordinators_do_not_exist() -> None:
    broker = await groups_broker()
    answer = await broker.ask(find_coordinator, 6, key_type=2, coordinator_keys=["x"])
    assert answer.coordinators[0].error_code is ErrorCode.invalid_request


@pytest.mark.parametrize("version", versions(join_group))
async def test_a_member_joins_syncs_beats_and_leaves_in_every_version(version: int) -> None:
    broker = await groups_broker()
    joined = await join(broker, version)
    assert (joined.error_code, joined.generation_id, joined.protocol_name) == (ErrorCode.none, 1, "range")
    assert joined.leader == joined.member_id
    assert [one.metadata for one in joined.members] == [subscription("t")]
    who = {"group_id": "g", "generation_id": 1, "member_id": joined.member_id}
    synced = await broker.ask(
        sync_group,
        min(version, 5),
        **who,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[{"member_id": joined.member_id, "assignment": b"yours"}],
    )
    assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"yours")
    beat = await broker.ask(heartbeat, min(version, 4), **who)
    assert beat.error_code is ErrorCode.none
    one = {"member_id": joined.member_id, "group_instance_id": None, "reason": "done"}
    left = await broker.ask(leave_group, min(version, 5), **one, group_id="g", members=[one])
    assert left.error_code is ErrorCode.none
    if min(version, 5) >= 3:
        assert [member.error_code for member in left.members] == [ErrorCode.none]
    again = await broker.ask(leave_group, min(version, 5), **one, group_id="g", members=[one])
    code = again.members[0].error_code if min(version, 5) >= 3 else again.error_code
    assert code is ErrorCode.unknown_member_id


@pytest.mark.parametrize("version", versions(join_group))
async def test_a_refused_join_can_be_told_in_every_version(version: int) -> None:
    broker = await groups_broker()
    answer = await join(broker, version, session_timeout=1)
    assert answer.error_code is ErrorCode.invalid_session_timeout
    answer = await join(broker, version, group_id="")
    assert answer.error_code is ErrorCode.invalid_group_id
    assert answer.generation_id == -1


@pytest.mark.parametrize("version", range(5, 10))
async def test_a_static_member_is_known_by_its_instance(version: int) -> None:
    broker = await groups_broker()
    joined = await join(broker, version, group_instance_id="i")
    assert joined.members[0].group_instance_id == "i"
    who = {"group_id": "g", "member_id": joined.member_id, "group_instance_id": "i", "generation_id": 1}
    named = {"protocol_type": "consumer", "protocol_name": "range"}
    await broker.ask(sync_group, 5, **who, **named)
    again = await join(broker, version, group_instance_id="i")
    assert again.member_id != joined.member_id
    beat = await broker.ask(heartbeat, 4, **who)
    assert beat.error_code is ErrorCode.fenced_instance_id


@pytest.mark.parametrize("version", versions(sync_group))
async def test_a_refused_sync_can_be_told_in_every_version(version: int) -> None:
    broker = await groups_broker()
    body = {"group_id": "g", "generation_id": 1, "member_id": "m", "assignments": []}
    answer = await broker.ask(sync_group, version, **body)
    expected = ErrorCode.inconsistent_group_protocol if version == 5 else ErrorCode.unknown_member_id
    assert answer.error_code is expected


async def test_heartbeats_are_fine_while_the_group_is_loaded() -> None:
    broker = await groups_broker()
    broker.groups.led[0].is_loaded = False
    who: Any = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    assert (await broker.ask(heartbeat, **who)).error_code is ErrorCode.none
    answer = await broker.ask(leave_group, 5, group_id="g", members=[{"member_id": "m"}])
    assert answer.error_code is ErrorCode.coordinator_load_in_progress


async def test_everything_is_refused_where_the_group_is_not_kept() -> None:
    broker = await groups_broker()
    await broker.change(topic=OFFSETS_TOPIC, **OTHER_LEADS)
    assert (await join(broker)).error_code is ErrorCode.not_coordinator
    who: Any = {"group_id": "g", "generation_id": 1, "member_id": "m"}
    assert (await broker.ask(heartbeat, **who)).error_code is ErrorCode.not_coordinator
    named: Any = {"protocol_type": "consumer", "protocol_name": "range"}
    assert (await broker.ask(sync_group, **who, **named)).error_code is ErrorCode.not_coordinator


async def test_many_members_join_one_group() -> None:
    broker = await groups_broker()
    answers = await asyncio.gather(*(join(broker) for _ in range(100)))
    assert {answer.generation_id for answer in answers} == {1}
    assert max(len(answer.members) for answer in answers) == 100
    assert len({answer.member_id for answer in answers}) == 100
    assert all(uuid.UUID(answer.member_id.removeprefix("app-")) for answer in answers)


async def test_joins_that_are_parked_do_not_keep_others_from_sending() -> None:
    """256 MB of them would have kept all large requests of everybody waiting, for as long as their sender liked."""

    broker = await serving_broker(queued_max_request_bytes=100_000)
    await broker.coordinate_groups()
    protocols = [{"name": "range", "metadata": bytes(60_000)}]
    times = {"session_timeout": 30_000, "rebalance_timeout": 2**31 - 1}
    clients = [Client(broker) for _ in range(5)]
    for number, client in enumerate(clients):
        asked = {"group_id": str(number), "member_id": "", "protocol_type": "connect", "protocols": protocols}
        client.ask(join_group.API_KEY, 3, {**asked, **times})
    for _ in range(3):
        await asyncio.sleep(0)
    assert not any(client.connection.sent for client in clients)
    assert broker.dispatch.budget.held_bytes == 0
