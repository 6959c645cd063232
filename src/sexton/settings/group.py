"""The configs of a group, which override a broker's configs for all groups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sexton.settings.schema import Kind, Setting, Update, setting, settings_of


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """Configs of a group of the consumer protocol (KIP-848)."""

    consumer_session_timeout_ms: int = setting(
        Kind.INT,
        45_000,
        "Session timeout of the group's members: one that sends no heartbeat for this long is removed.",
        low=1,
        update=Update.CLUSTER_WIDE,
    )
    consumer_heartbeat_interval_ms: int = setting(
        Kind.INT, 5000, "Heartbeat interval of the group's members.", low=1, update=Update.CLUSTER_WIDE
    )


GROUP_SETTINGS: Mapping[str, Setting] = settings_of(GroupConfig)

GROUP_DEFAULTS = {
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
}
"""For each group config, the broker config that sets its default."""
