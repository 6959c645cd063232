"""Following the cluster: `read_changes`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, bindparam, select

from sexton.adapters.metastore import operations
from sexton.adapters.metastore.cloud.rows import PARTITION_COLUMNS, partition_row
from sexton.adapters.metastore.cloud_schema import cloud_partitions
from sexton.adapters.metastore.operations import BROKER_COLUMNS, broker_row
from sexton.adapters.metastore.schema import (
    ONLY_ROW,
    brokers,
    cluster,
    configs,
    deleted_topics,
    partitions,
    topics,
)
from sexton.adapters.metastore.session import Session
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


def _changed_in(columns: Iterable[ColumnElement[Any]], revision: ColumnElement[int]) -> Select[*tuple[Any, ...]]:
    """Made once: to build a statement takes SQLAlchemy longer than to run it, and every broker asks all day."""
    return select(*columns).where(revision > bindparam("after"))


_BROKERS = _changed_in(BROKER_COLUMNS, brokers.c.revision)
_TOPICS = _changed_in((topics.c.topic_id, topics.c.name, topics.c.is_internal), topics.c.revision)
_PARTITIONS = _changed_in(operations.PARTITION_COLUMNS, partitions.c.revision)
_CONFIGS = _changed_in((configs.c.scope, configs.c.name, configs.c.settings), configs.c.revision)
_CLOUD_PARTITIONS = _changed_in(PARTITION_COLUMNS, cloud_partitions.c.revision)
_DELETED_TOPICS = _changed_in((deleted_topics.c.topic_id,), deleted_topics.c.revision)


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

    def rows(statement: Select[*tuple[Any, ...]]) -> Sequence[Any]:
        return session.execute(statement, {"after": after}).all()

    return Changes(
        revision=revision,
        is_snapshot=is_snapshot,
        brokers=[broker_row(row) for row in rows(_BROKERS)],
        topics=[TopicRow(*row) for row in rows(_TOPICS)],
        partitions=[PartitionRow(*row) for row in rows(_PARTITIONS)],
        configs=[ConfigRow(ConfigScope(scope), name, settings) for scope, name, settings in rows(_CONFIGS)],
        controller=ControllerRow(*controller_fields) if controller_revision > after else None,
        cloud_partitions=[partition_row(row._mapping) for row in rows(_CLOUD_PARTITIONS)],
        deleted_topics=[] if is_snapshot else [topic_id for (topic_id,) in rows(_DELETED_TOPICS)],
    )
