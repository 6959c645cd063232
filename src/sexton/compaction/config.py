"""A topic's settings, under Kafka's names and with Kafka's defaults.

Offline, they are read from a Kafka cluster's metadata; in a Sexton cluster, from the metastore
(`sexton.cluster.settings`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sexton.compaction.settings import (
    DAY_MS,
    HOUR_MS,
    INT64_MAX,
    MINUTE_MS,
    BadSettingError,
    Kind,
    Setting,
    Synonym,
    Update,
    setting,
    settings_of,
)

__all__ = [
    "BROKER_DEFAULT_NAMES",
    "DAY_MS",
    "INT64_MAX",
    "INTERNAL_SEGMENT_BYTES",
    "TOPIC_SETTINGS",
    "BadSettingError",
    "TopicConfig",
    "topic_names",
]

_THROTTLED_REPLICAS = re.compile(r"(\*|[0-9]+:[0-9]+(\s*,\s*[0-9]+:[0-9]+)*)?")


def _check_throttled(text: str) -> str:
    if _THROTTLED_REPLICAS.fullmatch(text):
        return ""
    return "it must be * or a list of replicas, [partitionId]:[brokerId],[partitionId]:[brokerId],..."


def _topic(kind: Kind, default: Any, doc: str, *broker_names: str | Synonym, **rules: Any) -> Any:
    """A topic setting whose default brokers set under `broker_names`."""
    synonyms = tuple(Synonym(name) if isinstance(name, str) else name for name in broker_names)
    return setting(kind, default, doc, synonyms=synonyms, update=Update.CLUSTER_WIDE, **rules)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's settings. Field names are Kafka's with underscores for dots."""

    cleanup_policy: frozenset[str] = _topic(
        Kind.LIST,
        frozenset({"delete"}),
        "What happens to old segments: delete them by age and size, compact them to the newest record of each key, "
        "both, or, if empty, nothing.",
        "log.cleanup.policy",
        choices=("compact", "delete"),
        as_set=True,
    )
    min_cleanable_dirty_ratio: float = _topic(
        Kind.DOUBLE,
        0.5,
        "How much of the log must be dirty before a compaction is worth its work.",
        "log.cleaner.min.cleanable.ratio",
        low=0,
        high=1,
    )
    min_compaction_lag_ms: int = _topic(
        Kind.LONG,
        0,
        "How long a record stays uncompacted at least.",
        "log.cleaner.min.compaction.lag.ms",
        low=0,
    )
    max_compaction_lag_ms: int = _topic(
        Kind.LONG,
        INT64_MAX,
        "How long a record may stay uncompacted, whatever the dirty ratio.",
        "log.cleaner.max.compaction.lag.ms",
        low=1,
    )
    compaction_coordination: str = _topic(
        Kind.STRING,
        "coordinated",
        "Whether a tombstone or marker waits until every replica is past it, or, as in Kafka, for time alone: "
        "independent. Then a replica that was away can bring deleted keys and aborted records back. For comparison "
        "only.",
        "log.cleaner.coordination",
        choices=("coordinated", "independent"),
    )
    delete_retention_ms: int = _topic(
        Kind.LONG,
        DAY_MS,
        "How long tombstones and transaction markers are kept after the cleaning that could have removed them.",
        "log.cleaner.delete.retention.ms",
        low=0,
    )
    segment_bytes: int = _topic(
        Kind.INT,
        1024 * 1024 * 1024,
        "The size at which a segment is closed and the next begins. Kafka 4 refuses less than 1 MiB; Sexton does not.",
        "log.segment.bytes",
        low=14,
    )
    segment_ms: int = _topic(
        Kind.LONG,
        7 * DAY_MS,
        "The age at which a segment is closed even if it is not full.",
        "log.roll.ms",
        Synonym("log.roll.hours", HOUR_MS),
        low=1,
    )
    segment_index_bytes: int = _topic(
        Kind.INT,
        10 * 1024 * 1024,
        "The size to which a segment's index may grow before the segment is closed.",
        "log.index.size.max.bytes",
        low=4,
    )
    index_interval_bytes: int = _topic(
        Kind.INT,
        4096,
        "About how many bytes of the log lie between two entries of its index.",
        "log.index.interval.bytes",
        low=0,
    )
    retention_ms: int = _topic(
        Kind.LONG,
        7 * DAY_MS,
        "The age at which segments are deleted where the policy is delete; -1 keeps them however old.",
        "log.retention.ms",
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
        low=-1,
    )
    retention_bytes: int = _topic(
        Kind.LONG,
        -1,
        "The size of a partition above which its oldest segments are deleted where the policy is delete; "
        "-1 sets no limit.",
        "log.retention.bytes",
    )
    max_message_bytes: int = _topic(
        Kind.INT,
        1024 * 1024 + 12,
        "The largest record batch that is accepted, in bytes after compression.",
        "message.max.bytes",
        low=0,
    )
    message_timestamp_type: str = _topic(
        Kind.STRING,
        "CreateTime",
        "Whether records keep the time their producer gave them, or get the time at which they were appended.",
        "log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    )
    compression_type: str = _topic(
        Kind.STRING,
        "producer",
        "How batches are compressed in the log: as their producers chose, or by the leader, which compresses anew what "
        "comes otherwise.",
        "compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_gzip_level: int = _topic(
        Kind.INT,
        -1,
        "How hard the leader tries where compression.type is gzip: 1 is fast, 9 is small, -1 leaves it to the broker.",
        "compression.gzip.level",
        low=1,
        high=9,
        besides=-1,
    )
    compression_lz4_level: int = _topic(
        Kind.INT,
        9,
        "How hard the leader tries where compression.type is lz4. As in Kafka, 9 is the fast compressor, any other one "
        "takes its time.",
        "compression.lz4.level",
        low=1,
        high=17,
    )
    compression_zstd_level: int = _topic(
        Kind.INT,
        3,
        "How hard the leader tries where compression.type is zstd.",
        "compression.zstd.level",
        low=-131072,
        high=22,
    )
    producer_id_expiration_ms: int = _topic(
        Kind.INT,
        DAY_MS,
        "How long a partition remembers an idempotent producer that has gone silent.",
        "producer.id.expiration.ms",
        low=1,
        is_broker_only=True,
    )
    min_insync_replicas: int = _topic(
        Kind.INT,
        1,
        "How many replicas must be in sync for a write with acks=all to be accepted; a broker's default counts up to "
        "the topic's replication factor.",
        "min.insync.replicas",
        low=1,
    )
    unclean_leader_election_enable: bool = _topic(
        Kind.BOOLEAN,
        False,
        "Whether a replica that is not in sync may become leader when all that are have gone. Records may be lost.",
        "unclean.leader.election.enable",
    )
    message_timestamp_before_max_ms: int = _topic(
        Kind.LONG,
        INT64_MAX,
        "How far a record's time may lie before the broker's, with CreateTime.",
        "log.message.timestamp.before.max.ms",
        low=0,
    )
    message_timestamp_after_max_ms: int = _topic(
        Kind.LONG,
        HOUR_MS,
        "How far a record's time may lie after the broker's, with CreateTime.",
        "log.message.timestamp.after.max.ms",
        low=0,
    )
    segment_jitter_ms: int = _topic(
        Kind.LONG,
        0,
        "Up to this much is taken off segment.ms at random, so that not all segments close at once.",
        "log.roll.jitter.ms",
        Synonym("log.roll.jitter.hours", HOUR_MS),
        low=0,
    )
    file_delete_delay_ms: int = _topic(
        Kind.LONG,
        60_000,
        "How long Kafka keeps the files of a deleted segment. Here they go at once, but not from under a reader.",
        "log.segment.delete.delay.ms",
        low=0,
    )
    flush_before_ack: bool = _topic(
        Kind.BOOLEAN,
        True,
        "Whether data is on the disk of every in-sync replica before acks=all is acknowledged. False is Kafka's way: "
        "in their page cache.",
        "log.flush.before.ack",
    )
    flush_messages: int = _topic(
        Kind.LONG,
        INT64_MAX,
        "How many records Kafka lets go unflushed. With flush.before.ack it is none, whatever this says; 1 switches "
        "that on. Refused where it is off.",
        "log.flush.interval.messages",
        low=1,
    )
    flush_ms: int = _topic(
        Kind.LONG,
        INT64_MAX,
        "How long Kafka lets a record go unflushed. With flush.before.ack it is on disk before it is acknowledged, "
        "whatever this says. Refused where that is off.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
        low=0,
    )
    preallocate: bool = _topic(
        Kind.BOOLEAN,
        False,
        "Whether Kafka gives a new segment's file its full size at once. Taken, and without effect.",
        "log.preallocate",
    )
    local_retention_ms: int = _topic(
        Kind.LONG,
        -2,
        "What Kafka keeps on its own disks of a topic in tiered storage. Taken, and without effect: there is none.",
        "log.local.retention.ms",
        low=-2,
    )
    local_retention_bytes: int = _topic(
        Kind.LONG,
        -2,
        "What Kafka keeps on its own disks of a topic in tiered storage. Taken, and without effect: there is none.",
        "log.local.retention.bytes",
        low=-2,
    )
    remote_storage_enable: bool = _topic(
        Kind.BOOLEAN, False, "Whether a topic is in Kafka's tiered storage, which is not offered: only false."
    )
    remote_log_copy_disable: bool = _topic(
        Kind.BOOLEAN, False, "Of a topic in Kafka's tiered storage. Taken, and without effect."
    )
    remote_log_delete_on_disable: bool = _topic(
        Kind.BOOLEAN, False, "Of a topic in Kafka's tiered storage. Taken, and without effect."
    )
    leader_replication_throttled_replicas: tuple[str, ...] = _topic(
        Kind.LIST,
        (),
        "Whose leaders send no more than leader.replication.throttled.rate to replicas that are not in sync: "
        "partition:broker, or *. Set by Kafka's reassignment tool.",
        check=_check_throttled,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = _topic(
        Kind.LIST,
        (),
        "Which replicas, while they are not in sync, fetch no more than follower.replication.throttled.rate: "
        "partition:broker, or *. Set by Kafka's reassignment tool.",
        check=_check_throttled,
    )

    @property
    def compacts(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        return "delete" in self.cleanup_policy

    @staticmethod
    def of(*layers: Mapping[str, str]) -> TopicConfig:
        """From Kafka's names and texts, later layers over earlier ones. Names that are not known are skipped."""
        merged = {name: text for layer in layers for name, text in _with_internal_names(layer).items()}
        known = {name: found for name, found in TOPIC_SETTINGS.items() if name in merged}
        values: dict[str, Any] = {name.replace(".", "_"): known[name].parse(merged[name]) for name in known}
        if values.get("flush_messages") == 1:  # Kafka's way of asking for a flush of every write
            values["flush_before_ack"] = True
        return TopicConfig(**values)


TOPIC_SETTINGS: Mapping[str, Setting] = settings_of(TopicConfig)

INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
"""Kafka 4 allows segments below 1 MiB only under this name (for its own tests, and ours); it wins over the other."""


def _with_internal_names(layer: Mapping[str, str]) -> Mapping[str, str]:
    internal = layer.get(INTERNAL_SEGMENT_BYTES)
    return layer if internal is None else {**layer, "segment.bytes": internal}


BROKER_DEFAULT_NAMES: Mapping[str, str] = {
    synonym.name: found.name for found in TOPIC_SETTINGS.values() for synonym in found.synonyms
}
"""For each name under which brokers set a topic setting's default, that topic setting."""


def topic_names(broker_settings: Mapping[str, str]) -> dict[str, str]:
    """Broker-wide defaults under the topic settings' names and in their units. The finest unit wins."""
    translated = {}
    for found in TOPIC_SETTINGS.values():
        for synonym in found.synonyms:
            if synonym.name in broker_settings:
                translated[found.name] = synonym.convert(broker_settings[synonym.name])
                break
    return translated
