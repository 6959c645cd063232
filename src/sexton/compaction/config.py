"""The topic settings that cleaning obeys, under Kafka's names and with Kafka's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sexton.errors import SextonError

INT64_MAX = 2**63 - 1
DAY_MS = 24 * 60 * 60 * 1000


class BadSettingError(SextonError):
    """A setting has a value that Kafka would not accept either."""

    exit_code = 64


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings. Field names are Kafka's with underscores for dots."""

    cleanup_policy: frozenset[str] = frozenset({"delete"})
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    delete_retention_ms: int = DAY_MS
    segment_bytes: int = 1024 * 1024 * 1024
    segment_ms: int = 7 * DAY_MS
    segment_index_bytes: int = 10 * 1024 * 1024
    index_interval_bytes: int = 4096
    retention_ms: int = 7 * DAY_MS
    retention_bytes: int = -1
    max_message_bytes: int = 1024 * 1024 + 12
    message_timestamp_type: str = "CreateTime"
    compression_type: str = "producer"
    producer_id_expiration_ms: int = DAY_MS

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @staticmethod
    def of(*layers: Mapping[str, str]) -> TopicConfig:
        """From Kafka's names and texts, later layers over earlier ones. Settings that cleaning ignores are skipped."""
        merged = {name: value for layer in layers for name, value in _with_internal_names(layer).items()}
        known = {field.name.replace("_", "."): field.name for field in fields(TopicConfig)}
        settings: dict[str, Any] = {known[name]: _parse(name, value) for name, value in merged.items() if name in known}
        return TopicConfig(**settings)


INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
"""Kafka 4 allows segments below 1 MiB only under this name (for its own tests, and ours); it wins over the other."""


def _with_internal_names(layer: Mapping[str, str]) -> Mapping[str, str]:
    internal = layer.get(INTERNAL_SEGMENT_BYTES)
    return layer if internal is None else {**layer, "segment.bytes": internal}


BROKER_DEFAULT_NAMES = {
    "log.cleanup.policy": "cleanup.policy",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.segment.bytes": "segment.bytes",
    "log.roll.ms": "segment.ms",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.index.interval.bytes": "index.interval.bytes",
    "log.retention.ms": "retention.ms",
    "log.retention.bytes": "retention.bytes",
    "message.max.bytes": "max.message.bytes",
    "log.message.timestamp.type": "message.timestamp.type",
    "compression.type": "compression.type",
    "producer.id.expiration.ms": "producer.id.expiration.ms",
}
"""A broker's default for each topic setting, by the broker's name for it."""


def topic_names(broker_settings: Mapping[str, str]) -> dict[str, str]:
    """Broker-wide defaults under the topic settings' names."""
    return {
        BROKER_DEFAULT_NAMES[name]: value for name, value in broker_settings.items() if name in BROKER_DEFAULT_NAMES
    }


def _parse(name: str, text: str) -> object:
    try:
        if name == "cleanup.policy":
            return _parse_policy(text)
        if name == "min.cleanable.dirty.ratio":
            return _in_range(name, float(text), 0.0, 1.0)
        if name in ("message.timestamp.type", "compression.type"):
            return text
        return _in_range(name, int(text), -1, INT64_MAX)
    except ValueError as error:
        raise BadSettingError(
            f"{name}={text!r} is not a value Kafka accepts ({error})",
            "",
            "See Kafka's topic configuration reference",
        ) from error


def _parse_policy(text: str) -> frozenset[str]:
    policy = frozenset(part.strip() for part in text.split(",") if part.strip())
    if not policy <= {"delete", "compact"}:
        raise ValueError("it may name delete, compact, or both")
    return policy


def _in_range(name: str, value: float | int, low: float, high: float) -> float | int:
    if not low <= value <= high:
        raise ValueError(f"it must lie between {low} and {high}")
    return value
