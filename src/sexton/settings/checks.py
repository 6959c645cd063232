"""Whether requested configs may be set. If not, raises a BadSettingError that says what to do instead.

Kafka's rules, and some of Sexton's own: an interval between flushes is refused where it would not be kept, and an
unknown name is refused everywhere (Kafka accepts unknown names in a broker's configs). Configs that have no effect here
and do no harm are accepted (`preallocate`, `local.*`, `remote.*` of a topic that is not in tiered storage): tools copy
the configs of topics from one cluster to the next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from sexton.ports.cloud import CLOUD, STORAGE_MODE
from sexton.settings.broker import BROKER_SETTINGS, KAFKA_ONLY
from sexton.settings.group import GROUP_DEFAULTS, GROUP_SETTINGS
from sexton.settings.layers import SettingsView, broker_values, with_overrides
from sexton.settings.schema import BadSettingError, Setting, Update
from sexton.settings.topic import INTERNAL_SEGMENT_BYTES, TOPIC_SETTINGS, TopicConfig, topic_names
from sexton.types import INT64_MAX

MIN_INSYNC = "min.insync.replicas"
CLOUD_BATCH_BYTES_MAX = 8 << 20
"""A batch of a cloud topic is never split, and an object is one request."""

_WITHOUT_MEANING_IN_CLOUD = {
    "compaction.coordination": "there is one copy of the data, and nothing to coordinate",
    "flush.before.ack": "a write is acknowledged when the store has it",
    "flush.messages": "a write is acknowledged when the store has it",
    "flush.ms": "a write is acknowledged when the store has it",
    MIN_INSYNC: "a write is acknowledged when the store has it, whatever brokers are up",
    "unclean.leader.election.enable": "every broker can lead, and none can lose what is acknowledged",
}


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint after a misspelled name; empty if no known name is close."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    return f". Did you mean {close[0]}?" if close else ""


def topic_setting(name: str) -> Setting:
    """The config with this name. Raises BadSettingError if a topic cannot set it."""
    setting = TOPIC_SETTINGS.get("segment.bytes" if name == INTERNAL_SEGMENT_BYTES else name)
    if setting is None or setting.is_broker_only:
        topic_wide = [known.name for known in TOPIC_SETTINGS.values() if not known.is_broker_only]
        raise BadSettingError(f"Unknown topic config name: {name}{nearest(name, topic_wide)}")
    return setting


def broker_setting(name: str) -> Setting:
    setting = BROKER_SETTINGS.get(name)
    if setting is None:
        instead = (
            f". Sexton does not have it: {KAFKA_ONLY[name]}" if name in KAFKA_ONLY else nearest(name, BROKER_SETTINGS)
        )
        raise BadSettingError(f"Unknown broker setting: {name}{instead}")
    return setting


def group_setting(name: str) -> Setting:
    setting = GROUP_SETTINGS.get(name)
    if setting is None:
        raise BadSettingError(f"Unknown group config name: {name}{nearest(name, GROUP_SETTINGS)}")
    return setting


def check_topic(
    view: SettingsView,
    static: Mapping[str, str],
    broker_id: int,
    overrides: Mapping[str, str],
    before: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Raises BadSettingError if a topic may not have these configs. `before` are those that it has: what was set on a
    local topic, and has no meaning for a cloud topic, may stay when it is moved."""
    for name in overrides:
        topic_setting(name)
    config = with_overrides(view, static, broker_id, overrides)
    if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
        raise BadSettingError(
            f"conflict topic config setting min.compaction.lag.ms ({config.min_compaction_lag_ms}) > "
            f"max.compaction.lag.ms ({config.max_compaction_lag_ms})"
        )
    check_offered(config, {name: name for name in TOPIC_SETTINGS})
    if overrides.get(STORAGE_MODE) == CLOUD:
        check_cloud(config, {name: text for name, text in overrides.items() if before.get(name) != text})


def check_cloud(config: TopicConfig, overrides: Mapping[str, str]) -> None:
    """Refuses what has no meaning for a cloud topic, unless it says what is so anyway."""
    for name, why in _WITHOUT_MEANING_IN_CLOUD.items():
        setting = TOPIC_SETTINGS[name]
        if name in overrides and setting.parse(overrides[name]) != setting.default:
            raise BadSettingError(f"Invalid value {overrides[name]} for configuration {name} of a cloud topic: {why}")
    if config.max_message_bytes > CLOUD_BATCH_BYTES_MAX:
        raise BadSettingError(
            f"Invalid value {config.max_message_bytes} for configuration max.message.bytes of a cloud topic: a batch "
            f"is one request to the store. Set it to {CLOUD_BATCH_BYTES_MAX} or less"
        )


def check_storage_mode(before: Mapping[str, str], after: Mapping[str, str]) -> None:
    """A local topic may become a cloud topic, and never the other way round."""
    if before.get(STORAGE_MODE) == CLOUD != after.get(STORAGE_MODE):
        raise BadSettingError(
            f"Invalid value {after.get(STORAGE_MODE, 'local')} for configuration {STORAGE_MODE}: the topic is in the "
            "object store, and there is no way back. Make another topic, and copy the records"
        )


def check_movable(config: TopicConfig) -> None:
    """Refuses to make a cloud topic of a local one where its copy might bring back what was deleted."""
    if config.compacts and config.compaction_coordination == "independent":
        raise BadSettingError(
            f"Invalid value {CLOUD} for configuration {STORAGE_MODE}: the topic's replicas are compacted "
            "independently, and one may drop a tombstone whose key another has copied. Set "
            "compaction.coordination=coordinated first"
        )


def check_min_insync(overrides: Mapping[str, str], replicas_count: int) -> None:
    """A topic's own min.insync.replicas must not exceed its replicas. (A broker's default is capped at their
    number.)"""
    text = overrides.get(MIN_INSYNC)
    if text is not None and TOPIC_SETTINGS[MIN_INSYNC].parse(text) > replicas_count:
        raise BadSettingError(
            f"Invalid value {text} for configuration {MIN_INSYNC}: the topic has {replicas_count} replica(s), so "
            f"acks=all would always be refused. Set it to {replicas_count} or less, or give the topic more replicas "
            "first"
        )


def check_offered(config: TopicConfig, names: Mapping[str, str]) -> None:
    """Refuses what Kafka supports and Sexton does not. `names` maps a topic config to the name to use in the error."""
    for name, value in (("flush.ms", config.flush_ms), ("flush.messages", config.flush_messages)):
        if value != INT64_MAX and not config.flush_before_ack:
            raise BadSettingError(
                f"Invalid value {value} for configuration {names[name]}: where {names['flush.before.ack']} is false, "
                f"the system decides when data is flushed. Set {names['flush.before.ack']}=true, which flushes sooner "
                "than any interval"
            )
    if config.remote_storage_enable:
        raise BadSettingError(
            "Invalid value true for configuration remote.storage.enable: there is no tiered storage, as in a Kafka "
            "with remote.log.storage.system.enable=false"
        )


def check_broker(view: SettingsView, static: Mapping[str, str], broker_id: int, settings: Mapping[str, str]) -> None:
    """Raises BadSettingError if these may not be set at run time on a broker, or on all brokers."""
    for name, text in settings.items():
        setting = broker_setting(name)
        if setting.update is Update.READ_ONLY:
            raise BadSettingError(
                f"Cannot update these configs dynamically: {name}. Change the broker's file and restart it"
            )
        setting.parse(text)
    check_topic_defaults({**broker_values(view, static, broker_id), **settings})


def check_topic_defaults(broker_settings: Mapping[str, str]) -> None:
    """Raises BadSettingError if a broker's defaults for topics could not be set on a topic."""
    config = TopicConfig.of(topic_names(broker_settings))
    check_offered(config, {known.name: known.synonyms[0].name for known in TOPIC_SETTINGS.values() if known.synonyms})


def check_group(view: SettingsView, static: Mapping[str, str], broker_id: int, overrides: Mapping[str, str]) -> None:
    """Raises BadSettingError if a group may not have these configs: they must lie within the broker's limits, and the
    heartbeat interval must be shorter than the session timeout."""
    values = {}
    broker = broker_values(view, static, broker_id)
    for name in overrides:
        group_setting(name)
    for name, setting in GROUP_SETTINGS.items():
        default = GROUP_DEFAULTS[name]
        text = overrides.get(name, broker.get(default, str(BROKER_SETTINGS[default].default)))
        values[name] = setting.parse(text)
    for name, value in values.items():
        for bound, is_within in (("min", int.__ge__), ("max", int.__le__)):
            limit_name = GROUP_DEFAULTS[name].replace("group.consumer.", f"group.consumer.{bound}.")
            limit = BROKER_SETTINGS[limit_name]
            if not is_within(value, limit.parse(broker.get(limit_name, str(limit.default)))):
                relation = "greater" if bound == "min" else "less"
                raise BadSettingError(f"{name} must be {relation} than or equal to {limit_name}")
    if values["consumer.session.timeout.ms"] <= values["consumer.heartbeat.interval.ms"]:
        raise BadSettingError("consumer.session.timeout.ms must be greater than consumer.heartbeat.interval.ms")
