"""The offset APIs, in every version."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from sexton.broker.api import offset_commit, offset_delete, offset_fetch
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.protocol.errors import ErrorCode
from tests.broker.api.groups_broker import GroupsBroker, groups_broker, versions
from tests.broker.serving import OTHER_LEADS

NOWHERE = uuid.UUID(int=99)


def named(broker: GroupsBroker, name: str, version: int) -> dict[str, Any]:
    if version < 10:
        return {"name": name}
    row = broker.view.topic(name)
    return {"topic_id": NOWHERE if row is None else row.topic_id}


async def commit(broker: GroupsBroker, version: int = 10, topics: tuple[str, ...] = ("t",), **body: Any) -> Any:
    partition = {"partition_index": 1, "committed_offset": 42, "committed_leader_epoch": 3, "committed_metadata": "m"}
    asked: dict[str, Any] = {
        "group_id": "g",
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "retention_time": -1,
        "topics": [{**named(broker, name, version), "partitions": [partition]} for name in topics],
    }
    return await broker.ask(offset_commit, version, **(asked | body))


def codes(answer: Any) -> list[ErrorCode]:
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


async def fetch(broker: GroupsBroker, version: int, topics: tuple[str, ...] | None = ("t",), group: str = "g") -> Any:
    """The one group's part of the answer, whatever the version."""
    asked = (
        None if topics is None else [{**named(broker, name, version), "partition_indexes": [0, 1]} for name in topics]
    )
    if version < 8:
        return await broker.ask(offset_fetch, version, group_id=group, topics=asked)
    answer = await broker.ask(offset_fetch, version, groups=[{"group_id": group, "topics": asked}])
    return answer.groups[0]


@pytest.mark.parametrize("version", versions(offset_commit))
async def test_offsets_are_committed_in_every_version(version: int) -> None:
    broker = await groups_broker()
    answer = await commit(broker, version, ("t", "nowhere"))
    unknown = ErrorCode.unknown_topic_id if version >= 10 else ErrorCode.unknown_topic_or_partition
    assert codes(answer) == [ErrorCode.none, unknown]
    if version >= 10:
        assert answer.topics[1].topic_id == NOWHERE
    found = await fetch(broker, 9)
    assert [one.committed_offset for one in found.topics[0].partitions] == [-1, 42]
    expected_epoch = 3 if version >= 6 else -1
    assert found.topics[0].partitions[1].committed_leader_epoch == expected_epoch


@pytest.mark.parametrize("version", versions(offset_commit))
async def test_a_refused_commit_is_told_for_each_partition(version: int) -> None:
    broker = await groups_broker()
    answer = await commit(broker, version, ("t", "u"), generation_id_or_member_epoch=5, member_id="m")
    expected = ErrorCode.group_id_not_found if version >= 9 else ErrorCode.illegal_generation
    assert codes(answer) == [expected, expected]


@pytest.mark.parametrize("version", versions(offset_fetch))
async def test_offsets_are_fetched_in_every_version(version: int) -> None:
    broker = await groups_broker()
    await commit(broker)
    found = await fetch(broker, version, ("t", "u"))
    t, u = found.topics
    assert [(one.partition_index, one.committed_offset, one.metadata) for one in t.partitions] == [
        (0, -1, ""),
        (1, 42, "m"),
    ]
    assert [one.committed_offset for one in u.partitions] == [-1, -1]
    assert {one.error_code for one in (*t.partitions, *u.partitions)} == {ErrorCode.none}


@pytest.mark.parametrize("version", range(2, 11))
async def test_all_offsets_of_a_group_are_fetched(version: int) -> None:
    broker = await groups_broker()
    await commit(broker, topics=("t", "u"))
    row = broker.view.topic("u")
    assert row is not None
    await broker.metastore.delete_topic(row.topic_id)
    await broker.catch_up()
    found = await fetch(broker, version, None)
    assert len(found.topics) == 1  # a deleted topic has none


@pytest.mark.parametrize("version", versions(offset_fetch))
async def test_a_refused_fetch_is_told_where_the_version_has_a_place(version: int) -> None:
    broker = await groups_broker()
    await broker.change(topic=OFFSETS_TOPIC, **OTHER_LEADS)
    found = await fetch(broker, version)
    if version >= 2:
        assert found.error_code is ErrorCode.not_coordinator
    else:
        assert codes(found) == [ErrorCode.not_coordinator] * 2


async def test_a_topic_id_that_nobody_has_is_unknown() -> None:
    broker = await groups_broker()
    await commit(broker)
    found = await fetch(broker, 10, ("nowhere", "t"))
    assert found.topics[0].topic_id == NOWHERE
    assert codes(found) == [ErrorCode.unknown_topic_id] * 2 + [ErrorCode.none] * 2
    assert found.topics[1].partitions[1].committed_offset == 42


async def test_many_groups_are_fetched_at_once() -> None:
    broker = await groups_broker()
    await commit(broker)
    answer = await broker.ask(
        offset_fetch, 9, groups=[{"group_id": "g", "topics": None}, {"group_id": "other", "topics": None}]
    )
    assert [(one.group_id, len(one.topics)) for one in answer.groups] == [("g", 1), ("other", 0)]


async def test_offsets_are_deleted() -> None:
    broker = await groups_broker()
    missing = await broker.ask(offset_delete, 0, group_id="g", topics=[])
    assert missing.error_code is ErrorCode.group_id_not_found
    await commit(broker)
    asked = [
        {"name": "t", "partitions": [{"partition_index": 1}]},
        {"name": "nowhere", "partitions": [{"partition_index": 0}]},
    ]
    answer = await broker.ask(offset_delete, 0, group_id="g", topics=asked)
    assert answer.error_code is ErrorCode.none
    assert codes(answer) == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
    assert (await fetch(broker, 9, None)).topics == ()
