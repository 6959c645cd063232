"""The tables, one schema for both databases.

Three column types keep SQLite and PostgreSQL alike. Ids are `Uuid` (native in PostgreSQL, 32 hex digits in SQLite).
Lists and mappings are JSON *text* that we encode and decode ourselves: PostgreSQL's own JSON types refuse some strings
that SQLite accepts, and order keys differently. Every number is 64 bits wide.

Every table that `read_changes` follows has a `revision` column, the number of the transaction that last wrote the row,
with an index: "what changed after revision r" is a range of that index and costs nothing when nothing changed.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, Dialect, MetaData, Table, Text, TypeDecorator, Uuid

from sexton.ports.metastore import Storage

SCHEMA_VERSION = 7
"""Raised with every change of the tables, which is a step in `migrations`. A newer schema is refused, an older one is
migrated."""

ONLY_ROW = 1
"""The key of the single row of `cluster`."""


class JsonList(TypeDecorator[tuple[int, ...]]):
    """Broker ids, in order."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: tuple[int, ...] | None, dialect: Dialect) -> str:
        return json.dumps(value or [], separators=(",", ":"))

    def process_result_value(self, value: Any, dialect: Dialect) -> tuple[int, ...]:
        return tuple(json.loads(value)) if value != "[]" else ()


class JsonStrings(TypeDecorator[Mapping[str, str]]):
    """Configs. Escaped to ASCII: a NUL or half a surrogate pair in a value is then the same on both databases."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Mapping[str, str] | None, dialect: Dialect) -> str:
        return json.dumps(dict(value or {}), separators=(",", ":"), sort_keys=True)

    def process_result_value(self, value: Any, dialect: Dialect) -> Mapping[str, str]:
        return dict(json.loads(value))


class JsonIncarnations(TypeDecorator[Mapping[int, uuid.UUID]]):
    """Incarnation (id of the replica's log) by broker id."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Mapping[int, uuid.UUID] | None, dialect: Dialect) -> str:
        return json.dumps(
            {str(broker): id_.hex for broker, id_ in sorted((value or {}).items())}, separators=(",", ":")
        )

    def process_result_value(self, value: Any, dialect: Dialect) -> Mapping[int, uuid.UUID]:
        return {int(broker): uuid.UUID(hex=id_) for broker, id_ in json.loads(value).items()} if value != "{}" else {}


class StorageNumber(TypeDecorator[Storage]):
    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: Storage | None, dialect: Dialect) -> int:
        return int(value or Storage.LOCAL)

    def process_result_value(self, value: Any, dialect: Dialect) -> Storage:
        return Storage(value)


metadata = MetaData()

cluster = Table(
    "sexton_cluster",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("cluster_id", Uuid, nullable=False),
    Column("schema_version", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False),
    # Deletions up to this revision are no longer listed one by one: a reader that asks from before it gets a snapshot.
    Column("forgotten_revision", BigInteger, nullable=False),
    Column("next_producer_id", BigInteger, nullable=False),
    # The controller is here, not in a table of its own, so that a poll sees it in the row it reads anyway.
    Column("controller_id", BigInteger, nullable=False),
    Column("controller_epoch", BigInteger, nullable=False),
    Column("controller_term", BigInteger, nullable=False),
    Column("controller_revision", BigInteger, nullable=False),
)

brokers = Table(
    "sexton_brokers",
    metadata,
    Column("broker_id", BigInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("host", Text, nullable=False),
    Column("port", BigInteger, nullable=False),
    Column("rack", Text),
    Column("data_id", Uuid, nullable=False),
    Column("lease_ms", BigInteger, nullable=False),
    Column("renewals_count", BigInteger, nullable=False),
    Column("status", Text, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
    Column("start_id", Text),
)

topics = Table(
    "sexton_topics",
    metadata,
    Column("topic_id", Uuid, primary_key=True),
    Column("name", Text, nullable=False, unique=True),
    Column("is_internal", Boolean, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
)

partitions = Table(
    "sexton_partitions",
    metadata,
    Column("topic_id", Uuid, primary_key=True),
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("replicas", JsonList, nullable=False),
    Column("isr", JsonList, nullable=False),
    Column("leader", BigInteger, nullable=False),
    Column("leader_epoch", BigInteger, nullable=False),
    Column("partition_epoch", BigInteger, nullable=False),
    Column("adding", JsonList, nullable=False),
    Column("removing", JsonList, nullable=False),
    Column("incarnations", JsonIncarnations, nullable=False),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    Column("storage", StorageNumber, nullable=False, server_default="0"),
    Column("revision", BigInteger, nullable=False, index=True),
)

configs = Table(
    "sexton_configs",
    metadata,
    Column("scope", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("settings", JsonStrings, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
)

deleted_topics = Table(
    "sexton_deleted_topics",
    metadata,
    Column("topic_id", Uuid, primary_key=True),
    Column("revision", BigInteger, nullable=False, index=True),
)

work = Table(
    "sexton_compaction_work",
    metadata,
    Column("broker_id", BigInteger, primary_key=True, autoincrement=False),
    Column("topic_id", Uuid, primary_key=True),
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("topic", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("dirty_ratio_ppm", BigInteger, nullable=False),
    Column("dirty_bytes", BigInteger, nullable=False),
    Column("total_bytes", BigInteger, nullable=False),
    Column("overdue_ms", BigInteger, nullable=False),
    Column("is_requested", Boolean, nullable=False),
    Column("since_ms", BigInteger, nullable=False),
    Column("holder", Uuid),
)

compactors = Table(
    "sexton_compactors",
    metadata,
    Column("compactor_id", Uuid, primary_key=True),
    Column("name", Text, nullable=False),
    Column("lease_ms", BigInteger, nullable=False),
    Column("renewals_count", BigInteger, nullable=False),
)

runs = Table(
    "sexton_compaction_runs",
    metadata,
    Column("run_id", Uuid, primary_key=True),
    Column("finished_ms", BigInteger, nullable=False, index=True),
    Column("broker_id", BigInteger, nullable=False),
    Column("topic", Text, nullable=False),
    Column("partition", BigInteger, nullable=False),
    Column("outcome", Text, nullable=False),
    Column("bound", BigInteger, nullable=False),
    Column("bytes_before", BigInteger, nullable=False),
    Column("bytes_after", BigInteger, nullable=False),
    Column("duration_ms", BigInteger, nullable=False),
    Column("fates", JsonStrings, nullable=False),
    Column("first_dirty_offset", BigInteger, nullable=False, server_default="-1"),
)
