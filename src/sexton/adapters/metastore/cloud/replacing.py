"""L1: leveling makes it out of L0, compaction and merging replace parts of it.

Both name what they build on, a leveling the leveled offset, a replacement the compaction epoch and its very inputs, and
are refused whole for a partition where that is no longer so (C5). What comes in must tile what goes out, to the offset:
nobody's word is taken for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from sqlalchemy import ColumnElement, ScalarSelect, delete, func, select

from sexton.adapters.metastore.cloud.objects import discard, make_live, release_references
from sexton.adapters.metastore.cloud.rows import (
    EXTENT_COLUMNS,
    Values,
    chunks,
    extent_of,
    insert_extents,
    is_partition,
    lock_objects,
    lock_partitions,
    write_partitions,
)
from sexton.adapters.metastore.cloud.trimming import uncount
from sexton.adapters.metastore.cloud_schema import aborted, extents
from sexton.adapters.metastore.schema import configs, topics
from sexton.adapters.metastore.session import Session
from sexton.ports.cloud import (
    Extent,
    Level,
    LeveledPartition,
    ObjectId,
    ObjectRow,
    ObjectState,
    Outcome,
    Owner,
    Replacement,
    WrittenObject,
    hash_of_settings,
)
from sexton.ports.metastore import ConfigScope
from sexton.settings.layers import CLUSTER_DEFAULT, set_at_run_time
from sexton.types import PartitionId

_LEVELED = (
    *("leveled_offset", "l0_bytes", "l0_extents_count", "l0_since_ms"),
    *("l1_bytes", "dirty_bytes", "dirty_since_ms", "revision"),
)
_REPLACED = (
    *("cleaned_offset", "compaction_epoch", "horizon_ms"),
    *("l1_bytes", "dirty_bytes", "dirty_since_ms", "revision"),
)


def commit_level(
    session: Session,
    owner: Owner,
    written: Sequence[WrittenObject],
    partitions: Sequence[LeveledPartition],
    now_ms: int,
) -> list[Outcome]:
    keys = [(one.topic_id, one.partition) for one in partitions]
    if not keys or len(set(keys)) != len(keys) or not written:
        raise ValueError("a leveling holds each of its partitions once, and at least one")
    _check_outputs(written, [extent for one in partitions for extent in one.extents])
    for one in partitions:
        if _spans(one.extents) != [(one.base_offset, one.end_offset)]:
            raise ValueError(f"L1 of partition {one.partition} does not tile {one.base_offset} to {one.end_offset}")
    with session.writing_apart():
        rows = lock_partitions(session, keys)
        found = lock_objects(session, (one.object_id for one in written))
        if not _are_pending(written, found, owner):
            discard(session, found.values(), owner)
            pairs = zip(keys, partitions, strict=True)
            return [_leveled_before(session, key, rows.get(key), one) for key, one in pairs]
        outcomes: list[Outcome] = []
        accepted: list[tuple[PartitionId, Values, LeveledPartition]] = []
        removed: list[Extent] = []
        for key, one in zip(keys, partitions, strict=True):
            row = rows.get(key)
            gone = None if row is None else _leveled_inputs(session, key, row, one)
            if row is None or gone is None:
                outcomes.append(Outcome.GONE if row is None else Outcome.MISPLACED)
                continue
            outcomes.append(Outcome.ACCEPTED)
            accepted.append((key, row, one))
            removed += gone
            _level(row, one, gone, now_ms)
            its_own = is_partition(extents, key)
            session.execute(delete(extents).where(its_own, _meets(one.base_offset, one.end_offset)))
            is_over = aborted.c.marker_offset < one.end_offset
            session.execute(delete(aborted).where(is_partition(aborted, key), is_over))
        made = [(key, extent) for key, _, one in accepted for extent in one.extents]
        insert_extents(session, made)
        _make_live(session, written, found, [extent for _, extent in made])
        release_references(session, ((extent.object_id, extent.size_bytes) for extent in removed))
        _tell(session, [row for _, row, _ in accepted], _LEVELED)
        return outcomes


def _leveled_inputs(session: Session, key: PartitionId, row: Values, one: LeveledPartition) -> list[Extent] | None:
    """The extents of L0 that become L1. None if the leveling does not build on what is there."""
    if row["leveled_offset"] != one.base_offset or one.end_offset > row["stable_offset"]:
        return None
    query = select(*EXTENT_COLUMNS).where(is_partition(extents, key), _meets(one.base_offset, one.end_offset))
    found = [extent_of(fields) for fields in session.execute(query.order_by(extents.c.base_offset))]
    is_l0 = all(extent.level is Level.L0 for extent in found)
    return found if is_l0 and _spans(found) == [(one.base_offset, one.end_offset)] else None


def _level(row: Values, one: LeveledPartition, removed: list[Extent], now_ms: int) -> None:
    uncount(row, removed)
    size_bytes = sum(extent.size_bytes for extent in one.extents)
    row["leveled_offset"] = one.end_offset
    row["l1_bytes"] += size_bytes
    row["dirty_since_ms"] = row["dirty_since_ms"] if row["dirty_bytes"] else now_ms
    row["dirty_bytes"] += size_bytes
    if row["l0_extents_count"]:
        row["l0_since_ms"] = now_ms  # a little late: when each of the others came is not kept


def _leveled_before(session: Session, key: PartitionId, row: Values | None, one: LeveledPartition) -> Outcome:
    """For objects that are not pending: was this leveling carried out, and its answer lost?"""
    if row is None:
        return Outcome.GONE
    if row["leveled_offset"] < one.end_offset:
        return Outcome.LOST if row["leveled_offset"] == one.base_offset else Outcome.MISPLACED
    first = one.extents[0]
    query = select(extents.c.object_id).where(is_partition(extents, key), extents.c.base_offset == first.base_offset)
    at_base = session.execute(query.where(extents.c.level == int(Level.L1))).first()
    # Where a later compaction has replaced it, or the start has passed, nobody can say any more whose it was.
    return Outcome.MISPLACED if at_base is not None and at_base[0] != first.object_id else Outcome.ACCEPTED


def commit_compactions(
    session: Session, owner: Owner, written: Sequence[WrittenObject], changes: Sequence[Replacement], now_ms: int
) -> list[Outcome]:
    keys = [(one.topic_id, one.partition) for one in changes]
    if not keys or len(set(keys)) != len(keys):
        raise ValueError("a compaction holds each of its partitions once, and at least one")
    _check_outputs(written, [extent for one in changes for extent in one.outputs])
    for one in changes:
        if _spans(one.inputs) != _spans(one.outputs):
            raise ValueError(f"what comes out of partition {one.partition} does not tile what went in")
    with session.writing_apart():
        rows = lock_partitions(session, keys)
        found = lock_objects(session, (one.object_id for one in written))
        if not _are_pending(written, found, owner):
            discard(session, found.values(), owner)
            pairs = zip(keys, changes, strict=True)
            return [_replaced_before(session, key, rows.get(key), one) for key, one in pairs]
        outcomes: list[Outcome] = []
        accepted: list[tuple[PartitionId, Values, Replacement]] = []
        made: list[tuple[PartitionId, Extent]] = []
        removed: list[Extent] = []
        for key, one in zip(keys, changes, strict=True):
            row = rows.get(key)
            gone = None if row is None else _replaced_inputs(session, key, row, one)
            if row is None or gone is None:
                outcomes.append(Outcome.GONE if row is None else _refused(row, one))
                continue
            outcomes.append(Outcome.ACCEPTED)
            accepted.append((key, row, one))
            removed += gone
            for some in chunks([extent.base_offset for extent in gone]):
                session.execute(delete(extents).where(is_partition(extents, key), extents.c.base_offset.in_(some)))
            made += [(key, extent) for extent in one.outputs if extent.end_offset > row["start_offset"]]
        if not accepted:
            discard(session, found.values(), owner)
            return outcomes
        insert_extents(session, made)
        _make_live(session, written, found, [extent for _, extent in made])
        release_references(session, ((extent.object_id, extent.size_bytes) for extent in removed))
        for key, row, one in accepted:
            _replace(session, key, row, one, now_ms)
        _tell(session, [row for _, row, _ in accepted], _REPLACED)
        return outcomes


def _refused(row: Values, change: Replacement) -> Outcome:
    """A compaction that changed nothing but the cleaned offset has no object that tells whether it was carried out: it
    was if the offset says so in the next epoch, whoever did it."""
    is_done = row["compaction_epoch"] == change.compaction_epoch + 1 and row["cleaned_offset"] >= change.bound
    return Outcome.ACCEPTED if is_done and not change.inputs else Outcome.MISPLACED


def _replaced_inputs(session: Session, key: PartitionId, row: Values, change: Replacement) -> list[Extent] | None:
    """The inputs that are still there. Those that the start has passed may be gone: what is newest of a key does not
    depend on older records. None if anything else differs."""
    if row["compaction_epoch"] != change.compaction_epoch or change.bound > row["leveled_offset"]:
        return None
    if _settings_hash(session, change) != change.settings_hash:
        return None
    stored: dict[int, Extent] = {}
    for some in chunks([extent.base_offset for extent in change.inputs]):
        query = select(*EXTENT_COLUMNS).where(is_partition(extents, key), extents.c.base_offset.in_(some))
        stored.update({extent.base_offset: extent for extent in map(extent_of, session.execute(query))})
    present = []
    for extent in change.inputs:
        if stored.get(extent.base_offset) == extent and extent.level is Level.L1:
            present.append(extent)
        elif extent.end_offset > row["start_offset"] or extent.base_offset in stored:
            return None
    return present if _is_boundary(session, key, row, change) else None


def _is_boundary(session: Session, key: PartitionId, row: Values, change: Replacement) -> bool:
    """Whether what will be clean is whole extents, as they will be. What lies below the start does not matter."""
    cleaned = max(row["cleaned_offset"], change.bound)
    if cleaned <= row["start_offset"]:
        return True
    query = select(extents.c.base_offset).where(is_partition(extents, key), _meets(cleaned, cleaned))
    kept = set(session.execute(query).scalars()) - {extent.base_offset for extent in change.inputs}
    return not kept and not any(one.base_offset < cleaned < one.end_offset for one in change.outputs)


def _settings_hash(session: Session, change: Replacement) -> int:
    name = select(topics.c.name).where(topics.c.topic_id == change.topic_id).scalar_subquery()
    its_own = _settings(session, ConfigScope.TOPIC, name)
    return hash_of_settings(set_at_run_time(_settings(session, ConfigScope.BROKER, CLUSTER_DEFAULT), its_own))


def _settings(session: Session, scope: ConfigScope, name: str | ScalarSelect[str]) -> Mapping[str, str]:
    query = select(configs.c.settings).where(configs.c.scope == scope.value, configs.c.name == name)
    return session.execute(query).scalar() or {}


def _replace(session: Session, key: PartitionId, row: Values, change: Replacement, now_ms: int) -> None:
    row["cleaned_offset"] = max(row["cleaned_offset"], change.bound)
    row["compaction_epoch"] += 1
    row["horizon_ms"] = change.horizon_ms
    is_l1 = is_partition(extents, key) & (extents.c.level == int(Level.L1))
    total = func.coalesce(func.sum(extents.c.size_bytes), 0)
    is_dirty = extents.c.end_offset > row["cleaned_offset"]
    row["l1_bytes"] = int(session.execute(select(total).where(is_l1)).scalar_one())
    row["dirty_bytes"] = int(session.execute(select(total).where(is_l1, is_dirty)).scalar_one())
    row["dirty_since_ms"] = now_ms if row["dirty_bytes"] else 0


def _replaced_before(session: Session, key: PartitionId, row: Values | None, change: Replacement) -> Outcome:
    """For objects that are not pending: the compaction was carried out if one of its outputs is part of the log.
    Otherwise it was refused, or what it made is replaced or trimmed by now: nothing of it is left either way."""
    if row is None:
        return Outcome.GONE
    made = {one.base_offset: one.object_id for one in change.outputs}
    for some in chunks(list(made)):
        query = select(extents.c.base_offset, extents.c.object_id)
        found = session.execute(query.where(is_partition(extents, key), extents.c.base_offset.in_(some)))
        if any(made[base_offset] == object_id for base_offset, object_id in found):
            return Outcome.ACCEPTED
    return Outcome.LOST if row["compaction_epoch"] == change.compaction_epoch else Outcome.MISPLACED


# What both have in common


def _meets(base_offset: int, end_offset: int) -> ColumnElement[bool]:
    return (extents.c.end_offset > base_offset) & (extents.c.base_offset < end_offset)


def _spans(rows: Iterable[Extent]) -> list[tuple[int, int]]:
    """The stretches of offsets that the extents cover, each as long as it can be. Raises if two overlap."""
    ordered = sorted(rows, key=lambda extent: extent.base_offset)
    for one, other in pairwise(ordered):
        if other.base_offset < one.end_offset:
            raise ValueError(f"extents overlap: {one.base_offset} to {one.end_offset} and {other.base_offset}")
    spans: list[tuple[int, int]] = []
    for extent in ordered:
        if spans and spans[-1][1] == extent.base_offset:
            spans[-1] = (spans[-1][0], extent.end_offset)
        else:
            spans.append((extent.base_offset, extent.end_offset))
    return spans


def _check_outputs(written: Sequence[WrittenObject], outputs: Sequence[Extent]) -> None:
    sizes = {one.object_id: one.size_bytes for one in written}
    if len(sizes) != len(written) or bool(written) != bool(outputs):
        raise ValueError("an object twice, one that nothing refers to, or none at all")
    for extent in outputs:
        if extent.object_id not in sizes or extent.level is not Level.L1 or extent.inline is not None:
            raise ValueError(f"the output at {extent.base_offset} is not of L1, or in none of the objects")
        if extent.base_offset < 0 or extent.base_offset >= extent.end_offset or extent.size_bytes <= 0:
            raise ValueError(f"the output at {extent.base_offset} is empty")
        if extent.position < 0 or extent.position + extent.size_bytes > sizes[extent.object_id]:
            raise ValueError(f"the output at {extent.base_offset} lies outside its object")


def _are_pending(written: Sequence[WrittenObject], found: dict[ObjectId, ObjectRow], owner: Owner) -> bool:
    rows = [found.get(one.object_id) for one in written]
    return all(row is not None and row.state is ObjectState.PENDING and row.owner == owner for row in rows)


def _make_live(
    session: Session, written: Sequence[WrittenObject], found: dict[ObjectId, ObjectRow], made: Sequence[Extent]
) -> None:
    sizes: dict[ObjectId | None, list[int]] = {}
    for extent in made:
        sizes.setdefault(extent.object_id, []).append(extent.size_bytes)
    for one in written:
        make_live(session, found[one.object_id], one.size_bytes, sizes.get(one.object_id, []))


def _tell(session: Session, rows: Sequence[Values], names: Sequence[str]) -> None:
    """Writes the rows with the next revision, which is taken last."""
    if rows:
        revision = session.next_revision()
        for row in rows:
            row["revision"] = revision
        write_partitions(session, rows, names)
