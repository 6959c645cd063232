"""Executes plans without Spark, on the brokers' disks: one object per record, by the reference compactor.

For the simulator and for tests. It does to a log what the pipeline does, in the same way: new segments beside the old
ones, small neighbours merged, nothing changed in place.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from sexton.compaction import reference
from sexton.compaction.contract import NewSegment, PassResult, Plan
from sexton.compaction.fates import Fate
from sexton.compaction.reference import Verdict
from sexton.compactor.engine import PlanOutcome
from sexton.ports.disk import Disk
from sexton.records import names
from sexton.records.batch import Batch, decode_all, encode

WAIT_FOR_REPLICAS: Final = (Fate.TOMBSTONE_WAITS_FOR_REPLICAS, Fate.MARKER_WAITS_FOR_REPLICAS)


class ReferenceEngine:
    def __init__(self, disk_of: Callable[[int], Disk]) -> None:
        """`disk_of` returns a broker's disk by broker id."""
        self._disk_of = disk_of

    async def run(self, plans: Sequence[Plan]) -> list[PlanOutcome]:
        return [self._run(plan) for plan in plans]

    def _run(self, plan: Plan) -> PlanOutcome:
        try:
            return PlanOutcome(plan, carry_out(self._disk_of(plan.broker_id), plan))
        except Exception as error:
            return PlanOutcome.failed(plan, error)

    async def warm(self) -> None:
        """Does nothing: there is nothing to start."""

    async def rest(self) -> None:
        """Does nothing: it holds nothing."""

    async def close(self) -> None:
        """Does nothing: it has opened nothing."""


def carry_out(disk: Disk, plan: Plan) -> PassResult:
    """Compacts the planned segments below the bound; those above are only read for the markers of transactions.
    Segments that did not change are not staged. Like the pipeline, it trusts that the log is clean below
    `first_dirty_offset`."""
    terms, segments = plan.terms, plan.segments
    before = {base: _read(disk, plan.directory, base, size) for base, size in segments}
    closed = [base for base, _ in segments if base < terms.bound]
    ends = {before[base][-1].last_offset for base in closed if before[base]}
    batches = [batch for base, _ in segments for batch in before[base]]
    clean_below = _clean_below([base for base, _ in segments], terms.bound, plan.first_dirty_offset)
    result = reference.compact(batches, terms, plan.producers, ends, clean_below)
    disk.make_directory(plan.staging)
    new = []
    for group in _groups(closed, dict(segments), plan.segment_bytes):
        end = terms.bound if group[-1] == closed[-1] else closed[closed.index(group[-1]) + 1]
        kept = [batch for batch in result.batches if group[0] <= batch.base_offset < end]
        if kept and (len(group) > 1 or kept != before[group[0]]):
            file = disk.open(f"{plan.staging}/{names.log_file_name(group[0], names.CLEANED_SUFFIX)}", create=True)
            file.truncate(0)
            file.append([b"".join(map(encode, kept))])
            file.close()
            new.append(NewSegment(group[0], kept[-1].next_offset, tuple(group)))
    fates = Counter(verdict.fate.label for verdict in result.verdicts)
    return PassResult(plan.plan_id, tuple(new), fates, _held_back_bytes(batches, result.verdicts))


def _held_back_bytes(batches: Sequence[Batch], verdicts: Sequence[Verdict]) -> int:
    """Sums the bytes of waiting records. A record counts as its share of its batch."""
    waiting = {verdict.offset for verdict in verdicts if verdict.fate in WAIT_FOR_REPLICAS}
    return sum(
        batch.size_bytes * sum(record.offset in waiting for record in batch.records) // len(batch.records)
        for batch in batches
        if batch.records
    )


def _clean_below(bases: Sequence[int], bound: int, first_dirty_offset: int) -> int:
    """A segment that reaches into the dirty section counts as dirty as a whole."""
    if first_dirty_offset >= bound:
        return bound
    return max((base for base in bases if base <= first_dirty_offset), default=0)


def _groups(closed: Sequence[int], sizes: dict[int, int], segment_bytes: int) -> list[list[int]]:
    """Groups neighbouring segments that fit into one. An empty segment is left alone."""
    groups: list[list[int]] = []
    filled = 0
    for base in closed:
        if sizes[base] == 0:
            filled = segment_bytes
            continue
        if groups and filled + sizes[base] <= segment_bytes:
            groups[-1].append(base)
            filled += sizes[base]
        else:
            groups.append([base])
            filled = sizes[base]
    return groups


def _read(disk: Disk, directory: str, base_offset: int, size_bytes: int) -> list[Batch]:
    file = disk.open(f"{directory}/{names.log_file_name(base_offset)}")
    try:
        return list(decode_all(file.read(0, size_bytes)))
    finally:
        file.close()
