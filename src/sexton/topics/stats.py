"""What is in a live topic: records, keys, what compaction would save, how far it was compacted.

    find      the driver               partitions, and how far consumers see them
    read      one task per stretch     each key's newest record, with its size; records counted by headers and flags
    count     one task per bucket      keys of each partition, and those that are in more than one

The pass is the audit's (``spark.fold_job``): a bucket has the keys of all partitions, so it sees which are in several.
A sample reads cells of each partition (``sampling``) or some partitions whole; cells cannot tell keys, only bound them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from pyspark import SparkContext

from sexton.compaction.transactions import TransactionEvents, join_events
from sexton.errors import SextonError
from sexton.records.kernels.keys import FLAG_BITS, TOMBSTONE
from sexton.records.keyhash import random_hash_key
from sexton.spark.counting import Counted, Counts
from sexton.spark.fold_compare import View, fold_bucket
from sexton.spark.fold_job import BUCKET_BYTES, FoldJob, Side
from sexton.spark.fold_pass import Carried, Rows, StretchFacts
from sexton.spark.traces import Traces
from sexton.topics.finding import PartitionLog, Reading, TopicLog
from sexton.topics.sampling import Estimate, Stratum, expanded, strata_of, total
from sexton.types import NO_OFFSET

Progress = Callable[[str, int], None]


class Place(NamedTuple):
    """Where a key's newest record is in one partition."""

    partition: int
    offset: int
    is_tombstone: bool


@dataclass(slots=True)
class KeyCounts:
    """Of one partition."""

    key_count: int = 0
    deleted_count: int = 0
    """Keys whose newest record is a tombstone."""
    newest_bytes: int = 0
    """Of the records that are their key's newest."""


@dataclass(slots=True)
class SharedKeys:
    """Keys that are in more than one partition."""

    key_count: int = 0
    live_count: int = 0
    """Keys whose newest record is a value in more than one: whoever reads them all gets them twice."""
    surplus_count: int = 0
    """How often keys are counted again in another partition."""
    examples: list[tuple[Place, ...]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """How far a log was compacted at least, by its gaps."""

    up_to_offset: int
    kept_share: float
    """Of the offsets below it, how many still have a record."""
    not_before_ms: int | None
    has_horizons: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Of a partition or a topic, as read_committed consumers see it."""

    record_count: Estimate
    keyless_count: Estimate
    tombstone_count: Estimate
    size_bytes: Estimate
    """Of these records' batches, as they are sent and stored."""
    aborted_count: Estimate
    aborted_bytes: Estimate
    control_count: Estimate
    key_count: Estimate | None = None
    """None: a sample of cells cannot tell (see `key_bounds`)."""
    deleted_count: Estimate | None = None
    newest_bytes: Estimate | None = None

    @property
    def saved_count(self) -> float | None:
        """Records that a compaction of the whole log would drop: older ones of their key, and aborted ones."""
        if self.key_count is None:
            return None
        kept = self.key_count.value + self.keyless_count.value
        return max(0.0, self.record_count.value - kept) + self.aborted_count.value

    @property
    def saved_bytes(self) -> float | None:
        if self.newest_bytes is None:
            return None
        records = max(1.0, self.record_count.value)
        kept = self.newest_bytes.value + self.size_bytes.value * self.keyless_count.value / records
        return max(0.0, self.size_bytes.value - kept) + self.aborted_bytes.value


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStats:
    log: PartitionLog
    amounts: Amounts | None = None
    key_bounds: tuple[float, float] | None = None
    """Of a sample: keys that were seen, and records that have one (with the margin)."""
    waiting_count: int | None = None
    """Records that consumers wait for: in open transactions, or behind one. None: not read."""
    cleaned: Cleaned | None = None
    dirty_bytes: float | None = None
    """About so many bytes lie after the last gap."""
    codecs: Mapping[int, int] = field(default_factory=dict)
    is_sampled: bool = False
    notes: tuple[str, ...] = ()
    failure: SextonError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStats:
    topic: TopicLog
    partitions: tuple[PartitionStats, ...]
    total: Amounts | None
    """Of the whole topic, if partitions were drawn from it; else of those that were asked for."""
    shared: SharedKeys | None
    """None: a sample cannot tell, or only one partition was read."""
    read_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Sample:
    fraction: float | None = None
    """Of the offsets of each partition."""
    partition_count: int | None = None
    """Of the partitions, each read whole."""


# ---- The job ----


def collect(
    context: SparkContext,
    topic: TopicLog,
    reading: Reading,
    *,
    sample: Sample | None = None,
    examples: int = 0,
    progress: Progress = lambda step, tasks: None,
    rng: random.Random | None = None,
) -> TopicStats:
    """`topic` with the partitions that shall be read; `sample.partition_count` of them are drawn."""
    rng, sample = rng or random.Random(), sample or Sample()
    logs = topic.partitions
    if sample.partition_count is not None and sample.partition_count < len(logs):
        logs = tuple(sorted(rng.sample(logs, sample.partition_count), key=lambda log: log.partition))
    strata = [_strata(log, sample.fraction, rng) for log in logs]
    sides = [_side(number, log, strata[number], reading) for number, log in enumerate(logs)]
    size_bytes = sum(side.size_bytes for side in sides)
    job = FoldJob(
        context,
        sides,
        random_hash_key(),
        bucket_counts={0: max(1, -(-size_bytes // BUCKET_BYTES))},
        carried=Carried.SIZE_BYTES,
        progress=progress,
    )
    by_side: list[list[StretchFacts]] = [[] for _ in sides]
    for each in job.facts():
        by_side[each.replica].append(each)
    views = [_view(log, facts) for log, facts in zip(logs, by_side, strict=True)]
    parts = job.reduce(views, partial(count_keys, examples=examples), "count keys")
    keys, shared = _joined(len(sides), parts, [log.partition for log in logs], examples)
    found = tuple(
        _partition(log, strata[number], by_side[number], keys[number], topic.delete_retention_ms)
        for number, log in enumerate(logs)
    )
    is_whole = not any(strata) and len(logs) > 1 and all(each.failure is None for each in found)
    drawn_of = len(topic.partitions)
    return TopicStats(
        topic=topic,
        partitions=found,
        total=_total(found, drawn_of),
        shared=shared if is_whole else None,
        read_bytes=sum(each.size_bytes for facts in by_side for each in facts),
    )


def _strata(log: PartitionLog, fraction: float | None, rng: random.Random) -> tuple[Stratum, ...]:
    if fraction is None:
        return ()
    start, end = log.log_start_offset, log.last_stable_offset
    return strata_of(start, end, log.bytes_between(start, end), fraction, rng)


def _side(number: int, log: PartitionLog, strata: Sequence[Stratum], reading: Reading) -> Side:
    if strata:
        cells = [cell for stratum in strata for cell in stratum.cells]
        stretches = tuple(reading.stretch(log, number, cell, is_first=True, is_small=True) for cell in cells)
    else:
        stretches = reading.stretches(log, number, log.log_start_offset, log.high_watermark)
    return Side(
        0,
        stretches,
        from_offset=log.log_start_offset,
        counts_below=log.last_stable_offset,
        clips=bool(strata),
    )


def _view(log: PartitionLog, facts: Sequence[StretchFacts]) -> View | None:
    if any(each.failure is not None for each in facts):
        return None
    return View(log.log_start_offset, log.high_watermark, log.last_stable_offset, _events(facts).markers)


def _events(facts: Sequence[StretchFacts]) -> TransactionEvents:
    return join_events([each.events for each in facts])


# ---- Keys: what a task makes of a bucket ----


@dataclass(frozen=True, slots=True)
class BucketKeys:
    by_side: Mapping[int, KeyCounts]
    shared: SharedKeys
    """Its places have the numbers of sides."""


def count_keys(
    partition: int, rows: Mapping[int, Sequence[Rows]], shown: Sequence[View | None], *, examples: int
) -> BucketKeys:
    folds = {number: fold_bucket(rows[number], view).visible for number in sorted(rows) if (view := shown[number])}
    counts = {
        number: KeyCounts(
            len(fold), int(((fold["code"] & TOMBSTONE) != 0).sum()), int(fold["content"].sum(dtype=np.uint64))
        )
        for number, fold in folds.items()
    }
    if len(folds) < 2:
        return BucketKeys(counts, SharedKeys())
    entries = np.concatenate(list(folds.values()))
    side = np.repeat(np.array(list(folds), dtype=np.int64), [len(fold) for fold in folds.values()])
    order = np.lexsort((side, entries["second"], entries["first"]))
    entries, side = entries[order], side[order]
    same = (entries["first"][1:] == entries["first"][:-1]) & (entries["second"][1:] == entries["second"][:-1])
    starts = np.flatnonzero(np.concatenate([[True], ~same])) if len(entries) else np.zeros(0, dtype=np.int64)
    sizes = np.diff(np.append(starts, len(entries)))
    is_live = (entries["code"] & TOMBSTONE) == 0
    live = np.add.reduceat(is_live, starts, dtype=np.int64) if len(starts) else starts
    several = np.flatnonzero(sizes > 1)
    first_code, first_side = entries["code"][starts[several]], side[starts[several]]
    shown_ones = several[np.lexsort((first_code, first_side, -live[several]))][:examples]
    places = [
        tuple(
            Place(int(side[index]), int(entries["code"][index]) >> FLAG_BITS, not is_live[index])
            for index in range(starts[each], starts[each] + sizes[each])
        )
        for each in shown_ones.tolist()
    ]
    return BucketKeys(counts, SharedKeys(len(several), int((live > 1).sum()), int((sizes - 1).sum()), places))


def _joined(
    count: int, parts: Sequence[BucketKeys], partitions: Sequence[int], examples: int
) -> tuple[list[KeyCounts], SharedKeys]:
    keys = [KeyCounts() for _ in range(count)]
    shared = SharedKeys()
    for part in parts:
        for number, each in part.by_side.items():
            keys[number].key_count += each.key_count
            keys[number].deleted_count += each.deleted_count
            keys[number].newest_bytes += each.newest_bytes
        shared.key_count += part.shared.key_count
        shared.live_count += part.shared.live_count
        shared.surplus_count += part.shared.surplus_count
        shared.examples += [
            tuple(place._replace(partition=partitions[place.partition]) for place in example)
            for example in part.shared.examples
        ]
    shared.examples = sorted(shared.examples, key=lambda each: (-sum(not place.is_tombstone for place in each), each))[
        :examples
    ]
    return keys, shared


# ---- What follows ----


def _partition(
    log: PartitionLog,
    strata: Sequence[Stratum],
    facts: Sequence[StretchFacts],
    keys: KeyCounts,
    delete_retention_ms: int,
) -> PartitionStats:
    failure = next((each.failure for each in facts if each.failure is not None), None)
    if failure is not None:
        return PartitionStats(log=log, failure=failure)
    notes = tuple(note for each in facts for note in each.notes)
    if strata:
        return _sampled(log, strata, facts, keys, delete_retention_ms, notes)
    counts = Counts()
    for each in facts:
        counts.add(_counts_of(each))
    counts.decide(_events(facts).markers)
    cleaned = _cleaned(log, _traces(log, facts), counts.present_count, delete_retention_ms)
    dirty_from = log.log_start_offset if cleaned is None else cleaned.up_to_offset
    density = counts.committed.size_bytes / max(1, counts.present_count)
    return PartitionStats(
        log=log,
        amounts=_amounts(counts, keys),
        waiting_count=counts.above.record_count,
        cleaned=cleaned,
        dirty_bytes=min(density * max(0, log.last_stable_offset - dirty_from), counts.committed.size_bytes),
        codecs=counts.codecs,
        notes=notes,
    )


def _counts_of(facts: StretchFacts) -> Counts:
    assert facts.counts is not None, "every side counts"
    return facts.counts


def _traces(log: PartitionLog, facts: Sequence[StretchFacts]) -> Traces:
    """Of adjacent stretches. What lies between two, or before the first, is a gap if nothing spans it. Only below where
    consumers stop: the markers above are no trace."""
    result, end = Traces(), _start_of(log, facts)
    for each in facts:
        if each.first_offset == NO_OFFSET or each.first_offset >= log.last_stable_offset:
            continue
        if each.first_offset > end:
            result.join(Traces(gapless_from=each.first_offset))
        result.join(_counts_of(each).traces)
        end = each.end_offset
    return result


def _start_of(log: PartitionLog, facts: Sequence[StretchFacts]) -> int:
    """What was deleted while it was read is no gap."""
    return max([log.log_start_offset, *(each.log_start_offset for each in facts)])


def _cleaned(log: PartitionLog, traces: Traces, present_count: int, delete_retention_ms: int) -> Cleaned | None:
    if traces.gapless_from == NO_OFFSET:
        return None
    up_to = min(traces.gapless_from, log.last_stable_offset)
    below = max(1, up_to - log.log_start_offset)
    kept = max(0, present_count - (log.last_stable_offset - up_to))
    not_before_ms = traces.cleaned_not_before_ms(delete_retention_ms, traces.max_timestamp_before_gap_ms)
    return Cleaned(up_to, min(1.0, kept / below), not_before_ms, traces.horizon_max_ms >= 0)


def _amounts(counts: Counts, keys: KeyCounts) -> Amounts:
    seen = counts.committed
    return Amounts(
        record_count=Estimate(seen.record_count),
        keyless_count=Estimate(seen.keyless_count),
        tombstone_count=Estimate(seen.tombstone_count),
        size_bytes=Estimate(seen.size_bytes),
        aborted_count=Estimate(counts.aborted.record_count),
        aborted_bytes=Estimate(counts.aborted.size_bytes),
        control_count=Estimate(counts.control_count),
        key_count=Estimate(keys.key_count),
        deleted_count=Estimate(keys.deleted_count),
        newest_bytes=Estimate(keys.newest_bytes),
    )


def _sampled(
    log: PartitionLog,
    strata: Sequence[Stratum],
    facts: Sequence[StretchFacts],
    keys: KeyCounts,
    delete_retention_ms: int,
    notes: tuple[str, ...],
) -> PartitionStats:
    cells = []
    for each in facts:
        counts = _counts_of(each)
        counts.decide(each.events.markers, each.aborted)
        cells.append(counts)

    def estimate(what: Callable[[Counts], float]) -> Estimate:
        rest = iter(cells)
        return total(strata, [[what(next(rest)) for _ in stratum.cells] for stratum in strata])

    def committed(what: Callable[[Counted], float]) -> Estimate:
        return estimate(lambda counts: what(counts.committed))

    amounts = Amounts(
        record_count=committed(lambda seen: seen.record_count),
        keyless_count=committed(lambda seen: seen.keyless_count),
        tombstone_count=committed(lambda seen: seen.tombstone_count),
        size_bytes=committed(lambda seen: seen.size_bytes),
        aborted_count=estimate(lambda counts: counts.aborted.record_count),
        aborted_bytes=estimate(lambda counts: counts.aborted.size_bytes),
        control_count=estimate(lambda counts: counts.control_count),
    )
    with_key = committed(lambda seen: seen.record_count - seen.keyless_count)
    traces = Traces()
    for counts in cells:
        traces.join(counts.traces)
    present = estimate(lambda c: c.committed.record_count + c.aborted.record_count + c.control_count)
    return PartitionStats(
        log=log,
        amounts=amounts,
        key_bounds=(keys.key_count, with_key.value + with_key.margin),
        cleaned=_cleaned(log, traces, present.rounded, delete_retention_ms),
        is_sampled=True,
        notes=notes,
    )


_SUMMED = (
    "record_count",
    "keyless_count",
    "tombstone_count",
    "size_bytes",
    "aborted_count",
    "aborted_bytes",
    "control_count",
)
_SUMMED_IF_KNOWN = ("key_count", "deleted_count", "newest_bytes")


def _total(found: Sequence[PartitionStats], of: int) -> Amounts | None:
    """Of so many partitions, of which these were drawn."""
    known = [each.amounts for each in found if each.amounts is not None]
    if len(known) < len(found) or not known:
        return None

    def of_all(values: Sequence[Estimate]) -> Estimate:
        drawn = expanded([value.value for value in values], of)
        scale = of / len(values)
        return Estimate(
            drawn.value,
            drawn.variance + sum(value.variance for value in values) * scale,
            drawn.is_exact and all(value.is_exact for value in values),
            drawn.squares + sum(value.squares for value in values) * scale**2,
        )

    sums = {name: of_all([getattr(each, name) for each in known]) for name in _SUMMED}
    if all(each.key_count is not None for each in known):
        sums |= {name: of_all([getattr(each, name) for each in known]) for name in _SUMMED_IF_KNOWN}
    return Amounts(**sums)
