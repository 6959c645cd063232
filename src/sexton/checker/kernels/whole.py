"""What the judge of some logs must know of the whole history: small, for each task gets it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sexton.checker.kernels.arrays import Bools, Ints, Rows
from sexton.checker.kernels.columns import calls_of, is_f
from sexton.checker.kernels.exts import Exts, exts_of
from sexton.checker.view import Options, View, call
from sexton.history.flat import FlatHistory, to_ops
from sexton.history.op import NEMESIS, Ext, F, Op, Run, Type


@dataclass(frozen=True, kw_only=True)
class Whole:
    run: Run
    options: Options
    nemesis: Sequence[Op]
    calls: Rows
    exts: Exts
    starts: Mapping[int, Sequence[tuple[int, int]]]
    """By log: where it began when brokers were asked, as time and offset."""
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


def whole_of(flat: FlatHistory, run: Run, options: Options) -> Whole:
    """Of operations alone: what sends and polls tell is empty."""
    calls = calls_of(flat)
    starts: dict[int, list[tuple[int, int]]] = {}
    ext = flat.ops["ext"][calls["row"]]
    is_probe = is_f(calls, F.DEBUG) & (calls["type"] == Type.OK) & (ext != 0)
    for row in np.flatnonzero(is_probe).tolist():
        for log, offset in json.loads(flat.strings[ext[row]]).get(Ext.LOG_STARTS, {}).items():
            starts.setdefault(int(log), []).append((int(calls["begin_ns"][row]), int(offset)))
    nemesis_ops = flat.ops[flat.ops["process"] == NEMESIS]
    return Whole(
        run=run,
        options=options,
        nemesis=list(to_ops(FlatHistory(nemesis_ops, flat.mops, flat.spans, flat.strings))),
        calls=calls,
        exts=exts_of(flat, calls),
        starts=starts,
        send_count=np.zeros(len(calls), np.int32),
        is_read=np.zeros(len(calls), np.bool_),
    )


def probes_of(flat: FlatHistory, whole: Whole) -> View:
    """Where brokers were asked for what they say of themselves: few, so the reference judges them. Of `flat` only
    operations are used."""
    calls = whole.calls[is_f(whole.calls, F.DEBUG)]
    ops = to_ops(FlatHistory(flat.ops[calls["row"]], flat.mops[:0], flat.spans[:0], flat.strings))
    found = [
        call(replace(op, type=Type(row["type"])), int(row["begin_ns"]), int(row["begin_index"]), int(row["end_ns"]))
        for op, row in zip(ops, calls, strict=True)
    ]
    return View(whole.run, whole.options, found, whole.nemesis)
