"""`sexton audit index` and `compare`: an audit in two halves. Each machine folds its own replicas; one that has all
folds compares them.

What is lost on the way are the records: classes that only a look at one can tell are then "one of".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pyspark import SparkContext

from sexton.audit import folds
from sexton.audit.folds import FoldedReplica, FoldFile, Plan, in_buckets, power_of_two
from sexton.audit.former import of_one_topic_each
from sexton.audit.judge import Counts, PartitionReport, judge
from sexton.audit.keys import DifferingKey
from sexton.audit.replica import ReplicaId, Source
from sexton.audit.report import Report
from sexton.audit.seen import key_of_codes, standing_of, view_of
from sexton.audit.standing import Standing, reference_of, settle
from sexton.errors import NotALogError
from sexton.spark import fold_compare
from sexton.spark.fold_compare import Compared, View, fold_bucket
from sexton.spark.fold_job import FoldJob, Side, bucket_counts_of
from sexton.spark.fold_pass import Rows, StretchFacts
from sexton.types import TopicPartition

Progress = Callable[[str, int], None]


def _ignore(step: str, tasks: int) -> None: ...


# ---- Each machine ----


def index(
    context: SparkContext, source: Source, plan: Plan, path: Path, *, progress: Progress = _ignore
) -> dict[int, Standing]:
    """Writes the fold of all replicas of a source."""
    found = source.find()
    replicas = [each for each in found if each.is_read]
    sides = []
    for number, replica in enumerate(replicas):
        cuts = [replica.high_watermark, replica.clean_offset, *(each.first_offset for each in replica.open)]
        sides.append(
            Side(
                partition=number,
                stretches=tuple(source.stretches(replica, number, replica.log_start_offset, None)),
                cuts=tuple(cut for cut in cuts if cut is not None),
                from_offset=replica.log_start_offset,
            )
        )
    counts = {number: power_of_two(count) for number, count in bucket_counts_of(sides).items()}
    job = FoldJob(context, sides, plan.hash_key, bucket_counts=counts, progress=progress)
    facts: dict[int, list[StretchFacts]] = {number: [] for number in range(len(sides))}
    for each in job.facts():
        facts[each.replica].append(each)
    standings = {number: standing_of(replica, facts[number]) for number, replica in enumerate(replicas)}
    views = [None if each.failure is not None else _own_view(each) for each in standings.values()]
    ends = {number: view.visible_end for number, view in enumerate(views) if view is not None}
    job.index_again(ends, [each for some in facts.values() for each in some])
    unread = [each for each in found if not each.is_read]
    with folds.Writer(path, plan.hash_key) as writer:
        for number, bucket, rows in job.folded(views):
            writer.add_rows(number, bucket, rows)
        writer.finish(standings, counts, unread, getattr(source, "skipped", ()))
    return standings


def _own_view(standing: Standing) -> View:
    """By what its own broker knows. Others may know that more is committed; so what lies above is kept apart."""
    known = max(standing.high_watermark, standing.replica.clean_offset or 0)
    end = standing.events.last_stable_offset(min(known, standing.end_offset))
    return View(standing.start_offset, standing.end_offset, end, standing.events.markers, known)


# ---- One that has all folds ----


def compare(paths: Sequence[Path], *, limit: int, progress: Callable[[str], None] = lambda name: None) -> Report:
    began_s, began_ms = time.monotonic(), time.time_ns() // 1_000_000
    files = [folds.read(path) for path in paths]
    _check_same_plan(files, paths)
    _check_each_once(files, paths)
    folded = [each for file in files for each in file.replicas]
    by_partition: dict[TopicPartition, list[FoldedReplica]] = {}
    for each, replica in zip(folded, of_one_topic_each([each.standing.replica for each in folded]), strict=True):
        present = replace(each, standing=replace(each.standing, replica=replica))
        by_partition.setdefault(replica.id.topic_partition, []).append(present)
    reports = []
    for name in sorted(by_partition):
        progress(f"{name[0]}-{name[1]}")
        reports.append(_compare_partition(name, by_partition[name], limit))
    return Report(
        partitions=tuple(reports),
        hash_key=files[0].hash_key,
        skipped=tuple(dict.fromkeys(skipped for file in files for skipped in file.skipped)),
        size_bytes=sum(each.standing.size_bytes for some in by_partition.values() for each in some),
        took_s=time.monotonic() - began_s,
        began_ms=began_ms,
    )


def _check_same_plan(files: Sequence[FoldFile], paths: Sequence[Path]) -> None:
    for file, path in zip(files, paths, strict=True):
        if file.hash_key != files[0].hash_key:
            raise NotALogError(
                f"it was made with another plan than {paths[0]}",
                str(path),
                "Make all folds of one audit with the same --plan file, copied to each machine",
            )


def _check_each_once(files: Sequence[FoldFile], paths: Sequence[Path]) -> None:
    """A replica that comes twice would have two votes."""
    known: dict[ReplicaId, Path] = {}
    for file, path in zip(files, paths, strict=True):
        for each in file.replicas:
            id = each.standing.replica.id
            if not each.standing.replica.is_read:
                continue
            if id in known:
                raise NotALogError(
                    f"it has broker {id.broker}'s {id.topic}-{id.partition}, and so has {known[id]}",
                    str(path),
                    "Name one fold of each broker",
                )
            known[id] = path


def _compare_partition(name: TopicPartition, replicas: Sequence[FoldedReplica], limit: int) -> PartitionReport:
    read = [each for each in replicas if each.standing.replica.is_read]
    standings = {number: each.standing for number, each in enumerate(read)}
    readable = {number: each for number, each in standings.items() if each.failure is None}
    standings |= settle(readable)
    numbers = sorted(readable)
    compared = _compared(numbers, read, standings, limit) if len(numbers) > 1 else None
    counts, keys = Counts(), []
    if compared is not None:
        found = [key_of_codes(row, numbers) for row in compared.differences]
        keys = [key for key in found if not _may_have_gone_on(key, standings)]
        gone_on_count = sum(not key.is_pinned for key in found) - sum(not key.is_pinned for key in keys)
        if gone_on_count and all(key.is_pinned for key in keys):  # so may the keys that are beyond the limit
            gone_on_count = compared.differing_count
        counts = Counts(
            key_count=compared.key_count,
            busy_count=gone_on_count,
            differing_count=compared.differing_count - gone_on_count,
            retention_count=compared.retention_count,
            behind=dict(zip(numbers, compared.behind_counts, strict=True)),
            pinned=dict(zip(numbers, compared.pinned_counts, strict=True)),
        )
    return judge(
        name,
        standings,
        reference_of({number: standings[number] for number in numbers}) if numbers else None,
        [each.standing.replica for each in replicas if not each.standing.replica.is_read],
        keys,
        counts,
    )


def _may_have_gone_on(key: DifferingKey, standings: Mapping[int, Standing]) -> bool:
    """Whether a broker that was running shows something only because it was folded sooner: a fold that reaches further
    shows less, and what it was that took the rest, it may have taken, too, by now."""
    for number, each in key.replicas.items():
        if standings[number].replica.is_working and each.shown is not None:
            further = (more for more in key.replicas if standings[more].end_offset > standings[number].end_offset)
            if any(key.replicas[more].value != each.value for more in further):
                return True
    return False


def _compared(
    numbers: Sequence[int], read: Sequence[FoldedReplica], standings: dict[int, Standing], limit: int
) -> Compared:
    count = min(read[number].bucket_count for number in numbers)
    buckets: dict[int, dict[int, list[Rows]]] = {}
    for number in numbers:
        for bucket, rows in in_buckets(read[number], count):
            buckets.setdefault(bucket, {})[number] = rows
    views = [_view(standings[number], read[number]) for number in numbers]
    parts = [
        fold_compare.compare(
            0,
            [fold_bucket(rows.get(number, ()), view) for number, view in zip(numbers, views, strict=True)],
            views,
            limit,
        )
        for _, rows in sorted(buckets.items())
    ]
    return fold_compare.total(parts, 0, len(numbers), limit)


def _view(standing: Standing, replica: FoldedReplica) -> View:
    """Where the visible end, or the end, falls into a run, nobody can cut that run any more: its keys are not
    judged."""
    view = view_of(standing)

    def cut(end: int) -> list[int]:
        rows = (row for some in replica.rows.values() for row in some)
        return [row.first_offset for row in rows if row.first_offset < end < row.end_offset]

    return replace(
        view,
        end_offset=min([view.end_offset, *cut(view.end_offset)]),
        committed_end=min([view.committed_end, *cut(view.visible_end)]),
    )
