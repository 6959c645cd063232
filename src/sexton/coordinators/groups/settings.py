"""What an operator can set about groups, under Kafka's names and with Kafka's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

SIZE_UNLIMITED = 2**31 - 1


class MigrationPolicy(StrEnum):
    """Whether a group with members may change its protocol under them (group.consumer.migration.policy)."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def allows_upgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def allows_downgrade(self) -> bool:
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True)
class GroupSettings:
    session_timeout_ms_min: int = 6_000
    session_timeout_ms_max: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    classic_size_max: int = SIZE_UNLIMITED
    new_member_join_timeout_ms: int = 300_000
    """A member that has not been told its id yet cannot send heartbeats. Whoever gave up waiting and joined again
    would otherwise be counted twice for good."""
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_size_max: int = SIZE_UNLIMITED
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first is the default."""
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * 60_000
    offsets_retention_check_ms: int = 600_000

    @classmethod
    def from_settings(cls, settings: Mapping[str, str]) -> GroupSettings:
        """From the broker's settings; what is not set keeps its default. ValueError names what is no number."""
        values: dict[str, object] = {}
        for name, attribute in _NUMBERS.items():
            if name in settings:
                values[attribute] = _number(name, settings[name])
        if "offsets.retention.minutes" in settings:
            values["offsets_retention_ms"] = (
                _number("offsets.retention.minutes", settings["offsets.retention.minutes"]) * 60_000
            )
        if "group.consumer.assignors" in settings:
            names = [part.strip() for part in settings["group.consumer.assignors"].split(",")]
            values["consumer_assignors"] = tuple(_ASSIGNOR_CLASSES.get(name, name) for name in names if name)
        if "group.consumer.migration.policy" in settings:
            values["migration"] = MigrationPolicy(settings["group.consumer.migration.policy"].lower())
        return cls(**values)  # type: ignore[arg-type]


_NUMBERS = {
    "group.min.session.timeout.ms": "session_timeout_ms_min",
    "group.max.session.timeout.ms": "session_timeout_ms_max",
    "group.initial.rebalance.delay.ms": "initial_rebalance_delay_ms",
    "group.max.size": "classic_size_max",
    "group.consumer.session.timeout.ms": "consumer_session_timeout_ms",
    "group.consumer.heartbeat.interval.ms": "consumer_heartbeat_interval_ms",
    "group.consumer.max.size": "consumer_size_max",
    "offset.metadata.max.bytes": "offset_metadata_bytes_max",
    "offsets.retention.check.interval.ms": "offsets_retention_check_ms",
}

_ASSIGNOR_CLASSES = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError(f"{name} must be a number, not {text!r}") from None
