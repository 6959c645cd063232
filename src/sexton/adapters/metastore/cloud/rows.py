"""Rows of the tables as the port has them, and the locks that operations take."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Table, bindparam, insert, select, tuple_, update

from sexton.adapters.metastore.cloud_schema import aborted, cloud_partitions, collection, extents, objects
from sexton.adapters.metastore.schema import ONLY_ROW, topics
from sexton.adapters.metastore.session import Session
from sexton.ports.cloud import CloudPartitionRow, Extent, Level, ObjectId, ObjectRow, ObjectState, Owner, OwnerKind
from sexton.ports.metastore import MetastoreUnavailableError
from sexton.types import PartitionId, Round

T = TypeVar("T")

KEYS_PER_QUERY = 500
"""Keys in one SELECT, each of two parameters: well below what either database accepts."""

Values = dict[str, Any]
"""A row of a partition as it is being changed."""

_UNREAD = ("producers", "revision", "prefix_from", "prefix_until")
PARTITION_COLUMNS = [column for column in cloud_partitions.c if column.name not in _UNREAD]
_PARTITION_NAMES = [column.name for column in PARTITION_COLUMNS]
EXTENT_COLUMNS = [column for column in extents.c if column.name not in ("topic_id", "partition")]
_EXTENT_NAMES = [column.name for column in EXTENT_COLUMNS]
OBJECT_COLUMNS = list(objects.c)
ABORTED_COLUMNS = (
    *(aborted.c.producer_id, aborted.c.first_offset),
    *(aborted.c.marker_offset, aborted.c.last_stable_offset),
)

NEW_PARTITION: Mapping[str, int] = {
    **{column.name: 0 for column in cloud_partitions.c if column.name not in ("topic_id", "partition", "producers")},
    "writer_epoch": -1,
    "writer_id": -1,
    "writer_broker_epoch": -1,
}


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + KEYS_PER_QUERY] for start in range(0, len(items), KEYS_PER_QUERY))


def is_partition(table: Table, key: PartitionId) -> ColumnElement[bool]:
    return (table.c.topic_id == key[0]) & (table.c.partition == key[1])


def among(table: Table, keys: Sequence[PartitionId]) -> ColumnElement[bool]:
    """The first two conditions follow from the third, and are there for SQLite, which would scan the table for that."""
    topic_ids = sorted({topic_id for topic_id, _ in keys})
    partitions = sorted({index for _, index in keys})
    exactly = tuple_(table.c.topic_id, table.c.partition).in_(keys)
    return table.c.topic_id.in_(topic_ids) & table.c.partition.in_(partitions) & exactly


def make_partitions(session: Session, keys: Iterable[PartitionId], revision: int) -> None:
    rows = [{**NEW_PARTITION, "topic_id": id_, "partition": index, "revision": revision} for id_, index in keys]
    if rows:
        session.execute(insert(cloud_partitions), rows)


def lock_partitions(session: Session, keys: Iterable[PartitionId]) -> dict[PartitionId, Values]:
    """Those of topics that exist, locked in order of their keys until the transaction ends."""
    ordered = sorted(set(keys))
    rows: dict[PartitionId, Values] = {}
    for some in chunks(ordered):
        query = select(*PARTITION_COLUMNS).where(among(cloud_partitions, some))
        query = query.order_by(cloud_partitions.c.topic_id, cloud_partitions.c.partition).with_for_update()
        for row in session.execute(query):
            rows[row[0], row[1]] = dict(zip(_PARTITION_NAMES, row, strict=True))
    # Asked for once the rows are locked: a topic that is deleted later is purged after this transaction.
    wanted = sorted({topic_id for topic_id, _ in rows})
    existing: set[uuid.UUID] = set()
    for ids in chunks(wanted):
        existing.update(session.execute(select(topics.c.topic_id).where(topics.c.topic_id.in_(ids))).scalars())
    return {key: values for key, values in rows.items() if key[0] in existing}


def partition_row(values: Mapping[Any, Any]) -> CloudPartitionRow:
    return CloudPartitionRow(**values)


def read_partition(session: Session, key: PartitionId) -> CloudPartitionRow | None:
    found = session.execute(select(*PARTITION_COLUMNS).where(is_partition(cloud_partitions, key))).mappings().first()
    return None if found is None else partition_row(found)


def write_partitions(session: Session, rows: Sequence[Values], names: Sequence[str]) -> None:
    """Writes the named columns of rows that are locked."""
    if rows:
        session.execute(
            update(cloud_partitions)
            .where(cloud_partitions.c.topic_id == bindparam("key_topic"))
            .where(cloud_partitions.c.partition == bindparam("key_partition"))
            .values({name: bindparam(f"new_{name}") for name in names}),
            [
                {
                    "key_topic": row["topic_id"],
                    "key_partition": row["partition"],
                    **{f"new_{name}": row[name] for name in names},
                }
                for row in rows
            ],
        )


def extent_of(row: Sequence[Any]) -> Extent:
    fields = dict(zip(_EXTENT_NAMES, row, strict=True))
    return Extent(**{**fields, "level": Level(fields["level"])})


def insert_extents(session: Session, rows: Iterable[tuple[PartitionId, Extent]]) -> None:
    values = [
        {
            "topic_id": key[0],
            "partition": key[1],
            **{name: getattr(extent, name) for name in _EXTENT_NAMES},
            "level": int(extent.level),
        }
        for key, extent in rows
    ]
    if values:
        session.execute(insert(extents), values)


def object_row(row: Mapping[Any, Any]) -> ObjectRow:
    return ObjectRow(
        object_id=row["object_id"],
        level=Level(row["level"]),
        state=ObjectState(row["state"]),
        owner=Owner(OwnerKind(row["owner_kind"]), row["owner_id"], row["owner_epoch"]),
        size_bytes=row["size_bytes"],
        refs_count=row["refs_count"],
        live_bytes=row["live_bytes"],
        round=Round(row["round"]),
    )


def lock_objects(session: Session, ids: Iterable[ObjectId]) -> dict[ObjectId, ObjectRow]:
    """In order of their ids. After partitions, before the collector's row."""
    found: dict[ObjectId, ObjectRow] = {}
    for some in chunks(sorted(set(ids))):
        query = select(*OBJECT_COLUMNS).where(objects.c.object_id.in_(some)).order_by(objects.c.object_id)
        for row in session.execute(query.with_for_update()).mappings():
            found[row["object_id"]] = object_row(row)
    return found


def current_round(session: Session, *, for_update: bool = False) -> Round:
    """The round does not end before this transaction does, so what becomes garbage now is not counted from an earlier
    one."""
    query = select(collection.c.round).where(collection.c.id == ONLY_ROW)
    found = session.execute(query.with_for_update(read=not for_update)).scalar()
    if found is None:
        raise MetastoreUnavailableError("the metastore holds no cluster", remedy="Restore it, or start it anew")
    return Round(found)
