"""The twin of what `checker.groups` finds in exactly-once copies. Inputs and outputs are in different logs, so what one
log shows is half of it: `judge` puts the halves together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from sexton.checker.evidence import Case
from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns, Moved, ranks, starts_of, unique
from sexton.checker.kernels.found import Found, worst
from sexton.checker.kernels.groups import Groups
from sexton.checker.kernels.removal import Removals
from sexton.history.op import UNKNOWN, Run


@dataclass(frozen=True, slots=True)
class Made:
    """In one output log."""

    log: int
    several: Longs
    """Of inputs of which several outputs were made: input's value, output's value, call; by input and output."""
    named: Longs
    """Inputs that an output names, or may name: sorted."""


@dataclass(frozen=True, slots=True)
class Taken:
    """In one input log."""

    log: int
    sent: Longs
    """Values, sorted."""
    processed: Longs
    """What counts as processed: value, offset, sender."""
    committed_offset: int
    committed_by: int
    """The call."""


def made(columns: Columns, run: Run) -> list[Made]:
    logs = [log for log, facts in run.logs.items() if facts.eos_input]
    sends, polls = (some.by_log(len(columns.logs)) for some in (columns.sends, columns.polls))
    ranks_of_logs = np.flatnonzero(np.isin(columns.logs, logs)).tolist()
    return [_made_in(columns, run, rank, sends(rank), polls(rank)) for rank in ranks_of_logs]


def _made_in(columns: Columns, run: Run, rank: int, sends: Moved, polls: Moved) -> Made:
    """`sends` and `polls` are the log's."""
    certain = sends.only(columns.is_certain[sends.call])
    polls = polls.only(columns.is_ok[polls.call] & run.is_read_committed)
    key = np.concatenate([certain.key, polls.key])
    record, first = ranks(key, np.concatenate([certain.vid, polls.vid]))
    key, vid = key[first], np.concatenate([certain.vid, polls.vid])[first]
    sender, reader = np.full(len(key), UNKNOWN), np.full(len(key), len(columns.calls))
    np.maximum.at(sender, record[: len(certain.call)], certain.call)
    np.minimum.at(reader, record[len(certain.call) :], polls.call)
    call = np.where(sender == UNKNOWN, reader, sender)
    starts = starts_of(key)
    is_several = np.repeat(np.diff(np.append(starts, len(key))) > 1, np.diff(np.append(starts, len(key))))
    several = np.stack([key, columns.value_of[vid], call], axis=1)[is_several]
    maybe = sends.key[~columns.is_fail[sends.call]]
    return Made(int(columns.logs[rank]), several, unique(np.concatenate([key, maybe])))


def taken(columns: Columns, run: Run, groups: Groups, removals: Removals, is_copier: Bools) -> list[Taken]:
    """`is_copier`: of groups."""
    logs = sorted({log for facts in run.logs.values() for log in facts.eos_input})
    found = []
    processed_in = groups.processed(removals, is_copier)
    for rank in np.flatnonzero(np.isin(columns.logs, logs)).tolist():
        vid = columns.vids_of(rank)
        vid = vid[columns.sender_of[vid] != UNKNOWN]
        done, offset, call = processed_in.get(rank, (vid[:0], UNKNOWN, UNKNOWN))
        processed = np.stack([columns.value_of[done], columns.order.offset_of(done), columns.sender_of[done]], axis=1)
        found.append(Taken(int(columns.logs[rank]), columns.value_of[vid], processed, offset, call))
    return found


def found_in_copies(
    run: Run, index: Longs, made: Sequence[Made], taken: Sequence[Taken], evidence_max: int
) -> Iterator[tuple[str, Found]]:
    """`index` is that of all calls."""
    inputs = {some.log: some for some in taken}
    for some in made:
        logs = [inputs[log] for log in run.logs[some.log].eos_input if log in inputs]
        yield "eos-duplicate", _duplicate(some, logs, index, evidence_max)
    named = {some.log: some.named for some in made}
    for log, facts in run.logs.items():
        for input_log in facts.eos_input:
            if input_log in inputs:
                yield "eos-loss", _loss(inputs[input_log], named.get(log), index, evidence_max)


def _duplicate(some: Made, inputs: Sequence[Taken], index: Longs, evidence_max: int) -> Found:
    key, value, call = some.several.T
    starts = starts_of(key)
    counts = np.diff(np.append(starts, len(key)))
    copies = sum((np.isin(key[starts], it.sent).astype(np.int64) for it in inputs), np.zeros(len(starts), np.int64))
    is_case = counts > np.maximum(copies, 1)
    starts, counts = starts[is_case], counts[is_case]
    first_call = np.minimum.reduceat(call, starts) if len(starts) else starts
    cases = []
    for row in worst(counts, (first_call,), evidence_max):
        made = slice(starts[row], starts[row] + counts[row])
        ops = tuple(sorted(set(index[call[made]].tolist())))
        detail = {"input": int(key[starts[row]])}
        values, severity = tuple(value[made].tolist()), int(counts[row])
        cases.append(Case(log=some.log, values=values, ops=ops, severity=severity, detail=detail))
    return Found(len(starts), cases)


def _loss(some: Taken, named: Longs | None, index: Longs, evidence_max: int) -> Found:
    """`named` is None if there is nothing of the output log in the history."""
    value, offset, sender = some.processed.T
    rows = np.arange(len(value)) if named is None else np.flatnonzero(~np.isin(value, named))
    cases = [
        Case(
            log=some.log,
            values=(int(value[rows[row]]),),
            ops=tuple(index[[sender[rows[row]], some.committed_by]].tolist()),
            detail={"offset": int(offset[rows[row]]), "committed": some.committed_offset},
        )
        for row in worst(None, (sender[rows], value[rows]), evidence_max)
    ]
    return Found(len(rows), cases)
