"""Group configs, under Kafka's names and with Kafka's defaults."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from sexton.settings.broker import BrokerSettings

SIZE_UNLIMITED = 2**31 - 1


class MigrationPolicy(StrEnum):
    """Whether a group with members may change its protocol (group.consumer.migration.policy)."""

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
    """How long a member that has not received its id yet is kept. It cannot send heartbeats. If its client gave up
    waiting and joined again, it would otherwise be counted twice for ever."""
    consumer_session_timeout_ms: int = 45_000
    consumer_heartbeat_interval_ms: int = 5_000
    consumer_size_max: int = SIZE_UNLIMITED
    consumer_assignors: tuple[str, ...] = ("uniform", "range")
    """The first is the default."""
    migration: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    offset_metadata_bytes_max: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 60 * 60_000
    offsets_retention_check_ms: int = 600_000
    commit_timeout_ms: int = 5_000
    """How long a response waits until the state that it depends on is committed."""

    @property
    def consumer_timing(self) -> ConsumerTiming:
        return ConsumerTiming(self.consumer_session_timeout_ms, self.consumer_heartbeat_interval_ms)

    @classmethod
    def of(cls, config: BrokerSettings) -> GroupSettings:
        return cls(
            session_timeout_ms_min=config.group_min_session_timeout_ms,
            session_timeout_ms_max=config.group_max_session_timeout_ms,
            initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            classic_size_max=config.group_max_size,
            consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            consumer_size_max=config.group_consumer_max_size,
            consumer_assignors=tuple(_ASSIGNOR_CLASSES.get(name, name) for name in config.group_consumer_assignors),
            migration=MigrationPolicy(config.group_consumer_migration_policy.lower()),
            offset_metadata_bytes_max=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_ms=config.offsets_retention_check_interval_ms,
            commit_timeout_ms=config.offsets_commit_timeout_ms,
        )


_ASSIGNOR_CLASSES = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}
"""A properties file for Kafka may name assignors by class."""


class ConsumerTiming(NamedTuple):
    """The timing configs that one consumer group can have (`consumer.session.timeout.ms`,
    `consumer.heartbeat.interval.ms`)."""

    session_timeout_ms: int
    heartbeat_interval_ms: int
