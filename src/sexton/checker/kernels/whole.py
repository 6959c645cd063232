"""What the judge of some logs must know of the whole history: small, for each task gets it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from sexton.checker.kernels.arrays import Bools, Ints, Longs, Rows
from sexton.checker.kernels.columns import calls_of, is_f, unique
from sexton.checker.kernels.exts import Exts, exts_of
from sexton.checker.view import Options, View, call
from sexton.history.flat import FlatHistory, to_ops
from sexton.history.op import NEMESIS, UNKNOWN, Ext, F, Op, Run, Type

PART_MAX: Final = 0.5
"""Where logs have to do with more of all calls than this, all are taken as they are: a copy would not be smaller."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """`of` has the same of some calls."""

    run: Run
    options: Options
    nemesis: Sequence[Op]
    calls: Rows
    exts: Exts
    is_copier: Bools
    """Of each group, whether any of its members copies exactly once."""
    starts: Mapping[int, Sequence[tuple[int, int]]]
    """By log: where it began when brokers were asked, as time and offset."""
    end_ns: int
    previous_poll: Ints
    """Of each call, the ok one of its process before it that may poll, or UNKNOWN; empty if their times do not rise."""
    everywhere: Ints
    """Calls that tell something of logs that they do not name: assigns, members of groups that died, and the last of
    each process that may poll."""
    send_count: Ints
    """Of each call."""
    is_read: Bools
    """Of each call: whether an ok call polled a value that it sent."""

    @property
    def view(self) -> View:
        """Without calls."""
        return View(self.run, self.options, (), self.nemesis)

    def of(self, calls: Longs) -> Whole:
        return replace(
            self,
            calls=self.calls[calls],
            exts=self.exts.of(calls),
            send_count=self.send_count[calls],
            is_read=self.is_read[calls],
        )

    def concerned(self, ops: Longs) -> Longs | None:
        """The calls that must be known to judge logs with which these operations had to do; None for all.

        Between two of a process's calls in a log, it is the last poll that was the farthest behind.
        """
        if not len(self.previous_poll):
            return None
        index = np.ascontiguousarray(self.calls["index"])
        named = np.searchsorted(index, ops)
        named = named[np.append(index, UNKNOWN)[named] == ops]
        polls = self.previous_poll[named]
        found = unique(np.concatenate([named, polls[polls != UNKNOWN], self.everywhere]))
        return found if len(found) < PART_MAX * len(index) else None


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
    exts = exts_of(flat, calls)
    previous, last = _polls(calls)
    is_everywhere = is_f(calls, F.ASSIGN, F.SUBSCRIBE)
    is_everywhere |= is_f(calls, F.POLL, F.TXN, F.EOS) & (calls["type"] == Type.INFO) & (exts.group != UNKNOWN)
    is_everywhere[last] = True
    return Whole(
        run=run,
        options=options,
        nemesis=list(to_ops(FlatHistory(nemesis_ops, flat.mops[:0], flat.spans[:0], flat.strings))),
        calls=calls,
        exts=exts,
        is_copier=np.isin(np.arange(len(exts.groups)), exts.group[is_f(calls, F.EOS)]),
        starts=starts,
        end_ns=int(calls["time_ns"].max()) if len(calls) else 0,
        previous_poll=previous,
        everywhere=np.flatnonzero(is_everywhere).astype(np.int32),
        send_count=np.zeros(len(calls), np.int32),
        is_read=np.zeros(len(calls), np.bool_),
    )


def _polls(calls: Rows) -> tuple[Ints, Longs]:
    """`previous_poll`, and the last of each process."""
    is_poll = is_f(calls, F.POLL, F.TXN, F.EOS) & (calls["type"] == Type.OK)
    is_poll &= (calls["process"] != UNKNOWN) & (calls["begin_ns"] != UNKNOWN)
    order = np.argsort(calls["process"], kind="stable").astype(np.int32)
    process, is_poll = calls["process"][order], is_poll[order]
    place = np.arange(len(order), dtype=np.int32)
    newest = np.maximum.accumulate(np.where(is_poll, place, np.int32(UNKNOWN)))
    before = np.append(np.int32(UNKNOWN), newest[:-1])[: len(order)]
    before[(before != UNKNOWN) & (process[before] != process)] = UNKNOWN
    ends = np.flatnonzero(np.append(process[1:] != process[:-1], True)[: len(order)])
    last = newest[ends]
    last = last[(last != UNKNOWN) & (process[last] == process[ends])]
    times_ns = calls["begin_ns"][order]
    rows = np.flatnonzero(is_poll & (before != UNKNOWN))
    if np.any(times_ns[rows] <= times_ns[before[rows]]):
        return np.zeros(0, np.int32), order[last]
    previous = np.empty(len(order), np.int32)
    previous[order] = np.where(before == UNKNOWN, UNKNOWN, order[before])
    return previous, order[last]


@dataclass(frozen=True)
class Told:
    """Of operations, what is needed for a verdict and not for judging a log."""

    probes: View
    """Where brokers were asked for what they say of themselves: few, so the reference judges them."""
    scans: Sequence[tuple[Mapping[str, Any], bool]]
    """What each said, and whether it was ok; those that said the same once."""
    asked_for: frozenset[str]
    was_ok: frozenset[str]


def told_of(flat: FlatHistory, whole: Whole) -> Told:
    calls = whole.calls[is_f(whole.calls, F.DEBUG)]
    ops = to_ops(FlatHistory(flat.ops[calls["row"]], flat.mops[:0], flat.spans[:0], flat.strings))
    probes = [
        call(replace(op, type=Type(row["type"])), int(row["begin_ns"]), int(row["begin_index"]), int(row["end_ns"]))
        for op, row in zip(ops, calls, strict=True)
    ]
    scans = whole.calls[is_f(whole.calls, F.SCAN)]
    said = np.stack([flat.ops["ext"][scans["row"]], scans["type"] == Type.OK], axis=1)
    f = flat.ops["f"][whole.calls["row"]]
    asked_for, was_ok = (
        frozenset(flat.strings[number] for number in unique(some).tolist())
        for some in (f, f[whole.calls["type"] == Type.OK])
    )
    return Told(
        probes=View(whole.run, whole.options, probes, whole.nemesis),
        scans=[(json.loads(flat.strings[ext] or "{}"), bool(is_ok)) for ext, is_ok in np.unique(said, axis=0).tolist()],
        asked_for=asked_for,
        was_ok=was_ok,
    )
