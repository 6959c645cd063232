"""What clients are asked to do: the rows of docs/clients.md."""

from __future__ import annotations

from typing import Final

FEATURES: Final[dict[str, str]] = {
    # Producing.
    "codecs": "produce with every codec: none, gzip, snappy, lz4, zstd; also where the topic has one of its own",
    "acks": "produce with acks 0, 1 and all",
    "idempotent": "idempotent producer",
    "headers": "record headers",
    "nulls": "null and empty keys and values",
    "large": "messages of 900 KB, several in a batch, and a stream of them",
    "create_time": "timestamps set by the producer",
    "append_time": "timestamps set by the broker (LogAppendTime)",
    # Consuming.
    "positions": "consume from the beginning, the end and any offset; seek; reset out of range",
    "times": "offsets for times",
    "long_poll": "a waiting fetch is answered when a record arrives",
    "pause": "pause and resume partitions",
    "sessions": "many partitions in one fetch session, some of them idle",
    # Groups.
    "auto_commit": "group with automatic commit",
    "manual_commit": "group with manual commit",
    "rebalance": "two members join and leave",
    "static": "static members keep their partitions over a restart",
    "cooperative": "cooperative rebalancing",
    "kip848": "the new group protocol (KIP-848)",
    "pattern": "subscription by pattern",
    "server_pattern": "subscription by a pattern that brokers match (KIP-848)",
    # Administration.
    "topics": "create, list, describe and delete topics",
    "configs": "describe and alter topic settings",
    "partitions": "add partitions",
    "delete_records": "delete records",
    "groups": "list, describe and delete groups",
    "group_offsets": "read and alter the offsets of a group",
    "cluster": "describe the cluster",
    # Mistakes: each gets the error that Kafka gives.
    "unknown_topic": "the right error for a topic that does not exist",
    "existing_topic": "the right error for a topic that exists already or makes no sense",
    "too_large": "the right error for a message that is too large",
    "keyless_compacted": "the right error for a record without a key in a compacted topic",
    # Spark's own source and sink.
    "spark_batch": "Spark: write a table to a topic, read it back by offsets",
    "spark_stream": "Spark: a stream from topic to topic, stopped and continued from its checkpoint",
    # Kafka's command line tools.
    "tool_topics": "TopicCommand: create, describe, alter, list, delete",
    "tool_console": "ConsoleProducer and ConsoleConsumer",
    "tool_groups": "ConsumerGroupCommand: list, describe, reset offsets, delete",
    "tool_configs": "ConfigCommand: topics and brokers",
    "tool_resources": "ConfigCommand and ClientMetricsCommand: all groups that have settings, all client metrics",
    "tool_performance": "ProducerPerformance and ConsumerPerformance",
    "tool_reassign": "ReassignPartitionsCommand: execute, verify",
    "tool_election": "LeaderElectionCommand: preferred leaders",
    "tool_offsets": "GetOffsetShell",
    "tool_dirs": "LogDirsCommand",
    "tool_delete_records": "DeleteRecordsCommand",
    "tool_versions": "BrokerApiVersionsCommand",
    "tool_features": "FeatureCommand: describe",
    "tool_security": "ConfigCommand and AclCommand: users, clients and access rules, of which there are none",
    "tool_dump": "DumpLogSegments on every replica's files",
}
"""Key to what a reader is told. A scenario of that key in each client's module shows it."""
