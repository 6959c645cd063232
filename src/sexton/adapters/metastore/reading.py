"""Creates the schema, and reads changes: `open_cluster` and `read_changes`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, insert, select

from sexton.adapters.metastore.operations import BROKER_COLUMNS, broker_row
from sexton.adapters.metastore.schema import (
    ONLY_ROW,
    SCHEMA_VERSION,
    brokers,
    cluster,
    configs,
    deleted_topics,
    metadata,
    partitions,
    runs,
    topics,
)
from sexton.adapters.metastore.session import Session
from sexton.errors import UnsupportedFormatError
from sexton.ports.metastore import (
    Changes,
    ConfigRow,
    ConfigScope,
    ControllerRow,
    MetastoreUnavailableError,
    PartitionRow,
    TopicRow,
)

_HEAD = select(
    cluster.c.revision,
    cluster.c.forgotten_revision,
    cluster.c.controller_revision,
    cluster.c.controller_id,
    cluster.c.controller_epoch,
    cluster.c.controller_term,
).where(cluster.c.id == ONLY_ROW)

_PARTITION_COLUMNS = [column for column in partitions.c if column.name != "revision"]


def open_cluster(session: Session, proposed: uuid.UUID) -> uuid.UUID:
    """Brokers that start together all call this at once: one creates the tables, the others wait and find them."""
    with session.writing_schema():
        if session.beginnings.lock_schema is not None:
            session.control(session.beginnings.lock_schema)
        if session.has_table(cluster.name):
            found = session.execute(select(cluster.c.cluster_id, cluster.c.schema_version)).first()
            if found is not None:
                known = _known_cluster(*found)
                if not session.has_table(runs.name):  # created by a build that had no compactors
                    session.make_tables(metadata)
                for column, kind in (
                    (partitions.c.generation, "BIGINT NOT NULL DEFAULT 0"),
                    (brokers.c.start_id, "TEXT"),
                    (runs.c.first_dirty_offset, "BIGINT NOT NULL DEFAULT -1"),
                ):
                    table = column.table.name
                    if not session.has_column(table, column.name):
                        session.control(f"ALTER TABLE {table} ADD COLUMN {column.name} {kind}")
                return known
        session.make_tables(metadata)
        session.execute(insert(cluster), _first_row(proposed))
        return proposed


def _known_cluster(cluster_id: uuid.UUID, schema_version: int) -> uuid.UUID:
    if schema_version > SCHEMA_VERSION:
        raise UnsupportedFormatError(
            f"the metastore has schema {schema_version}, and this build knows schemas up to {SCHEMA_VERSION}",
            remedy="A newer Sexton has opened this cluster: run that one",
        )
    return cluster_id


def _first_row(cluster_id: uuid.UUID) -> dict[str, Any]:
    return {
        "id": ONLY_ROW,
        "cluster_id": cluster_id,
        "schema_version": SCHEMA_VERSION,
        "revision": 0,
        "forgotten_revision": 0,
        "next_producer_id": 0,
        "controller_id": -1,
        "controller_epoch": -1,
        "controller_term": 0,
        "controller_revision": 0,
    }


def read_changes(session: Session, after_revision: int) -> Changes:
    """The usual response, "no change", takes one statement. A transaction is used only when there are changes.

    A reader that asks from a revision that does not exist yet has followed another history (the database was restored
    from a backup) and gets a snapshot as well.
    """
    head = _head(session)
    if head[0] == after_revision > 0:
        return Changes(revision=after_revision, is_snapshot=False)
    with session.reading():
        revision, forgotten, *controller = _head(session)
        is_snapshot = after_revision <= 0 or after_revision < forgotten or after_revision > revision
        return _read_rows(session, revision, 0 if is_snapshot else after_revision, is_snapshot, controller)


def _head(session: Session) -> Sequence[Any]:
    head = session.execute(_HEAD).first()
    if head is None:
        raise MetastoreUnavailableError("the metastore holds no cluster", remedy="Restore it, or start it anew")
    return head


def _read_rows(session: Session, revision: int, after: int, is_snapshot: bool, controller: Sequence[int]) -> Changes:
    controller_revision, *controller_fields = controller

    def rows(columns: Sequence[ColumnElement[Any]], revision_column: ColumnElement[int]) -> Sequence[Any]:
        return session.execute(select(*columns).where(revision_column > after)).all()

    return Changes(
        revision=revision,
        is_snapshot=is_snapshot,
        brokers=[broker_row(row) for row in rows(BROKER_COLUMNS, brokers.c.revision)],
        topics=[
            TopicRow(*row) for row in rows((topics.c.topic_id, topics.c.name, topics.c.is_internal), topics.c.revision)
        ],
        partitions=[PartitionRow(*row) for row in rows(_PARTITION_COLUMNS, partitions.c.revision)],
        configs=[
            ConfigRow(ConfigScope(scope), name, settings)
            for scope, name, settings in rows((configs.c.scope, configs.c.name, configs.c.settings), configs.c.revision)
        ],
        controller=ControllerRow(*controller_fields) if controller_revision > after else None,
        deleted_topics=[]
        if is_snapshot
        else [topic_id for (topic_id,) in rows((deleted_topics.c.topic_id,), deleted_topics.c.revision)],
    )
