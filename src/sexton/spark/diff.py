"""Compares two replicas of a partition: the ``read_committed`` fold of each, key by key.

    survey    one task per segment         batch headers of both
    index     one task per a few segments  each key's newest visible record, as hashes
    compare   one task per bucket group    keys on which the sides differ
    fetch     the driver                   the records of the differing keys that are shown, and the reason

Index and compare are those of `sexton audit`, for two replicas of one partition (``fold_job``).

Each side is folded up to its own last stable offset, for that is what its consumers see. Differences beyond a lagging
replica's end are differences, too; their reason says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pyspark import SparkContext

from sexton.compaction.eligibility import first_dirty_offset
from sexton.compaction.survey import LogSurvey
from sexton.compaction.transactions import TransactionIndex
from sexton.errors import NotALogError, SextonError
from sexton.log.stopped.partition import PartitionLog, find_partitions, mapped, open_partition
from sexton.records.batch import Batch, ControlType, Record, decode
from sexton.records.codecs import MAX_UNCOMPRESSED_BATCH_BYTES
from sexton.records.kernels.keys import FLAG_BITS
from sexton.records.kernels.scan import scan_whole
from sexton.records.keyhash import random_hash_key
from sexton.spark import fold_job
from sexton.spark.compact import survey_logs
from sexton.spark.file_stretch import FileStretch
from sexton.spark.fold_compare import NO_CODE, Compared, View
from sexton.spark.fold_job import FoldJob
from sexton.spark.passes import Progress
from sexton.spark.whole_log import stable_end
from sexton.types import INT64_MAX, NO_OFFSET

ONLY_A, ONLY_B = 1, 2
"""Which sides show something of a key, as bits."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a log has at an offset."""

    batch: Batch
    record: Record | None
    """None if the batch spans the offset but has no record there (any more)."""
    is_aborted: bool
    marker_offset: int
    """Offset of the marker that ended the batch's transaction; NO_OFFSET if there is none."""


class Side:
    """One of the two replicas, and what its consumers can see."""

    def __init__(self, label: str, log: PartitionLog, survey: LogSurvey) -> None:
        self.label = label
        self.log = log
        self.survey = survey
        self.log_end_offset = survey.log_end_offset
        self.log_start_offset = log.log_start_offset
        self.high_watermark = log.high_watermark
        self.last_stable_offset = stable_end(log, survey)
        self.clean_offset = first_dirty_offset(log.cleaner_offset, log.log_start_offset, survey.log_end_offset)
        self._transactions = TransactionIndex(survey.events.markers)

    def hides(self, offset: int) -> str | None:
        """Why consumers of this replica do not see an offset, whatever is there; None if they would."""
        if offset >= self.log_end_offset:
            return f"offset {offset} lies beyond {self.label}'s end at {self.log_end_offset}"
        if offset < self.log_start_offset:
            return f"offset {offset} lies below {self.label}'s log start at {self.log_start_offset}"
        if self.high_watermark is not None and offset >= self.high_watermark:
            return f"offset {offset} is not below {self.label}'s high watermark {self.high_watermark}"
        return self.pinned() if offset >= self.last_stable_offset else None

    def pinned(self) -> str:
        """Why the last stable offset is where it is."""
        events, stable = self.survey.events, self.last_stable_offset
        start = f"{self.label}'s last stable offset is pinned at {stable} by "
        for producer_id, first in zip(events.open_producer_ids, events.open_first_offsets, strict=True):
            if first == stable:
                return f"{start}an open transaction of producer {producer_id}"
        undecided = events.markers[events.markers["first_data_offset"] == stable]
        if len(undecided):
            producer_id, offset = undecided["producer_id"][0], undecided["offset"][0]
            return f"{start}a transaction of producer {producer_id}, whose marker at {offset} is not committed yet"
        return f"{start}the high watermark"

    def find(self, offset: int) -> Found | None:
        """Returns the batch that spans an offset, with the record at it. None in a gap between batches."""
        bases = [segment.base_offset for segment in self.survey.segments]
        number = int(np.searchsorted(bases, offset, side="right")) - 1
        if number < 0:
            return None
        segment, file = self.survey.segments[number], self.log.segments[number]
        grains = segment.grains
        place = int(np.searchsorted(grains["base_offset"], offset, side="right")) - 1
        if place < 0:
            return None
        end = segment.size_bytes if place + 1 == len(grains) else int(grains["position"][place + 1])
        start, previous = int(grains["position"][place]), int(grains["previous_offset"][place])
        with mapped(file.path, start, end) as data:
            table = scan_whole(data, start, end, str(file.path), check_crc=False, previous_offset=previous)
            rows = table[(table["base_offset"] <= offset) & (table["last_offset"] >= offset)]
            if len(rows) == 0:
                return None
            batch = decode(memoryview(data), int(rows["position"][0]), str(file.path))  # type: ignore[arg-type]
        record = next((record for record in batch.records if record.offset == offset), None)
        marker = self._transactions.next_marker(rows["producer_id"], rows["last_offset"])[0]
        is_aborted = bool(self._transactions.outcome(rows)[0] == ControlType.ABORT)
        return Found(
            batch, record, is_aborted, int(self._transactions.markers["offset"][marker]) if marker >= 0 else NO_OFFSET
        )


@dataclass(frozen=True, slots=True)
class Difference:
    """A key on which the replicas disagree. A record without a value is a tombstone; None is no record at all."""

    key: bytes
    record_a: Record | None
    record_b: Record | None
    reason: str


@dataclass(frozen=True, slots=True)
class Diff:
    side_a: Side
    side_b: Side
    equal_count: int
    only_a_count: int
    only_b_count: int
    changed_count: int
    differences: tuple[Difference, ...]
    """The first differences by offset, up to the requested number."""

    @property
    def differing_count(self) -> int:
        return self.only_a_count + self.only_b_count + self.changed_count


def diff(
    context: SparkContext,
    path_a: Path,
    path_b: Path,
    limit: int,
    *,
    max_batch_bytes: int = MAX_UNCOMPRESSED_BATCH_BYTES,
    progress: Progress = lambda step, tasks: None,
) -> Diff:
    """Compares two directories of the same partition. Raises if one cannot be read."""
    logs = [_open(path_a), _open(path_b)]
    if logs[0].name != logs[1].name:
        raise NotALogError(
            f"this is {logs[1].name}, but the other is {logs[0].name}",
            str(path_b),
            "Name two directories of the same partition, from two brokers or from two points in time",
        )
    progress("survey", sum(len(log.segments) for log in logs))
    surveys = []
    for survey in survey_logs(context, logs):
        if isinstance(survey, SextonError):
            raise survey
        surveys.append(survey)
    side_a, side_b = (Side(label, log, survey) for label, log, survey in zip("AB", logs, surveys, strict=True))
    result = _compare(context, [side_a, side_b], limit, max_batch_bytes, progress)
    return Diff(
        side_a=side_a,
        side_b=side_b,
        equal_count=result.key_count - result.differing_count,
        only_a_count=result.patterns.get(ONLY_A, 0),
        only_b_count=result.patterns.get(ONLY_B, 0),
        changed_count=result.patterns.get(ONLY_A | ONLY_B, 0),
        differences=tuple(_fetch(side_a, side_b, row) for row in result.differences),
    )


def _open(path: Path) -> PartitionLog:
    found = find_partitions([path])
    if len(found) != 1:
        raise NotALogError(
            f"{len(found)} partitions lie in this directory",
            str(path),
            "Name one partition's directory, such as orders-0",
        )
    return open_partition(found[0])


def _compare(
    context: SparkContext, sides: Sequence[Side], limit: int, max_batch_bytes: int, progress: Progress
) -> Compared:
    job = FoldJob(
        context,
        [
            fold_job.Side(
                partition=0,
                stretches=tuple(_stretches(number, side)),
                from_offset=side.log_start_offset,
                max_batch_bytes=max_batch_bytes,
            )
            for number, side in enumerate(sides)
        ],
        random_hash_key(),
        progress=progress,
    )
    failure = next((each.failure for each in job.facts() if each.failure is not None), None)
    if failure is not None:
        raise failure
    # A replica that lags differs: each is taken for all there is.
    views = [View(0, INT64_MAX, INT64_MAX, side.survey.events.markers) for side in sides]
    return job.compare(views, limit)[0]


def _stretches(number: int, side: Side) -> Iterator[FileStretch]:
    """What the side's consumers see."""
    bases = [segment.base_offset for segment in side.log.segments]
    for segment, end in zip(side.log.segments, [*bases[1:], side.last_stable_offset], strict=True):
        if segment.base_offset < side.last_stable_offset:
            end_offset = min(end, side.last_stable_offset)
            yield FileStretch(number, str(segment.path), segment.size_bytes, segment.base_offset, end_offset)


def _fetch(side_a: Side, side_b: Side, row: np.void) -> Difference:
    offsets = [None if code == NO_CODE else int(code) >> FLAG_BITS for code in row["code"]]
    found = [
        None if offset is None else side.find(offset) for side, offset in zip((side_a, side_b), offsets, strict=True)
    ]
    records = [None if one is None else one.record for one in found]
    key = next((record.key for record in records if record is not None and record.key is not None), b"")
    return Difference(key, records[0], records[1], explain((side_a, side_b), (found[0], found[1]), offsets))


def explain(sides: tuple[Side, Side], found: tuple[Found | None, Found | None], offsets: Sequence[int | None]) -> str:
    """Explains why a key's newest record is not the same on both sides, as far as the files show.

    The side with the newer record is taken to be right, for logs only grow; the question is what happened to that
    record on the other side.
    """
    at_a, at_b = (-1 if offset is None else offset for offset in offsets)
    if at_a == at_b:
        times = [one.record.timestamp_ms for one in found if one is not None and one.record is not None]
        if len(set(times)) > 1 and _is_same_but_for_time(found):
            return (
                f"offset {at_a} has the timestamp {times[0]} on one and {times[1]} on the other, and is else the same"
            )
        epochs = [one.batch.leader_epoch if one is not None else "?" for one in found]
        return (
            f"offset {at_a} holds different records (leader epochs {epochs[0]} and {epochs[1]}): the logs have diverged"
        )
    newer, older = (0, 1) if at_a > at_b else (1, 0)
    has, lacks, offset = sides[newer], sides[older], max(at_a, at_b)
    record = found[newer].record if found[newer] is not None else None  # type: ignore[union-attr]
    what = "tombstone" if record is not None and record.is_tombstone else "record"
    hidden = lacks.hides(offset)
    if hidden is not None:
        return hidden
    there = lacks.find(offset)
    if there is not None and there.record is not None:
        if there.is_aborted:
            marker = "" if there.marker_offset == NO_OFFSET else f" (marker at offset {there.marker_offset})"
            return f"the {what} at offset {offset} is of a transaction that {lacks.label} saw aborted{marker}"
        return f"offset {offset} holds another record on {lacks.label}: the logs have diverged"
    if min(at_a, at_b) < 0 and what == "record" and offset < lacks.clean_offset:
        return _compacted_away(has, lacks)
    reach = f"though its log reaches offset {lacks.log_end_offset}"
    return f"{lacks.label} lacks the {what} at offset {offset} that {has.label} has, {reach}"


def _is_same_but_for_time(found: tuple[Found | None, Found | None]) -> bool:
    a, b = (one.record if one is not None else None for one in found)
    return a is not None and b is not None and (a.value, a.headers) == (b.value, b.headers)


def _compacted_away(has: Side, lacks: Side) -> str:
    reason = (
        f"{lacks.label} is clean up to offset {lacks.clean_offset} and holds nothing of this key: "
        f"{has.label} lacks the tombstone that {lacks.label} has compacted away"
    )
    if has.last_stable_offset < lacks.clean_offset:  # where that tombstone was
        reason += f", or does not show it yet ({has.pinned()})"
    return reason
