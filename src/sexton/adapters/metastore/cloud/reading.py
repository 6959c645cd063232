"""Extents by offset and by time, each answer from one moment (C9, T24)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, func, select

from sexton.adapters.metastore.cloud.rows import (
    ABORTED_COLUMNS,
    EXTENT_COLUMNS,
    extent_of,
    is_partition,
    read_partition,
)
from sexton.adapters.metastore.cloud_schema import aborted, extents
from sexton.adapters.metastore.session import Session
from sexton.ports.cloud import AbortedRow, Extent, ExtentsPage
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


def find_time(session: Session, key: PartitionId, timestamp_ms: int) -> Extent | None:
    with session.reading():
        row = read_partition(session, key)
        if row is None:
            return None
        return _first(session, _extents_from(key, row.start_offset).where(extents.c.max_timestamp_ms >= timestamp_ms))


def find_max_time(session: Session, key: PartitionId) -> Extent | None:
    with session.reading():
        row = read_partition(session, key)
        if row is None:
            return None
        its_own = is_partition(extents, key) & (extents.c.end_offset > row.start_offset)
        latest = select(func.max(extents.c.max_timestamp_ms)).where(its_own).scalar_subquery()
        return _first(session, _extents_from(key, row.start_offset).where(extents.c.max_timestamp_ms == latest))


def _extents_from(key: PartitionId, start_offset: int) -> Select[*tuple[Any, ...]]:
    return select(*EXTENT_COLUMNS).where(is_partition(extents, key), extents.c.end_offset > start_offset)


def _first(session: Session, query: Select[*tuple[Any, ...]]) -> Extent | None:
    found = session.execute(query.order_by(extents.c.end_offset).limit(1)).first()
    return None if found is None else extent_of(found)
