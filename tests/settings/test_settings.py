"""What may be set, which value counts, and that the reference page says so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from sexton.ports.metastore import ConfigScope
from sexton.settings.broker import BROKER_SETTINGS
from sexton.settings.checks import broker_setting, check_broker, check_group, check_topic
from sexton.settings.group import GROUP_SETTINGS
from sexton.settings.layers import (
    CLUSTER_DEFAULT,
    ConfigSource,
    Resolved,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
    group_config,
    topic_config,
)
from sexton.settings.properties import parse_settings
from sexton.settings.reference import reference
from sexton.settings.schema import BadSettingError, Kind, Update
from sexton.settings.topic import TOPIC_SETTINGS
from sexton.types import INT64_MAX

BROKER_ID = 1
DAY_MS = 24 * 60 * 60 * 1000


class View:
    """The settings of a metastore, as a broker sees them."""

    def __init__(self, **scopes: Mapping[str, str]) -> None:
        self.topic = scopes.get("topic", {})
        self.broker = scopes.get("broker", {})
        self.cluster = scopes.get("cluster", {})
        self.group = scopes.get("group", {})

    def settings_of(self, scope: ConfigScope, name: str) -> Mapping[str, str]:
        found = {
            (ConfigScope.TOPIC, "t"): self.topic,
            (ConfigScope.BROKER, str(BROKER_ID)): self.broker,
            (ConfigScope.BROKER, CLUSTER_DEFAULT): self.cluster,
            (ConfigScope.GROUP, "g"): self.group,
        }
        return found.get((scope, name), {})


def entry(described: list[Resolved], name: str) -> Resolved:
    (found,) = [resolved for resolved in described if resolved.setting.name == name]
    return found


# --- which value counts ---


def test_the_topic_s_own_setting_wins_then_the_broker_s_then_all_brokers_then_the_file_then_the_default() -> None:
    static = {"log.retention.ms": "4"}
    everything = View(topic={"retention.ms": "1"}, broker={"log.retention.ms": "2"}, cluster={"log.retention.ms": "3"})
    expected = [
        (1, ConfigSource.TOPIC),
        (2, ConfigSource.BROKER),
        (3, ConfigSource.CLUSTER),
        (4, ConfigSource.STATIC),
        (7 * DAY_MS, ConfigSource.DEFAULT),
    ]
    for value, source in expected:
        assert topic_config(everything, static, BROKER_ID, "t").retention_ms == value
        described = entry(describe_topic(everything, static, BROKER_ID, everything.topic), "retention.ms")
        assert (described.value, described.source) == (str(value), source)
        for layer in (everything.topic, everything.broker, everything.cluster, static):
            if layer:
                layer.clear()  # type: ignore[attr-defined]
                break


def test_a_default_in_hours_gives_way_to_minutes_and_both_to_milliseconds() -> None:
    static = {"log.retention.hours": "2", "log.roll.hours": "3"}
    assert topic_config(View(), static, BROKER_ID, "t").retention_ms == 2 * 60 * 60 * 1000
    assert topic_config(View(), static, BROKER_ID, "t").segment_ms == 3 * 60 * 60 * 1000
    static["log.retention.minutes"] = "5"
    assert topic_config(View(), static, BROKER_ID, "t").retention_ms == 5 * 60 * 1000
    static["log.retention.ms"] = "7"
    assert topic_config(View(), static, BROKER_ID, "t").retention_ms == 7


def test_no_limit_in_hours_is_no_limit_in_milliseconds() -> None:
    assert topic_config(View(), {"log.retention.hours": "-1"}, BROKER_ID, "t").retention_ms == -1


def test_all_values_that_were_set_are_told_the_strongest_first() -> None:
    view = View(topic={"segment.bytes": "1000000"}, cluster={"log.segment.bytes": "2000000"})
    described = entry(describe_topic(view, {"log.segment.bytes": "3000000"}, BROKER_ID, view.topic), "segment.bytes")
    assert [(c.name, c.value, c.source) for c in described.candidates] == [
        ("segment.bytes", "1000000", ConfigSource.TOPIC),
        ("log.segment.bytes", "2000000", ConfigSource.CLUSTER),
        ("log.segment.bytes", "3000000", ConfigSource.STATIC),
        ("log.segment.bytes", "1073741824", ConfigSource.DEFAULT),
    ]


def test_a_broker_s_settings_are_described_with_where_they_come_from() -> None:
    view = View(broker={"message.max.bytes": "9"})
    described = describe_broker(view, {"node.id": "1", "num.partitions": "4"}, BROKER_ID)
    assert (entry(described, "message.max.bytes").value, entry(described, "message.max.bytes").source) == (
        "9",
        ConfigSource.BROKER,
    )
    assert entry(described, "num.partitions").source is ConfigSource.STATIC
    assert entry(described, "log.retention.hours").value == "168"
    assert entry(described, "log.retention.ms").value is None
    assert entry(described, "replica.lag.time.max.ms").source is ConfigSource.DEFAULT


def test_the_address_of_the_metastore_is_told_to_nobody_since_it_may_hold_a_password() -> None:
    described = entry(
        describe_broker(View(), {"metastore.url": "postgresql://u:secret@h/d"}, BROKER_ID), "metastore.url"
    )
    assert described.value is None
    assert all(candidate.value is None for candidate in described.candidates)
    assert described.source is ConfigSource.STATIC


def test_what_is_set_for_all_brokers_is_described_alone() -> None:
    described = describe_cluster_default(View(cluster={"log.retention.ms": "3"}))
    assert [(r.setting.name, r.value, r.source) for r in described] == [("log.retention.ms", "3", ConfigSource.CLUSTER)]


def test_a_group_s_settings_come_from_the_group_then_from_the_broker() -> None:
    view = View(group={"consumer.session.timeout.ms": "50000"})
    static = {"group.consumer.heartbeat.interval.ms": "6000"}
    config = group_config(view, static, BROKER_ID, "g")
    assert (config.consumer_session_timeout_ms, config.consumer_heartbeat_interval_ms) == (50_000, 6_000)
    described = describe_group(view, static, BROKER_ID, "g")
    assert entry(described, "consumer.session.timeout.ms").source is ConfigSource.GROUP
    assert entry(described, "consumer.heartbeat.interval.ms").source is ConfigSource.STATIC


def test_flush_messages_of_one_flushes_before_the_acknowledgement() -> None:
    view = View(topic={"flush.before.ack": "false"})
    assert not topic_config(view, {}, BROKER_ID, "t").flush_before_ack
    assert topic_config(view, {"log.flush.interval.messages": "1"}, BROKER_ID, "t").flush_before_ack


# --- what may be set ---


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("retenton.ms", "1", r"Unknown topic config name: retenton.ms. Did you mean retention.ms"),
        ("log.retention.ms", "1", "Unknown topic config name"),
        ("producer.id.expiration.ms", "1", "Unknown topic config name"),
        ("retention.ms", "-2", "retention.ms: value must be at least -1"),
        ("retention.ms", "1_000", "not a number of type LONG"),
        ("segment.bytes", str(2**31), "not a number of type INT"),
        ("cleanup.policy", "Compact", "one of: compact, delete"),
        ("min.insync.replicas", "0", "at least 1"),
        ("unclean.leader.election.enable", "yes", "true or false"),
        ("min.cleanable.dirty.ratio", "nan", "at least 0"),
        ("leader.replication.throttled.replicas", "0:1,x", "list of replicas"),
        ("compression.type", "zip", "must be one of"),
        ("compression.gzip.level", "0", "at least 1"),
        ("compression.gzip.level", "10", "no more than 9"),
        ("compression.lz4.level", "0", "at least 1"),
        ("compression.zstd.level", "23", "no more than 22"),
        ("remote.storage.enable", "true", "no tiered storage"),
        ("local.retention.ms", "-3", "at least -2"),
        ("min.compaction.lag.ms", str(INT64_MAX + 1), "not a number"),
    ],
)
def test_a_topic_setting_that_is_wrong_is_refused_with_a_reason(name: str, text: str, complaint: str) -> None:
    with pytest.raises(BadSettingError, match=complaint):
        check_topic(View(), {}, BROKER_ID, {name: text})


@pytest.mark.parametrize(
    "settings",
    [
        {"retention.ms": " +5 "},
        {"cleanup.policy": "compact, delete"},
        {"cleanup.policy": ""},
        {"leader.replication.throttled.replicas": "*", "follower.replication.throttled.replicas": "0:1,1:2"},
        {"leader.replication.throttled.replicas": ""},
        {"compression.type": "lz4", "compression.lz4.level": "17", "compression.zstd.level": "-131072"},
        {"compression.type": "gzip", "compression.gzip.level": "-1"},
        {"compression.type": "producer", "flush.messages": "1", "preallocate": "FALSE"},
        {"preallocate": "true", "flush.ms": "1000", "flush.messages": "10000"},
        {"local.retention.ms": "5", "local.retention.bytes": "-2", "remote.storage.enable": "false"},
        {"remote.log.copy.disable": "false", "remote.log.delete.on.disable": "true"},
        {"internal.segment.bytes": "100"},
        {"retention.bytes": "-7"},
    ],
)
def test_what_kafka_accepts_is_accepted(settings: dict[str, str]) -> None:
    check_topic(View(), {}, BROKER_ID, settings)


@pytest.mark.parametrize("name", ["flush.ms", "flush.messages"])
def test_an_interval_between_flushes_is_refused_where_nothing_is_flushed_by_the_broker(name: str) -> None:
    with pytest.raises(BadSettingError, match=r"Set flush\.before\.ack=true"):
        check_topic(View(), {}, BROKER_ID, {name: "1000", "flush.before.ack": "false"})
    with pytest.raises(BadSettingError, match=name):
        check_topic(View(), {"log.flush.before.ack": "false"}, BROKER_ID, {name: "1000"})


def test_a_lag_below_a_smaller_lag_is_refused_also_when_one_is_the_broker_s_default() -> None:
    with pytest.raises(BadSettingError, match="conflict"):
        check_topic(View(), {"log.cleaner.max.compaction.lag.ms": "4"}, BROKER_ID, {"min.compaction.lag.ms": "5"})


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("num.partitions", "3", "dynamically"),
        ("message.max.bytes", "x", "INT"),
        ("nope", "1", "Unknown broker setting"),
    ],
)
def test_a_run_time_setting_of_a_broker_that_is_wrong_is_refused(name: str, text: str, complaint: str) -> None:
    with pytest.raises(BadSettingError, match=complaint):
        check_broker(View(), {}, BROKER_ID, {name: text})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"consumer.session.timeout.ms": "44999"}, "greater than or equal to group.consumer.min.session.timeout.ms"),
        ({"consumer.session.timeout.ms": "60001"}, "less than or equal to group.consumer.max.session.timeout.ms"),
        ({"consumer.heartbeat.interval.ms": "1"}, "group.consumer.min.heartbeat.interval.ms"),
        ({"share.session.timeout.ms": "1"}, "Unknown group config name"),
    ],
)
def test_a_group_s_settings_stay_within_what_the_broker_allows(settings: dict[str, str], complaint: str) -> None:
    with pytest.raises(BadSettingError, match=complaint):
        check_group(View(), {}, BROKER_ID, settings)


def test_a_session_is_longer_than_the_time_between_heartbeats() -> None:
    static = {"group.consumer.min.session.timeout.ms": "5", "group.consumer.min.heartbeat.interval.ms": "5"}
    with pytest.raises(BadSettingError, match=r"must be greater than consumer\.heartbeat"):
        check_group(
            View(), static, BROKER_ID, {"consumer.session.timeout.ms": "9", "consumer.heartbeat.interval.ms": "9"}
        )


def test_a_setting_that_only_kafka_has_is_refused_with_what_to_do_instead() -> None:
    with pytest.raises(BadSettingError, match=r"broker.id. Sexton does not have it: use node.id"):
        broker_setting("broker.id")


@pytest.mark.parametrize(
    "rest",
    [
        "backoff.ms",
        "dedupe.buffer.size",
        "delete.retention.ms",
        "enable",
        "io.buffer.load.factor",
        "io.buffer.size",
        "io.max.bytes.per.second",
        "max.compaction.lag.ms",
        "min.cleanable.ratio",
        "min.compaction.lag.ms",
        "threads",
    ],
)
def test_every_setting_of_kafkas_cleaner_is_taken_or_refused_with_what_to_use_instead(rest: str) -> None:
    name = f"log.cleaner.{rest}"
    if name in BROKER_SETTINGS:
        assert broker_setting(name).name == name
    else:
        with pytest.raises(BadSettingError, match="Sexton does not have it: "):
            broker_setting(name)


# --- what there is ---


def test_every_default_is_a_value_that_may_be_set() -> None:
    for setting in [*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values(), *GROUP_SETTINGS.values()]:
        text = setting.text_of(setting.default)
        if text is not None:
            assert setting.parse(text) == setting.default, setting.name


def test_every_setting_is_explained() -> None:
    for setting in [*TOPIC_SETTINGS.values(), *BROKER_SETTINGS.values(), *GROUP_SETTINGS.values()]:
        assert setting.doc.endswith("."), setting.name


def test_topic_defaults_change_at_run_time_under_the_name_with_the_finest_unit_only() -> None:
    assert BROKER_SETTINGS["log.retention.ms"].update is Update.CLUSTER_WIDE
    assert BROKER_SETTINGS["log.retention.hours"].update is Update.READ_ONLY
    assert BROKER_SETTINGS["log.retention.hours"].kind is Kind.INT


def test_the_reference_page_is_up_to_date() -> None:
    page = Path(__file__).parents[2] / "docs" / "settings.md"
    assert page.read_text() == reference(), "run: python -m sexton.settings.reference > docs/settings.md"


# --- as a command is given them ---


def test_settings_of_a_command_are_name_and_value() -> None:
    given = ["segment.bytes = 100", "metastore.url=postgresql://a?b=c", "log.dirs=", "segment.bytes=200"]
    assert parse_settings(given) == {
        "segment.bytes": "200",
        "metastore.url": "postgresql://a?b=c",
        "log.dirs": "",
    }


@pytest.mark.parametrize("text", ["segment.bytes", "=100", " =100", ""])
def test_what_is_no_setting_is_refused_with_how_to_write_one(text: str) -> None:
    with pytest.raises(BadSettingError, match="is not NAME=VALUE") as refused:
        parse_settings([text])
    assert "segment.bytes=100000" in str(refused.value)
