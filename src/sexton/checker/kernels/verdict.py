"""The twin of `verdict.obligations`."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from sexton.checker.kernels.columns import Columns, is_f
from sexton.checker.verdict import Obligation, compaction
from sexton.checker.view import View
from sexton.history.flat import FlatHistory
from sexton.history.op import HEAL, UNKNOWN, Ext, F


def obligations(flat: FlatHistory, columns: Columns, some: View) -> Iterator[Obligation]:
    """`some`: what is compacted, and all probes."""
    is_ok = columns.is_ok
    sends_something = np.zeros(len(columns.calls), np.bool_)
    sends_something[columns.sends.call] = True
    yield Obligation("a record was sent", bool(np.any(is_ok & sends_something)))
    yield Obligation("a record was polled", bool(np.any(is_ok[columns.polls.call])))
    f = flat.ops["f"][columns.calls["row"]]
    asked_for = {flat.strings[number] for number in np.unique(f).tolist()}
    was_ok = {flat.strings[number] for number in np.unique(f[is_ok]).tolist()}
    for name in sorted(asked_for - {F.CRASH, F.DEBUG}):
        yield Obligation(f"{name} was ok once", name in was_ok)
    yield Obligation("somebody read to the end of every log", is_read_to_the_end(columns))
    if F.TXN in asked_for or F.EOS in asked_for:
        is_transaction = is_f(columns.calls, F.TXN, F.EOS)
        committed, aborted = is_transaction & is_ok & sends_something, is_transaction & columns.is_fail
        yield Obligation("a transaction was committed", bool(np.any(committed)))
        yield Obligation("a transaction was aborted", bool(np.any(aborted)))
    if some.run.workload == "table":
        yield from compaction(some)
    if some.run.workload == "groups":
        yield Obligation("a group was rebalanced", bool(len(columns.rebalanced.call)))
    yield from _faults(columns, some)


def is_read_to_the_end(columns: Columns) -> bool:
    order, spans, polls = columns.order, columns.spans, columns.polls
    reached = np.zeros(len(columns.logs), np.int64)
    is_ok = columns.is_ok[spans.call]
    np.maximum.at(reached, spans.log[is_ok], spans.end_offset[is_ok])
    is_ok = columns.is_ok[polls.call]
    np.maximum.at(reached, polls.log[is_ok], polls.offset[is_ok] + 1)
    logs = np.unique(order.log)
    return bool(np.all(reached[logs] > order.offset[order.log_start[logs + 1] - 1]))


def _faults(columns: Columns, some: View) -> Iterator[Obligation]:
    if not some.nemesis:
        return
    heals = [op.time_ns for op in some.nemesis if op.f == HEAL and op.is_completion]
    may_be_hit = columns.begin_ns != UNKNOWN
    may_be_hit &= columns.begin_ns < max(heals, default=columns.end_of_all_ns)
    ends_ns = columns.end_ns[may_be_hit]
    last_ns = int(ends_ns.max()) if len(ends_ns) else UNKNOWN
    starts = [op.time_ns for op in some.nemesis if op.ext.get(Ext.PHASE) == "start" and op.is_completion]
    in_force = len(ends_ns) > 0 and any(start_ns < last_ns for start_ns in starts)
    yield Obligation("a fault was in force while operations were in flight", in_force)
    if any(op.f == "grave" for op in some.nemesis):
        missed = any(op.f == "grave" and op.ext.get(Ext.MISSED) for op in some.nemesis)
        yield Obligation("grave: the replica missed what was removed", missed)
