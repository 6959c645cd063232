"""What a job on cloud partitions reads, and what it writes. Pure.

Leveling and merging write *outputs*: objects of about `cloud.l1.bytes`, each of several pieces, a piece being one run
of one partition. Compaction replaces extents of one partition, as many as changed.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sexton.compaction.terms import Terms
from sexton.errors import SextonError
from sexton.ports.cloud import (
    VIEW_AGE_MS_MAX,
    AbortedRow,
    CloudPartitionRow,
    Extent,
    Level,
    ObjectId,
    WrittenObject,
)
from sexton.records.objects import Run
from sexton.types import PartitionId

L1_BYTES: Final = 64 << 20
"""Of an object of L1, about."""

RUN_BYTES_MAX: Final = 64 << 20
"""Of one run of L1, about, however large objects are: a task of a compaction or a merge holds one run in memory."""

ATTEMPTS_MAX: Final = 4
"""Ids that are registered for each output: an attempt that was given up may still be writing under its own."""


HORIZON_MS_MIN: Final = 2 * VIEW_AGE_MS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPlan:
    """Extents of one partition that become others: L0 that is leveled, or L1 that is merged or compacted."""

    topic: str
    row: CloudPartitionRow
    extents: tuple[Extent, ...]
    aborted: tuple[AbortedRow, ...] = ()
    settings_hash: int = 0
    terms: Terms | None = None
    """Of a compaction."""

    @property
    def key(self) -> PartitionId:
        return self.row.topic_id, self.row.partition

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.row.partition}"

    @property
    def base_offset(self) -> int:
        return self.extents[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.extents[-1].end_offset

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extent in self.extents)

    @property
    def planned_ms(self) -> int:
        assert self.terms is not None
        return self.terms.now_ms

    @property
    def commit_by_ms(self) -> int:
        """Horizons that this plan starts are to be known for HORIZON_MS_MIN before they pass (C8): by the clock that it
        was made by, the last moment to commit what starts one."""
        assert self.terms is not None
        return self.planned_ms + self.terms.delete_retention_ms - HORIZON_MS_MIN

    @property
    def first_dirty_offset(self) -> int:
        return self.base_offset if self.terms is None else max(self.base_offset, self.row.cleaned_offset)


class Piece(NamedTuple):
    """One run of an output."""

    plan: int
    """Number of the partition's plan in the job."""
    extents: tuple[Extent, ...]

    @property
    def base_offset(self) -> int:
        return self.extents[0].base_offset

    @property
    def end_offset(self) -> int:
        return self.extents[-1].end_offset

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extent in self.extents)


Output = tuple[Piece, ...]


@dataclass(frozen=True, slots=True)
class Writer:
    """Who writes, and for which cluster: it is in every object's footer, and in its key."""

    cluster_id: uuid.UUID
    compactor_id: uuid.UUID


@dataclass(frozen=True, slots=True)
class WrittenL1:
    """An object as it was put, and what is in it."""

    object_id: ObjectId
    size_bytes: int
    runs: tuple[Run, ...]

    @property
    def written(self) -> WrittenObject:
        return WrittenObject(self.object_id, self.size_bytes)


@dataclass(slots=True)
class Compacted:
    """What a compaction made of one partition: the runs in `objects` replace the extents that tile the same offsets."""

    objects: list[WrittenL1] = field(default_factory=list)
    fates: dict[str, int] = field(default_factory=dict)
    failure: SextonError | None = None


def group(plans: Sequence[PartitionPlan], l1_bytes: int = L1_BYTES) -> list[Output]:
    """Cuts the plans into outputs of about that size, at the boundaries of extents. Small partitions share one, a large
    partition has several runs in it."""
    outputs: list[Output] = []
    pieces: list[Piece] = []
    filled = 0
    for number in sorted(range(len(plans)), key=lambda one: plans[one].key):
        pending: list[Extent] = []
        run_bytes = 0
        for extent in plans[number].extents:
            pending.append(extent)
            filled += extent.size_bytes
            run_bytes += extent.size_bytes
            if filled >= l1_bytes or run_bytes >= RUN_BYTES_MAX:
                pieces.append(Piece(number, tuple(pending)))
                pending, run_bytes = [], 0
            if filled >= l1_bytes:
                outputs.append(tuple(pieces))
                pieces, filled = [], 0
        if pending:
            pieces.append(Piece(number, tuple(pending)))
    return [*outputs, tuple(pieces)] if pieces else outputs


def extent_of(run: Run, object_id: ObjectId) -> Extent:
    """The extent that a run of L1 becomes."""
    return Extent(
        base_offset=run.base_offset,
        end_offset=run.end_offset,
        level=Level.L1,
        object_id=object_id,
        position=run.position,
        size_bytes=run.size_bytes,
        first_timestamp_ms=run.first_timestamp_ms,
        max_timestamp_ms=run.max_timestamp_ms,
        records_count=run.record_count,
    )
