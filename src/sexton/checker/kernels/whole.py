"""What the judge of some logs must know of the whole history: small, for each task gets it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sexton.checker.kernels.arrays import Bools, Ints, Rows
from sexton.checker.kernels.columns import calls_of, is_f, unique
from sexton.checker.view import Options, View
from sexton.history.flat import FlatHistory, to_ops
from sexton.history.op import NEMESIS, Ext, F, Op, Run, Type


@dataclass(frozen=True, kw_only=True)
class Whole:
    run: Run
    options: Options
    nemesis: Sequence[Op]
    calls: Rows
    begins_anew: Bools
    """Of each call: whether it makes its process read from the start of its logs."""
    starts: Mapping[int, Sequence[tuple[int, int]]]
    """By log: where it began when brokers were asked, as time and offset."""
    special: frozenset[int]
    """Logs that are compacted, read by a group, or of exactly-once copiers."""
    send_count: Ints
    """Of each call."""
    is_read: Bools
    """Of each call: whether an ok call polled a value that it sent."""

    @property
    def view(self) -> View:
        """Without calls."""
        return View(self.run, self.options, (), self.nemesis)

    @property
    def end_ns(self) -> int:
        return int(self.calls["time_ns"].max()) if len(self.calls) else 0


def whole_of(flat: FlatHistory, run: Run, options: Options, group_logs: set[int]) -> Whole:
    """Of operations alone: what sends and polls tell is empty."""
    calls = calls_of(flat)
    begins_anew = np.zeros(len(calls), np.bool_)
    for row, ext in _exts(flat, calls, is_f(calls, F.ASSIGN, F.SUBSCRIBE)):
        begins_anew[row] = bool(ext.get(Ext.SEEK_TO_BEGINNING))
    starts: dict[int, list[tuple[int, int]]] = {}
    for row, ext in _exts(flat, calls, is_f(calls, F.DEBUG) & (calls["type"] == Type.OK)):
        for log, offset in ext.get(Ext.LOG_STARTS, {}).items():
            starts.setdefault(int(log), []).append((int(calls["begin_ns"][row]), int(offset)))
    special = set(group_logs)
    for log, facts in run.logs.items():
        special |= {log} if facts.is_compacted else set()
        special |= {log, *facts.eos_input} if facts.eos_input else set()
    nemesis_ops = flat.ops[flat.ops["process"] == NEMESIS]
    return Whole(
        run=run,
        options=options,
        nemesis=list(to_ops(FlatHistory(nemesis_ops, flat.mops, flat.spans, flat.strings))),
        calls=calls,
        begins_anew=begins_anew,
        starts=starts,
        special=frozenset(special),
        send_count=np.zeros(len(calls), np.int32),
        is_read=np.zeros(len(calls), np.bool_),
    )


def _exts(flat: FlatHistory, calls: Rows, wanted: Bools) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Of some calls, those that have any, by row."""
    ext = flat.ops["ext"][calls["row"]]
    for row in np.flatnonzero(wanted & (ext != 0)).tolist():
        yield row, json.loads(flat.strings[ext[row]])


def group_logs(flat: FlatHistory) -> set[int]:
    """What groups poll or commit, in a piece of a history."""
    is_group = np.zeros(len(flat.strings), np.bool_)
    found: set[int] = set()
    for number in unique(flat.ops["ext"]).tolist():
        ext = json.loads(flat.strings[number]) if number else {}
        if ext.get(Ext.GROUP):
            is_group[number] = True
            found |= {int(log) for log in ext.get(Ext.OFFSETS, {})}
    members = flat.ops["index"][is_group[flat.ops["ext"]]]
    if len(members):
        for rows in (flat.mops, flat.spans):
            found |= set(unique(rows["log"][np.isin(rows["op"], members)]).tolist())
    return found
