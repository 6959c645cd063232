"""The judge, in plain Python: slow, small, and what every faster one must agree with.

Each anomaly is a function that takes the prepared history and returns the cases that it finds, or nothing; its
docstring is the definition. What is found does not depend on the order in which operations come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from sexton.checker import groups, orders, positions, steps, tables, writes
from sexton.checker.allowed import Model, allowed
from sexton.checker.cycles import cycles
from sexton.checker.evidence import Case, Finding, finding
from sexton.checker.verdict import Judgement, judgement, obligations
from sexton.checker.view import Options, View, prepare
from sexton.history.op import Op, Run

CHECKS: Final[Mapping[str, Callable[[View], Iterator[Case]]]] = {
    "inconsistent-offsets": orders.inconsistent_offsets,
    "duplicate": orders.duplicate,
    "G1a": writes.aborted_read,
    "precommitted-read": writes.precommitted_read,
    "lost-write": writes.lost_write,
    "poll-skip": steps.poll_skip,
    "nonmonotonic-poll": steps.nonmonotonic_poll,
    "int-poll-skip": steps.int_poll_skip,
    "int-nonmonotonic-poll": steps.int_nonmonotonic_poll,
    "int-send-skip": steps.int_send_skip,
    "int-nonmonotonic-send": steps.int_nonmonotonic_send,
    "nonmonotonic-send": steps.nonmonotonic_send,
    "unseen": writes.unseen,
    "realtime-lag": positions.realtime_lag,
    "G-single-realtime": positions.stale_read,
    "unwritten-read": orders.unwritten_read,
    "torn-transaction": writes.torn_transaction,
    "fractured-read": writes.fractured_read,
    "wrong-span": positions.wrong_span,
    "stuck": positions.stuck,
    "committed-too-far": groups.committed_too_far,
    "group-skip": groups.group_skip,
    "offset-went-back": groups.offset_went_back,
    "zombie-commit": groups.zombie_commit,
    "eos-duplicate": groups.eos_duplicate,
    "eos-loss": groups.eos_loss,
    "watermark-went-back": groups.watermark_went_back,
    "watermark-went-back-at-failover": groups.watermark_went_back_at_failover,
    "acknowledged-nowhere": writes.acknowledged_nowhere,
    "lost-record": tables.lost_record,
    "lost-key": tables.lost_key,
    "stale-value": tables.stale_value,
    "resurrected-key": tables.resurrected_key,
    "slow-reader": tables.slow_reader,
    "aborted-in-table": tables.aborted_in_table,
    "reappeared": tables.reappeared,
    "replicas-disagree": tables.replicas_disagree,
    "table-drift": tables.table_drift,
    "moved": orders.moved,
    "tombstone-too-early": tables.tombstone_too_early,
}
"""All but cycles, of which one search finds several."""


def judge(
    ops: Iterable[Op],
    run: Run,
    model: Model = Model.KAFKA,
    ignore: frozenset[str] = frozenset(),
    options: Options | None = None,
) -> Judgement:
    view = prepare(ops, run, options)
    return judgement(findings(view), model, allowed(view, model, ignore), obligations(view))


def findings(view: View) -> list[Finding]:
    """By name."""
    cases = {name: list(check(view)) for name, check in CHECKS.items()} | cycles(view)
    return [finding(name, found, view.options.evidence_max) for name, found in sorted(cases.items()) if found]
