"""Some logs of a flat history, as the reference takes them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from sexton.checker.kernels.columns import Columns, is_f
from sexton.checker.kernels.compiled import Rows
from sexton.checker.view import Call, View, call
from sexton.history.flat import FlatHistory, to_ops
from sexton.history.op import NEMESIS, F, Op, Run, Type


@dataclass(frozen=True)
class Part(View):
    """Knows of the whole history what the rows of its logs do not tell."""

    certain: frozenset[int] = frozenset()
    """Unknown calls that are proven, perhaps by a value in another log."""
    end_of_all_ns: int = 0

    def is_certain(self, call: Call) -> bool:
        return call.is_ok or call.index in self.certain

    @property
    def end_ns(self) -> int:
        return self.end_of_all_ns


def nemesis_of(flat: FlatHistory) -> list[Op]:
    return list(_ops(flat, flat.ops[flat.ops["process"] == NEMESIS]))


def part(flat: FlatHistory, columns: Columns, run: Run, whole: View, logs: Iterable[int]) -> Part:
    """Calls that touch one of these logs, and what they did there; and all that do more than read and write."""
    wanted = np.array(sorted(logs), np.int64)
    mops = flat.mops[np.isin(flat.mops["log"], wanted)]
    spans = flat.spans[np.isin(flat.spans["log"], wanted)]
    is_wanted = np.isin(columns.index, mops["op"]) | np.isin(columns.index, spans["op"])
    is_wanted |= is_f(columns.calls, F.ASSIGN, F.SUBSCRIBE, F.DEBUG, F.COMMIT, F.COMMITTED, F.DELETE_RECORDS)
    is_wanted |= flat.ops["ext"][columns.calls["row"]] != 0
    calls = columns.calls[is_wanted]
    some = FlatHistory(flat.ops, mops, spans, flat.strings)
    ops = _ops(some, flat.ops[calls["row"]])
    found = [
        call(replace(op, type=Type(row["type"])), int(row["begin_ns"]), int(row["begin_index"]), int(row["end_ns"]))
        for op, row in zip(ops, calls, strict=True)
    ]
    some_logs = {log: facts for log, facts in run.logs.items() if log in set(wanted.tolist())}
    return Part(
        run=replace(run, logs=some_logs),
        options=whole.options,
        calls=found,
        nemesis=whole.nemesis,
        certain=frozenset(columns.index[columns.proven].tolist()),
        end_of_all_ns=columns.end_of_all_ns,
    )


def _ops(flat: FlatHistory, ops: Rows) -> Iterable[Op]:
    return to_ops(FlatHistory(ops, flat.mops, flat.spans, flat.strings))
