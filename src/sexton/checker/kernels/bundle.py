"""Some logs of a history, judged by themselves: what is wrong in one log, and of what takes several logs the half that
each one knows. `judge` puts the halves together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from sexton.checker.kernels import copies, cycles, folds, orders, positions, replicas, tables, writes
from sexton.checker.kernels.arrays import Ints, Longs, Rows
from sexton.checker.kernels.columns import Columns, is_f, unique
from sexton.checker.kernels.copies import Made, Taken
from sexton.checker.kernels.cycles import Core, Dependencies, Ends
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
    """In some logs, as rows of calls."""

    sending: Longs
    sending_several: Longs
    several_count: Longs
    """Of the latter, how many records."""
    read: Longs
    """By an ok call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    found: list[tuple[str, Found]]
    own: Longs
    """As `writes.own_reads`; so are the next two."""
    torn: Longs
    missing: Longs
    ww: Ends
    wr: Ends
    has_dependencies: bool
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
        self, whole: Whole, mops: Rows, spans: Rows, sent: Rows | None = None, *, is_counted: bool = True
    ) -> None:
        """`sent`: see `exts.SENT`. `is_counted`: whether all logs' census was taken."""
        ops = [mops["op"], spans["op"], *([] if sent is None else [sent["op"]])]
        self._calls = whole.concerned(unique(np.concatenate([unique(it) for it in ops])))
        """Rows of all calls; or None for these: what a bundle knows of others is in its own calls' numbers."""
        self._whole = whole if self._calls is None else whole.of(self._calls)
        is_read = self._whole.is_read if is_counted else None
        self._columns = Columns(
            calls=self._whole.calls, end_ns=whole.end_ns, mops=mops, spans=spans, is_read=is_read, sent=sent
        )

    def census(self) -> Census:
        columns = self._columns
        call, count = np.unique(columns.sends.call, return_counts=True)
        is_several = count > 1
        return Census(
            sending=self._all(call),
            sending_several=self._all(call[is_several]),
            several_count=count[is_several],
            read=self._all(np.flatnonzero(columns.is_read)),
        )

    def _all(self, call: Longs) -> Longs:
        """Rows of all calls."""
        return call if self._calls is None else self._calls[call]

    def _with_all(self, rows: Longs, *columns: int) -> Longs:
        """Rows with numbers of calls in some columns."""
        for column in columns:
            rows[:, column] = self._all(rows[:, column])
        return rows

    def _own(self, call: Longs) -> Longs:
        """The other way round; UNKNOWN for others."""
        if self._calls is None:
            return call
        place = np.searchsorted(self._calls, call)
        return np.where(np.append(self._calls, UNKNOWN)[place] == call, place, UNKNOWN)

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
        deps = self._dependencies()
        ww, wr = (cycles.untold_ends(columns, it) for it in deps)
        return Outcome(
            found=found,
            own=self._with_all(writes.own_reads(columns), 0),
            torn=self._with_all(writes.torn_sends(columns, removals, lost, has_several, columns.is_read), 0, 3),
            missing=self._with_all(
                writes.missing_reads(columns, removals, has_several if is_committed else has_several & False), 0, 1
            ),
            ww=self._all_ends(ww),
            wr=self._all_ends(wr),
            has_dependencies=any(len(it.start) for it in deps),
            was_polled=bool(np.any(columns.is_ok[columns.polls.call])),
            was_rebalanced=bool(len(columns.rebalanced.call)),
            is_read_to_the_end=is_read_to_the_end(columns),
            was_removed=passed.was_removed,
            was_tombstone_removed=passed.was_tombstone_removed,
            made=[replace(it, several=self._with_all(it.several, 2)) for it in copies.made(columns, self._whole.run)],
            taken=[
                replace(
                    it,
                    processed=self._with_all(it.processed, 2),
                    committed_by=int(self._all(np.array([it.committed_by]))[0]) if len(it.processed) else UNKNOWN,
                )
                for it in copies.taken(columns, self._whole.run, groups, removals, self._whole.is_copier)
            ],
        )

    def _dependencies(self) -> tuple[Dependencies, Dependencies]:
        columns = self._columns
        ww = cycles.write_dependencies(columns) if self._whole.options.ww_deps else Dependencies.none()
        return ww, cycles.read_dependencies(columns)

    def _all_ends(self, ends: Ends) -> Ends:
        return Ends(self._of_all(ends.start), self._of_all(ends.end))

    def _of_all(self, call: Ints) -> Ints:
        return self._all(call.astype(np.int64)).astype(np.int32)

    def explain(self, core: Core) -> tuple[Dependencies, Dependencies]:
        """All edges of what is in a cycle."""
        ww, wr = (
            core.within(replace(it, start=self._of_all(it.start), end=self._of_all(it.end)))
            for it in self._dependencies()
        )
        return ww, wr

    def answer(self, question: Question) -> Answer:
        calls = self._own(question.calls)
        pairs = np.stack([self._own(it) for it in question.pairs.T], axis=1)
        seen = writes.seen_sends(self._columns, calls[calls != UNKNOWN])
        given = writes.given_reads(self._columns, pairs[np.all(pairs != UNKNOWN, axis=1)])
        return Answer(self._with_all(seen, 0, 4), self._with_all(given, 0, 1))

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
        yield "G-single-realtime", positions.stale_read(columns, at_most)
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
