"""Topics come, grow and go: CreateTopics, CreatePartitions, DeleteTopics."""

from __future__ import annotations

import uuid
from typing import Any, cast

import pytest

from sexton.broker.api import create_partitions, create_topics, delete_topics
from sexton.broker.broker import Broker
from sexton.broker.topics import ensure_topic
from sexton.metadata.topics import TRANSACTIONS_TOPIC
from sexton.protocol.errors import ErrorCode
from tests.broker.api.admin_broker import AdminBroker, broker_in_a_cluster


def topic(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    configs = [{"name": key, "value": value} for key, value in more.pop("configs", {}).items()]
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, "configs": configs, **more}


def assigned(
    name: str, *assignments: tuple[int, list[int]], partitions: int = -1, replicas: int = -1
) -> dict[str, Any]:
    given = [{"partition_index": index, "broker_ids": ids} for index, ids in assignments]
    return topic(name, partitions, replicas, assignments=given)


async def create(broker: AdminBroker, *topics: dict[str, Any], version: int | None = None, **more: Any) -> Any:
    answer = await broker.ask(create_topics, version, topics=topics, timeout=1000, **more)
    return answer.topics[0] if len(topics) == 1 else answer.topics


async def test_a_topic_is_created_with_its_settings_and_told_whole() -> None:
    broker = await broker_in_a_cluster()
    made = await create(broker, topic("t", 2, 3, configs={"retention.ms": "5"}))
    assert (made.error_code, made.num_partitions, made.replication_factor) == (ErrorCode.none, 2, 3)
    row = broker.view.topic("t")
    assert row is not None
    assert made.topic_id == row.topic_id
    (retention,) = [config for config in made.configs if config.name == "retention.ms"]
    assert (retention.value, retention.config_source) == ("5", 1)
    partitions = broker.view.partitions_of(row.topic_id)
    assert [sorted(partition.replicas) for partition in partitions] == [[1, 2, 3], [1, 2, 3]]
    assert all(partition.leader == partition.replicas[0] for partition in partitions)
    assert all(sorted(partition.incarnations) == [1, 2, 3] for partition in partitions)


@pytest.mark.parametrize("version", range(2, 8))
async def test_every_version_creates_topics(version: int) -> None:
    broker = await broker_in_a_cluster()
    made = await create(broker, topic("t"), version=version)
    assert made.error_code is ErrorCode.none
    assert broker.view.topic("t") is not None


async def test_minus_one_takes_the_broker_s_defaults() -> None:
    broker = await broker_in_a_cluster(num_partitions="4", default_replication_factor="2")
    made = await create(broker, topic("t", -1, -1))
    assert (made.num_partitions, made.replication_factor) == (4, 2)


async def test_given_replicas_are_taken_as_they_are() -> None:
    broker = await broker_in_a_cluster()
    await create(broker, assigned("t", (1, [3, 2]), (0, [2, 1])))
    rows = [broker.view.partition("t", index) for index in (0, 1)]
    assert [row.replicas for row in rows if row] == [(2, 1), (3, 2)]


@pytest.mark.parametrize("asked", [topic("t", 1, 1), topic("t", 1, -1), assigned("t", (0, [1]), (1, [3]))])
async def test_a_topic_that_asks_for_more_in_sync_replicas_than_it_has_is_refused(asked: dict[str, Any]) -> None:
    broker = await broker_in_a_cluster()
    settings = [{"name": "min.insync.replicas", "value": "2"}]
    made = await create(broker, {**asked, "configs": settings})
    assert made.error_code is ErrorCode.invalid_config
    assert "has 1 replica(s)" in made.error_message
    assert broker.view.topic("t") is None


async def test_a_default_of_more_in_sync_replicas_than_a_topic_has_keeps_nobody_from_creating_it() -> None:
    broker = await broker_in_a_cluster(min_insync_replicas="2")
    made = await create(broker, topic("t", 1, 1))
    assert made.error_code is ErrorCode.none


async def test_the_topic_of_transactions_asks_for_no_more_replicas_than_it_gets() -> None:
    broker = await broker_in_a_cluster(transaction_state_log_replication_factor="1")
    await ensure_topic(cast(Broker, broker), TRANSACTIONS_TOPIC)
    assert broker.topic_config(TRANSACTIONS_TOPIC).min_insync_replicas == 1


async def test_a_replica_on_a_broker_that_is_away_is_not_in_sync() -> None:
    broker = await broker_in_a_cluster()
    await broker.fence(2)
    assert (await create(broker, topic("t", 1, 3))).error_code is ErrorCode.none
    row = broker.view.partition("t", 0)
    assert row is not None
    assert sorted(row.replicas) == [1, 2, 3]
    assert sorted(row.isr) == [1, 3]
    assert row.leader in row.isr


@pytest.mark.parametrize(
    ("wanted", "code", "message"),
    [
        (topic(""), ErrorCode.invalid_topic_exception, "empty"),
        (topic("."), ErrorCode.invalid_topic_exception, ""),
        (topic("a/b"), ErrorCode.invalid_topic_exception, ""),
        (topic("x" * 250), ErrorCode.invalid_topic_exception, "249"),
        (topic("old.one"), ErrorCode.invalid_topic_exception, "collides"),
        (topic("old_one"), ErrorCode.topic_already_exists, "Topic 'old_one' already exists."),
        (topic("__cluster_metadata"), ErrorCode.invalid_request, "prohibited"),
        (topic("t", 0), ErrorCode.invalid_partitions, "non-positive"),
        (topic("t", -2), ErrorCode.invalid_partitions, "non-positive"),
        (topic("t", 10_001), ErrorCode.policy_violation, "10001"),
        (topic("t", 1, 0), ErrorCode.invalid_replication_factor, "larger than 0"),
        (topic("t", 1, -2), ErrorCode.invalid_replication_factor, "larger than 0"),
        (topic("t", 1, 4), ErrorCode.invalid_replication_factor, "3 are registered"),
        (topic("t", configs={"nope": "1"}), ErrorCode.invalid_config, "Unknown topic config name: nope"),
        (topic("t", configs={"retention.ms": "-9"}), ErrorCode.invalid_config, "retention.ms"),
        (topic("t", configs={"retention.ms": None}), ErrorCode.invalid_config, "Null value not supported"),
        (topic("t", configs={"compression.type": "zip"}), ErrorCode.invalid_config, "one of"),
        (assigned("t", (0, [1]), partitions=1), ErrorCode.invalid_request, "numPartitions"),
        (assigned("t", (0, [1]), replicas=1), ErrorCode.invalid_request, "replication factor"),
        (assigned("t", (0, [1]), (0, [2])), ErrorCode.invalid_replica_assignment, "multiple manual"),
        (assigned("t", (0, [1]), (2, [2])), ErrorCode.invalid_replica_assignment, ""),
        (assigned("t", (0, [1]), (1, [2, 3])), ErrorCode.invalid_replica_assignment, ""),
        (assigned("t", (0, [9])), ErrorCode.invalid_replica_assignment, "no broker 9"),
        (assigned("t", (0, [1, 1])), ErrorCode.invalid_replica_assignment, "twice"),
        (assigned("t", (0, [])), ErrorCode.invalid_replica_assignment, "at least one"),
    ],
)
async def test_a_topic_that_cannot_be_is_refused_with_kafka_s_code(wanted: Any, code: ErrorCode, message: str) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("old_one", (1,))
    changes_count = broker.metastore.changes_count
    for validate_only in (True, False):
        made = await create(broker, wanted, validate_only=validate_only)
        assert made.error_code is code
        assert message in made.error_message
    await broker.catch_up()
    assert broker.metastore.changes_count == changes_count


@pytest.mark.parametrize("validate_only", [True, False])
async def test_a_broker_that_has_just_started_counts_though_it_was_not_seen_yet(validate_only: bool) -> None:
    broker = await broker_in_a_cluster()
    await broker.register(4, is_seen=False)
    made = await create(broker, topic("t", 1, 4), validate_only=validate_only)
    assert (made.error_code, made.replication_factor) == (ErrorCode.none, 4)


async def test_validation_alone_creates_nothing() -> None:
    broker = await broker_in_a_cluster()
    made = await create(broker, topic("t", 3), validate_only=True)
    assert (made.error_code, made.num_partitions, made.topic_id) == (ErrorCode.none, 3, None)
    assert broker.view.topic("t") is None


async def test_a_name_that_occurs_twice_is_refused_once_and_the_others_are_made() -> None:
    broker = await broker_in_a_cluster()
    made = await create(broker, topic("a"), topic("b"), topic("a"))
    assert [(answer.name, answer.error_code) for answer in made] == [
        ("a", ErrorCode.invalid_request),
        ("b", ErrorCode.none),
    ]
    assert broker.view.topic("a") is None


async def test_of_two_brokers_that_create_the_same_topic_one_is_told_that_it_exists() -> None:
    broker = await broker_in_a_cluster()

    async def other_is_faster() -> None:
        await broker.make_topic("t", (2,))

    broker.metastore.before_change.append(other_is_faster)
    made = await create(broker, topic("t", 5))
    assert made.error_code is ErrorCode.topic_already_exists
    row = broker.view.topic("t")
    assert row is not None
    assert len(broker.view.partitions_of(row.topic_id)) == 1


async def test_with_the_metastore_away_clients_are_told_to_try_again_and_never_that_it_timed_out() -> None:
    """librdkafka takes REQUEST_TIMED_OUT of these three for success."""

    broker = await broker_in_a_cluster()
    await broker.make_topic("old", (1,))
    broker.metastore.is_away = True
    assert (await create(broker, topic("t"))).error_code is ErrorCode.not_controller
    grown = await broker.ask(create_partitions, topics=[{"name": "old", "count": 2}], timeout=1000)
    assert grown.results[0].error_code is ErrorCode.not_controller
    gone = await broker.ask(delete_topics, topics=[{"name": "old"}], timeout=1000)
    assert gone.responses[0].error_code is ErrorCode.not_controller
    broker.metastore.is_away = False
    assert (await create(broker, topic("t"))).error_code is ErrorCode.none


# --- more partitions ---


async def grow(broker: AdminBroker, name: str, count: int, *, version: int = 3, **more: Any) -> Any:
    wanted: dict[str, Any] = {"name": name, "count": count, "assignments": None}
    if "assignments" in more:
        wanted["assignments"] = [{"broker_ids": ids} for ids in more.pop("assignments")]
    answer = await broker.ask(create_partitions, version, topics=[wanted], timeout=1000, **more)
    return answer.results[0]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
async def test_internal_topics_keep_their_partitions_for_groups_and_transactions_are_found_by_their_number(
    name: str,
) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic(name, (1,), (2,))
    for validate_only in (True, False):
        refused = await grow(broker, name, 4, validate_only=validate_only)
        assert refused.error_code is ErrorCode.invalid_topic_exception
    assert broker.view.partitions_count(name) == 2


@pytest.mark.parametrize("version", range(4))
async def test_new_partitions_get_as_many_replicas_as_the_first(version: int) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    assert (await grow(broker, "t", 3, version=version)).error_code is ErrorCode.none
    row = broker.view.topic("t")
    assert row is not None
    assert [len(partition.replicas) for partition in broker.view.partitions_of(row.topic_id)] == [2, 2, 2]


async def test_new_partitions_can_be_placed_by_hand() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    assert (await grow(broker, "t", 2, assignments=[[3, 1]])).error_code is ErrorCode.none
    row = broker.view.partition("t", 1)
    assert row is not None
    assert row.replicas == (3, 1)


@pytest.mark.parametrize(
    ("name", "count", "assignments", "code"),
    [
        ("nope", 2, None, ErrorCode.unknown_topic_or_partition),
        ("t", 1, None, ErrorCode.invalid_partitions),
        ("t", 0, None, ErrorCode.invalid_partitions),
        ("t", 10_002, None, ErrorCode.policy_violation),
        ("t", 3, [[1, 2]], ErrorCode.invalid_replica_assignment),
        ("t", 2, [[1]], ErrorCode.invalid_replica_assignment),
        ("t", 2, [[1, 7]], ErrorCode.invalid_replica_assignment),
    ],
)
async def test_partitions_that_cannot_be_are_refused(name: str, count: int, assignments: Any, code: ErrorCode) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2))
    more = {} if assignments is None else {"assignments": assignments}
    assert (await grow(broker, name, count, **more)).error_code is code


async def test_a_topic_that_grew_meanwhile_is_looked_at_again() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))

    async def other_is_faster() -> None:
        await grow(broker, "t", 2)

    broker.metastore.before_change.append(other_is_faster)
    assert (await grow(broker, "t", 4)).error_code is ErrorCode.none
    row = broker.view.topic("t")
    assert row is not None
    assert len(broker.view.partitions_of(row.topic_id)) == 4


async def test_validation_alone_adds_nothing() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    assert (await grow(broker, "t", 4, validate_only=True)).error_code is ErrorCode.none
    assert broker.view.partition("t", 1) is None


# --- topics go ---


@pytest.mark.parametrize("version", range(1, 6))
async def test_topics_are_deleted_by_name(version: int) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("a", (1,))
    await broker.make_topic("b", (1,))
    answer = await broker.ask(delete_topics, version, topic_names=["a", "nope"], timeout=1000)
    assert [(made.name, made.error_code) for made in answer.responses] == [
        ("a", ErrorCode.none),
        ("nope", ErrorCode.unknown_topic_or_partition),
    ]
    assert broker.view.topic("a") is None
    assert broker.view.topic("b") is not None


async def test_topics_are_deleted_by_id_too() -> None:
    broker = await broker_in_a_cluster()
    row = await broker.make_topic("a", (1,))
    unknown = uuid.UUID(int=99)
    asked = [{"name": None, "topic_id": row.topic_id}, {"name": None, "topic_id": unknown}]
    answer = await broker.ask(delete_topics, 6, topics=asked, timeout=1000)
    assert [(made.name, made.topic_id, made.error_code) for made in answer.responses] == [
        ("a", row.topic_id, ErrorCode.none),
        (None, unknown, ErrorCode.unknown_topic_id),
    ]


async def test_a_topic_that_is_named_twice_stays() -> None:
    broker = await broker_in_a_cluster()
    row = await broker.make_topic("a", (1,))
    for asked in (
        [{"name": "a"}, {"name": "a"}],
        [{"name": None, "topic_id": row.topic_id}, {"name": None, "topic_id": row.topic_id}],
        [{"name": "a"}, {"name": None, "topic_id": row.topic_id}],
        [{"name": "a", "topic_id": row.topic_id}],
        [{"name": None}],
    ):
        answer = await broker.ask(delete_topics, 6, topics=asked, timeout=1000)
        assert [made.error_code for made in answer.responses] == [ErrorCode.invalid_request]
        assert broker.view.topic("a") is not None


async def test_internal_topics_can_be_deleted_as_in_kafka() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("__consumer_offsets", (1,))
    answer = await broker.ask(delete_topics, 6, topics=[{"name": "__consumer_offsets"}], timeout=1000)
    assert answer.responses[0].error_code is ErrorCode.none


@pytest.mark.parametrize(("version", "code"), [(2, ErrorCode.invalid_request), (3, ErrorCode.topic_deletion_disabled)])
async def test_deletion_can_be_forbidden(version: int, code: ErrorCode) -> None:
    broker = await broker_in_a_cluster(delete_topic_enable="false")
    await broker.make_topic("a", (1,))
    answer = await broker.ask(delete_topics, version, topic_names=["a"], timeout=1000)
    assert answer.responses[0].error_code is code
    assert broker.view.topic("a") is not None


async def test_a_topic_that_somebody_else_deleted_meanwhile_is_gone_as_asked() -> None:
    broker = await broker_in_a_cluster()
    row = await broker.make_topic("a", (1,))

    async def other_is_faster() -> None:
        await broker.metastore.delete_topic(row.topic_id)

    broker.metastore.before_change.append(other_is_faster)
    answer = await broker.ask(delete_topics, 6, topics=[{"name": "a"}], timeout=1000)
    assert answer.responses[0].error_code is ErrorCode.none
