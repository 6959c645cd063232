"""A topic's configs, with Kafka's names and defaults.

For `sexton compact` they are read from a Kafka cluster's metadata; in a Sexton cluster, from the metastore
(`layers.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sexton.settings.schema import (
    DAY_MS,
    HOUR_MS,
    MINUTE_MS,
    Kind,
    Setting,
    Synonym,
    Update,
    setting,
    settings_of,
)
from sexton.types import INT64_MAX

_THROTTLED_REPLICAS = re.compile(r"(\*|[0-9]+:[0-9]+(\s*,\s*[0-9]+:[0-9]+)*)?")


def _check_throttled(text: str) -> str:
    if _THROTTLED_REPLICAS.fullmatch(text):
        return ""
    return "it must be * or a list of replicas, [partitionId]:[brokerId],[partitionId]:[brokerId],..."


def _topic(kind: Kind, default: Any, doc: str, *broker_names: str | Synonym, **rules: Any) -> Any:
    """A topic config whose default brokers set under one of `broker_names`."""
    synonyms = tuple(Synonym(name) if isinstance(name, str) else name for name in broker_names)
    return setting(kind, default, doc, synonyms=synonyms, update=Update.CLUSTER_WIDE, **rules)


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """A topic's configs. Field names are Kafka's with underscores for dots."""

    cleanup_policy: frozenset[str] = _topic(
        Kind.LIST,
        frozenset({"delete"}),
        "How old data is removed: delete drops segments by age and size, compact keeps the newest record of "
        "each key; both may be given, and an empty list keeps everything.",
        "log.cleanup.policy",
        choices=("compact", "delete"),
        as_set=True,
    )
    min_cleanable_dirty_ratio: float = _topic(
        Kind.DOUBLE,
        0.5,
        "Share of the log that must be dirty (not yet compacted) before the partition is due for compaction.",
        "log.cleaner.min.cleanable.ratio",
        low=0,
        high=1,
    )
    min_compaction_lag_ms: int = _topic(
        Kind.LONG,
        0,
        "Minimum time a record stays uncompacted.",
        "log.cleaner.min.compaction.lag.ms",
        low=0,
    )
    max_compaction_lag_ms: int = _topic(
        Kind.LONG,
        INT64_MAX,
        "Maximum time a record may stay uncompacted, whatever the dirty ratio.",
        "log.cleaner.max.compaction.lag.ms",
        low=1,
    )
    compaction_coordination: str = _topic(
        Kind.STRING,
        "coordinated",
        "coordinated: tombstones and transaction markers are removed only when every replica has compacted "
        "past them. independent: by time alone, as Kafka does, so that a replica that was away can bring back"
        " deleted keys and aborted records; for comparison only.",
        "log.cleaner.coordination",
        choices=("coordinated", "independent"),
    )
    storage_mode: str = _topic(
        Kind.STRING,
        "local",
        "local: on the disks of the topic's replicas. cloud: once, in the object store of cloud.store.url. A local "
        "topic may become a cloud topic while it is used; there is no way back.",
        "default.storage.mode",
        choices=("local", "cloud"),
    )
    delete_retention_ms: int = _topic(
        Kind.LONG,
        DAY_MS,
        "How long tombstones and transaction markers are kept, counted from the first compaction that finds "
        "them removable, so that slow consumers still see them.",
        "log.cleaner.delete.retention.ms",
        low=0,
    )
    segment_bytes: int = _topic(
        Kind.INT,
        1024 * 1024 * 1024,
        "Size at which the active segment is rolled. Kafka 4 refuses less than 1 MiB; Sexton accepts it.",
        "log.segment.bytes",
        low=14,
    )
    segment_ms: int = _topic(
        Kind.LONG,
        7 * DAY_MS,
        "Age at which the active segment is rolled even if it is not full.",
        "log.roll.ms",
        Synonym("log.roll.hours", HOUR_MS),
        low=1,
    )
    segment_index_bytes: int = _topic(
        Kind.INT,
        10 * 1024 * 1024,
        "Size of the offset index at which the active segment is rolled.",
        "log.index.size.max.bytes",
        low=4,
    )
    index_interval_bytes: int = _topic(
        Kind.INT,
        4096,
        "Approximate number of log bytes between two entries of the offset index.",
        "log.index.interval.bytes",
        low=0,
    )
    retention_ms: int = _topic(
        Kind.LONG,
        7 * DAY_MS,
        "Age at which segments are deleted where cleanup.policy includes delete; -1 means no limit.",
        "log.retention.ms",
        Synonym("log.retention.minutes", MINUTE_MS),
        Synonym("log.retention.hours", HOUR_MS),
        low=-1,
    )
    retention_bytes: int = _topic(
        Kind.LONG,
        -1,
        "Size of a partition above which its oldest segments are deleted where cleanup.policy includes "
        "delete; -1 means no limit.",
        "log.retention.bytes",
    )
    max_message_bytes: int = _topic(
        Kind.INT,
        1024 * 1024 + 12,
        "Largest record batch that is accepted, in bytes after compression.",
        "message.max.bytes",
        low=0,
    )
    message_timestamp_type: str = _topic(
        Kind.STRING,
        "CreateTime",
        "Whether records keep their producer's timestamp (CreateTime) or get the time at which the leader "
        "appends them (LogAppendTime).",
        "log.message.timestamp.type",
        choices=("CreateTime", "LogAppendTime"),
    )
    compression_type: str = _topic(
        Kind.STRING,
        "producer",
        "Compression of batches in the log. producer keeps what the producer sent; with any other value the "
        "leader recompresses batches that use another codec.",
        "compression.type",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    )
    compression_gzip_level: int = _topic(
        Kind.INT,
        -1,
        "Compression level where compression.type is gzip: 1 is fastest, 9 smallest, -1 the library's default.",
        "compression.gzip.level",
        low=1,
        high=9,
        besides=-1,
    )
    compression_lz4_level: int = _topic(
        Kind.INT,
        9,
        "Compression level where compression.type is lz4. As in Kafka, 9 selects the fast compressor and any "
        "other level the slow one.",
        "compression.lz4.level",
        low=1,
        high=17,
    )
    compression_zstd_level: int = _topic(
        Kind.INT,
        3,
        "Compression level where compression.type is zstd.",
        "compression.zstd.level",
        low=-131072,
        high=22,
    )
    producer_id_expiration_ms: int = _topic(
        Kind.INT,
        DAY_MS,
        "Time a partition remembers an idempotent producer that has stopped writing to it.",
        "producer.id.expiration.ms",
        low=1,
        is_broker_only=True,
    )
    min_insync_replicas: int = _topic(
        Kind.INT,
        1,
        "Number of replicas that must be in sync for a write with acks=all to be accepted. A broker's default"
        " counts at most up to the topic's replication factor.",
        "min.insync.replicas",
        low=1,
    )
    unclean_leader_election_enable: bool = _topic(
        Kind.BOOLEAN,
        False,
        "Whether a replica outside the ISR may become leader when no in-sync replica is available. "
        "Acknowledged records may be lost. Without effect on compacted topics, where an operator must force "
        "such an election.",
        "unclean.leader.election.enable",
    )
    message_timestamp_before_max_ms: int = _topic(
        Kind.LONG,
        INT64_MAX,
        "How far a record's timestamp may lie behind the broker's clock where message.timestamp.type is CreateTime.",
        "log.message.timestamp.before.max.ms",
        low=0,
    )
    message_timestamp_after_max_ms: int = _topic(
        Kind.LONG,
        HOUR_MS,
        "How far a record's timestamp may lie ahead of the broker's clock where message.timestamp.type is CreateTime.",
        "log.message.timestamp.after.max.ms",
        low=0,
    )
    segment_jitter_ms: int = _topic(
        Kind.LONG,
        0,
        "Maximum random time subtracted from segment.ms, so that not all segments roll at once.",
        "log.roll.jitter.ms",
        Synonym("log.roll.jitter.hours", HOUR_MS),
        low=0,
    )
    file_delete_delay_ms: int = _topic(
        Kind.LONG,
        60_000,
        "Accepted for compatibility. Kafka keeps the files of a deleted segment this long; Sexton removes "
        "them at once, and readers that have them open finish reading.",
        "log.segment.delete.delay.ms",
        low=0,
    )
    flush_before_ack: bool = _topic(
        Kind.BOOLEAN,
        True,
        "Whether a write with acks=all is acknowledged only after every in-sync replica has flushed it to "
        "disk. With false, as in Kafka, it is acknowledged from the page caches.",
        "log.flush.before.ack",
    )
    flush_messages: int = _topic(
        Kind.LONG,
        INT64_MAX,
        "Number of records after which Kafka flushes. With flush.before.ack=true every acknowledged record is"
        " flushed regardless; 1 turns flush.before.ack on. Other values are refused where flush.before.ack is"
        " false.",
        "log.flush.interval.messages",
        low=1,
    )
    flush_ms: int = _topic(
        Kind.LONG,
        INT64_MAX,
        "Time after which Kafka flushes. With flush.before.ack=true every acknowledged record is flushed "
        "regardless. Refused where flush.before.ack is false.",
        "log.flush.interval.ms",
        "log.flush.scheduler.interval.ms",
        low=0,
    )
    preallocate: bool = _topic(
        Kind.BOOLEAN,
        False,
        "Accepted for compatibility, without effect: Sexton does not preallocate segment files.",
        "log.preallocate",
    )
    local_retention_ms: int = _topic(
        Kind.LONG,
        -2,
        "Accepted for compatibility, without effect: Sexton has no tiered storage.",
        "log.local.retention.ms",
        low=-2,
    )
    local_retention_bytes: int = _topic(
        Kind.LONG,
        -2,
        "Accepted for compatibility, without effect: Sexton has no tiered storage.",
        "log.local.retention.bytes",
        low=-2,
    )
    remote_storage_enable: bool = _topic(
        Kind.BOOLEAN, False, "Whether a topic uses Kafka's tiered storage. Sexton has none, so only false is accepted."
    )
    remote_log_copy_disable: bool = _topic(
        Kind.BOOLEAN, False, "Accepted for compatibility, without effect: Sexton has no tiered storage."
    )
    remote_log_delete_on_disable: bool = _topic(
        Kind.BOOLEAN, False, "Accepted for compatibility, without effect: Sexton has no tiered storage."
    )
    leader_replication_throttled_replicas: tuple[str, ...] = _topic(
        Kind.LIST,
        (),
        "Replicas whose leaders send at most leader.replication.throttled.rate to followers that are not in "
        "sync: a list of partition:broker, or *. Kafka's reassignment tool sets it.",
        check=_check_throttled,
    )
    follower_replication_throttled_replicas: tuple[str, ...] = _topic(
        Kind.LIST,
        (),
        "Replicas whose fetches are limited to follower.replication.throttled.rate while they are not in "
        "sync: a list of partition:broker, or *. Kafka's reassignment tool sets it.",
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
        """Parses configs given by Kafka's names, later layers overriding earlier ones. Unknown names are ignored."""
        merged = {name: text for layer in layers for name, text in _with_internal_names(layer).items()}
        known = {name: found for name, found in TOPIC_SETTINGS.items() if name in merged}
        values: dict[str, Any] = {name.replace(".", "_"): known[name].parse(merged[name]) for name in known}
        if values.get("flush_messages") == 1:  # Kafka's way to request a flush after every write
            values["flush_before_ack"] = True
        return TopicConfig(**values)


TOPIC_SETTINGS: Mapping[str, Setting] = settings_of(TopicConfig)

INTERNAL_SEGMENT_BYTES = "internal.segment.bytes"
"""Kafka 4 allows segments below 1 MiB only under this name (for its own tests, and ours); it overrides
`segment.bytes`."""


def _with_internal_names(layer: Mapping[str, str]) -> Mapping[str, str]:
    internal = layer.get(INTERNAL_SEGMENT_BYTES)
    return layer if internal is None else {**layer, "segment.bytes": internal}


def topic_names(broker_settings: Mapping[str, str]) -> dict[str, str]:
    """Broker-wide defaults, translated to the topic configs' names and units. The name with the finest unit takes
    precedence."""
    translated = {}
    for found in TOPIC_SETTINGS.values():
        for synonym in found.synonyms:
            if synonym.name in broker_settings:
                translated[found.name] = synonym.convert(broker_settings[synonym.name])
                break
    return translated
