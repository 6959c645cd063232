"""Extents by offset and by time, each answer from one moment (C9, T24)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, func, select

from sexton.adapters.metastore.cloud.rows import (
    ABORTED_COLUMNS,
    EXTENT_COLUMNS,
    PARTITION_COLUMNS,
    extent_of,
    is_partition,
    partition_row,
    read_partition,
)
from sexton.adapters.metastore.cloud_schema import aborted, cloud_partitions, extents
from sexton.adapters.metastore.session import Session
from sexton.ports.cloud import AbortedRow, CloudPartitionRow, Extent, ExtentsPage, ObjectId
from sexton.types import PartitionId


def read_extents(session: Session, key: PartitionId, from_offset: int, limit: int) -> ExtentsPage | None:
    with session.reading():
        row = read_partition(session, key)
        if row is None:
            return None
        wanted = max(from_offset, row.start_offset)
        query = select(*EXTENT_COLUMNS).where(is_partition(extents, key), extents.c.end_offset > wanted)
        found = [extent_of(one) for one in session.execute(query.order_by(extents.c.end_offset).limit(limit))]
        if not found:
            return ExtentsPage(row, [], [])
        ended = select(*ABORTED_COLUMNS).where(
            is_partition(aborted, key),
            aborted.c.marker_offset >= max(wanted, row.leveled_offset),
            aborted.c.first_offset < found[-1].end_offset,
        )
        transactions = session.execute(ended.order_by(aborted.c.marker_offset))
        return ExtentsPage(row, found, [AbortedRow(*fields) for fields in transactions])


def find_time(session: Session, key: PartitionId, timestamp_ms: int, from_offset: int = 0) -> Extent | None:
    with session.reading():
        row = read_partition(session, key)
        if row is None:
            return None
        above = _extents_from(key, max(row.start_offset, from_offset))
        return _first(session, above.where(extents.c.max_timestamp_ms >= timestamp_ms))


def find_max_time(session: Session, key: PartitionId) -> Extent | None:
    with session.reading():
        row = read_partition(session, key)
        if row is None:
            return None
        its_own = is_partition(extents, key) & (extents.c.end_offset > row.start_offset)
        latest = select(func.max(extents.c.max_timestamp_ms)).where(its_own).scalar_subquery()
        return _first(session, _extents_from(key, row.start_offset).where(extents.c.max_timestamp_ms == latest))


def find_references(session: Session, object_id: ObjectId, limit: int) -> list[tuple[PartitionId, Extent]]:
    query = select(extents.c.topic_id, extents.c.partition, *EXTENT_COLUMNS).where(extents.c.object_id == object_id)
    order = (extents.c.topic_id, extents.c.partition, extents.c.base_offset)
    found = session.execute(query.order_by(*order).limit(limit))
    return [((topic_id, index), extent_of(fields)) for topic_id, index, *fields in found]


def read_cloud_partitions(session: Session) -> list[CloudPartitionRow]:
    order = (cloud_partitions.c.topic_id, cloud_partitions.c.partition)
    return [partition_row(row) for row in session.execute(select(*PARTITION_COLUMNS).order_by(*order)).mappings()]


def _extents_from(key: PartitionId, start_offset: int) -> Select[*tuple[Any, ...]]:
    return select(*EXTENT_COLUMNS).where(is_partition(extents, key), extents.c.end_offset > start_offset)


def _first(session: Session, query: Select[*tuple[Any, ...]]) -> Extent | None:
    found = session.execute(query.order_by(extents.c.end_offset).limit(1)).first()
    return None if found is None else extent_of(found)
