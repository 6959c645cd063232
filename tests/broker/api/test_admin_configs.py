"""Settings are told and changed: DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sexton.broker.api import alter_configs, describe_configs, incremental_alter_configs, list_config_resources
from sexton.broker.resources import Operation, ResourceType
from sexton.ports.metastore import ConfigScope
from sexton.protocol.errors import ErrorCode
from sexton.settings.broker import BROKER_SETTINGS
from sexton.settings.topic import TOPIC_SETTINGS
from tests.broker.api.admin_broker import AdminBroker, broker_in_a_cluster

TOPIC, BROKER, GROUP = ResourceType.TOPIC, ResourceType.BROKER, ResourceType.GROUP


async def describe(broker: AdminBroker, kind: int, name: str, *keys: str, version: int = 4, **more: Any) -> Any:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": keys or None}
    answer = await broker.ask(describe_configs, version, resources=[resource], **more)
    return answer.results[0]


async def change(broker: AdminBroker, kind: int, name: str, *entries: Any, version: int = 1, **more: Any) -> Any:
    """Entries are (name, value) to set, or (name, value, operation)."""
    configs = [
        {"name": entry[0], "value": entry[1], "config_operation": entry[2] if len(entry) > 2 else Operation.SET}
        for entry in entries
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    answer = await broker.ask(incremental_alter_configs, version, resources=[resource], **more)
    return answer.responses[0]


async def replace_all(broker: AdminBroker, kind: int, name: str, **settings: str | None) -> Any:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    return (await broker.ask(alter_configs, 2, resources=[resource])).responses[0]


async def listed(broker: AdminBroker, *kinds: int) -> list[tuple[int, str]]:
    answer = await broker.ask(list_config_resources, 1, resource_types=kinds)
    assert answer.error_code is ErrorCode.none
    return [(found.resource_type, found.resource_name) for found in answer.config_resources]


# --- telling ---


@pytest.mark.parametrize("version", range(1, 5))
async def test_all_settings_of_a_topic_are_described(version: int) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,), retention_ms="5")
    found = {config.name: config for config in (await describe(broker, TOPIC, "t", version=version)).configs}
    assert sorted(found) == sorted(s.name for s in TOPIC_SETTINGS.values() if not s.is_broker_only)
    assert (found["retention.ms"].value, found["retention.ms"].config_source) == ("5", 1)
    assert (found["cleanup.policy"].value, found["cleanup.policy"].config_source) == ("delete", 5)
    assert not any(config.read_only or config.is_sensitive or config.synonyms for config in found.values())
    if version >= 3:
        assert found["retention.ms"].config_type == 5
        assert found["cleanup.policy"].config_type == 7


async def test_synonyms_and_documentation_are_told_to_those_who_ask() -> None:
    broker = await broker_in_a_cluster(log_segment_bytes="2000000")
    await broker.make_topic("t", (1,), segment_bytes="1000000")
    described = await describe(broker, TOPIC, "t", "segment.bytes", include_synonyms=True, include_documentation=True)
    (config,) = described.configs
    assert [(s.name, s.value, s.source) for s in config.synonyms] == [
        ("segment.bytes", "1000000", 1),
        ("log.segment.bytes", "2000000", 4),
        ("log.segment.bytes", "1073741824", 5),
    ]
    assert "segment" in config.documentation
    (config,) = (await describe(broker, TOPIC, "t", "segment.bytes")).configs
    assert (config.synonyms, config.documentation) == ((), None)


async def test_a_broker_describes_itself() -> None:
    broker = await broker_in_a_cluster(num_partitions="3")
    found = {config.name: config for config in (await describe(broker, BROKER, "1")).configs}
    assert sorted(found) == sorted(BROKER_SETTINGS)
    assert (found["num.partitions"].value, found["num.partitions"].config_source) == ("3", 4)
    assert found["num.partitions"].read_only
    assert not found["message.max.bytes"].read_only
    assert (found["metastore.url"].value, found["metastore.url"].is_sensitive) == (None, True)


async def test_what_was_set_for_all_brokers_is_described_under_the_empty_name() -> None:
    broker = await broker_in_a_cluster()
    await change(broker, BROKER, "", ("log.retention.ms", "9"))
    assert [(c.name, c.value, c.config_source) for c in (await describe(broker, BROKER, "")).configs] == [
        ("log.retention.ms", "9", 3)
    ]


async def test_a_group_is_described_whether_it_exists_or_not() -> None:
    broker = await broker_in_a_cluster()
    await change(broker, GROUP, "g", ("consumer.session.timeout.ms", "50000"))
    found = {c.name: (c.value, c.config_source) for c in (await describe(broker, GROUP, "g")).configs}
    assert found["consumer.session.timeout.ms"] == ("50000", 8)
    assert found["consumer.heartbeat.interval.ms"] == ("5000", 5)


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "nope", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "b@d", ErrorCode.invalid_topic_exception),
        (TOPIC, "", ErrorCode.invalid_request),
        (BROKER, "2", ErrorCode.invalid_request),
        (BROKER, "one", ErrorCode.invalid_request),
        (GROUP, "", ErrorCode.invalid_request),
        (ResourceType.BROKER_LOGGER, "1", ErrorCode.invalid_request),
        (ResourceType.CLIENT_METRICS, "m", ErrorCode.invalid_request),
        (99, "x", ErrorCode.invalid_request),
    ],
)
async def test_what_cannot_be_described_or_changed_is_refused(kind: int, name: str, code: ErrorCode) -> None:
    broker = await broker_in_a_cluster()
    described = await describe(broker, kind, name)
    assert (described.error_code, described.configs) == (code, ())
    assert described.error_message
    assert (await change(broker, kind, name, ("retention.ms", "1"))).error_code is code
    assert (await replace_all(broker, kind, name, retention_ms="1")).error_code is code


# --- changing ---


@pytest.mark.parametrize("version", [0, 1])
async def test_settings_are_set_and_removed_one_by_one(version: int) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,), retention_ms="5", segment_ms="6")
    made = await change(
        broker, TOPIC, "t", ("retention.ms", "7"), ("segment.ms", None, Operation.DELETE), version=version
    )
    assert made.error_code is ErrorCode.none
    assert broker.view.settings_of(ConfigScope.TOPIC, "t") == {"retention.ms": "7"}
    assert broker.topic_config("t").retention_ms == 7


async def test_a_list_grows_and_shrinks_from_its_default() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    await change(broker, TOPIC, "t", ("cleanup.policy", "compact", Operation.APPEND))
    assert broker.view.settings_of(ConfigScope.TOPIC, "t") == {"cleanup.policy": "delete,compact"}
    await change(broker, TOPIC, "t", ("cleanup.policy", "delete,nothing", Operation.SUBTRACT))
    assert broker.topic_config("t").cleanup_policy == {"compact"}


async def test_two_who_append_to_the_same_list_at_once_both_get_their_part_in() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    name = "leader.replication.throttled.replicas"

    async def other_is_faster() -> None:
        await change(broker, TOPIC, "t", (name, "0:1", Operation.APPEND))

    broker.metastore.before_change.append(other_is_faster)
    assert (await change(broker, TOPIC, "t", (name, "0:2", Operation.APPEND))).error_code is ErrorCode.none
    assert broker.view.settings_of(ConfigScope.TOPIC, "t") == {name: "0:1,0:2"}


async def test_settings_are_replaced_as_a_whole_by_the_old_api() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,), retention_ms="5", segment_ms="6")
    assert (await replace_all(broker, TOPIC, "t", segment_ms="8")).error_code is ErrorCode.none
    assert broker.view.settings_of(ConfigScope.TOPIC, "t") == {"segment.ms": "8"}
    assert (await replace_all(broker, TOPIC, "t", segment_ms=None)).error_code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("kind", "name", "entries", "code", "message"),
    [
        (TOPIC, "t", [("nope", "1")], ErrorCode.invalid_config, "Unknown topic config name"),
        (TOPIC, "t", [("retention.ms", "x")], ErrorCode.invalid_config, "retention.ms"),
        (TOPIC, "t", [("retention.ms", "1"), ("segment.ms", "0")], ErrorCode.invalid_config, "segment.ms"),
        (TOPIC, "t", [("retention.ms", None)], ErrorCode.invalid_request, "Null value"),
        (TOPIC, "t", [("retention.ms", "1"), ("retention.ms", "2")], ErrorCode.invalid_request, "duplicate"),
        (TOPIC, "t", [("retention.ms", "1", Operation.APPEND)], ErrorCode.invalid_config, "not LIST"),
        (TOPIC, "t", [("nope", "1", Operation.SUBTRACT)], ErrorCode.invalid_config, "Unknown"),
        (TOPIC, "t", [("retention.ms", "1", 9)], ErrorCode.invalid_request, "operations type 9"),
        (TOPIC, "t", [("min.compaction.lag.ms", "9"), ("max.compaction.lag.ms", "8")], ErrorCode.invalid_config, ">"),
        (BROKER, "1", [("num.partitions", "2")], ErrorCode.invalid_request, "dynamically"),
        (BROKER, "2", [("message.max.bytes", "2")], ErrorCode.invalid_request, "expected 1"),
        (BROKER, "", [("log.local.retention.ms", "-3")], ErrorCode.invalid_request, "log.local.retention.ms"),
        (GROUP, "g", [("consumer.session.timeout.ms", "1")], ErrorCode.invalid_config, "group.consumer.min"),
    ],
)
async def test_a_change_that_cannot_be_changes_nothing(
    kind: int, name: str, entries: list[Any], code: ErrorCode, message: str
) -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    changes_count = broker.metastore.changes_count
    for validate_only in (True, False):
        made = await change(broker, kind, name, *entries, validate_only=validate_only)
        assert made.error_code is code
        assert message in made.error_message
    await broker.catch_up()
    assert broker.metastore.changes_count == changes_count


async def test_validation_alone_changes_nothing() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    made = await change(broker, TOPIC, "t", ("retention.ms", "1"), validate_only=True)
    assert made.error_code is ErrorCode.none
    assert broker.view.settings_of(ConfigScope.TOPIC, "t") == {}


async def test_a_resource_that_is_named_twice_is_not_changed() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    resource = {
        "resource_type": TOPIC,
        "resource_name": "t",
        "configs": [{"name": "retention.ms", "value": "1", "config_operation": 0}],
    }
    answer = await broker.ask(incremental_alter_configs, resources=[resource, resource])
    assert [made.error_code for made in answer.responses] == [ErrorCode.invalid_request] * 2
    assert broker.view.settings_of(ConfigScope.TOPIC, "t") == {}


async def test_what_kafka_s_reassignment_tool_sets_and_removes_is_accepted() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    rates = [
        "leader.replication.throttled.rate",
        "follower.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    ]
    replicas = ("leader.replication.throttled.replicas", "follower.replication.throttled.replicas")
    for value, operation in (("1000", Operation.SET), (None, Operation.DELETE)):
        made = await change(broker, BROKER, "1", *((rate, value, operation) for rate in rates))
        assert made.error_code is ErrorCode.none
    for value, operation in (("0:1,0:2", Operation.SET), (None, Operation.DELETE)):
        made = await change(broker, TOPIC, "t", *((name, value, operation) for name in replicas))
        assert made.error_code is ErrorCode.none
    assert broker.view.settings_of(ConfigScope.TOPIC, "t") == {}


async def test_a_default_for_all_brokers_reaches_the_topics() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    await change(broker, BROKER, "", ("log.flush.before.ack", "false"))
    assert not broker.topic_config("t").flush_before_ack
    await change(broker, BROKER, "1", ("log.flush.before.ack", "true"))
    assert broker.topic_config("t").flush_before_ack


async def test_with_the_metastore_away_a_change_times_out_and_settings_are_still_told() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    broker.metastore.is_away = True
    made = await change(broker, TOPIC, "t", ("retention.ms", "1"))
    assert made.error_code is ErrorCode.request_timed_out
    assert "metastore" in made.error_message
    assert (await describe(broker, TOPIC, "t")).error_code is ErrorCode.none


# --- what there is ---


async def test_topics_live_brokers_and_groups_with_settings_are_listed_by_kind_or_all_together() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("one", (1,))
    await broker.make_topic("two", (1,), retention_ms="5")
    await change(broker, GROUP, "g", ("consumer.session.timeout.ms", "50000"))
    await change(broker, BROKER, "", ("log.flush.before.ack", "false"))
    await broker.fence(3)
    topics, brokers, groups = [(TOPIC, "one"), (TOPIC, "two")], [(BROKER, "1"), (BROKER, "2")], [(GROUP, "g")]
    assert await listed(broker, TOPIC) == topics
    assert await listed(broker, BROKER) == brokers
    assert await listed(broker, GROUP) == groups
    assert sorted(await listed(broker, TOPIC, GROUP)) == topics + groups
    assert sorted(await listed(broker)) == topics + brokers + groups
    await change(broker, GROUP, "g", ("consumer.session.timeout.ms", None, Operation.DELETE))
    assert await listed(broker, GROUP) == []


async def test_there_are_no_client_metrics_and_no_loggers_to_list() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,))
    assert await listed(broker, ResourceType.CLIENT_METRICS, ResourceType.BROKER_LOGGER) == []
    answer = await broker.ask(list_config_resources, 0)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.none, ())


@pytest.mark.parametrize("kind", [ResourceType.UNKNOWN, 3, 127])
async def test_a_kind_of_resource_that_nobody_knows_is_refused(kind: int) -> None:
    broker = await broker_in_a_cluster()
    answer = await broker.ask(list_config_resources, 1, resource_types=[TOPIC, kind])
    assert (answer.error_code, answer.config_resources) == (ErrorCode.unsupported_version, ())


async def set_min_insync(broker: AdminBroker, count: str) -> Any:
    return await change(broker, TOPIC, "t", ("min.insync.replicas", count))


async def test_a_topic_cannot_ask_for_more_in_sync_replicas_than_it_has() -> None:
    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1, 2, 3), (1, 2))
    refused = await set_min_insync(broker, "3")
    assert refused.error_code is ErrorCode.invalid_config
    assert "the topic has 2 replica(s)" in refused.error_message
    assert (await replace_all(broker, TOPIC, "t", min_insync_replicas="3")).error_code is ErrorCode.invalid_config
    assert (await set_min_insync(broker, "2")).error_code is ErrorCode.none
    assert broker.topic_config("t").min_insync_replicas == 2


async def test_replicas_that_a_reassignment_adds_may_be_asked_for_and_those_that_it_removes_may_not() -> None:
    broker = await broker_in_a_cluster()
    topic = await broker.make_topic("t", (1, 2))
    (row,) = broker.view.partitions_of(topic.topic_id)
    await broker.metastore.update_partitions([replace(row, replicas=(3, 1, 2), adding=(3,))])
    await broker.catch_up()
    assert (await set_min_insync(broker, "3")).error_code is ErrorCode.none
    (row,) = broker.view.partitions_of(topic.topic_id)
    await broker.metastore.update_partitions([replace(row, replicas=(1, 2), adding=(), removing=(2,))])
    await broker.catch_up()
    assert (await set_min_insync(broker, "2")).error_code is ErrorCode.invalid_config


async def test_other_settings_of_a_topic_that_lost_replicas_can_be_changed() -> None:
    """It asks for more than it has, from when it had more."""

    broker = await broker_in_a_cluster()
    await broker.make_topic("t", (1,), min_insync_replicas="2")
    assert (await change(broker, TOPIC, "t", ("retention.ms", "5"))).error_code is ErrorCode.none
