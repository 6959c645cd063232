"""Where consumers stood: 22, 23, how far behind they were (14), and whole reads of what a log was before (15)."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate

from sexton.checker.evidence import Case
from sexton.checker.view import Call, View
from sexton.history.op import UNKNOWN, F


def wrong_span(view: View) -> Iterator[Case]:
    for call in view.calls:
        for log, span in call.trusted_spans():
            for record in call.polled.get(log, ()):
                if not span.start_offset <= record.offset < span.end_offset:
                    detail = {"offset": record.offset, "span": list(span)}
                    yield Case(log=log, values=(record.value,), ops=(call.index,), detail=detail)


@dataclass(slots=True)
class _Still:
    """A process's calls that found it at one position of a log."""

    position: int
    first: Call
    last: Call


def stuck(view: View) -> Iterator[Case]:
    """A consumer's polls, the first of them after everything was healed, found it at one position and left it there for
    longer than patience lasts, though before the first of them a record ahead had been acknowledged that may not be
    gone."""
    ahead = _acknowledged(view)
    for calls in view.by_process.values():
        for log, still in _stands(view, calls):
            yield from _stuck_at(view, log, still, ahead.get(log, ()))


def _stands(view: View, calls: Sequence[Call]) -> Iterator[tuple[int, _Still]]:
    stands: dict[int, _Still] = {}
    for call in calls:
        if call.op.f in (F.ASSIGN, F.SUBSCRIBE):
            yield from stands.items()
            stands = {}
        elif call.is_ok and call.begin_ns >= view.healed_ns:
            for log, span in call.trusted_spans():
                still = stands.get(log)
                if still is not None and span.start_offset == span.end_offset == still.position:
                    still.last = call
                    continue
                if still is not None:
                    yield log, stands.pop(log)
                if span.start_offset == span.end_offset:
                    stands[log] = _Still(span.start_offset, call, call)
    yield from stands.items()


def _stuck_at(view: View, log: int, still: _Still, ahead: Sequence[tuple[int, int, Call]]) -> Iterator[Case]:
    waited_ns = still.last.begin_ns - still.first.end_ns
    if waited_ns < view.options.patience_ms * 1_000_000:
        return
    for offset, value, sender in ahead:
        is_old = sender.end_ns <= still.first.begin_ns
        if offset >= still.position and is_old and not view.removals[log].may_be_gone(value, view.end_ns):
            ops = (sender.index, still.first.index, still.last.index)
            detail = {"position": still.position, "offset": offset, "waited-ms": waited_ns // 1_000_000}
            yield Case(log=log, values=(value,), ops=ops, severity=waited_ns // 1_000_000, detail=detail)
            return


def _acknowledged(view: View) -> Mapping[int, Sequence[tuple[int, int, Call]]]:
    found: dict[int, list[tuple[int, int, Call]]] = defaultdict(list)
    for call in view.calls:
        if call.is_ok:
            for log, sends in call.sends.items():
                found[log] += [(send.offset, send.value, call) for send in sends if send.offset != UNKNOWN]
    return {log: sorted(acknowledged, key=lambda sent: sent[:2]) for log, acknowledged in found.items()}


def stale_read(view: View) -> Iterator[Case]:
    """`G-single-realtime`: the reader must be before the sender, for it has not read what that one sent, and after it
    by the clock on the wall. The one edge of that kind (rw) that can be proven: who reads a whole log has missed all
    that lies behind the end that it was told. Not in logs to which anybody sent in a transaction: an open one holds
    back what lies behind it, and nobody knows for how long. A case for each read and log, the highest offset."""
    acknowledged, in_transactions = _sent_alone(view)
    for call in view.calls:
        if call.op.f != F.TABLE or not call.is_ok or call.begin_ns == UNKNOWN:
            continue
        for log, span in sorted(call.trusted_spans()):
            ends_ns, highest = ((), ()) if log in in_transactions else acknowledged.get(log, ((), ()))
            place = bisect_left(ends_ns, call.begin_ns) - 1
            if place >= 0 and highest[place][0] >= span.end_offset:
                offset, value, sender = highest[place]
                detail = {"offset": offset, "end": span.end_offset}
                ops = (sender.index, call.index)
                yield Case(log=log, values=(value,), ops=ops, severity=offset - span.end_offset, detail=detail)


def _sent_alone(view: View) -> tuple[Mapping[int, tuple[Sequence[int], Sequence[tuple[int, int, Call]]]], Set[int]]:
    """By log, rising times, and the highest offset that was acknowledged until then, with its value and its sender; and
    logs to which somebody sent in a transaction."""
    in_transactions: set[int] = set()
    sent: dict[int, list[tuple[int, int, int, Call]]] = defaultdict(list)
    for call in view.calls:
        if call.op.f in (F.TXN, F.EOS):
            in_transactions |= call.sends.keys()
        elif call.is_ok:
            for log, sends in call.sends.items():
                sent[log] += [(call.end_ns, each.offset, each.value, call) for each in sends if each.offset != UNKNOWN]
    found = {}
    for log, times in sent.items():
        times.sort(key=lambda sent: sent[0])
        highest = accumulate([(offset, value, call) for _, offset, value, call in times], _higher)
        found[log] = [end_ns for end_ns, *_ in times], list(highest)
    return found, in_transactions


def _higher(one: tuple[int, int, Call], other: tuple[int, int, Call]) -> tuple[int, int, Call]:
    return other if other[0] > one[0] else one


@dataclass(frozen=True, slots=True)
class Lag:
    """By how much a poll's highest offset was out of date when the poll began, at the least."""

    call: Call
    log: int
    lag_ns: int


def realtime_lag(view: View) -> Iterator[Case]:
    """The worst, if anybody was ever behind."""
    worst = max(realtime_lags(view), key=lambda lag: (lag.lag_ns, -lag.call.index, -lag.log), default=None)
    if worst is not None and worst.lag_ns > 0:
        detail = {"lag-ns": worst.lag_ns, "process": worst.call.op.process, "time-ns": worst.call.begin_ns}
        yield Case(log=worst.log, ops=(worst.call.index,), severity=worst.lag_ns, detail=detail)


def realtime_lags(view: View) -> Iterator[Lag]:
    """For each ok poll and log that the process follows: since when it was known that the highest offset that the
    process had seen was not the last. After an assign a log that is new to the process starts at -1; a subscribe
    forgets all. (Jepsen forgets a call's offsets where one of its sends has none; here they count.)"""
    known = _known_ends(view)
    offsets_of: dict[int, dict[int, int]] = defaultdict(dict)
    for call in view.calls:
        if not call.is_ok or call.op.process == UNKNOWN or call.begin_ns == UNKNOWN:
            continue
        offsets = offsets_of[call.op.process]
        if call.op.f == F.ASSIGN:
            offsets_of[call.op.process] = {log: offsets.get(log, -1) for log in call.op.logs}
        elif call.op.f == F.SUBSCRIBE:
            offsets_of[call.op.process] = {}
        elif call.op.f in (F.POLL, F.TXN, F.EOS):
            for log, offset in _highest(call).items():
                offsets[log] = max(offset, offsets.get(log, -1))
            for log, offset in sorted(offsets.items()):
                ends, times_ns = known.get(log, ((), ()))
                place = bisect_left(ends, offset + 1)
                lag_ns = call.begin_ns - times_ns[place] if place < len(ends) else 0
                yield Lag(call, log, max(lag_ns, 0))


def _known_ends(view: View) -> Mapping[int, tuple[Sequence[int], Sequence[int]]]:
    """By log: offsets, rising, and when each was first known to exist."""
    found: dict[int, tuple[list[int], list[int]]] = {}
    for call in view.calls:
        if not call.is_certain_not:
            for log, offset in _highest(call).items():
                ends, times_ns = found.setdefault(log, ([], []))
                if offset >= 0 and (not ends or ends[-1] < offset):
                    ends.append(offset)
                    times_ns.append(call.end_ns)
    return found


def _highest(call: Call) -> dict[int, int]:
    highest = {log: max((record.offset for record in records), default=-1) for log, records in call.polled.items()}
    for log, sends in call.sends.items():
        offset = max(send.offset for send in sends)
        if offset != UNKNOWN:
            highest[log] = max(offset, highest.get(log, -1))
    return highest
