"""What clients are told about the cluster: Metadata, DescribeTopicPartitions, DescribeCluster."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from sexton.broker.api import describe_cluster, describe_topic_partitions, metadata, unregister_broker
from sexton.ports.metastore import BrokerStatus
from sexton.protocol.errors import ErrorCode
from sexton.types import NO_LEADER, LeaderEpoch
from tests.broker.api.admin_broker import AdminBroker, broker_in_a_cluster


async def ask(broker: AdminBroker, version: int, *names: str, **more: Any) -> Any:
    return await broker.ask(metadata, version, topics=[{"name": name} for name in names], **more)


@pytest.mark.parametrize("version", range(14))
async def test_every_version_describes_a_topic(version: int) -> None:
    broker = await broker_in_a_cluster()
    row = await broker.make_topic("t", (2, 1), (3, 2))
    answer = await ask(broker, version, "t")
    assert [(b.node_id, b.host, b.port) for b in answer.brokers] == [(i, f"host{i}", 9092) for i in (1, 2, 3)]
    (described,) = answer.topics
    assert (described.error_code, described.name) == (ErrorCode.none, "t")
    assert [p.leader_id for p in described.partitions] == [2, 3]
    assert [p.replica_nodes for p in described.partitions] == [(2, 1), (3, 2)]
    if version >= 1:
        assert answer.controller_id == 1
        assert not described.is_internal
    if version >= 2:
        assert answer.cluster_id == "AAAAAAAAAAAAAAAAAAAABw"
    if version >= 10:
        assert described.topic_id == row.topic_id


@pytest.mark.parametrize(("version", "topics"), [(0, []), (1, None), (13, None)])
async def test_all_topics_are_asked_for_with_null_and_before_version_1_with_nothing(version: int, topics: Any) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("b", (1,))
    await broker.make_topic("a", (1,))
    answer = await broker.ask(metadata, version, topics=topics)
    assert [topic.name for topic in answer.topics] == ["a", "b"]


async def test_no_topics_are_asked_for_with_nothing() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("b", (1,))
    assert (await broker.ask(metadata, 13, topics=[])).topics == ()


async def test_topics_are_found_by_id() -> None:
    broker = await broker_in_a_cluster()
    row = await broker.make_topic("t", (1,))
    unknown = uuid.UUID(int=5)
    asked = [{"name": None, "topic_id": row.topic_id}, {"name": None, "topic_id": unknown}]
    answer = await broker.ask(metadata, 13, topics=asked)
    assert [(topic.name, topic.topic_id, topic.error_code) for topic in answer.topics] == [
        ("t", row.topic_id, ErrorCode.none),
        (None, unknown, ErrorCode.unknown_topic_id),
    ]


@pytest.mark.parametrize("version", [10, 11])
async def test_ids_are_refused_in_versions_that_only_look_as_if_they_had_them(version: int) -> None:
    broker = await broker_in_a_cluster()
    row = await broker.make_topic("t", (1,))
    answer = await broker.ask(metadata, version, topics=[{"name": "t", "topic_id": row.topic_id}])
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.invalid_request]


async def test_a_topic_that_nobody_made_is_created_before_the_answer() -> None:
    broker = await broker_in_a_cluster(num_partitions="3", default_replication_factor="2")
    await broker.make_topic("old", (1,))
    answer = await ask(broker, 13, "new", "old", allow_auto_topic_creation=True)
    assert [(topic.name, topic.error_code) for topic in answer.topics] == [
        ("new", ErrorCode.none),
        ("old", ErrorCode.none),
    ]
    assert [len(p.replica_nodes) for p in answer.topics[0].partitions] == [2, 2, 2]


async def test_old_versions_cannot_forbid_creation() -> None:
    broker = await broker_in_a_cluster()
    assert (await ask(broker, 3, "new")).topics[0].error_code is ErrorCode.none


@pytest.mark.parametrize(("setting", "allowed"), [("false", True), ("true", False)])
async def test_a_topic_is_created_only_if_broker_and_client_allow_it(setting: str, allowed: bool) -> None:
    broker = await broker_in_a_cluster(auto_create_topics_enable=setting)
    answer = await ask(broker, 13, "new", "b@d", allow_auto_topic_creation=allowed)
    assert [topic.error_code for topic in answer.topics] == [
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
    ]
    assert broker.view.topic("new") is None


async def test_why_creation_failed_is_the_topic_s_error() -> None:
    broker = await broker_in_a_cluster(default_replication_factor="4")
    answer = await ask(broker, 13, "new", "b@d", allow_auto_topic_creation=True)
    assert [topic.error_code for topic in answer.topics] == [
        ErrorCode.invalid_replication_factor,
        ErrorCode.invalid_topic_exception,
    ]
    broker.metastore.is_away = True
    broker = await broker_in_a_cluster()
    broker.metastore.is_away = True
    answer = await ask(broker, 13, "new", allow_auto_topic_creation=True)
    assert answer.topics[0].error_code is ErrorCode.leader_not_available


async def test_the_offsets_topic_is_created_with_its_own_settings() -> None:
    broker = await broker_in_a_cluster(offsets_topic_num_partitions="7")
    answer = await ask(broker, 13, "__consumer_offsets", allow_auto_topic_creation=True)
    (topic,) = answer.topics
    assert topic.is_internal
    assert [len(p.replica_nodes) for p in topic.partitions] == [3] * 7
    assert broker.topic_config("__consumer_offsets").compacts


async def test_a_partition_whose_leader_is_gone_says_so() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (2, 1), (1, 2))
    await broker.fence(2)
    row = broker.view.partition("t", 1)
    assert row is not None
    await broker.put_partition(replace(row, leader=NO_LEADER, leader_epoch=LeaderEpoch(4)))
    answer = await ask(broker, 13, "t")
    assert [b.node_id for b in answer.brokers] == [1, 3]
    for partition, epoch in zip(answer.topics[0].partitions, (0, 4), strict=True):
        assert partition.error_code is ErrorCode.leader_not_available
        assert (partition.leader_id, partition.leader_epoch) == (-1, epoch)
        assert partition.offline_replicas == (2,)
        assert sorted(partition.replica_nodes) == [1, 2]


async def test_version_0_leaves_out_replicas_that_are_away() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    await broker.fence(2)
    (partition,) = (await ask(broker, 0, "t")).topics[0].partitions
    assert (partition.error_code, partition.leader_id) == (ErrorCode.replica_not_available, 1)
    assert (partition.replica_nodes, partition.isr_nodes) == ((1,), (1,))


async def test_a_broker_that_is_still_starting_is_not_shown_to_clients() -> None:
    broker = await broker_in_a_cluster(brokers=1)
    row = await broker.register(2)
    restarted = await broker.metastore.register_broker(replace(row, status=BrokerStatus.STARTING), row)
    await broker.catch_up()
    assert restarted.status is BrokerStatus.STARTING
    assert [b.node_id for b in (await ask(broker, 13)).brokers] == [1]


async def test_all_operations_are_allowed_for_there_are_no_access_rules() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    asked = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    answer = await ask(broker, 8, "t", **asked)
    assert answer.topics[0].topic_authorized_operations == 0b110111111000
    assert answer.cluster_authorized_operations == 0b1111110100000
    answer = await ask(broker, 8, "t")
    assert answer.topics[0].topic_authorized_operations == answer.cluster_authorized_operations == -(2**31)


# --- page by page ---


async def pages(broker: AdminBroker, limit: int, *names: str) -> list[list[tuple[str, list[int]]]]:
    found, cursor = [], None
    while True:
        answer = await broker.ask(
            describe_topic_partitions,
            topics=[{"name": name} for name in names],
            response_partition_limit=limit,
            cursor=cursor,
        )
        found.append([(t.name, [p.partition_index for p in t.partitions]) for t in answer.topics])
        if answer.next_cursor is None:
            return found
        cursor = {
            "topic_name": answer.next_cursor.topic_name,
            "partition_index": answer.next_cursor.partition_index,
        }


async def test_partitions_come_page_by_page_in_the_order_of_names() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("b", (1,), (1,), (1,))
    await broker.make_topic("a", (1,), (1,))
    assert await pages(broker, 2000) == [[("a", [0, 1]), ("b", [0, 1, 2])]]
    assert await pages(broker, 2) == [[("a", [0, 1])], [("b", [0, 1])], [("b", [2])]]
    assert await pages(broker, 3, "b", "a") == [[("a", [0, 1]), ("b", [0])], [("b", [1, 2])]]
    assert len(await pages(broker, 0)) == 5


async def test_lists_that_java_s_client_reads_are_never_null() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("a", (1, 2))
    answer = await broker.ask(describe_topic_partitions, topics=[], response_partition_limit=9, cursor=None)
    (partition,) = answer.topics[0].partitions
    assert (partition.eligible_leader_replicas, partition.last_known_elr, partition.offline_replicas) == (
        (),
        (),
        (),
    )
    assert (partition.leader_id, partition.replica_nodes, partition.isr_nodes) == (1, (1, 2), (1, 2))


async def test_a_page_is_never_longer_than_the_broker_allows() -> None:
    broker = await broker_in_a_cluster(max_request_partition_size_limit="1")
    await broker.make_topic("a", (1,), (1,))
    assert await pages(broker, 2000) == [[("a", [0])], [("a", [1])]]


async def test_a_topic_that_is_not_there_is_told_only_if_it_was_asked_for() -> None:
    broker = await broker_in_a_cluster()
    answer = await broker.ask(
        describe_topic_partitions,
        topics=[{"name": "nope"}, {"name": "b@d"}],
        response_partition_limit=9,
        cursor=None,
    )
    assert {t.name: t.error_code for t in answer.topics} == {
        "nope": ErrorCode.unknown_topic_or_partition,
        "b@d": ErrorCode.invalid_topic_exception,
    }


@pytest.mark.parametrize("cursor", [("z", 0), ("a", -1)])
async def test_a_cursor_that_points_nowhere_is_refused(cursor: tuple[str, int]) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("a", (1,))
    answer = await broker.ask(
        describe_topic_partitions,
        topics=[{"name": "a"}],
        response_partition_limit=9,
        cursor={"topic_name": cursor[0], "partition_index": cursor[1]},
    )
    assert [t.error_code for t in answer.topics] == [ErrorCode.invalid_request]


# --- the cluster ---


@pytest.mark.parametrize("version", range(3))
async def test_the_cluster_is_described(version: int) -> None:
    broker = await broker_in_a_cluster()
    await broker.fence(3)
    answer = await broker.ask(describe_cluster, version)
    assert (answer.error_code, answer.cluster_id) == (ErrorCode.none, "AAAAAAAAAAAAAAAAAAAABw")
    assert answer.controller_id == 1
    assert [b.broker_id for b in answer.brokers] == [1, 2]


async def test_fenced_brokers_are_shown_to_those_who_ask() -> None:
    broker = await broker_in_a_cluster()
    await broker.fence(3)
    answer = await broker.ask(describe_cluster, 2, include_fenced_brokers=True)
    assert [(b.broker_id, b.is_fenced) for b in answer.brokers] == [(1, False), (2, False), (3, True)]


@pytest.mark.parametrize(
    ("kind", "code"), [(2, ErrorCode.mismatched_endpoint_type), (7, ErrorCode.unsupported_endpoint_type)]
)
async def test_there_are_no_controllers_to_ask_for(kind: int, code: ErrorCode) -> None:
    broker = await broker_in_a_cluster()
    assert (await broker.ask(describe_cluster, 2, endpoint_type=kind)).error_code is code


# --- brokers that are gone ---


async def test_a_broker_that_has_stopped_for_good_is_unregistered() -> None:
    broker = await broker_in_a_cluster()
    await broker.fence(3)
    assert (await broker.ask(unregister_broker, broker_id=3)).error_code is ErrorCode.none
    answer = await broker.ask(describe_cluster, 2, include_fenced_brokers=True)
    assert [b.broker_id for b in answer.brokers] == [1, 2]
    again = await broker.ask(unregister_broker, broker_id=3)
    assert again.error_code is ErrorCode.broker_id_not_registered
    await broker.register(3)
    assert broker.view.broker(3) is not None


async def test_a_broker_that_runs_or_holds_replicas_is_not_unregistered() -> None:
    """Kafka does it, and leaves partitions without a replica, or without a leader."""

    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (2, 3))
    for broker_id, remedy in ((1, "Stop it first"), (3, "Stop it first")):
        refused = await broker.ask(unregister_broker, broker_id=broker_id)
        assert (refused.error_code, remedy in refused.error_message) == (ErrorCode.invalid_request, True)
    await broker.fence(3)
    refused = await broker.ask(unregister_broker, broker_id=3)
    assert refused.error_code is ErrorCode.invalid_request
    assert "replica of 1 partitions. Reassign them" in refused.error_message
    assert broker.view.broker(3) is not None
    await broker.metastore.delete_topic(broker.view.topic("t").topic_id)  # type: ignore[union-attr]
    broker.metastore.is_away = True
    assert (await broker.ask(unregister_broker, broker_id=3)).error_code is ErrorCode.invalid_request
    broker.metastore.is_away = False
    await broker.catch_up()
    broker.metastore.is_away = True
    assert (await broker.ask(unregister_broker, broker_id=3)).error_code is ErrorCode.request_timed_out


async def test_a_broker_that_comes_back_while_it_is_unregistered_stays() -> None:
    broker = await broker_in_a_cluster()
    await broker.fence(3)

    async def comes_back() -> None:
        await broker.register(3, is_seen=False)

    broker.metastore.before_change.append(comes_back)
    refused = await broker.ask(unregister_broker, broker_id=3)
    assert (refused.error_code, "Stop it first" in refused.error_message) == (ErrorCode.invalid_request, True)
    row = broker.view.broker(3)
    assert row is not None
    assert row.is_live
