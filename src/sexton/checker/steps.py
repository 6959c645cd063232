"""Neighbours in a log's order that should be one apart: 6 to 12.

All compare the indexes of two values: a *delta* above 1 skips records, one below 1 repeats or goes back. A value whose
index is unknown counts as the next. In a log from which records may go, what may be gone by then is no skip (Jepsen
has no such logs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sexton.checker.evidence import Case
from sexton.checker.view import Call, View
from sexton.history.op import Ext, F, Send, Type

_CONTINUES = frozenset({F.POLL, F.TXN, F.EOS})
"""Whose polls go on where the process's last one ended. A table or a scan is read by a consumer of its own."""


@dataclass(frozen=True, slots=True)
class _Step:
    log: int
    values: tuple[int, int]
    delta: int
    calls: tuple[Call, ...]
    skipped: Sequence[int] = ()

    def case(self) -> Case:
        detail: dict[str, object] = {"delta": self.delta}
        if self.delta > 1:
            detail["skipped"] = list(self.skipped)
        ops = tuple(call.index for call in self.calls)
        return Case(log=self.log, values=self.values, ops=ops, severity=abs(self.delta), detail=detail)


def poll_skip(view: View) -> Iterator[Case]:
    return (step.case() for step in _between_polls(view) if step.delta > 1)


def nonmonotonic_poll(view: View) -> Iterator[Case]:
    return (step.case() for step in _between_polls(view) if step.delta < 1)


def int_poll_skip(view: View) -> Iterator[Case]:
    return (step.case() for step in _within_polls(view) if step.delta > 1)


def int_nonmonotonic_poll(view: View) -> Iterator[Case]:
    return (step.case() for step in _within_polls(view) if step.delta < 1)


def int_send_skip(view: View) -> Iterator[Case]:
    return (step.case() for step in _within_sends(view) if step.delta > 1)


def int_nonmonotonic_send(view: View) -> Iterator[Case]:
    return (step.case() for step in _within_sends(view) if step.delta < 1)


def nonmonotonic_send(view: View) -> Iterator[Case]:
    """Among a process's ok and unknown calls."""
    for calls in view.by_process.values():
        known = [call for call in calls if call.op.type is not Type.FAIL]
        for step in _between(view, known, lambda call: {log: _values(sends) for log, sends in call.sends.items()}):
            if step.delta < 1:
                yield step.case()


def _between_polls(view: View) -> Iterator[_Step]:
    """From the last value that the process's latest ok call polled to the first that this call polled, whatever became
    of this one: after a failure the consumer is rewound. An ok call that polled a log without getting a record makes
    the judge forget where the process was (Jepsen's quirk, kept)."""
    for calls in view.by_process.values():
        yield from _between(view, calls, _polled, remembers=lambda call: call.is_ok, skips_by_removal=True)


def _between(
    view: View,
    calls: Sequence[Call],
    values_of: Callable[[Call], Mapping[int, Sequence[int]]],
    remembers: Callable[[Call], bool] = lambda call: True,
    skips_by_removal: bool = False,
) -> Iterator[_Step]:
    """A completed assign or subscribe makes the process forget the logs that it does not name. (For sends, too: that is
    Jepsen's quirk, kept.)"""
    last: dict[int, tuple[Call, int | None]] = {}
    for call in calls:
        if call.op.f in (F.ASSIGN, F.SUBSCRIBE):
            if not call.is_certain_not:
                last = {log: before for log, before in last.items() if log in call.op.logs}
                if call.op.ext.get(Ext.SEEK_TO_BEGINNING):
                    last = {}
            continue
        values = values_of(call)
        for log in sorted(values):
            first = values[log][0] if values[log] else None
            if log in last and first is not None:
                before, value = last[log]
                step = _step(view, log, (value, first), (before, call), skips_by_removal)
                if step:
                    yield step
        if remembers(call):
            last |= {log: (call, found[-1] if found else None) for log, found in values.items()}


def _within_polls(view: View) -> Iterator[_Step]:
    for call in view.calls:
        for log, values in sorted(_all_polled(call).items()):
            if log not in call.op.rebalanced:
                yield from _within(view, call, log, values, skips_by_removal=True)


def _within_sends(view: View) -> Iterator[_Step]:
    for call in view.calls:
        for log, sends in sorted(call.sends.items()):
            yield from _within(view, call, log, _values(sends), skips_by_removal=False)


def _within(view: View, call: Call, log: int, values: Sequence[int], skips_by_removal: bool) -> Iterator[_Step]:
    for value, other in pairwise(values):
        step = _step(view, log, (value, other), (call,), skips_by_removal)
        if step:
            yield step


def _step(
    view: View, log: int, values: tuple[int | None, int], calls: tuple[Call, ...], skips_by_removal: bool
) -> _Step | None:
    value, other = values
    order = view.order(log)
    delta = order.delta(value, other)
    if value is None or delta == 1:
        return None
    skipped: Sequence[int] = ()
    if delta > 1:
        skipped = order.between(value, other)
        if skips_by_removal:
            removal = view.removals[log]
            skipped = [between for between in skipped if not removal.may_be_gone(between, calls[-1].end_ns)]
            delta = 1 + len(skipped)
    return _Step(log, (value, other), delta, calls, skipped) if delta != 1 else None


def _polled(call: Call) -> Mapping[int, Sequence[int]]:
    return _all_polled(call) if call.op.f in _CONTINUES else {}


def _all_polled(call: Call) -> Mapping[int, Sequence[int]]:
    return {log: [record.value for record in records] for log, records in call.polled.items()}


def _values(sends: Sequence[Send]) -> Sequence[int]:
    return [send.value for send in sends]
