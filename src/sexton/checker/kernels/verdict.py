"""The twin of `verdict.obligations`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sexton.checker.kernels.columns import Columns, is_f
from sexton.checker.kernels.whole import Told, Whole
from sexton.checker.verdict import Obligation, compaction, faults, replicas
from sexton.history.op import HEAL, UNKNOWN, Ext, F, Type

if TYPE_CHECKING:
    from sexton.checker.kernels.bundle import Outcome


def obligations(whole: Whole, told: Told, outcomes: Sequence[Outcome]) -> Iterator[Obligation]:
    is_ok, is_fail = whole.calls["type"] == Type.OK, whole.calls["type"] == Type.FAIL
    sends_something = whole.send_count > 0
    yield Obligation("a record was sent", bool(np.any(is_ok & sends_something)))
    yield Obligation("a record was polled", any(outcome.was_polled for outcome in outcomes))
    for name in sorted(told.asked_for - {F.CRASH, F.DEBUG}):
        yield Obligation(f"{name} was ok once", name in told.was_ok)
    is_read = all(outcome.is_read_to_the_end for outcome in outcomes)
    yield Obligation("somebody read to the end of every log", is_read)
    if F.TXN in told.asked_for or F.EOS in told.asked_for:
        is_transaction = is_f(whole.calls, F.TXN, F.EOS)
        is_committed = is_transaction & is_ok & sends_something
        yield Obligation("a transaction was committed", bool(np.any(is_committed)))
        yield Obligation("a transaction was aborted", bool(np.any(is_transaction & is_fail)))
    if whole.run.workload == "table":
        removed = any(outcome.was_removed for outcome in outcomes)
        tombstones = any(outcome.was_tombstone_removed for outcome in outcomes)
        yield from compaction(told.probes, removed=removed, tombstones=tombstones)
    yield from replicas(told.scans)
    if whole.run.workload == "groups":
        yield Obligation("a group was rebalanced", any(outcome.was_rebalanced for outcome in outcomes))
    yield from _faults(whole)


def is_read_to_the_end(columns: Columns) -> bool:
    order, spans, polls = columns.order, columns.spans, columns.polls
    reached = np.zeros(len(columns.logs), np.int64)
    is_ok = columns.is_ok[spans.call]
    np.maximum.at(reached, spans.log[is_ok], spans.end_offset[is_ok])
    is_ok = columns.is_ok[polls.call]
    np.maximum.at(reached, polls.log[is_ok], polls.offset[is_ok] + 1)
    logs = np.unique(order.log)
    return bool(np.all(reached[logs] > order.offset[order.log_start[logs + 1] - 1]))


def _faults(whole: Whole) -> Iterator[Obligation]:
    if not whole.nemesis:
        return
    heals = [op.time_ns for op in whole.nemesis if op.f == HEAL and op.is_completion]
    begin_ns = whole.calls["begin_ns"]
    may_be_hit = (begin_ns != UNKNOWN) & (begin_ns < max(heals, default=whole.end_ns))
    ends_ns = whole.calls["end_ns"][may_be_hit]
    starts = [op.time_ns for op in whole.nemesis if op.ext.get(Ext.PHASE) == "start" and op.is_completion]
    in_force = len(ends_ns) > 0 and any(start_ns < ends_ns.max() for start_ns in starts)
    yield Obligation("a fault was in force while operations were in flight", in_force)
    yield from faults(whole.view)
