"""The fold of replicas of partitions, key by key, beside each other: what tasks do. One pass over the bytes of each
replica, wherever they come from; then, per bucket of keys, what differs.

    index     one task per few stretches   each key's newest records, as hashes; markers, gaps
    compare   one task per bucket group    keys on which replicas differ

Rows in the shuffle are few and large, as in compaction's index pass: one per stretch, bucket and kind, with an array of
32-byte entries (``compaction.kernels.contents``) as payload. The records themselves are not shuffled.

Whether a transaction counts is decided by the replica's own markers. A task sees those of its stretch alone, so
it passes on what they leave open (*pending*), and reducers, who know all markers, decide. Records of aborted
transactions are passed on, too (*hidden*): they tell what a replica has and does not show.

A replica's consumers see its fold below its last stable offset, and where that is, its markers tell only at the end.
So stretches are cut into *runs*, whose entries are newest within the run: reducers leave out runs above that offset,
and one that it falls into is indexed again (``fold_job``). Callers who know where it may be say so (``Scope.cuts``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from sexton.compaction.kernels import newest
from sexton.compaction.kernels.contents import CONTENT, Contents, buckets_of, hash_contents, hash_keys
from sexton.compaction.transactions import MARKER, TransactionEvents, TransactionIndex, events_of, join_events
from sexton.errors import SextonError
from sexton.records.batch import ControlType
from sexton.records.codecs import MAX_UNCOMPRESSED_BATCH_BYTES
from sexton.records.header import CONTROL, TRANSACTIONAL
from sexton.records.kernels.columns import Records
from sexton.records.kernels.scan import Table, scan_whole
from sexton.records.keyhash import HashKey
from sexton.spark.arrow_columns import walk
from sexton.spark.counting import Counted, Counts, stored_sizes
from sexton.spark.storage import failure_of
from sexton.spark.stretches import Piece, Stretch
from sexton.spark.unpacking import Run, unpacked_runs, worker_unpacker
from sexton.types import INT64_MAX, NO_OFFSET

FACTS = 0
"""Used instead of a group for a row that tells about a stretch."""

RUN_ENTRIES_MAX = 1 << 20
"""Entries after which a run ends: 32 MB, and twice that while the newest are found."""

GAPS_MAX = 4096
"""Gaps that a stretch tells of, the largest. A compacted one may have a gap after each batch."""

IN_TRANSACTION = 1
"""A flag below an entry's offset, where compaction's entries have DEAD: the record belongs to a transaction."""

GAP = np.dtype([("start", np.int64), ("end", np.int64), ("time_before_ms", np.int64), ("time_after_ms", np.int64)])
"""Offsets [start, end) that no batch spans, or of a batch that a cleaner has taken records from, for one that is left
empty tells no more of a transaction than a gap; and the timestamps of the batches around them (-1: none was seen)."""

PENDING = np.dtype([*CONTENT.descr, ("producer_id", np.int64)])
"""An entry of a transaction whose marker lies further on, or does not exist."""

Gaps = npt.NDArray[np.void]
Longs = npt.NDArray[np.int64]


class Kind(IntEnum):
    """What a row's entries are."""

    VISIBLE = 0
    PENDING = 1
    HIDDEN = 2
    """Of aborted transactions."""


class Carried(IntEnum):
    """What an entry has beside its key and its offset."""

    CONTENT = 0
    """A hash of timestamp, value and headers."""
    SIZE_BYTES = 1
    """How many stored bytes fall to the record."""
    TIMESTAMP_MS = 2


@dataclass(frozen=True, slots=True)
class Scope:
    """What every task must know about a replica."""

    first_group: int
    bucket_count: int
    cuts: tuple[int, ...] = ()
    """Offsets at which a run ends, rising: where the last stable offset is likely to be."""
    from_offset: int = 0
    """The log start: below it nothing counts, though a batch may reach there."""
    max_batch_bytes: int = MAX_UNCOMPRESSED_BATCH_BYTES
    carried: Carried = Carried.CONTENT
    counts_below: int | None = None
    """Where consumers stop, if what they see is to be counted, too. It must be one of the cuts."""
    clips: bool = False
    """Whether only records with offsets of the stretch count, and not all of the batches at its edges."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Entries of one bucket and kind from one run: offsets [first, end)."""

    replica: int
    first_offset: int
    end_offset: int
    kind: Kind
    payload: bytes | memoryview


@dataclass(frozen=True, slots=True)
class StretchFacts:
    """What the headers of a stretch tell."""

    stretch: int
    replica: int
    events: TransactionEvents
    gaps: Gaps
    gaps_count: int = 0
    """Of all; `gaps` has the largest."""
    runs: tuple[tuple[int, int], ...] = ()
    """Offsets [first, end) of each run that has entries."""
    first_offset: int = NO_OFFSET
    """Of its first batch; NO_OFFSET if there is none."""
    end_offset: int = NO_OFFSET
    """After its last batch; where it begins if there is none, for a log reaches its last segment's base."""
    record_count: int = 0
    keyless_count: int = 0
    size_bytes: int = 0
    max_timestamp_ms: int = -1
    aborted: tuple[tuple[int, int], ...] = ()
    epochs: tuple[tuple[int, int], ...] = ()
    """Leader epochs of its batches, and the offset after the last batch of each."""
    notes: tuple[str, ...] = ()
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    read_to: int = NO_OFFSET
    """How far the replica is known: of a log that is compacted up to its end, beyond its last batch."""
    counts: Counts | None = None
    failure: SextonError | None = None


Row = tuple[int, "Rows | StretchFacts"]
"""Group; then entries, or facts."""

NO_EVENTS = TransactionEvents(np.zeros(0, dtype=MARKER), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))


# ---- Index ----


def index_stretch(number: int, stretch: Stretch, scope: Scope, key: HashKey) -> Iterator[Row]:
    """Yields a row per run, kind and bucket that has keys, and one with the stretch's facts. What cannot be read makes
    the facts a failure, and leaves the rest of the job alone."""
    indexing = _Indexing(number, stretch, scope, key)
    try:
        for piece in stretch.pieces():
            yield from indexing.take(piece)
        yield from indexing.end_run()
    except Exception as error:
        failure = failure_of(error, f"replica {stretch.replica}")
        yield FACTS, StretchFacts(number, stretch.replica, NO_EVENTS, np.zeros(0, dtype=GAP), failure=failure)
        return
    yield FACTS, indexing.facts()


@dataclass(slots=True)
class _Indexing:
    """One task's way along a stretch."""

    number: int
    stretch: Stretch
    scope: Scope
    key: HashKey
    _visible: list[Contents] = field(default_factory=list)
    _hidden: list[Contents] = field(default_factory=list)
    _pending: list[npt.NDArray[np.void]] = field(default_factory=list)
    _entry_count: int = 0
    _events: list[TransactionEvents] = field(default_factory=list)
    _gaps: list[Gaps] = field(default_factory=list)
    _gaps_count: int = 0
    _runs: list[tuple[int, int]] = field(default_factory=list)
    _run_start: int = NO_OFFSET
    _first: int = NO_OFFSET
    _end: int = NO_OFFSET
    _last_time_ms: int = -1
    _max_time_ms: int = -1
    _record_count: int = 0
    _keyless_count: int = 0
    _size_bytes: int = 0
    _aborted: dict[tuple[int, int], None] = field(default_factory=dict)
    _epochs: dict[int, int] = field(default_factory=dict)
    _notes: list[str] = field(default_factory=list)
    _said: tuple[int, int] = (-1, -1)
    _log_start: int = -1
    _counts: Counts = field(default_factory=Counts)

    def take(self, piece: Piece) -> Iterator[Row]:
        self._aborted.update(dict.fromkeys(piece.aborted))
        if piece.note:
            self._notes.append(piece.note)
        self._log_start = max(self._log_start, piece.log_start_offset)
        if piece.high_watermark >= 0:
            self._said = piece.high_watermark, piece.last_stable_offset
        if len(piece.data) == 0:
            return
        try:
            table = scan_whole(
                piece.data, 0, len(piece.data), piece.place, check_crc=True, previous_offset=max(self._end - 1, -1)
            )
            self._size_bytes += len(piece.data)
            table = table[
                (table["last_offset"] >= self.stretch.from_offset) & (table["base_offset"] < self.stretch.to_offset)
            ]
            for part in np.split(table, np.searchsorted(table["base_offset"], self._cuts_after(table))):
                if len(part):
                    yield from self._take_table(piece, part)
        except SextonError as error:
            raise type(error)(error.what, _shifted(error.place, piece.position), error.remedy) from error

    def _cuts_after(self, table: Table) -> list[int]:
        if len(table) == 0:
            return []
        return [cut for cut in self.scope.cuts if table["base_offset"][0] <= cut <= table["last_offset"][-1]]

    def _take_table(self, piece: Piece, table: Table) -> Iterator[Row]:
        if int(table["base_offset"][0]) in self.scope.cuts or self._entry_count > RUN_ENTRIES_MAX:
            yield from self.end_run()
        is_counted = self.scope.counts_below is not None
        is_above = is_counted and int(table["base_offset"][0]) >= (self.scope.counts_below or 0)
        if is_counted and not is_above:
            self._counts.look(table, self._end - 1 if self._first >= 0 else int(table["base_offset"][0]) - 1)
        self._note_headers(table)

        committed = aborted = self._counts.above if is_above else None
        if is_counted and not is_above:
            committed, aborted = self._counts.committed, self._counts.aborted
        is_control = (table["attributes"] & CONTROL) != 0
        is_open = ((table["attributes"] & TRANSACTIONAL) != 0) & ~is_control
        self._add(self._visible, self._hash(piece, table[~is_control & ~is_open], 0, committed))
        if is_open.any():
            outcome = TransactionIndex(self._events[-1].markers).outcome(table)
            self._add(self._visible, self._hash(piece, table[outcome == ControlType.COMMIT], IN_TRANSACTION, committed))
            self._add(self._hidden, self._hash(piece, table[outcome == ControlType.ABORT], IN_TRANSACTION, aborted))
            left = table[is_open & (outcome != ControlType.COMMIT) & (outcome != ControlType.ABORT)]
            for producer_id in np.unique(left["producer_id"]).tolist():
                mine = left[left["producer_id"] == producer_id]
                undecided = committed  # above, or not counted at all
                if is_counted and not is_above:
                    undecided = self._counts.undecided_of(producer_id, int(mine["last_offset"][-1]))
                self._add_pending(producer_id, self._hash(piece, mine, IN_TRANSACTION, undecided))

    def _note_headers(self, table: Table) -> None:
        bases, lasts = table["base_offset"], table["last_offset"]
        before = np.concatenate([[self._end if self._first >= 0 else bases[0]], lasts[:-1] + 1])
        times = np.concatenate([[self._last_time_ms], table["max_timestamp"][:-1]])
        is_thin = table["record_count"] < lasts - bases + 1
        ends = np.where(is_thin, lasts + 1, bases)
        holes = np.flatnonzero(ends > before)
        if len(holes):
            gaps = np.zeros(len(holes), dtype=GAP)
            gaps["start"], gaps["end"] = before[holes], ends[holes]
            gaps["time_before_ms"], gaps["time_after_ms"] = times[holes], table["max_timestamp"][holes]
            self._gaps = [_largest([*self._gaps, gaps], GAPS_MAX)]
            self._gaps_count += len(gaps)
        if self._first < 0:
            self._first = int(bases[0])
        if self._run_start < 0:
            self._run_start = int(bases[0])
        self._end = int(lasts[-1]) + 1
        self._last_time_ms = int(table["max_timestamp"][-1])
        self._max_time_ms = max(self._max_time_ms, int(table["max_timestamp"].max()))
        is_data = (table["attributes"] & CONTROL) == 0
        self._record_count += int(table["record_count"][is_data].sum(dtype=np.int64))
        for last in np.flatnonzero(np.diff(table["leader_epoch"], append=-2)).tolist():
            self._epochs[int(table["leader_epoch"][last])] = int(lasts[last]) + 1
        self._events.append(events_of(table))

    def _hash(self, piece: Piece, wanted: Table, flags: int, counted: Counted | None) -> list[Contents]:
        """Each key's newest of these batches, by parts, in offset order."""
        parts = []
        unpacker = worker_unpacker(self.scope.max_batch_bytes)
        for run in unpacked_runs(piece.data, wanted, unpacker, piece.place):
            rows, body, starts, ends = run
            records = walk(body, starts, ends, wanted[rows], piece.place, *self._span())
            entries = np.empty(len(records), dtype=CONTENT)
            filled = self._fill(wanted[rows], run, records, entries)
            self._keyless_count += len(records) - filled
            if counted is not None:
                counted.look(records)
                counted.size_bytes += (
                    int(stored_sizes(records, wanted[rows], starts, ends, self._span()[0]).sum())
                    if self.scope.clips
                    else int(wanted[rows]["size"].sum(dtype=np.int64))
                )
            entries["code"] |= flags
            parts.append(newest_of([entries[:filled]]))
        return parts

    def _span(self) -> tuple[int, int]:
        if self.scope.clips:
            return max(self.scope.from_offset, self.stretch.from_offset), self.stretch.to_offset
        return self.scope.from_offset, INT64_MAX

    def _fill(self, table: Table, run: Run, records: Records, entries: Contents) -> int:
        _, body, starts, ends = run
        points = np.uint64(self.key.first), np.uint64(self.key.second)
        if self.scope.carried is Carried.CONTENT:
            return int(hash_contents(body, records, *points, entries))
        is_size = self.scope.carried is Carried.SIZE_BYTES
        numbers = (
            stored_sizes(records, table, starts, ends, self._span()[0]) if is_size else records["timestamp"].copy()
        )
        return int(hash_keys(body, records, numbers, *points, entries))

    def _add(self, into: list[Contents], parts: list[Contents]) -> None:
        into += parts
        self._entry_count += sum(map(len, parts))

    def _add_pending(self, producer_id: int, parts: list[Contents]) -> None:
        entries = newest_of(parts)
        pending = np.zeros(len(entries), dtype=PENDING)
        for name in CONTENT.names or ():
            pending[name] = entries[name]
        pending["producer_id"] = producer_id
        self._pending.append(pending)
        self._entry_count += len(pending)

    def end_run(self) -> Iterator[Row]:
        """Yields what has come together. Markers of later pieces decide what earlier ones had to leave open."""
        first, end = self._run_start, self._end
        pending = np.concatenate([np.zeros(0, dtype=PENDING), *self._pending])
        self._events = [join_events(self._events)] if self._events else []
        if len(pending):
            outcome = outcomes(pending, TransactionIndex(self._events[0].markers))
            self._visible.append(contents_of(pending[outcome == ControlType.COMMIT]))
            self._hidden.append(contents_of(pending[outcome == ControlType.ABORT]))
            pending = pending[outcome == ControlType.UNKNOWN]
        visible, hidden = newest_of(self._visible), newest_of(self._hidden)
        self._visible, self._hidden, self._pending, self._entry_count, self._run_start = [], [], [], 0, NO_OFFSET
        if len(visible) or len(hidden) or len(pending):
            self._runs.append((first, end))
        for kind, entries in ((Kind.VISIBLE, visible), (Kind.PENDING, pending), (Kind.HIDDEN, hidden)):
            for bucket, payload in _by_bucket(entries, self.scope.bucket_count):
                yield self.scope.first_group + bucket, Rows(self.stretch.replica, first, end, kind, payload)

    def facts(self) -> StretchFacts:
        high_watermark, stable = self._said
        return StretchFacts(
            stretch=self.number,
            replica=self.stretch.replica,
            events=join_events(self._events),
            gaps=_largest(self._gaps, GAPS_MAX),
            gaps_count=self._gaps_count,
            runs=tuple(self._runs),
            first_offset=self._first,
            end_offset=max(self._end, self.stretch.from_offset),
            record_count=self._record_count,
            keyless_count=self._keyless_count,
            size_bytes=self._size_bytes,
            max_timestamp_ms=self._max_time_ms,
            aborted=tuple(self._aborted),
            epochs=tuple(self._epochs.items()),
            notes=tuple(self._notes),
            high_watermark=high_watermark,
            last_stable_offset=stable,
            log_start_offset=self._log_start,
            counts=None if self.scope.counts_below is None else self._counts,
            # A broker has said that it has nothing more of these offsets; of a file nobody knows where it should end.
            read_to=max(self._end, self.stretch.from_offset if high_watermark < 0 else self.stretch.to_offset),
        )


def _shifted(place: str, position: int) -> str:
    """A place in a piece as a place in its file."""
    return re.sub(r"(?<= at byte )\d+$", lambda found: str(int(found[0]) + position), place)


def _largest(parts: Sequence[Gaps], count: int) -> Gaps:
    gaps = np.concatenate([np.zeros(0, dtype=GAP), *parts])
    if len(gaps) > count:
        gaps = gaps[np.argsort(gaps["start"] - gaps["end"], kind="stable")[:count]]
    return gaps[np.argsort(gaps["start"], kind="stable")]


def _by_bucket(entries: npt.NDArray[np.void], bucket_count: int) -> Iterator[tuple[int, bytes]]:
    if len(entries) == 0:
        return
    buckets = buckets_of(entries, bucket_count)
    order = np.argsort(buckets, kind="stable")
    entries, buckets = entries[order], buckets[order]
    firsts = np.flatnonzero(np.diff(buckets, prepend=-1))
    for start, end in zip(firsts, [*firsts[1:], len(entries)], strict=False):
        yield int(buckets[start]), entries[start:end].tobytes()


def newest_of(parts: Sequence[Contents]) -> Contents:
    """Returns each key's newest entry, in offset order. Those of a part need not be: a run's open transactions come by
    producer."""
    entries = np.concatenate([np.zeros(0, dtype=CONTENT), *parts])
    codes = entries["code"]
    if np.any(codes[1:] < codes[:-1]):
        entries = entries[np.argsort(codes, kind="stable")]
    slots = np.empty(newest.slots_needed(len(entries)), dtype=np.int32)
    alive = np.zeros(len(entries), dtype=np.bool_)
    newest.strike_older(entries, slots, alive)
    return entries[alive]


def outcomes(pending: npt.NDArray[np.void], transactions: TransactionIndex) -> npt.NDArray[np.int16]:
    """How the transactions of these entries ended, by a replica's markers; UNKNOWN if they are open."""
    marker = transactions.next_marker(pending["producer_id"], pending["code"] >> 2)
    kinds = np.append(transactions.markers["control_type"], ControlType.UNKNOWN)
    result: npt.NDArray[np.int16] = kinds[marker]
    return result


def contents_of(pending: npt.NDArray[np.void]) -> Contents:
    entries = np.zeros(len(pending), dtype=CONTENT)
    for name in CONTENT.names or ():
        entries[name] = pending[name]
    return entries
