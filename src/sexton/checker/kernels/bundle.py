"""Some logs of a history, judged by themselves: what is wrong in one log, and of what takes several logs the half that
each one knows. `judge` puts the halves together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sexton.checker.kernels import copies, cycles, folds, orders, positions, replicas, tables, writes
from sexton.checker.kernels.arrays import Bools, Ints, Longs, Rows
from sexton.checker.kernels.columns import Columns, is_f
from sexton.checker.kernels.copies import Made, Taken
from sexton.checker.kernels.cycles import Dependencies
from sexton.checker.kernels.folds import Folds
from sexton.checker.kernels.found import Found
from sexton.checker.kernels.groups import Groups, found_in_groups
from sexton.checker.kernels.keys import keys_of
from sexton.checker.kernels.passes import passes_of
from sexton.checker.kernels.removal import LogStarts, Removals
from sexton.checker.kernels.steps import Assigns, steps
from sexton.checker.kernels.verdict import is_read_to_the_end
from sexton.checker.kernels.whole import Whole
from sexton.checker.removal import NEVER_NS
from sexton.history.op import UNKNOWN, F


@dataclass(frozen=True, slots=True)
class Census:
    """Of each call, in some logs."""

    send_count: Ints
    is_read: Bools


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    found: list[tuple[str, Found]]
    own: Longs
    """As `writes.own_reads`; so are the next two."""
    torn: Longs
    missing: Longs
    ww: Dependencies
    wr: Dependencies
    was_polled: bool
    was_rebalanced: bool
    is_read_to_the_end: bool
    was_removed: bool
    """By compaction; and the next, a tombstone."""
    was_tombstone_removed: bool
    made: list[Made]
    """In output logs; and the next, in input logs."""
    taken: list[Taken]


@dataclass(frozen=True, slots=True)
class Question:
    """What must be known of other logs where a call sent to several."""

    calls: Longs
    pairs: Longs
    """Sender and reader."""


@dataclass(frozen=True, slots=True)
class Answer:
    seen: Longs
    """As `writes.seen_sends` and `writes.given_reads`."""
    given: Longs


class Bundle:
    def __init__(
        self, whole: Whole, mops: Rows, spans: Rows, is_read: Bools | None = None, sent: Rows | None = None
    ) -> None:
        """`sent`: see `exts.SENT`."""
        self._whole = whole
        self._columns = Columns(whole.calls, mops, spans, is_read, sent)

    def census(self) -> Census:
        columns = self._columns
        counts = np.bincount(columns.sends.call, minlength=len(columns.calls))
        return Census(counts.astype(np.int32), columns.is_read)

    def judge(self) -> Outcome:
        columns, options = self._columns, self._whole.options
        removals = self._removals()
        assigns = Assigns(columns, self._whole.exts.begins_anew)
        lost = writes.lost_writes(columns, removals)
        passed = tables.passed_without(columns, removals)
        groups = Groups(columns, self._whole.exts, assigns.process)
        has_several = self._whole.send_count > 1
        is_committed = self._whole.run.is_read_committed
        found = [
            *self._in_logs(removals, assigns, lost, passed),
            *self._in_tables(removals, assigns, passed),
            *found_in_groups(groups, removals, options.evidence_max),
        ]
        return Outcome(
            found=found,
            own=writes.own_reads(columns),
            torn=writes.torn_sends(columns, removals, lost, has_several, columns.is_read),
            missing=writes.missing_reads(columns, removals, has_several if is_committed else has_several & False),
            ww=cycles.write_dependencies(columns) if options.ww_deps else Dependencies.none(),
            wr=cycles.read_dependencies(columns),
            was_polled=bool(np.any(columns.is_ok[columns.polls.call])),
            was_rebalanced=bool(len(columns.rebalanced.call)),
            is_read_to_the_end=is_read_to_the_end(columns),
            was_removed=passed.was_removed,
            was_tombstone_removed=passed.was_tombstone_removed,
            made=copies.made(columns, self._whole.run),
            taken=copies.taken(columns, self._whole.run, groups, removals, self._is_copier()),
        )

    def answer(self, question: Question) -> Answer:
        seen = writes.seen_sends(self._columns, question.calls)
        return Answer(seen, writes.given_reads(self._columns, question.pairs))

    def _in_logs(
        self, removals: Removals, assigns: Assigns, lost: writes.Lost, passed: tables.Passed
    ) -> Iterator[tuple[str, Found]]:
        columns, whole, at_most = self._columns, self._whole, self._whole.options.evidence_max
        yield "inconsistent-offsets", orders.inconsistent_offsets(columns)
        yield "duplicate", orders.duplicate(columns)
        yield "moved", orders.moved(columns, removals.is_compacted)
        yield "unwritten-read", orders.unwritten_read(columns)
        yield from steps(columns, removals, assigns, at_most)
        yield "lost-write", lost.found(columns, at_most)
        yield "G1a", writes.aborted_read(columns, at_most)
        yield "unseen", writes.unseen(columns, removals)
        yield "acknowledged-nowhere", writes.acknowledged_nowhere(columns, removals, at_most)
        yield "wrong-span", positions.wrong_span(columns, at_most)
        yield "stuck", positions.stuck(columns, removals, whole.view.healed_ns, whole.options.patience_ms)
        yield "realtime-lag", positions.realtime_lag(columns)
        yield "lost-record", passed.lost_record(columns, at_most)
        yield "tombstone-too-early", passed.tombstone_too_early(columns, at_most)

    def _in_tables(self, removals: Removals, assigns: Assigns, passed: tables.Passed) -> Iterator[tuple[str, Found]]:
        columns, whole, at_most = self._columns, self._whole, self._whole.options.evidence_max
        is_again = ~removals.is_compacted[columns.polls.log]
        if removals.is_compacted.any():
            keys, polled = keys_of(columns, removals)
            passes = passes_of(columns, removals, assigns, polled)
            some = Folds(passes, keys, polled, columns.begin_ns, columns.end_ns)
            yield from folds.missing_values(columns, some, at_most)
            yield from folds.resurrections(columns, some, passed.gone_ns, at_most)
            yield "aborted-in-table", folds.aborted_in_table(columns, some, at_most)
            yield "replicas-disagree", replicas.replicas_disagree(columns, some, whole.exts.replica, at_most)
            yield "table-drift", replicas.table_drift(columns, some, at_most)
            is_again[polled.row[folds.in_tables(some)]] = True
        is_judged = np.array([log in whole.run.logs for log in columns.logs.tolist()], np.bool_)
        is_judged &= ~removals.is_cut_at_its_start
        yield "reappeared", tables.reappeared(columns, is_judged, is_again, at_most)

    def _is_copier(self) -> Bools:
        """Of groups."""
        exts = self._whole.exts
        group = exts.group[is_f(self._whole.calls, F.EOS)]
        found = np.zeros(len(exts.groups) + 1, np.bool_)
        found[group] = True
        return found[:-1]

    def _removals(self) -> Removals:
        columns = self._columns
        deleted: dict[int, list[tuple[int, int]]] = {}
        is_deletion = is_f(columns.calls, F.DELETE_RECORDS) & ~columns.is_fail
        offsets = columns.offsets
        for row in np.flatnonzero(is_deletion[offsets.call]).tolist():
            below = NEVER_NS if offsets.offset[row] == UNKNOWN else int(offsets.offset[row])
            log, begin_ns = int(columns.logs[offsets.log[row]]), int(columns.begin_ns[offsets.call[row]])
            deleted.setdefault(log, []).append((begin_ns, below))
        return Removals(columns, self._whole.run, LogStarts(deleted, self._whole.starts))
