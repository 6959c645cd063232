"""Extents that go without a successor: below a log's start, and with their topic."""

from __future__ import annotations

import uuid

from sqlalchemy import delete, select

from sexton.adapters.metastore.cloud.objects import release_references
from sexton.adapters.metastore.cloud.rows import (
    EXTENT_COLUMNS,
    PARTITION_COLUMNS,
    Values,
    extent_of,
    is_partition,
    lock_partitions,
    write_partitions,
)
from sexton.adapters.metastore.cloud_schema import aborted, cloud_partitions, epochs, extents, producer_deltas
from sexton.adapters.metastore.schema import topics
from sexton.adapters.metastore.session import Session
from sexton.ports.cloud import Extent, Level, Outcome, StartAdvanced
from sexton.ports.metastore import StaleError
from sexton.types import LeaderEpoch, PartitionId

TRIMMED_PER_CALL = 1000
"""Extents that one move of a start removes: about what a commit may take, so that nobody waits long for the row."""

_MOVED = ("start_offset", "stable_offset", "leveled_offset", "cleaned_offset")
_COUNTED = ("l0_bytes", "l0_extents_count", "l0_since_ms", "l1_bytes", "dirty_bytes", "dirty_since_ms")


def advance_start(session: Session, key: PartitionId, writer_epoch: LeaderEpoch, offset: int) -> StartAdvanced:
    """No further than extents have gone: nobody may come to take the next step, and what lay below the start then could
    neither be leveled nor trimmed, nor be told from a log by a compaction."""
    with session.writing_apart():
        row = lock_partitions(session, [key]).get(key)
        if row is None:
            return StartAdvanced(Outcome.GONE, 0, False)
        if row["writer_epoch"] != writer_epoch:
            return StartAdvanced(Outcome.FENCED, row["start_offset"], False)
        if offset > row["end_offset"]:
            return StartAdvanced(Outcome.MISPLACED, row["start_offset"], False)
        before = dict(row)
        target = max(row["start_offset"], offset)
        removed = _remove(session, key, target, TRIMMED_PER_CALL)
        has_more = len(removed) == TRIMMED_PER_CALL
        row["start_offset"] = max(row["start_offset"], removed[-1].end_offset) if has_more else target
        _trim(session, key, row, removed)
        if row != before:
            release_references(session, ((extent.object_id, extent.size_bytes) for extent in removed))
            row["revision"] = session.next_revision()
            write_partitions(session, [row], (*_MOVED, *_COUNTED, "revision"))
        return StartAdvanced(Outcome.ACCEPTED, row["start_offset"], has_more)


def _trim(session: Session, key: PartitionId, row: Values, removed: list[Extent]) -> None:
    """What lies below the first extent that is left is leveled, clean and stable: it is not there (C6). The boundary is
    never above the start."""
    uncount(row, removed)
    first_left = _first_base(session, key)
    boundary = min(row["end_offset"] if first_left is None else first_left, row["start_offset"])
    for name in ("stable_offset", "leveled_offset", "cleaned_offset"):
        row[name] = max(row[name], boundary)
    is_over = aborted.c.marker_offset < row["leveled_offset"]
    session.execute(delete(aborted).where(is_partition(aborted, key), is_over))


def uncount(row: Values, removed: list[Extent]) -> None:
    for extent in removed:
        if extent.level is Level.L0:
            row["l0_bytes"] -= extent.size_bytes
            row["l0_extents_count"] -= 1
        else:
            row["l1_bytes"] -= extent.size_bytes
            if extent.end_offset > row["cleaned_offset"]:
                row["dirty_bytes"] -= extent.size_bytes
    if not row["l0_extents_count"]:
        row["l0_since_ms"] = 0
    if not row["dirty_bytes"]:
        row["dirty_since_ms"] = 0


def _remove(session: Session, key: PartitionId, end_offset: int, limit: int) -> list[Extent]:
    """Removes the lowest extents that end at or below the offset. References stay to be released."""
    query = select(*EXTENT_COLUMNS).where(is_partition(extents, key), extents.c.end_offset <= end_offset)
    found = [extent_of(row) for row in session.execute(query.order_by(extents.c.end_offset).limit(limit))]
    if found:
        its_own = is_partition(extents, key)
        session.execute(delete(extents).where(its_own, extents.c.end_offset <= found[-1].end_offset))
    return found


def _first_base(session: Session, key: PartitionId) -> int | None:
    query = select(extents.c.base_offset).where(is_partition(extents, key))
    found: int | None = session.execute(query.order_by(extents.c.base_offset).limit(1)).scalar()
    return found


# All of a partition


def remove_from_start(session: Session, key: PartitionId, row: Values, limit: int) -> tuple[list[Extent], bool]:
    """Removes extents of a partition that is to go, so that what is left is a log. Returns them, with their references
    to be released, and whether none is left."""
    removed = _remove(session, key, row["end_offset"], limit)
    if _first_base(session, key) is None:
        return removed, True
    row["start_offset"] = max(row["start_offset"], removed[-1].end_offset)
    _trim(session, key, row, removed)
    write_partitions(session, [row], (*_MOVED, *_COUNTED))
    return removed, False


def drop_partition(session: Session, key: PartitionId) -> None:
    """Of which no extent is left."""
    for table in (producer_deltas, aborted, epochs, cloud_partitions):
        session.execute(delete(table).where(is_partition(table, key)))


# Deleted topics


def find_purgeable(session: Session, limit: int) -> list[uuid.UUID]:
    """By their absence: what `deleted_topics` remembers is bounded."""
    is_gone = cloud_partitions.c.topic_id.not_in(select(topics.c.topic_id))
    found = session.execute(select(cloud_partitions.c.topic_id).where(is_gone).distinct().limit(limit))
    return list(found.scalars())


def purge_topic(session: Session, topic_id: uuid.UUID, limit: int) -> bool:
    """Partition by partition, from the start on, so that what is left is a log. A commit that was under way when the
    topic was deleted has the row's lock: what it adds is found here afterwards."""
    with session.writing_apart():
        if session.execute(select(topics.c.topic_id).where(topics.c.topic_id == topic_id)).first() is not None:
            raise StaleError(f"topic {topic_id} exists: only what was deleted is purged")
        of_topic = cloud_partitions.c.topic_id == topic_id
        first = select(*PARTITION_COLUMNS).where(of_topic).order_by(cloud_partitions.c.partition).limit(1)
        removed: list[Extent] = []
        steps = 0
        while steps < limit and (found := session.execute(first.with_for_update()).mappings().first()) is not None:
            row = dict(found)
            key = (topic_id, row["partition"])
            some, is_empty = remove_from_start(session, key, row, limit - steps)
            steps += len(some) + 1
            removed += some
            if is_empty:
                drop_partition(session, key)
        release_references(session, ((extent.object_id, extent.size_bytes) for extent in removed))
        return session.execute(select(cloud_partitions.c.partition).where(of_topic).limit(1)).first() is not None
