"""Which value of a config applies, and where it comes from.

As in Kafka, in order of precedence: set on the topic (or group), on the broker at run time, on all brokers at run time,
in the broker's file, and Kafka's default. So a topic's configs are those that *this broker* sees; all brokers of a
cluster see the same unless their files or their own run-time configs differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from sexton.ports.metastore import ConfigScope
from sexton.settings.broker import BROKER_SETTINGS
from sexton.settings.group import GROUP_DEFAULTS, GROUP_SETTINGS, GroupConfig
from sexton.settings.schema import Setting
from sexton.settings.topic import TOPIC_SETTINGS, TopicConfig, topic_names

CLUSTER_DEFAULT = ""
"""The resource name under which configs for all brokers are stored."""


class SettingsView(Protocol):
    """Access to the configs in the metastore (`sexton.metadata.view.ClusterView` implements it)."""

    def settings_of(self, scope: ConfigScope, name: str) -> Mapping[str, str]: ...


class ConfigSource(IntEnum):
    """Where a value was set, numbered as in DescribeConfigs."""

    UNKNOWN = -1
    """To a client: the broker has one more."""
    TOPIC = 1
    BROKER = 2
    CLUSTER = 3
    STATIC = 4
    DEFAULT = 5
    GROUP = 8


@dataclass(frozen=True, slots=True)
class Layered:
    """One of the values that were set for a config, with the name under which it was set."""

    name: str
    value: str | None
    source: ConfigSource


@dataclass(frozen=True, slots=True)
class Resolved:
    """A config, its value as text, and all values that were set, the one that applies first."""

    setting: Setting
    value: str | None
    source: ConfigSource
    candidates: tuple[Layered, ...]


def topic_config(view: SettingsView, static: Mapping[str, str], broker_id: int, topic: str) -> TopicConfig:
    """A topic's configs as this broker applies them."""
    return with_overrides(view, static, broker_id, view.settings_of(ConfigScope.TOPIC, topic))


def with_overrides(
    view: SettingsView, static: Mapping[str, str], broker_id: int, overrides: Mapping[str, str]
) -> TopicConfig:
    """The configs that a topic with these overrides has, or would have."""
    layers = _dynamic_layers(view, broker_id)
    return TopicConfig.of(
        topic_names(static),
        topic_names(layers[ConfigSource.CLUSTER]),
        topic_names(layers[ConfigSource.BROKER]),
        overrides,
    )


def set_at_run_time(cluster_defaults: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """What brokers and compactors have in common of a topic's configs, by the topic's names: its own, and those that
    were set for all brokers."""
    return {**topic_names(cluster_defaults), **overrides}


def group_config(view: SettingsView, static: Mapping[str, str], broker_id: int, group: str) -> GroupConfig:
    """A group's configs as this broker applies them."""
    resolved = describe_group(view, static, broker_id, group)
    values = {entry.setting.name.replace(".", "_"): entry.setting.parse(entry.value or "") for entry in resolved}
    return GroupConfig(**values)


def describe_topic(
    view: SettingsView, static: Mapping[str, str], broker_id: int, overrides: Mapping[str, str]
) -> list[Resolved]:
    """Every topic config, by name."""
    config = with_overrides(view, static, broker_id, overrides)
    described = []
    for setting in sorted_settings(TOPIC_SETTINGS.values()):
        if setting.is_broker_only:
            continue
        value = setting.text_of(getattr(config, setting.name.replace(".", "_")))
        candidates = []
        if setting.name in overrides:
            value = setting.normalize(overrides[setting.name])
            candidates.append(Layered(setting.name, value, ConfigSource.TOPIC))
        candidates += _candidates(view, static, broker_id, [synonym.name for synonym in setting.synonyms])
        described.append(_resolved(setting, value, candidates))
    return described


def describe_broker(view: SettingsView, static: Mapping[str, str], broker_id: int) -> list[Resolved]:
    """Every config of the broker, by name. Sensitive ones have no value."""
    described = []
    for setting in sorted_settings(BROKER_SETTINGS.values()):
        names = [synonym.name for synonym in setting.synonyms] or [setting.name]
        candidates = _candidates(view, static, broker_id, names)
        # Kafka lists the synonyms from the config itself on: log.retention.minutes does not explain
        # log.retention.hours.
        from_itself = [c for c in candidates if names.index(c.name) >= names.index(setting.name)]
        own = next((c.value for c in from_itself if c.name == setting.name), None)
        described.append(_resolved(setting, own, from_itself))
    return described


def describe_cluster_default(view: SettingsView) -> list[Resolved]:
    """Configs that were set at run time for all brokers."""
    settings = view.settings_of(ConfigScope.BROKER, CLUSTER_DEFAULT)
    known = sorted_settings(BROKER_SETTINGS[name] for name in settings if name in BROKER_SETTINGS)
    return [
        _resolved(
            setting, settings[setting.name], [Layered(setting.name, settings[setting.name], ConfigSource.CLUSTER)]
        )
        for setting in known
    ]


def describe_group(view: SettingsView, static: Mapping[str, str], broker_id: int, group: str) -> list[Resolved]:
    overrides = view.settings_of(ConfigScope.GROUP, group)
    described = []
    for setting in sorted_settings(GROUP_SETTINGS.values()):
        candidates = _candidates(view, static, broker_id, [GROUP_DEFAULTS[setting.name]])
        if setting.name in overrides:
            value = setting.normalize(overrides[setting.name])
            candidates.insert(0, Layered(setting.name, value, ConfigSource.GROUP))
        described.append(_resolved(setting, candidates[0].value, candidates))
    return described


def sorted_settings(settings: Iterable[Setting]) -> list[Setting]:
    return sorted(settings, key=lambda setting: setting.name)


def broker_values(view: SettingsView, static: Mapping[str, str], broker_id: int) -> dict[str, str]:
    """A broker's own configs as they apply now: its file, then what was set at run time."""
    layers = _dynamic_layers(view, broker_id)
    merged = {**static, **layers[ConfigSource.CLUSTER], **layers[ConfigSource.BROKER]}
    return {name: text for name, text in merged.items() if name in BROKER_SETTINGS}


def _dynamic_layers(view: SettingsView, broker_id: int) -> dict[ConfigSource, Mapping[str, str]]:
    return {
        ConfigSource.BROKER: view.settings_of(ConfigScope.BROKER, str(broker_id)),
        ConfigSource.CLUSTER: view.settings_of(ConfigScope.BROKER, CLUSTER_DEFAULT),
    }


def _candidates(view: SettingsView, static: Mapping[str, str], broker_id: int, names: Sequence[str]) -> list[Layered]:
    """All values set for these synonyms, layer by layer, in order of precedence."""
    layers = {**_dynamic_layers(view, broker_id), ConfigSource.STATIC: static}
    found = [
        Layered(name, BROKER_SETTINGS[name].normalize(layer[name]), source)
        for source, layer in layers.items()
        for name in names
        if name in layer
    ]
    for name in names:
        default = BROKER_SETTINGS[name].text_of(BROKER_SETTINGS[name].default)
        if default is not None:
            found.append(Layered(name, default, ConfigSource.DEFAULT))
    return found


def _resolved(setting: Setting, value: str | None, candidates: Sequence[Layered]) -> Resolved:
    """The value of a sensitive config is never sent, only that it is set."""
    if setting.is_sensitive:
        value, candidates = None, [Layered(c.name, None, c.source) for c in candidates]
    source = candidates[0].source if candidates else ConfigSource.DEFAULT
    return Resolved(setting, value, source, tuple(candidates))
