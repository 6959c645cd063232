"""The tables of cloud topics. `ports/cloud.py` says what the columns mean.

Sizes and counters are kept in the partition's row, so that whoever looks for work reads small rows alone. Rows of
`extents` live for minutes (L0) and are looked up by (partition, offset): SQLite keeps them in the order of their key.
On PostgreSQL the rows that every commit updates leave room on their page for the next version, and tables whose rows
come and go are vacuumed after a fixed number of them, not after a fifth of the table.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index, LargeBinary, Table, Text, UniqueConstraint, Uuid

from sexton.adapters.metastore.schema import metadata

_VACUUMED = {
    "autovacuum_vacuum_scale_factor": 0.0,
    "autovacuum_vacuum_threshold": 5000,
    "autovacuum_analyze_scale_factor": 0.0,
    "autovacuum_analyze_threshold": 5000,
}
"""Of rows that come and go."""

objects = Table(
    "sexton_cloud_objects",
    metadata,
    Column("object_id", Uuid, primary_key=True),
    Column("level", BigInteger, nullable=False),
    Column("state", BigInteger, nullable=False),
    Column("owner_kind", BigInteger, nullable=False),
    Column("owner_id", Text, nullable=False),
    Column("owner_epoch", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("refs_count", BigInteger, nullable=False),
    Column("live_bytes", BigInteger, nullable=False),
    Column("round", BigInteger, nullable=False),
    Index("ix_sexton_cloud_objects_state_round", "state", "round"),
    postgresql_with={"fillfactor": 70, **_VACUUMED},
)

cloud_partitions = Table(
    "sexton_cloud_partitions",
    metadata,
    Column("topic_id", Uuid, primary_key=True),
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("start_offset", BigInteger, nullable=False),
    Column("end_offset", BigInteger, nullable=False),
    Column("stable_offset", BigInteger, nullable=False),
    Column("leveled_offset", BigInteger, nullable=False),
    Column("cleaned_offset", BigInteger, nullable=False),
    Column("writer_epoch", BigInteger, nullable=False),
    Column("writer_id", BigInteger, nullable=False),
    Column("writer_broker_epoch", BigInteger, nullable=False),
    Column("compaction_epoch", BigInteger, nullable=False),
    Column("producers_offset", BigInteger, nullable=False),
    Column("producers", LargeBinary),
    Column("l0_bytes", BigInteger, nullable=False),
    Column("l0_extents_count", BigInteger, nullable=False),
    Column("l0_since_ms", BigInteger, nullable=False),
    Column("l1_bytes", BigInteger, nullable=False),
    Column("dirty_bytes", BigInteger, nullable=False),
    Column("dirty_since_ms", BigInteger, nullable=False),
    Column("horizon_ms", BigInteger, nullable=False),
    # Two numbers of a design that was given up (docs/decisions, 31): 0, for builds that read them.
    Column("prefix_from", BigInteger, nullable=False),
    Column("prefix_until", BigInteger, nullable=False),
    Column("revision", BigInteger, nullable=False, index=True),
    postgresql_with={"fillfactor": 70, **_VACUUMED},
)

extents = Table(
    "sexton_cloud_extents",
    metadata,
    Column("topic_id", Uuid, primary_key=True),
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("base_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("end_offset", BigInteger, nullable=False),
    Column("level", BigInteger, nullable=False),
    Column("object_id", Uuid, index=True),
    Column("position", BigInteger, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("first_timestamp_ms", BigInteger, nullable=False),
    Column("max_timestamp_ms", BigInteger, nullable=False),
    Column("records_count", BigInteger, nullable=False),
    Column("inline", LargeBinary),
    UniqueConstraint("topic_id", "partition", "end_offset"),
    sqlite_with_rowid=False,
    postgresql_with=_VACUUMED,
)

producer_deltas = Table(
    "sexton_cloud_producer_deltas",
    metadata,
    Column("topic_id", Uuid, primary_key=True),
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("end_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("batches", LargeBinary, nullable=False),
    sqlite_with_rowid=False,
    postgresql_with=_VACUUMED,
)

aborted = Table(
    "sexton_cloud_aborted",
    metadata,
    Column("topic_id", Uuid, primary_key=True),
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("marker_offset", BigInteger, primary_key=True, autoincrement=False),
    Column("producer_id", BigInteger, nullable=False),
    Column("first_offset", BigInteger, nullable=False),
    Column("last_stable_offset", BigInteger, nullable=False),
    postgresql_with=_VACUUMED,
)

epochs = Table(
    "sexton_cloud_epochs",
    metadata,
    Column("topic_id", Uuid, primary_key=True),
    Column("partition", BigInteger, primary_key=True, autoincrement=False),
    Column("leader_epoch", BigInteger, primary_key=True, autoincrement=False),
    Column("start_offset", BigInteger, nullable=False),
)

pins = Table(
    "sexton_cloud_pins",
    metadata,
    Column("pin_id", Uuid, primary_key=True),
    Column("round", BigInteger, nullable=False),
    Column("until_round", BigInteger, nullable=False),
    Column("owner", Text, nullable=False),
    Column("what", Text, nullable=False),
)

collection = Table(
    "sexton_cloud_gc",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("round", BigInteger, nullable=False),
    Column("scrub_round", BigInteger, nullable=False),
    Column("scrub_ms", BigInteger, nullable=False),
)

CLOUD_TABLES = (objects, cloud_partitions, extents, producer_deltas, aborted, epochs, pins, collection)
