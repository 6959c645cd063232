"""What a scan of batch headers shows about a log: where it ends, how transactions ended, each producer's last batch.

Everything that a compaction must know before it touches records comes from here, and so from the log itself. Indexes
and producer snapshots are not used: they may be missing or wrong, while the headers have just been read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sexton.compaction.rules import LastOfProducer
from sexton.compaction.transactions import TransactionEvents, events_of, join_events
from sexton.errors import CorruptLogError
from sexton.records.header import CONTROL, TRANSACTIONAL
from sexton.records.kernels.primitives import Bytes
from sexton.records.kernels.scan import Table, scan
from sexton.types import INT32_MAX, NO_OFFSET

GRAIN = np.dtype(
    [
        ("position", np.int64),
        ("base_offset", np.int64),
        ("previous_offset", np.int64),
        ("record_count", np.int64),
    ]
)
"""A position where a segment may be divided for parallel work: a batch starts here, and the one before ends at
``previous_offset``; ``record_count`` counts the records up to the next grain."""

GRAIN_BYTES = 4 * 1024 * 1024
"""Distance between grains: small enough to balance tasks, large enough to cost next to nothing to send."""

GRAIN_RECORDS = 1 << 17
"""A grain has at most about this many records, which bounds what a task unpacks from tiny records."""

PRODUCER = np.dtype(
    [
        ("producer_id", np.int64),
        ("last_data_offset", np.int64),
        ("last_timestamp", np.int64),
        ("producer_epoch", np.int16),
    ]
)
"""A producer's last batch (`rules.LastOfProducer`) as a row, and when it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSurvey:
    base_offset: int
    size_bytes: int
    batch_count: int
    record_count: int
    last_offset: int
    """Last offset of the segment; -1 if it is empty."""
    first_timestamp_ms: int
    max_timestamp_ms: int
    first_transactional_offset: int
    """First offset of a transactional data batch; -1 if there is none. Decides MXFO."""
    grains: npt.NDArray[np.void]
    events: TransactionEvents
    producers: npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class LogSurvey:
    """The surveys of all segments, and what only the whole log shows."""

    segments: tuple[SegmentSurvey, ...]
    events: TransactionEvents
    producers: npt.NDArray[np.void]

    @property
    def log_end_offset(self) -> int:
        last = self.segments[-1]
        return max(last.last_offset + 1, last.base_offset)

    @property
    def first_transactional_offset(self) -> int | None:
        found = [s.first_transactional_offset for s in self.segments if s.first_transactional_offset >= 0]
        return min(found) if found else None

    def last_stable_offset(self, high_watermark: int) -> int:
        return self.events.last_stable_offset(high_watermark)


def survey_segment(data: Bytes, base_offset: int, place: str) -> SegmentSurvey:
    """Scans a segment's headers once. CRCs are checked when the records are read."""
    events, producers, grains = [], [], []
    batch_count = record_count = 0
    last_offset = first_timestamp = max_timestamp = first_transactional = NO_OFFSET
    for table in scan(data, 0, len(data), place, check_crc=False, previous_offset=base_offset - 1):
        grains.append(_grains(table, last_offset if batch_count else base_offset - 1))
        if batch_count == 0:
            first_timestamp = _first_timestamp(table)
        batch_count += len(table)
        record_count += int(table["record_count"].sum(dtype=np.int64))
        last_offset = int(table["last_offset"][-1])
        max_timestamp = max(max_timestamp, int(table["max_timestamp"].max()))
        transactional = (table["attributes"] & (TRANSACTIONAL | CONTROL)) == TRANSACTIONAL
        if first_transactional == NO_OFFSET and transactional.any():
            first_transactional = int(table["base_offset"][np.argmax(transactional)])
        events.append(events_of(table))
        producers.append(_producers(table))
    if last_offset - base_offset > INT32_MAX:
        raise CorruptLogError(
            f"it holds offset {last_offset}, more than 2^31 above its base offset, which its index cannot express",
            place,
            "Nothing was changed. Start a broker on it once: it splits such a segment (KAFKA-6264)",
        )
    return SegmentSurvey(
        base_offset=base_offset,
        size_bytes=len(data),
        batch_count=batch_count,
        record_count=record_count,
        last_offset=last_offset,
        first_timestamp_ms=first_timestamp,
        max_timestamp_ms=max_timestamp,
        first_transactional_offset=first_transactional,
        grains=_thin(np.concatenate(grains)) if grains else np.zeros(0, dtype=GRAIN),
        events=join_events(events),
        producers=join_producers(producers),
    )


def join_surveys(surveys: Sequence[SegmentSurvey], place: str) -> LogSurvey:
    """The log's survey from its segments', in order. Raises CorruptLogError if segments overlap."""
    for before, after in pairwise(surveys):
        if before.last_offset >= after.base_offset:
            raise CorruptLogError(
                f"the segment {before.base_offset} reaches offset {before.last_offset}, "
                f"into the segment {after.base_offset}",
                place,
                "Nothing was changed. Restore this partition from another replica",
            )
    return LogSurvey(
        tuple(surveys),
        join_events([survey.events for survey in surveys]),
        join_producers([survey.producers for survey in surveys]),
    )


def producer_rows(producers: Sequence[LastOfProducer]) -> npt.NDArray[np.void]:
    """What a broker says of its live producers, as rows sorted by id. Their last timestamps are not known here."""
    rows = np.zeros(len(producers), dtype=PRODUCER)
    for name in ("producer_id", "producer_epoch", "last_data_offset"):
        rows[name] = [getattr(producer, name) for producer in producers]
    return rows[np.argsort(rows["producer_id"])]


def live_producers(producers: npt.NDArray[np.void], now_ms: int, expiration_ms: int) -> npt.NDArray[np.void]:
    """Producers whose state a broker still keeps."""
    return producers[now_ms - producers["last_timestamp"] < expiration_ms]


def join_producers(parts: Sequence[npt.NDArray[np.void]]) -> npt.NDArray[np.void]:
    """Joins producers' states in log order: later ones replace earlier ones, but a marker in the same epoch keeps the
    last data offset."""
    rows = np.concatenate([np.zeros(0, dtype=PRODUCER), *parts])
    rows = rows[np.argsort(rows["producer_id"], kind="stable")]
    last = np.ones(len(rows), dtype=bool)
    last[:-1] = rows["producer_id"][1:] != rows["producer_id"][:-1]
    # Within a producer, carry the data offset over rows of the same epoch that have none.
    for index in np.flatnonzero((rows["last_data_offset"] == NO_OFFSET) & ~_starts_run(rows)):
        if rows[index]["producer_epoch"] == rows[index - 1]["producer_epoch"]:
            rows[index]["last_data_offset"] = rows[index - 1]["last_data_offset"]
    return rows[last]


def _starts_run(rows: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    starts = np.ones(len(rows), dtype=bool)
    starts[1:] = rows["producer_id"][1:] != rows["producer_id"][:-1]
    return starts


def _producers(table: Table) -> npt.NDArray[np.void]:
    """The last state of each producer in a table."""
    with_id = table[table["producer_id"] >= 0]
    is_control = (with_id["attributes"] & CONTROL) != 0
    # Only the last row of consecutive rows with one producer, epoch and kind can matter.
    ends_run = np.ones(len(with_id), dtype=bool)
    ends_run[:-1] = (
        (with_id["producer_id"][1:] != with_id["producer_id"][:-1])
        | (with_id["producer_epoch"][1:] != with_id["producer_epoch"][:-1])
        | (is_control[1:] != is_control[:-1])
    )
    rows = with_id[ends_run]
    words = np.zeros(len(rows), dtype=PRODUCER)
    words["producer_id"] = rows["producer_id"]
    words["producer_epoch"] = rows["producer_epoch"]
    words["last_timestamp"] = rows["max_timestamp"]
    words["last_data_offset"] = np.where(is_control[ends_run], NO_OFFSET, rows["last_offset"])
    return join_producers([words])


def _grains(table: Table, previous_offset: int) -> npt.NDArray[np.void]:
    """A grain at the table's start and wherever one is full."""
    records = np.cumsum(table["record_count"], dtype=np.int64)
    bytes_before = table["position"] - table["position"][0]
    records_before = records - table["record_count"]
    number = np.maximum(bytes_before // GRAIN_BYTES, records_before // GRAIN_RECORDS)
    first = np.ones(len(table), dtype=bool)
    first[1:] = number[1:] != number[:-1]
    starts = np.flatnonzero(first)
    grains = np.zeros(len(starts), dtype=GRAIN)
    grains["position"] = table["position"][starts]
    grains["base_offset"] = table["base_offset"][starts]
    grains["previous_offset"] = np.where(starts > 0, table["last_offset"][starts - 1], previous_offset)
    grains["record_count"] = np.diff(np.append(records_before[starts], records[-1]))
    return grains


def _thin(grains: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Merges adjacent grains that are together no larger than one: each step of the scan starts a grain of its own."""
    kept: list[int] = []
    for index in range(len(grains)):
        if kept:
            head = grains[kept[-1]]
            small = grains[index]["position"] - head["position"] < GRAIN_BYTES
            if small and head["record_count"] + grains[index]["record_count"] <= GRAIN_RECORDS:
                head["record_count"] += grains[index]["record_count"]
                continue
        kept.append(index)
    return grains[kept]


def _first_timestamp(table: Table) -> int:
    """As in Kafka: the first batch's max timestamp."""
    return int(table["max_timestamp"][0])
