"""Leaders are elected, replicas move, records and folders are looked after."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from sexton.broker.api import (
    alter_partition_reassignments,
    delete_records,
    describe_log_dirs,
    describe_producers,
    elect_leaders,
    list_partition_reassignments,
)
from sexton.ports.metastore import BrokerRow, PartitionRow
from sexton.protocol.errors import ErrorCode
from sexton.records.batch import ControlType
from sexton.types import NO_LEADER, LeaderEpoch
from tests.broker.api.admin_broker import AdminBroker, broker_in_a_cluster

PREFERRED, UNCLEAN = elect_leaders.PREFERRED, elect_leaders.UNCLEAN


def row_of(broker: AdminBroker, partition: int = 0) -> PartitionRow:
    row = broker.view.partition("t", partition)
    assert row is not None
    return row


def reach_others(broker: AdminBroker) -> None:
    """The other brokers answer when they are asked whether they are there."""

    async def answers(row: BrokerRow, wait_ms: int) -> bool:
        return True

    broker.news.is_answered_by = answers  # type: ignore[method-assign]


# --- elections ---


async def elect(broker: AdminBroker, kind: int, *partitions: int, topic: str = "t") -> dict[int, ErrorCode]:
    asked = [{"topic": topic, "partitions": partitions}] if partitions else None
    answer = await broker.ask(elect_leaders, election_type=kind, topic_partitions=asked, timeout=1000)
    assert answer.error_code is ErrorCode.none
    return {
        found.partition_id: found.error_code for t in answer.replica_election_results for found in t.partition_result
    }


async def test_leadership_returns_to_the_preferred_replica() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2), (2, 1))
    await broker.put_partition(replace(row_of(broker), leader=2, leader_epoch=LeaderEpoch(1)))
    assert await elect(broker, PREFERRED, 0, 1, 7) == {
        0: ErrorCode.none,
        1: ErrorCode.election_not_needed,
        7: ErrorCode.unknown_topic_or_partition,
    }
    assert (row_of(broker).leader, row_of(broker).leader_epoch) == (1, 2)


async def test_an_election_of_all_partitions_tells_only_of_those_that_needed_one() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2), (2, 1))
    await broker.put_partition(replace(row_of(broker), leader=2, leader_epoch=LeaderEpoch(1)))
    assert await elect(broker, PREFERRED) == {0: ErrorCode.none}


async def test_a_preferred_replica_that_is_not_in_sync_does_not_lead() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    await broker.put_partition(replace(row_of(broker), leader=2, isr=(2,)))
    assert await elect(broker, PREFERRED, 0) == {0: ErrorCode.preferred_leader_not_available}


async def test_an_unclean_leader_is_elected_when_somebody_asks_for_it_and_there_is_no_other() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    assert await elect(broker, UNCLEAN, 0) == {0: ErrorCode.election_not_needed}
    await broker.fence(2)
    await broker.put_partition(replace(row_of(broker), leader=NO_LEADER, isr=(2,)))
    assert await elect(broker, UNCLEAN, 0) == {0: ErrorCode.none}
    assert (row_of(broker).leader, row_of(broker).isr) == (1, (1,))


async def test_without_any_live_replica_there_is_no_unclean_leader_either() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (2, 3))
    await broker.fence(2)
    await broker.fence(3)
    await broker.put_partition(replace(row_of(broker), leader=NO_LEADER))
    assert await elect(broker, UNCLEAN, 0) == {0: ErrorCode.eligible_leaders_not_available}


async def test_version_0_knows_only_preferred_leaders() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    await broker.put_partition(replace(row_of(broker), leader=2))
    asked = [{"topic": "t", "partitions": [0]}]
    answer = await broker.ask(elect_leaders, 0, topic_partitions=asked, timeout=1000)
    assert answer.replica_election_results[0].partition_result[0].error_code is ErrorCode.none
    assert row_of(broker).leader == 1


async def test_an_unknown_kind_of_election_is_refused() -> None:
    broker = await broker_in_a_cluster()
    answer = await broker.ask(elect_leaders, election_type=5, topic_partitions=None, timeout=1000)
    assert answer.error_code is ErrorCode.invalid_request


async def test_many_partitions_are_elected_in_few_transactions_and_told_in_order() -> None:
    broker = await broker_in_a_cluster()
    reach_others(broker)
    await broker.make_topic("t", *[(2, 3)] * 600)
    topic = broker.view.topic("t")
    assert topic is not None
    moved = [replace(row, leader=3, leader_epoch=LeaderEpoch(1)) for row in broker.view.partitions_of(topic.topic_id)]
    await broker.metastore.update_partitions(moved[:-1])
    await broker.catch_up()
    changes_count = broker.metastore.changes_count
    found = await elect(broker, PREFERRED, *range(600))
    assert list(found) == list(range(600))
    assert [index for index, code in found.items() if code is not ErrorCode.none] == [599]
    assert broker.metastore.changes_count - changes_count <= 2
    assert row_of(broker, 598).leader == 2


async def test_an_election_that_lost_a_race_is_decided_again() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    await broker.put_partition(replace(row_of(broker), leader=2, leader_epoch=LeaderEpoch(1)))

    async def other_is_faster() -> None:
        await broker.metastore.update_partitions([replace(row_of(broker), leader=1, leader_epoch=LeaderEpoch(2))])

    broker.metastore.before_change.append(other_is_faster)
    assert await elect(broker, PREFERRED, 0) == {0: ErrorCode.election_not_needed}
    assert row_of(broker).leader_epoch == 2


# --- reassignment ---


def starts_again(broker: AdminBroker, broker_id: int) -> Callable[[], Coroutine[Any, Any, object]]:
    """After it was asked, and before what rests on its answer is written."""

    reach_others(broker)
    return lambda: broker.register(broker_id, is_seen=False)


async def test_nobody_is_elected_who_has_started_again_since_it_answered() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (2, 3))
    await broker.fence(3)
    await broker.put_partition(replace(row_of(broker), leader=3))
    broker.metastore.before_change.append(starts_again(broker, 2))
    assert await elect(broker, PREFERRED, 0) == {0: ErrorCode.preferred_leader_not_available}
    assert row_of(broker).isr == (2, 3)
    assert await elect(broker, PREFERRED, 0) == {0: ErrorCode.none}
    assert (row_of(broker).leader, row_of(broker).isr) == (2, (2,))


async def test_in_sync_replicas_are_not_left_to_one_that_has_started_again_since_it_answered() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    broker.metastore.before_change.append(starts_again(broker, 2))
    assert (await reassign(broker, (2,))).error_code is ErrorCode.replica_not_available
    assert row_of(broker).replicas == (1, 2)
    assert (await reassign(broker, (2,))).error_code is ErrorCode.none
    assert row_of(broker).replicas == (2,)


async def reassign(broker: AdminBroker, replicas: Any, *, partition: int = 0, topic: str = "t", **more: Any) -> Any:
    asked = [{"name": topic, "partitions": [{"partition_index": partition, "replicas": replicas}]}]
    answer = await broker.ask(alter_partition_reassignments, topics=asked, timeout=1000, **more)
    assert answer.error_code is ErrorCode.none
    return answer.responses[0].partitions[0]


async def under_way(broker: AdminBroker, topics: Any = None) -> list[tuple[int, Any, Any, Any]]:
    answer = await broker.ask(list_partition_reassignments, topics=topics, timeout=1000)
    return [
        (p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
        for topic in answer.topics
        for p in topic.partitions
    ]


async def test_a_move_begins_and_is_listed_and_can_be_taken_back() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2), (1, 2))
    assert await under_way(broker) == []
    assert (await reassign(broker, [3, 2])).error_code is ErrorCode.none
    assert await under_way(broker) == [(0, (3, 2, 1), (3,), (1,))]
    assert 3 in row_of(broker).incarnations, "the new replica has the id of the log that it is to start"
    assert await under_way(broker, [{"name": "t", "partition_indexes": [1]}]) == []
    assert await under_way(broker, [{"name": "nope", "partition_indexes": [0]}]) == []
    assert (await reassign(broker, None)).error_code is ErrorCode.none
    assert await under_way(broker) == []
    assert sorted(row_of(broker).replicas) == [1, 2]


async def test_a_new_order_of_the_same_replicas_takes_effect_at_once() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    assert (await reassign(broker, [2, 1])).error_code is ErrorCode.none
    assert (row_of(broker).replicas, await under_way(broker)) == ((2, 1), [])


@pytest.mark.parametrize(
    ("replicas", "more", "code"),
    [
        ([], {}, ErrorCode.invalid_replica_assignment),
        ([1, 1], {}, ErrorCode.invalid_replica_assignment),
        ([1, 9], {}, ErrorCode.invalid_replica_assignment),
        (None, {}, ErrorCode.no_reassignment_in_progress),
        ([1, 2], {"partition": 5}, ErrorCode.unknown_topic_or_partition),
        ([1, 2], {"topic": "nope"}, ErrorCode.unknown_topic_or_partition),
        ([1, 2, 3], {"allow_replication_factor_change": False}, ErrorCode.invalid_replication_factor),
    ],
)
async def test_a_move_that_cannot_be_is_refused(replicas: Any, more: Any, code: ErrorCode) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    assert (await reassign(broker, replicas, **more)).error_code is code
    assert row_of(broker).partition_epoch == 0


async def test_with_the_metastore_away_the_whole_reassignment_is_to_be_tried_again() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    broker.metastore.is_away = True
    asked = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": [3]}]}]
    answer = await broker.ask(alter_partition_reassignments, topics=asked, timeout=1000)
    assert (answer.error_code, answer.responses) == (ErrorCode.not_controller, ())


# --- what is on this broker ---


@pytest.mark.parametrize("version", range(1, 6))
async def test_the_folder_is_described_with_its_replicas(version: int) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,), (1,), (2,))
    await broker.write(b"one", b"two", topic="t")
    size_bytes = broker.replica(topic="t").log.size_bytes
    assert size_bytes > 0
    (folder,) = (await broker.ask(describe_log_dirs, version, topics=None)).results
    assert (folder.error_code, folder.log_dir) == (ErrorCode.none, "/data")
    assert [(p.partition_index, p.partition_size, p.offset_lag) for p in folder.topics[0].partitions] == [
        (0, size_bytes, 0),
        (1, 0, 0),
    ]
    if version >= 4:
        assert (folder.usable_bytes, folder.total_bytes) == broker.disk.free_bytes("/data")
    asked = [{"topic": "t", "partitions": [1]}]
    (folder,) = (await broker.ask(describe_log_dirs, version, topics=asked)).results
    assert [p.partition_index for p in folder.topics[0].partitions] == [1]


async def test_a_folder_that_cannot_be_read_is_a_storage_error() -> None:
    broker = await broker_in_a_cluster()

    def broken(directory: str) -> tuple[int, int]:
        raise OSError("gone")

    broker.disk = SimpleNamespace(free_bytes=broken)
    (folder,) = (await broker.ask(describe_log_dirs, topics=None)).results
    assert folder.error_code is ErrorCode.kafka_storage_error


async def test_producers_of_a_partition_are_described() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,), (2,))
    broker.append_in_transaction(5, topic="t")
    broker.append_marker(ControlType.COMMIT, 5, topic="t")
    broker.append(b"two", b"three", topic="t")
    broker.append_in_transaction(5, 1, topic="t")
    broker.append_in_transaction(5, 2, topic="t")
    asked = [{"name": "t", "partition_indexes": [0, 1]}, {"name": "nope", "partition_indexes": [0]}]
    known, unknown = (await broker.ask(describe_producers, topics=asked)).topics
    (state,) = known.partitions[0].active_producers
    assert (state.producer_id, state.producer_epoch, state.last_sequence, state.last_timestamp) == (
        5,
        0,
        2,
        broker.clock.ms,
    )
    assert (state.coordinator_epoch, state.current_txn_start_offset) == (0, 4)
    assert known.partitions[1].error_code is ErrorCode.not_leader_or_follower
    assert unknown.partitions[0].error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("version", range(3))
async def test_records_are_deleted_at_the_leader(version: int) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,), (1,), (2,))
    await broker.make_topic("__consumer_offsets", (1,))
    await broker.write(*[b"v"] * 7, topic="t")
    wanted = [{"partition_index": index, "offset": 6} for index in (0, 1, 2, 9)]
    asked = [
        {"name": "t", "partitions": wanted},
        {"name": "__consumer_offsets", "partitions": [{"partition_index": 0, "offset": 6}]},
    ]
    found, internal = (await broker.ask(delete_records, version, topics=asked, timeout=1000)).topics
    assert [(p.partition_index, p.low_watermark, p.error_code) for p in found.partitions] == [
        (0, 6, ErrorCode.none),
        (1, -1, ErrorCode.offset_out_of_range),
        (2, -1, ErrorCode.not_leader_or_follower),
        (9, -1, ErrorCode.unknown_topic_or_partition),
    ]
    assert internal.partitions[0].error_code is ErrorCode.invalid_topic_exception


async def test_a_client_that_waits_for_no_replica_hears_of_the_deletion_all_the_same() -> None:
    """Kafka's timeout is for the followers; librdkafka's tests ask with 0."""

    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,), (1,))
    await broker.write(*[b"v"] * 7, topic="t")
    asked = [{"name": "t", "partitions": [{"partition_index": index, "offset": 6} for index in (0, 1)]}]
    (topic,) = (await broker.ask(delete_records, 2, topics=asked, timeout=0)).topics
    assert [(p.low_watermark, p.error_code) for p in topic.partitions] == [
        (6, ErrorCode.none),
        (-1, ErrorCode.offset_out_of_range),
    ]


async def test_a_deletion_is_not_left_half_way_because_its_client_waits_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delete_records, "OWN_LOG_MS", 1)

    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    await broker.write(*[b"v"] * 7, topic="t")
    asked = [{"name": "t", "partitions": [{"partition_index": 0, "offset": 6}]}]
    with broker.held_flushes():
        (topic,) = (await broker.ask(delete_records, 2, topics=asked, timeout=1)).topics
        assert topic.partitions[0].error_code is ErrorCode.request_timed_out
        assert broker.replica(topic="t").log.start_offset == 0
    async with asyncio.timeout(10):
        while broker.replica(topic="t").log.start_offset != 6:
            await asyncio.sleep(0.001)
