"""The twin of what `checker.tables` finds in the tables that are read: lost, stale and resurrected keys, records of
aborted transactions; and which records were in tables, for those that reappear."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns
from sexton.checker.kernels.found import Cases, Found, with_room
from sexton.checker.kernels.keys import Keys, Polled, may_have_newer, newest_below
from sexton.checker.kernels.passes import Passes, Table, fold, in_table, look_over, table_of
from sexton.checker.kernels.removal import cut_since_one_ns
from sexton.history.op import UNKNOWN
from sexton.jit import kernel


class Folds(NamedTuple):
    """What kernels take to fold passes."""

    passes: Passes
    keys: Keys
    polled: Polled
    begin_ns: Longs
    """By call; so is the next."""
    end_ns: Longs

    def table(self) -> Table:
        return table_of(len(self.keys.key_of))


def missing_values(columns: Columns, folds: Folds, evidence_max: int) -> Iterator[tuple[str, Found]]:
    a_pass, newest, found = _missing_values(folds, folds.table()).T
    keys, passes = folds.keys, folds.passes
    vid = np.append(folds.polled.vid, UNKNOWN)[found]
    ops = keys.call[newest], passes.call[a_pass]
    for name, wanted in (("lost-key", found == UNKNOWN), ("stale-value", found != UNKNOWN)):
        cases = Cases(log=passes.log[a_pass], ops=ops, values=(keys.vid[newest], vid)).only(wanted)
        yield name, cases.found(columns, evidence_max)


@kernel
def _missing_values(folds: Folds, table: Table) -> Longs:
    """Returns pass, row of what is certain, row of what was polled or UNKNOWN."""
    passes, keys, polled = folds.passes, folds.keys, folds.polled
    found = np.empty((16, 3), np.int64)
    count = 0
    for a_pass in range(len(passes.log)):
        end_offset, log = passes.end_offset[a_pass], passes.log[a_pass]
        fold(passes, a_pass, end_offset, polled, table, a_pass)
        for kid in range(keys.log_start[log], keys.log_start[log + 1]):
            newest = newest_below(keys, kid, end_offset)
            if newest == UNKNOWN or keys.is_tombstone[newest]:
                continue
            row = in_table(table, kid, a_pass)
            if row != UNKNOWN and (polled.offset[row] >= keys.offset[newest] or polled.vid[row] == keys.vid[newest]):
                continue
            look = look_over(passes, a_pass, keys.offset[newest])
            if look == UNKNOWN or keys.since_ns[keys.vid[newest]] <= folds.end_ns[passes.looks.call[look]]:
                continue
            found = with_room(found, count)
            found[count] = (a_pass, newest, row)
            count += 1
    return found[:count]


def resurrections(columns: Columns, folds: Folds, gone_ns: Longs, evidence_max: int) -> Iterator[tuple[str, Found]]:
    """`gone_ns`: by vid, when at the latest a tombstone was gone."""
    gone_ns = np.minimum(gone_ns, columns.end_of_all_ns)
    a_pass, newest, row, is_proven = _resurrections(folds, folds.table(), gone_ns).T
    keys, passes = folds.keys, folds.passes
    values, ops = (keys.vid[newest], folds.polled.vid[row]), (keys.call[newest], passes.call[a_pass])
    for name, wanted in (("resurrected-key", is_proven != 0), ("slow-reader", is_proven == 0)):
        cases = Cases(log=passes.log[a_pass], ops=ops, values=values).only(wanted)
        yield name, cases.found(columns, evidence_max)


@kernel
def _resurrections(folds: Folds, table: Table, gone_ns: Longs) -> Longs:
    """Returns pass, row of what is certain, row of what was polled, whether it is proven."""
    passes, keys, polled = folds.passes, folds.keys, folds.polled
    found = np.empty((16, 4), np.int64)
    count = 0
    for a_pass in range(len(passes.log)):
        end_offset, log = passes.end_offset[a_pass], passes.log[a_pass]
        for at in range(fold(passes, a_pass, end_offset, polled, table, a_pass)):
            kid = table.kids[at]
            row = table.newest[kid]
            newest = newest_below(keys, kid, end_offset)
            if newest == UNKNOWN or not keys.is_tombstone[newest] or polled.offset[row] >= keys.offset[newest]:
                continue
            over = look_over(passes, a_pass, keys.offset[newest])
            if over == UNKNOWN or polled.is_tombstone[row]:
                continue
            over_ns = folds.end_ns[passes.looks.call[over]]
            if may_have_newer(keys, kid, keys.offset[newest] + 1, over_ns):
                continue
            if cut_since_one_ns(keys.cuts, log, keys.offset[newest]) <= over_ns:
                continue
            begin_ns = folds.begin_ns[polled.call[row]]
            is_quick = over_ns - begin_ns < keys.kept_ns[log]
            found = with_room(found, count)
            was_gone = begin_ns > gone_ns[keys.vid[newest]]
            found[count] = (a_pass, newest, row, 1 if is_quick or was_gone else 0)
            count += 1
    return found[:count]


def aborted_in_table(columns: Columns, folds: Folds, evidence_max: int) -> Found:
    polled = folds.polled
    sender = columns.sender_of[polled.vid]
    is_aborted = columns.is_ok[polled.call] & (sender != UNKNOWN) & np.append(columns.is_fail, False)[sender]
    row = _in_looks(folds.passes, polled, is_aborted)
    cases = Cases(log=polled.log[row], ops=(sender[row], polled.call[row]), values=(polled.vid[row],))
    return cases.found(columns, evidence_max)


@kernel
def _in_looks(passes: Passes, polled: Polled, is_wanted: Bools) -> Longs:
    """Rows of what was polled in full passes, and not read again."""
    found = np.empty(np.count_nonzero(is_wanted), np.int64)
    count = 0
    looks = passes.looks
    for look in range(len(looks.call)):
        for row in range(looks.first[look], looks.end[look]):
            if is_wanted[row] and polled.offset[row] < looks.below[look]:
                found[count] = row
                count += 1
    return found[:count]


def in_tables(folds: Folds) -> Longs:
    """As `tables._in_tables`: rows of what was polled."""
    is_found = np.zeros(len(folds.polled.row), np.bool_)
    _in_tables(folds, folds.table(), is_found)
    return np.flatnonzero(is_found)


@kernel
def _in_tables(folds: Folds, table: Table, is_found: Bools) -> None:
    passes, keys, polled = folds.passes, folds.keys, folds.polled
    for a_pass in range(len(passes.log)):
        end_offset, end_ns, log = passes.end_offset[a_pass], passes.end_ns[a_pass], passes.log[a_pass]
        for at in range(fold(passes, a_pass, end_offset, polled, table, a_pass)):
            row = table.newest[table.kids[at]]
            is_quick = end_ns - folds.begin_ns[polled.call[row]] < keys.kept_ns[log]
            if is_quick and not polled.is_tombstone[row]:
                is_found[row] |= not may_have_newer(keys, table.kids[at], end_offset, end_ns)
