"""Whether a copy has what its source has: the audit's folds, of all partitions of both, key by key.

A key counts as *changed since* if its newest record in the source lies where nothing was copied yet. Neither topic is
read at one moment: the source's cleaner may take a record before it is read because of one that was written after that.
So where keys differ, the source is read on to its end, once, and they are compared again. What made the record go was
there before the first look ended, so now it has been seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
from pyspark import SparkContext

from sexton.compaction.transactions import join_events
from sexton.errors import SextonError
from sexton.records.kernels.keys import FLAG_BITS, TOMBSTONE
from sexton.records.keyhash import random_hash_key
from sexton.spark.fold_compare import View, fold_bucket
from sexton.spark.fold_job import BUCKET_BYTES, FoldJob, Side
from sexton.spark.fold_pass import Rows, StretchFacts
from sexton.topics.finding import PartitionLog, Reading

Progress = Callable[[str, int], None]
Look = Callable[[], Sequence[PartitionLog]]

EXAMPLES_MAX: Final = 20
EXTRAS_MAX: Final = 100_000
"""Keys that are in the target alone, of which it is told where they are."""

Place = tuple[str, int, int]
"""Topic, partition, offset."""


@dataclass(slots=True)
class Verified:
    same_count: int = 0
    """Keys with a value that are the same in both."""
    differing_count: int = 0
    extra_count: int = 0
    """Of those that differ: keys that only the target has."""
    changed_count: int = 0
    """Keys that were written to the source since."""
    examples: list[Place] = field(default_factory=list)
    """Where a differing key's record is, in one of the topics."""
    extras: list[Place] = field(default_factory=list)
    """Where the records are of keys that only the target has, as far as there are not too many."""

    @property
    def is_same(self) -> bool:
        return self.differing_count == 0

    def add(self, other: Verified) -> None:
        self.same_count += other.same_count
        self.differing_count += other.differing_count
        self.extra_count += other.extra_count
        self.changed_count += other.changed_count
        self.examples = (self.examples + other.examples)[:EXAMPLES_MAX]
        self.extras = (self.extras + other.extras)[:EXTRAS_MAX]


def verify(
    context: SparkContext,
    source: Sequence[PartitionLog],
    copied_to: Mapping[int, int],
    target: Sequence[PartitionLog],
    reading: Reading,
    look: Look,
    progress: Progress,
) -> Verified:
    """`source` as it stands now, `copied_to` how far it was copied; `look` tells how it stands by then."""
    logs = [*source, *target]
    sides = [_side(number, log, reading) for number, log in enumerate(logs)]
    size_bytes = sum(side.size_bytes for side in sides)
    buckets = {0: max(1, -(-size_bytes // BUCKET_BYTES))}
    job = FoldJob(context, sides, random_hash_key(), bucket_counts=buckets, progress=progress)
    facts = job.facts()
    limits = [copied_to[log.partition] for log in source]
    found = _compare(job, logs, facts, limits)
    if not found.is_same:
        now = {log.partition: log for log in look()}
        later = [now[log.partition] for log in source]
        more = [
            stretch
            for number, (before, after) in enumerate(zip(source, later, strict=True))
            for stretch in reading.stretches(after, number, before.high_watermark, after.high_watermark)
        ]
        facts = [*facts, *job.add(more)]
        found = _compare(job, [*later, *target], facts, limits)
    found.examples = [(logs[side].topic, logs[side].partition, offset) for _, side, offset in found.examples]
    found.extras = [(logs[side].topic, logs[side].partition, offset) for _, side, offset in found.extras]
    return found


def _side(number: int, log: PartitionLog, reading: Reading) -> Side:
    stretches = reading.stretches(log, number, log.log_start_offset, log.high_watermark)
    return Side(0, stretches, cuts=(log.last_stable_offset,), from_offset=log.log_start_offset)


def _compare(
    job: FoldJob, logs: Sequence[PartitionLog], facts: Sequence[StretchFacts], limits: Sequence[int]
) -> Verified:
    views = []
    for number, log in enumerate(logs):
        mine = [each for each in facts if each.replica == number]
        failure: SextonError | None = next((each.failure for each in mine if each.failure is not None), None)
        if failure is not None:
            raise failure
        markers = join_events([each.events for each in mine]).markers
        views.append(View(log.log_start_offset, log.high_watermark, log.last_stable_offset, markers))
    job.index_again({number: view.visible_end for number, view in enumerate(views)}, facts)
    total = Verified()
    for part in job.reduce(views, partial(compare_bucket, limits=tuple(limits)), "verify"):
        total.add(part)
    return total


def compare_bucket(
    partition: int, rows: Mapping[int, Sequence[Rows]], shown: Sequence[View | None], *, limits: Sequence[int]
) -> Verified:
    """Sides below the number of limits are the source's, the others the target's. Of a key that is in several
    partitions of the source, any one's newest record may be the one that was copied."""
    folds = {number: fold_bucket(rows[number], view).visible for number in sorted(rows) if (view := shown[number])}
    if not folds:
        return Verified()
    entries = np.concatenate(list(folds.values()))
    side = np.repeat(np.array(list(folds), dtype=np.int64), [len(fold) for fold in folds.values()])
    order = np.lexsort((side, entries["content"], entries["second"], entries["first"]))
    entries, side = entries[order], side[order]
    same_key = (entries["first"][1:] == entries["first"][:-1]) & (entries["second"][1:] == entries["second"][:-1])
    starts = np.flatnonzero(np.concatenate([np.ones(1, dtype=np.bool_), ~same_key])[: len(entries)])
    is_source = side < len(limits)
    is_live = (entries["code"] & TOMBSTONE) == 0
    bounds = np.array([*limits, *[np.iinfo(np.int64).max] * (len(shown) - len(limits))], dtype=np.int64)
    is_new = (entries["code"] >> FLAG_BITS) >= bounds[side]

    def per_key(what: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        return np.add.reduceat(what.astype(np.int64), starts) if len(starts) else np.zeros(0, dtype=np.int64)

    alike = np.zeros(len(entries), dtype=np.bool_)
    alike[1:] = same_key & (entries["content"][1:] == entries["content"][:-1])
    alike[1:] &= is_live[1:] & is_live[:-1] & ~is_source[1:] & is_source[:-1]
    source_live, source_dead = per_key(is_source & is_live), per_key(is_source & ~is_live)
    target_live, matches = per_key(~is_source & is_live), per_key(alike)
    changed = per_key(is_source & is_new) > 0
    is_same = ((target_live == 1) & (matches > 0)) | ((target_live == 0) & ((source_live == 0) | (source_dead > 0)))
    differs = ~changed & ~is_same
    is_extra = differs & (source_live + source_dead == 0)

    def places(rows: npt.NDArray[np.int64]) -> list[Place]:
        return [("", int(side[row]), int(entries["code"][row]) >> FLAG_BITS) for row in rows.tolist()]

    of_extra = np.flatnonzero(is_live & np.repeat(is_extra, np.diff(np.append(starts, len(entries)))))
    return Verified(
        same_count=int((~changed & is_same & (target_live > 0)).sum()),
        differing_count=int(differs.sum()),
        extra_count=int(is_extra.sum()),
        changed_count=int(changed.sum()),
        examples=places(starts[differs][:EXAMPLES_MAX]),
        extras=places(of_extra[:EXTRAS_MAX]),
    )
