"""Every config of topics, brokers and groups: which exist, which may be set, which value applies.

`broker.py` declares those of brokers and groups (a topic's are in `sexton.compaction.config`), `layers.py` decides
which value applies and where it comes from, `rules.py` which may be set, `reference.py` writes `docs/settings.md`.
"""

from sexton.compaction.config import TOPIC_SETTINGS, BadSettingError, TopicConfig
from sexton.metadata.settings.broker import (
    BROKER_SETTINGS,
    GROUP_SETTINGS,
    RACK_AWARE_SELECTOR,
    BrokerSettings,
    GroupConfig,
)
from sexton.metadata.settings.layers import (
    CLUSTER_DEFAULT,
    Layered,
    Resolved,
    SettingsView,
    Source,
    broker_values,
    describe_broker,
    describe_cluster_default,
    describe_group,
    describe_topic,
    group_config,
    topic_config,
    with_overrides,
)
from sexton.metadata.settings.rules import (
    MIN_INSYNC,
    broker_setting,
    check_broker,
    check_group,
    check_min_insync,
    check_topic,
    check_topic_defaults,
    group_setting,
    topic_setting,
)

__all__ = [
    "BROKER_SETTINGS",
    "CLUSTER_DEFAULT",
    "GROUP_SETTINGS",
    "MIN_INSYNC",
    "RACK_AWARE_SELECTOR",
    "TOPIC_SETTINGS",
    "BadSettingError",
    "BrokerSettings",
    "GroupConfig",
    "Layered",
    "Resolved",
    "SettingsView",
    "Source",
    "TopicConfig",
    "broker_setting",
    "broker_values",
    "check_broker",
    "check_group",
    "check_min_insync",
    "check_topic",
    "check_topic_defaults",
    "describe_broker",
    "describe_cluster_default",
    "describe_group",
    "describe_topic",
    "group_config",
    "group_setting",
    "topic_config",
    "topic_setting",
    "with_overrides",
]
