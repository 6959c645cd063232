"""Some logs of a flat history, as the reference takes them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sexton.checker.kernels.arrays import Rows
from sexton.checker.kernels.columns import is_f
from sexton.checker.kernels.whole import Whole
from sexton.checker.view import Call, View, call
from sexton.history.flat import FlatHistory, to_ops
from sexton.history.op import F, Type


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


def part(ops: FlatHistory, mops: Rows, spans: Rows, whole: Whole) -> Part:
    """Calls that touch one of the special logs, and what they did there; and all that do more than read and write. Of
    `ops` only operations are used."""
    calls = whole.calls
    is_wanted = np.isin(calls["index"], mops["op"]) | np.isin(calls["index"], spans["op"])
    is_wanted |= is_f(calls, F.ASSIGN, F.SUBSCRIBE, F.DEBUG, F.COMMIT, F.COMMITTED, F.DELETE_RECORDS)
    is_wanted |= ops.ops["ext"][calls["row"]] != 0
    calls = calls[is_wanted]
    some = to_ops(FlatHistory(ops.ops[calls["row"]], mops, spans, ops.strings))
    found = [
        call(replace(op, type=Type(row["type"])), int(row["begin_ns"]), int(row["begin_index"]), int(row["end_ns"]))
        for op, row in zip(some, calls, strict=True)
    ]
    some_logs = {log: facts for log, facts in whole.run.logs.items() if log in whole.special}
    return Part(
        run=replace(whole.run, logs=some_logs),
        options=whole.options,
        calls=found,
        nemesis=whole.nemesis,
        certain=frozenset(whole.calls["index"][whole.is_read & (whole.calls["type"] == Type.INFO)].tolist()),
        end_of_all_ns=whole.end_ns,
    )
