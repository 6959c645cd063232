"""A flat history, judged as `checker.reference` judges it."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from sexton.checker import reference
from sexton.checker.allowed import Model, allowed
from sexton.checker.cycles import cycles_of
from sexton.checker.evidence import Finding
from sexton.checker.kernels import cycles, orders, positions, tables, writes
from sexton.checker.kernels.columns import Columns, calls_of, is_f
from sexton.checker.kernels.compiled import Bools
from sexton.checker.kernels.found import Found, merged
from sexton.checker.kernels.part import Part, nemesis_of, part
from sexton.checker.kernels.removal import LogStarts, Removals
from sexton.checker.kernels.steps import Assigns, steps
from sexton.checker.kernels.verdict import obligations
from sexton.checker.removal import NEVER_NS
from sexton.checker.verdict import Judgement, judgement
from sexton.checker.view import Options, View
from sexton.history.flat import FlatHistory
from sexton.history.op import UNKNOWN, Ext, F, Run

BY_REFERENCE: Final = (
    "committed-too-far",
    "group-skip",
    "offset-went-back",
    "zombie-commit",
    "eos-duplicate",
    "eos-loss",
    "watermark-went-back",
    "watermark-went-back-at-failover",
    "lost-record",
    "lost-key",
    "stale-value",
    "resurrected-key",
    "slow-reader",
    "aborted-in-table",
    "reappeared",
    "replicas-disagree",
    "table-drift",
    "tombstone-too-early",
)
"""What is taken from the reference, of compacted logs, those that groups read, and those of exactly-once copiers."""


def judge(
    flat: FlatHistory,
    run: Run,
    model: Model = Model.KAFKA,
    ignore: frozenset[str] = frozenset(),
    options: Options | None = None,
) -> Judgement:
    """The history must have pairs."""
    whole = View(run, options or Options(), (), nemesis_of(flat))
    columns = Columns(calls_of(flat), flat.mops, flat.spans, tuple(run.logs))
    logs = special_logs(flat, columns, run)
    some = part(flat, columns, run, whole, logs)
    found: dict[str, list[Found]] = defaultdict(list)
    for name, a_part in (*by_reference(some), *by_kernels(flat, columns, whole, logs)):
        found[name].append(a_part)
    findings = findings_of(found, whole.options.evidence_max)
    return judgement(findings, model, allowed(whole, model, ignore), obligations(flat, columns, some))


def findings_of(found: Mapping[str, list[Found]], evidence_max: int) -> list[Finding]:
    """By name."""
    all_found = [merged(name, parts, evidence_max) for name, parts in sorted(found.items())]
    return [finding for finding in all_found if finding.count]


def by_reference(some: Part) -> Iterator[tuple[str, Found]]:
    for name in BY_REFERENCE:
        cases = list(reference.CHECKS[name](some))
        yield name, Found(len(cases), cases)


def by_kernels(flat: FlatHistory, columns: Columns, whole: View, special: set[int]) -> Iterator[tuple[str, Found]]:
    """What is in a single log, then what is in several."""
    run, options, at_most = whole.run, whole.options, whole.options.evidence_max
    removals = Removals(columns, run, log_starts(flat, columns))
    yield "inconsistent-offsets", orders.inconsistent_offsets(columns)
    yield "duplicate", orders.duplicate(columns)
    yield "moved", orders.moved(columns, removals.is_compacted)
    yield "unwritten-read", orders.unwritten_read(columns)
    yield from steps(columns, removals, Assigns(columns, begins_anew(flat, columns)), at_most)
    lost = writes.lost_writes(columns, removals)
    yield "lost-write", lost.found(columns, at_most)
    yield "G1a", writes.aborted_read(columns, at_most)
    yield "unseen", writes.unseen(columns, removals)
    yield "acknowledged-nowhere", writes.acknowledged_nowhere(columns, removals, at_most)
    yield "wrong-span", positions.wrong_span(columns, at_most)
    yield "stuck", positions.stuck(columns, removals, whole.healed_ns, options.patience_ms)
    yield "realtime-lag", positions.realtime_lag(columns)
    is_judged = [log in run.logs and log not in special for log in columns.logs.tolist()]
    plain = np.array(is_judged, np.bool_) & ~removals.is_cut_at_its_start
    yield "reappeared", tables.reappeared(columns, plain, at_most)
    sent = writes.Sent.of(columns)
    yield "precommitted-read", writes.precommitted_read(columns, at_most)
    yield "torn-transaction", writes.torn_transaction(columns, removals, lost, sent)
    if run.is_read_committed:
        yield "fractured-read", writes.fractured_read(columns, removals, sent, at_most)
    no_edges = cycles.Dependencies(*(np.zeros(0, np.int64) for _ in range(5)))
    ww = cycles.write_dependencies(columns) if options.ww_deps else no_edges
    graph = cycles.ArrayGraph(columns.calls, ww, cycles.read_dependencies(columns))
    for name, cases in cycles_of(graph, options.cycle_steps_max).items():
        yield name, Found(len(cases), cases)


# -- what operations say beside records


def _exts(flat: FlatHistory, columns: Columns, wanted: Bools) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Of some calls, those that have any, by row."""
    ext = flat.ops["ext"][columns.calls["row"]]
    for row in np.flatnonzero(wanted & (ext != 0)).tolist():
        yield row, json.loads(flat.strings[ext[row]])


def begins_anew(flat: FlatHistory, columns: Columns) -> Bools:
    found = np.zeros(len(columns.calls), np.bool_)
    for row, ext in _exts(flat, columns, is_f(columns.calls, F.ASSIGN, F.SUBSCRIBE)):
        found[row] = bool(ext.get(Ext.SEEK_TO_BEGINNING))
    return found


def log_starts(flat: FlatHistory, columns: Columns) -> LogStarts:
    deleted: dict[int, list[tuple[int, int]]] = defaultdict(list)
    seen: dict[int, list[tuple[int, int]]] = defaultdict(list)
    is_deletion = is_f(columns.calls, F.DELETE_RECORDS) & ~columns.is_fail
    offsets = columns.offsets
    for row in np.flatnonzero(is_deletion[offsets.call]).tolist():
        below = NEVER_NS if offsets.offset[row] == UNKNOWN else int(offsets.offset[row])
        deleted[int(columns.logs[offsets.log[row]])].append((int(columns.begin_ns[offsets.call[row]]), below))
    for row, ext in _exts(flat, columns, is_f(columns.calls, F.DEBUG) & columns.is_ok):
        for log, offset in ext.get(Ext.LOG_STARTS, {}).items():
            seen[int(log)].append((int(columns.begin_ns[row]), int(offset)))
    return LogStarts(deleted, seen)


def special_logs(flat: FlatHistory, columns: Columns, run: Run) -> set[int]:
    """Compacted, read by a group, or of exactly-once copiers."""
    found = {log for log, facts in run.logs.items() if facts.is_compacted}
    for log, facts in run.logs.items():
        found |= {log, *facts.eos_input} if facts.eos_input else set()
    in_group = np.zeros(len(columns.calls), np.bool_)
    for row, ext in _exts(flat, columns, np.ones(len(columns.calls), np.bool_)):
        if ext.get(Ext.GROUP):
            in_group[row] = True
            found |= {int(log) for log in ext.get(Ext.OFFSETS, {})}
    for named in (columns.moved, columns.spans, columns.offsets):
        found |= set(columns.logs[np.unique(named.log[in_group[named.call]])].tolist())
    return found
