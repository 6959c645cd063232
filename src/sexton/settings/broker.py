"""A broker's configs, set in its file or, where declared, at run time.

Kafka's names and defaults where Kafka has the config; Sexton's own are at the end. The defaults of topics
(`log.retention.hours` and the like) are derived from the topics' configs, so that each rule exists once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sexton.settings.group import GroupConfig
from sexton.settings.schema import MINUTE_MS, REQUIRED, Kind, Setting, Update, setting, settings_of
from sexton.settings.topic import TOPIC_SETTINGS
from sexton.types import INT32_MAX, INT64_MAX

RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
"""Kafka selects it by a class name; the same name works here, so that a file for Kafka can be used."""

_ASSIGNOR_CLASSES = {
    "org.apache.kafka.coordinator.group.assignor.UniformAssignor": "uniform",
    "org.apache.kafka.coordinator.group.assignor.RangeAssignor": "range",
}


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
class GroupSettings:
    """What a group coordinator needs to know of its broker's configs."""

    offsets_topic_num_partitions: int = _int(
        50, "Number of partitions of __consumer_offsets, which holds committed offsets.", low=1
    )
    offsets_topic_replication_factor: int = setting(
        Kind.SHORT, 3, "Replication factor of __consumer_offsets, which holds committed offsets.", low=1
    )
    offsets_topic_segment_bytes: int = _int(
        100 << 20, "segment.bytes of __consumer_offsets: small, so that a coordinator loads it quickly.", low=1
    )
    offsets_retention_minutes: int = _int(
        10_080, "Time committed offsets are kept after their group became empty.", low=1
    )
    offsets_retention_check_interval_ms: int = _long(
        600_000, "Interval at which a coordinator looks for committed offsets that have expired.", low=1
    )
    offsets_commit_timeout_ms: int = _int(
        5000, "Time an offset commit waits for the replicas of the offsets topic.", low=1
    )
    offset_metadata_max_bytes: int = _int(4096, "Maximum length of the metadata of a committed offset.", low=0)
    group_min_session_timeout_ms: int = _int(
        6000, "Shortest session.timeout.ms that a member of a classic group may ask for.", low=0
    )
    group_max_session_timeout_ms: int = _int(
        1_800_000, "Longest session.timeout.ms that a member of a classic group may ask for.", low=0
    )
    group_initial_rebalance_delay_ms: int = _int(
        3000, "Time a new classic group waits for more members before its first rebalance.", low=0
    )
    group_max_size: int = _int(INT32_MAX, "Maximum number of members of a classic group.", low=1)
    group_consumer_session_timeout_ms: int = _int(
        45_000, "Session timeout of groups of the consumer protocol (KIP-848).", low=1
    )
    group_consumer_min_session_timeout_ms: int = _int(
        45_000, "Shortest session timeout that a group of the consumer protocol (KIP-848) may set for itself.", low=1
    )
    group_consumer_max_session_timeout_ms: int = _int(
        60_000, "Longest session timeout that a group of the consumer protocol (KIP-848) may set for itself.", low=1
    )
    group_consumer_heartbeat_interval_ms: int = _int(
        5000, "Heartbeat interval of groups of the consumer protocol (KIP-848).", low=1
    )
    group_consumer_min_heartbeat_interval_ms: int = _int(
        5000, "Shortest heartbeat interval that a group of the consumer protocol (KIP-848) may set for itself.", low=1
    )
    group_consumer_max_heartbeat_interval_ms: int = _int(
        15_000, "Longest heartbeat interval that a group of the consumer protocol (KIP-848) may set for itself.", low=1
    )
    group_consumer_max_size: int = _int(
        INT32_MAX, "Maximum number of members of a group of the consumer protocol (KIP-848).", low=1
    )
    group_consumer_assignors: tuple[str, ...] = setting(
        Kind.LIST,
        ("uniform", "range"),
        "Server-side assignors of groups of the consumer protocol (KIP-848), the default one first.",
        choices=("uniform", "range", *_ASSIGNOR_CLASSES),
    )
    group_consumer_migration_policy: str = _string(
        "bidirectional",
        "Whether a group that has members may change from the classic to the consumer protocol (upgrade), "
        "back (downgrade), both ways, or not at all.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * MINUTE_MS

    @property
    def group_config(self) -> GroupConfig:
        """The configs of a group that has none of its own."""
        return GroupConfig(
            consumer_session_timeout_ms=self.group_consumer_session_timeout_ms,
            consumer_heartbeat_interval_ms=self.group_consumer_heartbeat_interval_ms,
        )

    @property
    def assignors(self) -> tuple[str, ...]:
        """Names of `group.consumer.assignors`, where a file for Kafka may have the names of its classes."""
        return tuple(_ASSIGNOR_CLASSES.get(name, name) for name in self.group_consumer_assignors)


@dataclass(frozen=True, kw_only=True)
class TransactionSettings:
    """What a transaction coordinator needs to know of its broker's configs."""

    transaction_max_timeout_ms: int = _int(
        900_000, "Longest transaction.timeout.ms that a producer may ask for.", low=1
    )
    transactional_id_expiration_ms: int = _int(
        604_800_000, "Time a transactional id is kept after its last transaction.", low=1
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = _int(
        3_600_000, "Interval at which a coordinator looks for transactional ids that have expired.", low=1
    )
    transaction_state_log_num_partitions: int = _int(
        50, "Number of partitions of __transaction_state, which holds the state of transactions.", low=1
    )
    transaction_state_log_replication_factor: int = setting(
        Kind.SHORT, 3, "Replication factor of __transaction_state, which holds the state of transactions.", low=1
    )
    transaction_state_log_min_isr: int = _int(
        2, "min.insync.replicas of __transaction_state, which holds the state of transactions.", low=1
    )
    transaction_state_log_segment_bytes: int = _int(
        100 << 20, "segment.bytes of __transaction_state: small, so that a coordinator loads it quickly.", low=1
    )


@dataclass(frozen=True, kw_only=True)
class BrokerSettings(GroupSettings, TransactionSettings):
    """Values by attribute: `socket_request_max_bytes` is `socket.request.max.bytes`."""

    # --- identity and location ---

    node_id: int = _int(REQUIRED, "Id of the broker, unique in the cluster.", low=0)
    listeners: tuple[str, ...] = setting(
        Kind.LIST,
        ("PLAINTEXT://127.0.0.1:9092",),
        "Address the broker listens on: one PLAINTEXT://host:port. Without a host it listens on loopback; "
        "port 0 picks a free port.",
    )
    advertised_listeners: tuple[str, ...] = setting(
        Kind.LIST,
        (),
        "Address that clients and other brokers use to reach this broker. Empty: the address in listeners.",
    )
    log_dirs: tuple[str, ...] = setting(Kind.LIST, REQUIRED, "Directory of the broker's data. Exactly one.")
    broker_rack: str | None = _string(None, "Rack of the broker. Replicas of a partition are spread over racks.")
    replica_selector_class: str | None = _string(
        None,
        "With org.apache.kafka.common.replica.RackAwareReplicaSelector, consumers are told to fetch from a "
        "replica in their own rack (KIP-392).",
        choices=(RACK_AWARE_SELECTOR,),
    )

    # --- topics ---

    auto_create_topics_enable: bool = _boolean(
        True, "Whether a topic is created when a client first asks for its metadata."
    )
    delete_topic_enable: bool = _boolean(True, "Whether clients may delete topics.")
    num_partitions: int = _int(1, "Default number of partitions of a new topic.", low=1)
    default_replication_factor: int = _int(1, "Default replication factor of a new topic.", low=1)
    log_retention_check_interval_ms: int = _long(
        300_000, "Interval at which a broker looks for segments that retention lets it delete.", low=1
    )

    producer_id_expiration_ms: int = field(
        default=TOPIC_SETTINGS["producer.id.expiration.ms"].default,
        metadata={"setting": TOPIC_SETTINGS["producer.id.expiration.ms"]},
    )

    # --- replication ---

    replica_lag_time_max_ms: int = _long(
        30_000,
        "Time after which a follower that has not reached the leader's log end leaves the ISR.",
        low=1,
    )
    replica_fetch_max_bytes: int = _int(1 << 20, "Bytes of one partition that a follower asks for in one fetch.", low=0)
    replica_fetch_response_max_bytes: int = _int(
        10 << 20, "Bytes that a follower asks for in one fetch, over all partitions.", low=0
    )
    replica_fetch_wait_max_ms: int = _int(500, "Time a leader that has no new records holds a follower's fetch.", low=0)
    auto_leader_rebalance_enable: bool = _boolean(
        True, "Whether leadership moves back to the preferred leaders automatically."
    )
    leader_imbalance_check_interval_seconds: int = _long(
        300, "Interval at which the controller looks for partitions that are not led by their preferred leader.", low=1
    )
    controlled_shutdown_enable: bool = _boolean(
        True, "Whether a broker hands its leaderships over to other brokers before it stops."
    )
    leader_replication_throttled_rate: int = _throttle(
        "Bytes per second that this broker's leaders send to throttled replicas "
        "(leader.replication.throttled.replicas of the topics)."
    )
    follower_replication_throttled_rate: int = _throttle(
        "Bytes per second that this broker's throttled followers fetch "
        "(follower.replication.throttled.replicas of the topics)."
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = _throttle(
        "Accepted for compatibility, without effect: a Sexton broker has one data directory."
    )

    # --- connections and requests ---

    socket_request_max_bytes: int = _int(
        100 << 20, "Largest request the broker reads; a connection that sends a larger one is closed.", low=1
    )
    queued_max_request_bytes: int = _long(
        256 << 20,
        "Maximum number of request bytes in memory; the broker stops reading from connections above it. -1 "
        "means no limit, which is Kafka's default.",
        low=-1,
    )
    connections_max_idle_ms: int = _long(
        600_000, "Time after which a connection without requests is closed; -1 means never."
    )
    max_connections: int = _int(
        INT32_MAX, "Maximum number of client connections to the broker.", low=0, update=Update.CLUSTER_WIDE
    )
    max_connections_per_ip: int = _int(
        INT32_MAX,
        "Maximum number of client connections to the broker from one IP address.",
        low=0,
        update=Update.CLUSTER_WIDE,
    )
    request_timeout_ms: int = _int(30_000, "Time a broker waits for another broker's response.", low=1)
    fetch_max_bytes: int = _int(55 << 20, "Maximum size of one Fetch response, whatever the client asks for.", low=1024)
    max_incremental_fetch_session_cache_slots: int = _int(
        1000, "Maximum number of incremental fetch sessions (KIP-227) the broker keeps.", low=0
    )
    max_request_partition_size_limit: int = _int(
        2000, "Maximum number of partitions in one DescribeTopicPartitions response.", low=1
    )

    # --- compaction ---

    log_cleaner_enable: bool = _boolean(
        True, "Whether this broker publishes compacted topics' partitions as due for compaction."
    )
    log_cleaner_backoff_ms: int = _long(
        15_000,
        "Interval at which a broker looks for partitions that are due for compaction.",
        low=0,
        update=Update.CLUSTER_WIDE,
    )
    compaction_share: bool = _boolean(
        True,
        "Whether in-sync followers copy the leader's compacted segments instead of compacting their own log.",
        update=Update.CLUSTER_WIDE,
    )
    compaction_share_max_bytes_per_second: int = _long(
        64 << 20,
        "Average rate at which a broker copies compacted segments from leaders.",
        low=1,
        update=Update.CLUSTER_WIDE,
    )

    # --- cloud topics ---

    cloud_store_url: str | None = _string(
        None,
        "Object store of cloud topics, the same for all brokers: file:///path, s3://bucket/prefix, gs:// or az://.",
    )
    cloud_linger_ms: int = _long(
        100, "How long batches of cloud topics are gathered into one object. Each object is a request.", low=0
    )
    cloud_l0_bytes: int = _long(4 << 20, "Size at which an object is sent without waiting for more.", low=1)
    cloud_l0_partitions_max: int = _int(500, "Maximum number of partitions in one object.", low=1, high=500)
    cloud_uploads_max: int = _int(4, "Maximum number of objects that a broker sends at once.", low=1)
    cloud_eager: bool = _boolean(
        False,
        "A batch of a cloud topic is sent without lingering while no other is on its way: a lone producer's records "
        "are acknowledged sooner, for more requests to the store.",
    )
    cloud_hedge: bool = _boolean(
        False,
        "An object that takes three times as long as usual, and at least 250 ms, is sent a second time under another "
        "name; whichever is stored first counts.",
    )
    cloud_downloads_max: int = _int(16, "Maximum number of reads that a broker sends to the store at once.", low=1)
    cloud_put_timeout_ms: int = _long(
        10_000, "How long one attempt to store an object may take. Attempts are repeated.", low=1
    )
    cloud_get_timeout_ms: int = _long(
        10_000, "How long any other request to the store may take. Attempts are repeated.", low=1
    )
    cloud_pending_bytes_max: int = _long(
        32 << 20,
        "Bytes of cloud topics that wait to be stored; beyond them producers wait, or are told to try again.",
        low=1,
    )
    cloud_cache_bytes_max: int = _long(
        64 << 20, "Bytes of cloud topics that a broker keeps in memory for consumers.", low=1
    )

    cloud_level_ms: int = _long(
        300_000,
        "How long records of a cloud topic wait in the objects that brokers wrote until a compactor sorts them into "
        "larger ones by partition. Compactors know what is set for all brokers at run time, not what is in a "
        "broker's file.",
        low=0,
        update=Update.CLUSTER_WIDE,
    )
    cloud_l1_bytes: int = _long(
        64 << 20,
        "Size of the objects that compactors write, about. Compactors know what is set for all brokers at run time.",
        low=1 << 10,
        high=4 << 30,
        update=Update.CLUSTER_WIDE,
    )
    cloud_view_age_max_ms: int = _long(
        10_000,
        "How old a broker's knowledge of compacted parts of cloud topics may be when it serves them. Tombstones stay "
        "for at least 20 seconds, whatever delete.retention.ms says.",
        low=1_000,
        high=10_000,
    )
    cloud_gc_round_ms: int = _long(
        60_000,
        "Interval at which the controller looks for objects that nothing refers to any more, a round.",
        low=100,
        update=Update.CLUSTER_WIDE,
    )
    cloud_delete_delay_ms: int = _long(
        900_000,
        "How long an object stays in the store after the last reference to it is gone, in whole rounds, two at least.",
        low=0,
        update=Update.CLUSTER_WIDE,
    )

    cloud_scrub_interval_ms: int = _long(
        86_400_000,
        "How often the controller lists the store for objects that nobody knows of: put after they had been given up, "
        "which is rare. Counted in rounds of the collection.",
        low=1_000,
        update=Update.CLUSTER_WIDE,
    )
    cloud_scrub_age_ms: int = _long(
        604_800_000,
        "Objects that nobody knows of and that are younger stay in the store, for whoever restores an older metastore.",
        low=0,
        update=Update.CLUSTER_WIDE,
    )

    # --- Sexton's own ---

    metastore_url: str = _string(
        REQUIRED,
        "Metastore, which holds the cluster's state: sqlite:///path or postgresql://user@host/database. Not "
        "shown to clients: it may hold a password.",
        is_sensitive=True,
    )
    admin_listener: str | None = _string(
        None,
        "Address of the broker's read-only HTTP endpoint for metrics and status: http://host:port; port 0 "
        "picks a free one. Not set: no endpoint. It has no access control.",
    )
    broker_lease_ms: int = _int(
        5000,
        "Time a broker may serve without having renewed its lease in the metastore. After it, the broker "
        "stops serving, and others may take over its partitions.",
        low=100,
    )
    broker_lease_renew_ms: int = _int(1000, "Interval at which a broker renews its lease in the metastore.", low=10)
    metadata_poll_ms: int = _int(
        200, "Interval at which a broker polls the metastore for changes. Brokers also notify each other.", low=1
    )


def _topic_defaults() -> dict[str, Setting]:
    """The brokers' names for topic configs. The last of several synonyms carries the default, and the first can be
    changed at run time, as in Kafka."""
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
"""Every config of a broker, by name."""


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
"""Configs that files written for Kafka often contain and Sexton does not have, with what to do instead."""
