"""Full passes over compacted logs, and how they are folded into tables: see `checker.tables`, which has the
definitions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns, is_f, sort_by, starts_of
from sexton.checker.kernels.keys import Polled
from sexton.checker.kernels.removal import Removals
from sexton.checker.kernels.steps import Assigns
from sexton.checker.removal import NEVER_NS
from sexton.history.op import UNKNOWN, F
from sexton.jit import kernel


class Looks(NamedTuple):
    """Of passes, one after the other."""

    call: Longs
    start_offset: Longs
    end_offset: Longs
    reach: Longs
    """The highest end so far in the pass."""
    below: Longs
    """Records at this offset and behind it were read again by a later look."""
    first: Longs
    """Of what was polled, the first row and the one behind the last."""
    end: Longs


class Passes(NamedTuple):
    """By log, by when they ended."""

    log: Longs
    first: Longs
    """Of its looks, likewise."""
    end: Longs
    begin_ns: Longs
    end_ns: Longs
    end_offset: Longs
    call: Longs
    """The last."""
    is_standing: Bools
    looks: Looks


class _Chained(NamedTuple):
    span: Longs
    end_offset: Longs
    below: Longs
    start: Longs
    """Of each chain, its first row; and where the last ends."""


def passes_of(columns: Columns, removals: Removals, assigns: Assigns, polled: Polled) -> Passes:
    spans = columns.spans
    is_fresh = is_f(columns.calls, F.TABLE, F.SCAN) & columns.is_ok & (columns.begin_ns != UNKNOWN)
    fresh = np.flatnonzero(spans.is_trusted & is_fresh[spans.call] & removals.is_compacted[spans.log])
    chained = _chains_of(columns, removals, assigns)
    span = np.concatenate([fresh, chained.span])
    end_offset = np.concatenate([spans.end_offset[fresh], chained.end_offset])
    start = np.concatenate([np.arange(len(fresh)), len(fresh) + chained.start])
    first, end = start[:-1], start[1:]
    call, log = spans.call[span], spans.log[span]
    group, wanted = columns.pack(polled.call, polled.log), columns.pack(call, log)
    looks = Looks(
        call=call,
        start_offset=spans.start_offset[span],
        end_offset=end_offset,
        reach=_reach(first, end_offset),
        below=np.concatenate([np.full(len(fresh), NEVER_NS), chained.below]),
        first=np.searchsorted(group, wanted),
        end=np.searchsorted(group, wanted, "right"),
    )
    order = np.lexsort((call[end - 1], columns.end_ns[call[end - 1]], log[first]))
    first, end = first[order], end[order]
    return Passes(
        log=log[first],
        first=first,
        end=end,
        begin_ns=columns.begin_ns[call[first]],
        end_ns=columns.end_ns[call[end - 1]],
        end_offset=end_offset[end - 1],
        call=call[end - 1],
        is_standing=first >= len(fresh),
        looks=looks,
    )


@kernel
def _reach(first: Longs, end_offset: Longs) -> Longs:
    reach = end_offset.copy()
    is_first = np.zeros(len(end_offset), np.bool_)
    is_first[first] = True
    for look in range(1, len(reach)):
        if not is_first[look]:
            reach[look] = max(reach[look], reach[look - 1])
    return reach


def _chains_of(columns: Columns, removals: Removals, assigns: Assigns) -> _Chained:
    """What standing consumers read: looks and rebalances in order, between them assigns."""
    spans, rebalanced = columns.spans, columns.rebalanced
    is_wanted = is_f(columns.calls, F.POLL, F.TXN, F.EOS) & (columns.calls["process"] != UNKNOWN)
    is_look = spans.is_trusted & (columns.begin_ns[spans.call] != UNKNOWN)
    looks = np.flatnonzero(is_look & is_wanted[spans.call] & removals.is_compacted[spans.log])
    breaks = np.flatnonzero(is_wanted[rebalanced.call] & removals.is_compacted[rebalanced.log])
    call = np.concatenate([spans.call[looks], rebalanced.call[breaks]])
    log = np.concatenate([spans.log[looks], rebalanced.log[breaks]])
    span = np.concatenate([looks, np.full(len(breaks), UNKNOWN)])
    process = assigns.process[call]
    order = sort_by(process, log, call)
    call, log, span, process = call[order], log[order], span[order], process[order]
    first, end = assigns.before(call)
    is_new = np.zeros(len(call), np.bool_)
    is_new[starts_of(process, log)] = True
    # Before a process's first look at a log, the last assign counts; then those since the look before.
    first = np.where(is_new, np.maximum(first, end - 1), np.append(0, end[:-1])[: len(end)])
    return _Chained(
        *_chain(
            *(is_new, call, log, span, first, end, assigns.call, assigns.begins_anew, assigns.named, len(columns.logs)),
            *(spans.start_offset, spans.end_offset),
        )
    )


@kernel
def _chain(
    is_new: Bools,
    call: Longs,
    log: Longs,
    span: Longs,
    first_assign: Longs,
    end_assign: Longs,
    assign: Longs,
    begins_anew: Bools,
    named: Longs,
    log_count: int,
    start_offset: Longs,
    end_offset: Longs,
) -> tuple[Longs, Longs, Longs, Longs]:
    """Rows by process and log, in order. A chain that goes on is a stack: going back takes looks off it."""
    found = np.empty((len(span), 3), np.int64)
    starts = np.empty(len(span) + 1, np.int64)
    stack = np.empty((len(span), 3), np.int64)
    depth, count, chains = 0, 0, 0
    from_start = False
    for row in range(len(span)):
        is_over = is_new[row]
        from_start &= not is_new[row]
        for at in range(first_assign[row], end_assign[row]):
            from_start = begins_anew[assign[at]]
            wanted = assign[at] * log_count + log[row]
            place = np.searchsorted(named, wanted)
            is_over |= from_start or place == len(named) or named[place] != wanted
        is_look = span[row] != UNKNOWN
        start = start_offset[span[row]] if is_look else 0
        if not is_look:
            is_over = True
        elif not is_over and depth > 0 and start <= stack[depth - 1, 1]:
            while depth > 0 and start_offset[stack[depth - 1, 0]] >= start:
                depth -= 1
            if depth > 0 and stack[depth - 1, 1] > start:
                stack[depth - 1, 1] = start
                stack[depth - 1, 2] = start
        else:
            is_over = True
        if is_over and depth > 0:
            starts[chains] = count
            chains += 1
            found[count : count + depth] = stack[:depth]
            count += depth
            depth = 0
        if is_look:
            if depth > 0 or from_start or start == 0:
                stack[depth, 0] = span[row]
                stack[depth, 1] = end_offset[span[row]]
                stack[depth, 2] = NEVER_NS
                depth += 1
            from_start = False
    if depth > 0:
        starts[chains] = count
        chains += 1
        found[count : count + depth] = stack[:depth]
        count += depth
    starts[chains] = count
    return found[:count, 0].copy(), found[:count, 1].copy(), found[:count, 2].copy(), starts[: chains + 1].copy()


@kernel
def look_over(passes: Passes, a_pass: int, offset: int) -> int:
    """The first, or UNKNOWN."""
    first, end = passes.first[a_pass], passes.end[a_pass]
    look = first + np.searchsorted(passes.looks.reach[first:end], offset, "right")
    while look < end:
        if passes.looks.start_offset[look] <= offset < passes.looks.end_offset[look]:
            return int(look)
        look += 1
    return UNKNOWN


class Table(NamedTuple):
    """Of one pass, by kid: kept from pass to pass, for it is as large as there are keys."""

    folded: Longs
    """In which fold `newest` was set."""
    newest: Longs
    """A row of what was polled."""
    kids: Longs
    """Those that the table has."""


def table_of(kid_count: int) -> Table:
    return Table(np.full(kid_count, UNKNOWN), np.zeros(kid_count, np.int64), np.zeros(kid_count, np.int64))


@kernel
def fold(passes: Passes, a_pass: int, below_offset: int, polled: Polled, table: Table, number: int) -> int:
    """By key, the newest record below an offset. Returns how many keys there are. `number` differs from that of any
    other fold into this table."""
    count = 0
    looks = passes.looks
    for look in range(passes.first[a_pass], passes.end[a_pass]):
        for row in range(looks.first[look], looks.end[look]):
            if polled.offset[row] >= min(below_offset, looks.below[look]):
                continue
            kid = polled.kid[row]
            if table.folded[kid] != number:
                table.folded[kid] = number
                table.newest[kid] = row
                table.kids[count] = kid
                count += 1
            elif polled.offset[table.newest[kid]] <= polled.offset[row]:
                table.newest[kid] = row
    return count


@kernel
def in_table(table: Table, kid: int, number: int) -> int:
    """The row of what was polled, or UNKNOWN."""
    return int(table.newest[kid]) if table.folded[kid] == number else UNKNOWN
