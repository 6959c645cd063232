"""What is set on a broker, in its file or, where it says so, at run time.

Kafka's names and defaults where Kafka has the setting; what is Sexton's own is at the end. The defaults of topics
(`log.retention.hours` and the like) are derived from the topics' settings, so that a rule exists once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sexton.compaction.config import TOPIC_SETTINGS
from sexton.compaction.settings import INT32_MAX, INT64_MAX, REQUIRED, Kind, Setting, Update, setting, settings_of

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka names the choice by a class; so that a file for Kafka works here, so do we."""

_KAFKAS_ASSIGNORS = "org.apache.kafka.coordinator.group.assignor."


def _boolean(default: bool, doc: str, **rules: Any) -> Any:
    return setting(Kind.BOOLEAN, default, doc, **rules)


def _int(default: Any, doc: str, **rules: Any) -> Any:
    return setting(Kind.INT, default, doc, **rules)


def _long(default: int, doc: str, **rules: Any) -> Any:
    return setting(Kind.LONG, default, doc, **rules)


def _string(default: Any, doc: str, **rules: Any) -> Any:
    return setting(Kind.STRING, default, doc, **rules)


def _throttle(doc: str) -> Any:
    return _long(INT64_MAX, doc, low=0, update=Update.CLUSTER_WIDE)


@dataclass(frozen=True, kw_only=True)
class BrokerSettings:
    """Values by attribute: `socket_request_max_bytes` is `socket.request.max.bytes`."""

    # --- identity and place ---

    node_id: int = _int(REQUIRED, "The broker's number, different from every other broker's of the cluster.", low=0)
    listeners: tuple[str, ...] = setting(
        Kind.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Where the broker listens: one PLAINTEXT://host:port. Without a host it is loopback; port 0 takes a free one.",
    )
    advertised_listeners: tuple[str, ...] = setting(
        Kind.LIST, (), "The address that clients and other brokers are told. That of listeners, if empty."
    )
    log_dirs: tuple[str, ...] = setting(Kind.LIST, REQUIRED, "The folder that holds the broker's data. Exactly one.")
    broker_rack: str | None = _string(None, "Where the broker stands: replicas are spread over racks.")
    replica_selector_class: str | None = _string(
        None,
        "With Kafka's RackAwareReplicaSelector, consumers are sent to a replica of their own rack.",
        choices=(RACK_AWARE_SELECTOR,),
    )

    # --- topics ---

    auto_create_topics_enable: bool = _boolean(
        True, "Whether a topic comes into being when a client first asks for it."
    )
    delete_topic_enable: bool = _boolean(True, "Whether topics may be deleted.")
    num_partitions: int = _int(1, "How many partitions a topic gets when nobody says.", low=1)
    default_replication_factor: int = _int(1, "How many replicas a partition gets when nobody says.", low=1)
    log_retention_check_interval_ms: int = _long(
        300_000, "How often segments are looked at that may have become too old or too many.", low=1
    )

    producer_id_expiration_ms: int = field(
        default=TOPIC_SETTINGS["producer.id.expiration.ms"].default,
        metadata={"setting": TOPIC_SETTINGS["producer.id.expiration.ms"]},
    )

    # --- replication ---

    replica_lag_time_max_ms: int = _long(
        30_000,
        "How long a follower may not have been at the leader's end before it leaves the in-sync replicas.",
        low=1,
    )
    replica_fetch_max_bytes: int = _int(1 << 20, "How much of one partition a follower asks for at a time.", low=0)
    replica_fetch_response_max_bytes: int = _int(10 << 20, "How much a follower asks for at a time.", low=0)
    replica_fetch_wait_max_ms: int = _int(500, "How long a leader with nothing new lets a follower wait.", low=0)
    auto_leader_rebalance_enable: bool = _boolean(True, "Whether leadership returns to preferred leaders by itself.")
    leader_imbalance_check_interval_seconds: int = _long(300, "How often that is looked at.", low=1)
    controlled_shutdown_enable: bool = _boolean(True, "Whether a broker hands its leaderships over before it stops.")
    leader_replication_throttled_rate: int = _throttle("Bytes a second that its leaders send to throttled replicas.")
    follower_replication_throttled_rate: int = _throttle("Bytes a second that its throttled followers fetch.")
    replica_alter_log_dirs_io_max_bytes_per_second: int = _throttle(
        "Bytes a second for moves between folders of one broker, of which there are none."
    )

    # --- connections and requests ---

    socket_request_max_bytes: int = _int(100 << 20, "The largest request that is read.", low=1)
    queued_max_request_bytes: int = _long(
        256 << 20,
        "How many bytes of requests may be in work before connections are read no further; -1 sets no bound, "
        "as is Kafka's default.",
        low=-1,
    )
    connections_max_idle_ms: int = _long(600_000, "How long a connection may be silent before it is closed.")
    max_connections: int = _int(INT32_MAX, "How many connections the broker holds.", low=0, update=Update.CLUSTER_WIDE)
    max_connections_per_ip: int = _int(
        INT32_MAX, "How many connections it holds from one address.", low=0, update=Update.CLUSTER_WIDE
    )
    request_timeout_ms: int = _int(30_000, "How long a broker waits for another's answer.", low=1)
    fetch_max_bytes: int = _int(55 << 20, "The most that one fetch answer holds, whatever was asked for.", low=1024)
    max_incremental_fetch_session_cache_slots: int = _int(1000, "How many fetch sessions are remembered.", low=0)
    max_request_partition_size_limit: int = _int(
        2000, "How many partitions DescribeTopicPartitions returns at a time.", low=1
    )

    # --- groups ---

    offsets_topic_num_partitions: int = _int(50, "Partitions of the topic that holds committed offsets.", low=1)
    offsets_topic_replication_factor: int = setting(
        Kind.SHORT, 3, "Replicas of the topic that holds committed offsets.", low=1
    )
    offsets_topic_segment_bytes: int = _int(100 << 20, "Its segments' size: small, so that it is read quickly.", low=1)
    offsets_retention_minutes: int = _int(10_080, "How long offsets are kept after their group became empty.", low=1)
    offsets_retention_check_interval_ms: int = _long(600_000, "How often that is looked at.", low=1)
    offsets_commit_timeout_ms: int = _int(5000, "How long a commit waits for its replicas.", low=1)
    offset_metadata_max_bytes: int = _int(4096, "The longest text that may go with a committed offset.", low=0)
    group_min_session_timeout_ms: int = _int(6000, "The shortest session that a member may ask for.", low=0)
    group_max_session_timeout_ms: int = _int(1_800_000, "The longest session that a member may ask for.", low=0)
    group_initial_rebalance_delay_ms: int = _int(
        3000, "How long a new group waits for more members before the first rebalance.", low=0
    )
    group_max_size: int = _int(INT32_MAX, "How many members a classic group may have.", low=1)
    group_consumer_session_timeout_ms: int = _int(45_000, "A session's length under the new protocol.", low=1)
    group_consumer_min_session_timeout_ms: int = _int(45_000, "The shortest that a group may set for itself.", low=1)
    group_consumer_max_session_timeout_ms: int = _int(60_000, "The longest that a group may set for itself.", low=1)
    group_consumer_heartbeat_interval_ms: int = _int(5000, "Time between heartbeats under the new protocol.", low=1)
    group_consumer_min_heartbeat_interval_ms: int = _int(5000, "The shortest that a group may set for itself.", low=1)
    group_consumer_max_heartbeat_interval_ms: int = _int(15_000, "The longest that a group may set for itself.", low=1)
    group_consumer_max_size: int = _int(INT32_MAX, "How many members a group of the new protocol may have.", low=1)
    group_consumer_assignors: tuple[str, ...] = setting(
        Kind.LIST,
        ("uniform", "range"),
        "Server-side assignors, the default one first.",
        choices=("uniform", "range", _KAFKAS_ASSIGNORS + "UniformAssignor", _KAFKAS_ASSIGNORS + "RangeAssignor"),
    )
    group_consumer_migration_policy: str = _string(
        "bidirectional",
        "Which way a group with members may change between the old and the new protocol.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )

    # --- transactions ---

    transaction_max_timeout_ms: int = _int(
        900_000, "The longest transaction.timeout.ms that a producer may ask for.", low=1
    )
    transactional_id_expiration_ms: int = _int(
        604_800_000, "How long a transactional id is remembered after its last transaction.", low=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _int(
        3_600_000, "How often that is looked at.", low=1
    )
    transaction_state_log_num_partitions: int = _int(50, "Partitions of the topic that holds transactions.", low=1)
    transaction_state_log_replication_factor: int = setting(
        Kind.SHORT, 3, "Replicas of the topic that holds transactions.", low=1
    )
    transaction_state_log_min_isr: int = _int(
        2, "How many replicas of that topic must be in sync for a transaction to go on.", low=1
    )
    transaction_state_log_segment_bytes: int = _int(
        100 << 20, "Its segments' size: small, so that it is read quickly.", low=1
    )

    # --- compaction ---

    log_cleaner_enable: bool = _boolean(True, "Whether compacted topics are compacted.")
    log_cleaner_backoff_ms: int = _long(
        15_000, "How often a broker looks for partitions that are due.", low=0, update=Update.CLUSTER_WIDE
    )
    compaction_share: bool = _boolean(
        True,
        "Whether in-sync followers take over what their leader has compacted instead of compacting it again.",
        update=Update.CLUSTER_WIDE,
    )
    compaction_share_max_bytes_per_second: int = _long(
        64 << 20,
        "How fast a broker copies finished segments from leaders, on average.",
        low=1,
        update=Update.CLUSTER_WIDE,
    )

    # --- Sexton's own ---

    metastore_url: str = _string(
        REQUIRED,
        "Where the cluster's state is: sqlite:///path or postgresql://user@host/database. Hidden, for it may hold a "
        "password.",
        is_sensitive=True,
    )
    admin_listener: str | None = _string(
        None,
        "Where the broker tells of itself over HTTP: http://host:port. Port 0 takes a free one. Nowhere, if not set. "
        "Anybody who can connect can read it; nobody can change anything.",
    )
    broker_lease_ms: int = _int(5000, "How long a broker may go on serving without having renewed its lease.", low=100)
    broker_lease_renew_ms: int = _int(1000, "How often it renews it.", low=10)
    metadata_poll_ms: int = _int(200, "How often a broker asks the metastore for changes.", low=1)


def _topic_defaults() -> dict[str, Setting]:
    """The brokers' names for topic settings. Of several, the last carries the default and the first can be changed at
    run time, as in Kafka."""
    derived = {}
    for topic_setting in TOPIC_SETTINGS.values():
        synonyms = topic_setting.synonyms
        for synonym in synonyms:
            derived[synonym.name] = replace(
                topic_setting,
                name=synonym.name,
                kind=topic_setting.kind if synonym.factor == 1 else Kind.INT,
                default=_default_of(topic_setting, synonym.factor) if synonym is synonyms[-1] else None,
                doc=_doc_of_default(topic_setting, synonym.name, synonym.factor),
                update=Update.CLUSTER_WIDE if synonym is synonyms[0] else Update.READ_ONLY,
            )
    return derived


def _default_of(topic_setting: Setting, factor: int) -> Any:
    return topic_setting.default if factor == 1 else topic_setting.default // factor


def _doc_of_default(topic_setting: Setting, name: str, factor: int) -> str:
    if topic_setting.is_broker_only:
        return topic_setting.doc
    unit = f", in {name.rpartition('.')[2]}" if factor != 1 else ""
    return f"The default of the topics' {topic_setting.name}{unit}."


BROKER_SETTINGS: Mapping[str, Setting] = {**settings_of(BrokerSettings), **_topic_defaults()}
"""Every setting of a broker, by name."""


@dataclass(frozen=True, kw_only=True)
class GroupConfig:
    """What is set on a consumer group of the new protocol."""

    consumer_session_timeout_ms: int = _int(
        45_000,
        "How long a member may be silent before it is taken to be gone.",
        low=1,
        update=Update.CLUSTER_WIDE,
    )
    consumer_heartbeat_interval_ms: int = _int(
        5000, "How often members are told to send a heartbeat.", low=1, update=Update.CLUSTER_WIDE
    )


GROUP_SETTINGS: Mapping[str, Setting] = settings_of(GroupConfig)

KAFKA_ONLY: Mapping[str, str] = {
    "broker.id": "use node.id",
    "broker.id.generation.enable": "give each broker a node.id",
    "log.dir": "use log.dirs",
    "process.roles": "every broker takes its turn as controller",
    "controller.quorum.voters": "cluster state is in metastore.url",
    "controller.quorum.bootstrap.servers": "cluster state is in metastore.url",
    "controller.listener.names": "brokers need no listener for a controller",
    "inter.broker.listener.name": "there is one listener",
    "listener.security.protocol.map": "only PLAINTEXT is offered",
    "zookeeper.connect": "cluster state is in metastore.url",
    "num.network.threads": "a broker is one event loop; a bigger machine runs more brokers",
    "num.io.threads": "a broker is one event loop; a bigger machine runs more brokers",
    "num.replica.fetchers": "followers keep one connection to each leader",
    "replica.fetch.min.bytes": "leaders answer followers as soon as there is anything",
    "replica.fetch.backoff.ms": "followers try again at once, then more and more slowly",
    "num.recovery.threads.per.data.dir": "logs are read by one event loop",
    "socket.send.buffer.bytes": "the system sizes its own buffers",
    "socket.receive.buffer.bytes": "the system sizes its own buffers",
    "broker.session.timeout.ms": "use broker.lease.ms",
    "broker.heartbeat.interval.ms": "use broker.lease.renew.ms",
    "log.cleaner.threads": "compactors do it, on Spark: give one more cores (sexton compactor --master) or start more",
    "log.cleaner.dedupe.buffer.size": "a pass handles any number of keys, without a buffer for them",
    "log.cleaner.io.buffer.size": "tasks of Spark size their own buffers",
    "log.cleaner.io.buffer.load.factor": "a pass handles any number of keys, without a buffer for them",
    "log.cleaner.io.max.bytes.per.second": "use sexton compactor --bytes-per-second, and for what followers take over "
    "compaction.share.max.bytes.per.second",
    "log.message.downconversion.enable": "Kafka 4 has no old message formats either",
    "authorizer.class.name": "there are no access rules",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "transactions are aborted when their time is up",
    "transaction.partition.verification.enable": "partitions of a transaction are always verified",
    "transaction.two.phase.commit.enable": "there is no two-phase commit with other systems",
}
"""Settings that files written for Kafka often have and Sexton has not, with what to do instead."""
