"""Kafka's own classes print its settings; ours must have the same names, kinds, defaults, limits and run-time changes.

Every difference is on purpose and listed here. A difference that is listed and not there is a failure too."""

from __future__ import annotations

import re
from html import unescape
from typing import NamedTuple

import pytest

from sexton.harness.kafka_tools import run_tool
from sexton.settings.broker import BROKER_SETTINGS
from sexton.settings.group import GROUP_SETTINGS
from sexton.settings.schema import REQUIRED, Setting, Update
from sexton.settings.topic import TOPIC_SETTINGS

pytestmark = pytest.mark.kafka

SEXTONS_OWN = {
    "flush.before.ack",
    "log.flush.before.ack",
    "admin.listener",
    "compaction.share",
    "compaction.share.max.bytes.per.second",
    "compaction.coordination",
    "storage.mode",
    "default.storage.mode",
    "cloud.cache.bytes.max",
    "cloud.delete.delay.ms",
    "cloud.downloads.max",
    "cloud.eager",
    "cloud.gc.round.ms",
    "cloud.get.timeout.ms",
    "cloud.hedge",
    "cloud.l0.bytes",
    "cloud.l0.partitions.max",
    "cloud.l1.bytes",
    "cloud.level.ms",
    "cloud.linger.ms",
    "cloud.pending.bytes.max",
    "cloud.put.timeout.ms",
    "cloud.scrub.age.ms",
    "cloud.scrub.interval.ms",
    "cloud.store.url",
    "cloud.uploads.max",
    "cloud.view.age.max.ms",
    "log.cleaner.coordination",
    "metastore.url",
    "broker.lease.ms",
    "broker.lease.renew.ms",
    "metadata.poll.ms",
}

DIFFERENT_DEFAULTS = {
    "listeners": "loopback unless told otherwise",
    "queued.max.request.bytes": "bounded memory",
}

DIFFERENT_LIMITS = {
    "segment.bytes": "Kafka 4 refuses less than 1 MiB",
    "log.segment.bytes": "Kafka 4 refuses less than 1 MiB",
    "group.consumer.assignors": "only these two",
    "group.consumer.migration.policy": "written as a list of choices, and in small letters only",
    "replica.selector.class": "only Kafka's rack-aware one",
    "leader.replication.throttled.replicas": "written as a pattern",
    "follower.replication.throttled.replicas": "written as a pattern",
}

RUN_TIME_DIFFERENCES = {"listeners": "a broker listens where it was told to when it started"}


class Printed(NamedTuple):
    kind: str
    default: str
    valid: str
    update: str
    broker_name: str


def printed(main_class: str) -> dict[str, Printed]:
    """What Kafka says of each setting, by name."""
    found = {}
    for block in run_tool(main_class).split("<h4>")[1:]:
        name = re.search(r'<a id="([^"]+)"', block)
        cells = dict(re.findall(r"<tr><th>([^<]+):</th><td>(.*?)</td></tr>", block, re.DOTALL))
        assert name is not None
        found[name[1]] = Printed(
            cells["Type"],
            unescape(cells["Default"]),
            unescape(cells["Valid Values"]),
            cells.get("Update Mode", ""),
            cells.get("Server Default Property", ""),
        )
    return found


def default_of(setting: Setting) -> str:
    if setting.default is REQUIRED or setting.default is None:
        return ""
    return setting.text_of(setting.default) or ""


def kafkas_default(kafka: Printed) -> str:
    """Without the explanation in parentheses; null and the empty text are the same here."""
    text = re.sub(r" \(.*\)$", "", kafka.default)
    return "" if text in ("null", '""') else text


def limits_of(setting: Setting) -> str:
    if setting.choices:
        return "[" + ", ".join(setting.choices) + "]"
    return setting.valid_values


def differences(settings: dict[str, Setting], kafka: dict[str, Printed]) -> list[str]:
    found = []
    for name, setting in settings.items():
        if name in SEXTONS_OWN:
            continue
        if name not in kafka:
            found.append(f"{name}: not in Kafka")
            continue
        theirs = kafka[name]
        if setting.kind.name.lower() != theirs.kind:
            found.append(f"{name}: kind {setting.kind.name.lower()}, Kafka's is {theirs.kind}")
        if (default_of(setting) == kafkas_default(theirs)) is (name in DIFFERENT_DEFAULTS):
            found.append(f"{name}: default {default_of(setting)}, Kafka's is {theirs.default}")
        if not theirs.valid:
            continue  # Kafka checks nothing there; whatever we refuse makes no sense
        if (limits_of(setting) == theirs.valid) is (name in DIFFERENT_LIMITS):
            found.append(f"{name}: values {limits_of(setting)}, Kafka's are {theirs.valid}")
    return found


def test_topic_settings_are_kafka_s() -> None:
    kafka = printed("org.apache.kafka.storage.internals.log.LogConfig")
    ours = {name: setting for name, setting in TOPIC_SETTINGS.items() if not setting.is_broker_only}
    assert differences(ours, kafka) == []
    for name, setting in ours.items():
        if name not in SEXTONS_OWN:
            first = setting.synonyms[0].name if setting.synonyms else "null"
            assert first == kafka[name].broker_name, name


def test_broker_settings_are_kafka_s() -> None:
    kafka = printed("kafka.server.KafkaConfig")
    assert differences(dict(BROKER_SETTINGS), kafka) == []
    modes = {Update.READ_ONLY: "read-only", Update.CLUSTER_WIDE: "cluster-wide"}
    shared = {name: setting for name, setting in BROKER_SETTINGS.items() if name not in SEXTONS_OWN}
    different = {name for name, setting in shared.items() if modes[setting.update] != kafka[name].update}
    assert different == set(RUN_TIME_DIFFERENCES)


def test_group_settings_are_kafka_s() -> None:
    assert differences(dict(GROUP_SETTINGS), printed("org.apache.kafka.coordinator.group.GroupConfig")) == []
