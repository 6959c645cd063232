"""What must hold of the tables in every state, and over every step: rules C1 to C3, C5 and C6 (docs/rules.md).

Written from the rules and the tables alone, not from the operations. Tests and the simulator call it after every event;
each finding names its rule.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from sqlalchemy import select

from sexton.adapters.metastore.cloud.rows import (
    ABORTED_COLUMNS,
    EXTENT_COLUMNS,
    OBJECT_COLUMNS,
    PARTITION_COLUMNS,
    extent_of,
    object_row,
    partition_row,
)
from sexton.adapters.metastore.cloud_schema import aborted, collection, epochs, extents
from sexton.adapters.metastore.cloud_schema import producer_deltas as deltas
from sexton.adapters.metastore.session import Session
from sexton.ports.cloud import (
    AbortedRow,
    CloudPartitionRow,
    EpochStart,
    Extent,
    Level,
    ObjectId,
    ObjectRow,
    ObjectState,
)
from sexton.types import PartitionId


@dataclass(frozen=True, slots=True)
class CloudTables:
    """All of them at one moment."""

    round: int
    objects: Mapping[ObjectId, ObjectRow]
    partitions: Mapping[PartitionId, CloudPartitionRow]
    extents: Mapping[PartitionId, tuple[Extent, ...]]
    aborted: Mapping[PartitionId, tuple[AbortedRow, ...]]
    epochs: Mapping[PartitionId, tuple[EpochStart, ...]]
    deltas: Mapping[PartitionId, tuple[int, ...]]
    """End offsets."""


def read_tables(session: Session) -> CloudTables:
    with session.reading():
        its_extents: dict[PartitionId, list[Extent]] = defaultdict(list)
        query = select(extents.c.topic_id, extents.c.partition, *EXTENT_COLUMNS)
        for topic_id, index, *fields in session.execute(query.order_by(extents.c.base_offset)):
            its_extents[topic_id, index].append(extent_of(fields))
        its_aborted: dict[PartitionId, list[AbortedRow]] = defaultdict(list)
        for topic_id, index, *fields in session.execute(
            select(aborted.c.topic_id, aborted.c.partition, *ABORTED_COLUMNS).order_by(aborted.c.marker_offset)
        ):
            its_aborted[topic_id, index].append(AbortedRow(*fields))
        its_epochs: dict[PartitionId, list[EpochStart]] = defaultdict(list)
        for topic_id, index, epoch, start in session.execute(select(epochs).order_by(epochs.c.leader_epoch)):
            its_epochs[topic_id, index].append(EpochStart(epoch, start))
        its_deltas: dict[PartitionId, list[int]] = defaultdict(list)
        columns = (deltas.c.topic_id, deltas.c.partition, deltas.c.end_offset)
        for topic_id, index, end in session.execute(select(*columns).order_by(deltas.c.end_offset)):
            its_deltas[topic_id, index].append(end)
        rows = [partition_row(row) for row in session.execute(select(*PARTITION_COLUMNS)).mappings()]
        return CloudTables(
            round=session.execute(select(collection.c.round)).scalar_one(),
            objects={row["object_id"]: object_row(row) for row in session.execute(select(*OBJECT_COLUMNS)).mappings()},
            partitions={(row.topic_id, row.partition): row for row in rows},
            extents={key: tuple(found) for key, found in its_extents.items()},
            aborted={key: tuple(found) for key, found in its_aborted.items()},
            epochs={key: tuple(found) for key, found in its_epochs.items()},
            deltas={key: tuple(found) for key, found in its_deltas.items()},
        )


def violations(tables: CloudTables) -> Iterator[str]:
    """What is wrong in one state; nothing, if nothing is."""
    yield from _of_objects(tables)
    for table in (tables.extents, tables.aborted, tables.epochs, tables.deltas):
        for key in table.keys() - tables.partitions.keys():
            yield f"C5: rows of a partition that is not there: {key}"
    for key, row in tables.partitions.items():
        its = tables.extents.get(key, ())
        yield from (f"{one}, in partition {row.partition} of {row.topic_id}" for one in _of_partition(row, its))
        yield from _of_counters(row, its)
        for marker in (one.marker_offset for one in tables.aborted.get(key, ())):
            if not row.leveled_offset <= marker < row.end_offset:
                yield f"C7: an aborted transaction whose marker, at {marker}, is not in L0 of {key}"
        for end in tables.deltas.get(key, ()):
            if not row.producers_offset <= end <= row.end_offset:
                yield f"a delta of producers at {end} of {key}, whose snapshot is at {row.producers_offset}"
        its_epochs = tables.epochs.get(key, ())
        if any(one.start_offset > other.start_offset for one, other in pairwise(its_epochs)):
            yield f"rule 2: the epochs of {key} do not ascend"
        if (its_epochs[-1].leader_epoch if its_epochs else -1) != row.writer_epoch:
            yield f"the writer epoch {row.writer_epoch} of {key} is not its last epoch"


def _of_objects(tables: CloudTables) -> Iterator[str]:
    sizes: dict[ObjectId, list[int]] = defaultdict(list)
    for key, its in tables.extents.items():
        for extent in its:
            if (extent.object_id is None) != (extent.inline is not None):
                yield f"an extent of {key} at {extent.base_offset} that is nowhere, or twice"
            if extent.object_id is None:
                continue
            sizes[extent.object_id].append(extent.size_bytes)
            found = tables.objects.get(extent.object_id)
            if found is None or found.state is not ObjectState.LIVE:
                yield f"C2: an extent of {key} at {extent.base_offset} refers to an object that is not live: {found}"
            elif found.level is not extent.level or extent.position + extent.size_bytes > found.size_bytes:
                yield f"C2: an extent of {key} at {extent.base_offset} lies outside {found}"
    for object_id, row in tables.objects.items():
        its_sizes = sizes.get(object_id, [])
        if (row.refs_count, row.live_bytes) != (len(its_sizes), sum(its_sizes)):
            yield f"C2: {len(its_sizes)} extents with {sum(its_sizes)} bytes refer to {row}"
        if row.state is ObjectState.LIVE and not its_sizes:
            yield f"C3: nothing refers to {row}"


def _of_partition(row: CloudPartitionRow, its: tuple[Extent, ...]) -> Iterator[str]:
    for one, other in pairwise(its):
        if one.end_offset != other.base_offset:
            yield f"C5: extents end at {one.end_offset} and go on at {other.base_offset}"
    first = its[0].base_offset if its else row.end_offset
    if (its and its[-1].end_offset != row.end_offset) or first > row.start_offset:
        last = its[-1].end_offset if its else "nowhere"
        yield f"C5: extents tile {first} to {last}, and the log is {row.start_offset} to {row.end_offset}"
    if any(extent.base_offset >= extent.end_offset for extent in its):
        yield "C5: an empty extent"
    for extent in its:
        is_leveled = extent.end_offset <= row.leveled_offset
        if is_leveled != (extent.level is Level.L1) or (not is_leveled and extent.base_offset < row.leveled_offset):
            yield f"C5: {extent.level.name} at {extent.base_offset}, and {row.leveled_offset} is leveled"
        if extent.base_offset < row.cleaned_offset < extent.end_offset and row.cleaned_offset > row.start_offset:
            yield f"C6: the cleaned offset {row.cleaned_offset} lies inside an extent"
    if not row.cleaned_offset <= row.leveled_offset <= row.stable_offset <= row.end_offset:
        yield f"C6: offsets out of order: {row}"
    if not 0 <= row.start_offset <= row.end_offset:
        yield f"C6: the start lies above the end: {row}"


def _of_counters(row: CloudPartitionRow, its: tuple[Extent, ...]) -> Iterator[str]:
    l0 = [extent for extent in its if extent.level is Level.L0]
    l1 = [extent for extent in its if extent.level is Level.L1]
    counted = {
        "l0_bytes": sum(extent.size_bytes for extent in l0),
        "l0_extents_count": len(l0),
        "l1_bytes": sum(extent.size_bytes for extent in l1),
        "dirty_bytes": sum(extent.size_bytes for extent in l1 if extent.end_offset > row.cleaned_offset),
    }
    for name, value in counted.items():
        if getattr(row, name) != value:
            yield f"{name} of partition {row.partition} is {getattr(row, name)} and should be {value}"
    if bool(row.l0_since_ms) != bool(l0) or (row.dirty_since_ms and not row.dirty_bytes):
        yield f"something waits since {row.l0_since_ms}, {row.dirty_since_ms}: {row}"


NEXT_STATES: Mapping[ObjectState | None, frozenset[ObjectState | None]] = {
    None: frozenset({None, ObjectState.PENDING}),
    ObjectState.PENDING: frozenset({ObjectState.PENDING, ObjectState.LIVE, ObjectState.GARBAGE}),
    ObjectState.LIVE: frozenset({ObjectState.LIVE, ObjectState.GARBAGE}),
    ObjectState.GARBAGE: frozenset({ObjectState.GARBAGE, None}),
}
"""What one transaction may make of an object's row (C3). None: no row."""

_NEVER_BACK = (
    *("start_offset", "end_offset", "stable_offset", "leveled_offset", "cleaned_offset"),
    *("writer_epoch", "compaction_epoch", "producers_offset"),
)


def step_violations(before: CloudTables, after: CloudTables) -> Iterator[str]:
    """What one transaction must not have done."""
    for object_id in before.objects.keys() | after.objects.keys():
        old, new = before.objects.get(object_id), after.objects.get(object_id)
        states = old.state if old else None, new.state if new else None
        if states[1] not in NEXT_STATES[states[0]]:
            yield f"C3: {object_id} went from {states[0]!r} to {states[1]!r}"
        is_new_garbage = states[1] is ObjectState.GARBAGE and states[0] is not ObjectState.GARBAGE
        if new is not None and is_new_garbage and new.round < before.round:
            yield f"C4: {object_id} became garbage in round {new.round}, and it was round {before.round}"
    if after.round < before.round:
        yield f"the round went back to {after.round}"
    for key, old_row in before.partitions.items():
        new_row = after.partitions.get(key)
        for name in _NEVER_BACK if new_row is not None else ():
            if getattr(new_row, name) < getattr(old_row, name):
                yield f"C6: {name} of {key} went back from {getattr(old_row, name)} to {getattr(new_row, name)}"
    refers = _references(before)
    for place, object_id in _references(after).items():
        if refers.get(place) == object_id:
            continue
        old = before.objects.get(object_id)
        if old is None or old.state is not ObjectState.PENDING:
            yield f"C2: an extent at {place} was made for {object_id}, which was not pending: {old}"


def _references(tables: CloudTables) -> dict[tuple[PartitionId, int, int], ObjectId]:
    return {
        (key, extent.base_offset, extent.position): extent.object_id
        for key, its in tables.extents.items()
        for extent in its
        if extent.object_id is not None
    }
