"""What became of each send: 3, 4, 5, 13, 20, 21, 30."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from sexton.checker.evidence import Case
from sexton.checker.view import Call, LogValue, Look, View
from sexton.history.op import UNKNOWN, Send


def aborted_read(view: View) -> Iterator[Case]:
    """G1a: a case for each time that an ok call polled what a failed one sent."""
    for call in view.calls:
        if call.is_ok:
            for log, records in call.polled.items():
                for record in records:
                    sender = view.sender_of.get((log, record.value))
                    if sender and sender.is_certain_not:
                        yield Case(log=log, values=(record.value,), ops=(sender.index, call.index))


def precommitted_read(view: View) -> Iterator[Case]:
    """One case a call, as Jepsen does."""
    for call in view.calls:
        for log, sends in sorted(call.sends.items()):
            polled = {record.value for record in call.polled.get(log, ())}
            own = sorted(polled.intersection(send.value for send in sends))
            if own:
                yield Case(log=log, values=(own[0],), ops=(call.index,))
                break


def lost_write(view: View) -> Iterator[Case]:
    """Whoever read up to a record has passed all before it. The bound is the highest index at which a value that an ok
    call polled was *first* seen; whatever was *last* seen at or below it should have been polled. Beyond Jepsen, whose
    histories have no positions: so should what lies above it, if the position of an ok call has moved over it. Where
    records may go from the log, only what may not be gone at the end of the history."""
    seen_of: dict[int, list[int]] = defaultdict(list)
    for log, value in view.seen:
        seen_of[log].append(value)
    passes = _passes(view)
    for log, order in view.orders.items():
        bound = max((order.first[value] for value in seen_of[log] if value in order.first), default=UNKNOWN)
        for value, last in order.last.items():
            sender = view.sender_of.get((log, value))
            if (log, value) in view.seen or sender is None or not view.is_certain(sender):
                continue
            if view.removals[log].may_be_gone(value, view.end_ns):
                continue
            if last <= bound:
                highest = next(value for value in order.values[bound] if (log, value) in view.readers_of)
                passed_by = view.readers_of[log, highest][0].index
            else:
                passed_by = next((op for op, look in passes.get(log, ()) if look.is_over(order.offsets[last])), UNKNOWN)
            if passed_by != UNKNOWN:
                detail = {"index": order.first[value], "highest-index": bound}
                yield Case(log=log, values=(value,), ops=(sender.index, passed_by), detail=detail)


def _passes(view: View) -> Mapping[int, Sequence[tuple[int, Look]]]:
    """By log, of ok calls whose positions moved."""
    found: dict[int, list[tuple[int, Look]]] = defaultdict(list)
    for call in view.calls:
        if call.is_ok:
            for log, span in call.trusted_spans():
                found[log].append((call.index, Look(call, span, ())))
    return found


def unseen(view: View) -> Iterator[Case]:
    """A case a log: what ok calls sent, no ok call polled, and may not be gone."""
    missing: dict[int, list[int]] = defaultdict(list)
    for log, send, _ in _sends(view):
        if not view.removals[log].may_be_gone(send.value, view.end_ns):
            missing[log].append(send.value)
    last_reader = {log: call.index for call in view.calls if call.is_ok for log in call.polled}
    for log, values in sorted(missing.items()):
        ops = (last_reader[log],) if log in last_reader else ()
        yield Case(log=log, values=tuple(sorted(values)), ops=ops, severity=len(values))


def acknowledged_nowhere(view: View) -> Iterator[Case]:
    """Its offset is unknown; but what was sent after its acknowledgement lies behind it, so whoever polled that has
    passed it. In a compacted log, only if no other record of its key can have taken its place."""
    later = _later_than(view)
    for log, send, call in _sends(view):
        if send.offset != UNKNOWN or (log, send.value) in view.readers_of or call.begin_ns == UNKNOWN:
            continue
        if view.removals[log].is_cut_at_its_start:
            continue
        passed = next((reader for begin_ns, reader in later.get(log, ()) if begin_ns > call.end_ns), None)
        if passed is not None and not _may_be_superseded(view, log, send, call):
            yield Case(log=log, values=(send.value,), ops=(call.index, passed.index))


def _later_than(view: View) -> Mapping[int, Sequence[tuple[int, Call]]]:
    """By log: when each value that an ok call polled was sent at the earliest, and who polled it; by time."""
    found: dict[int, list[tuple[int, Call]]] = defaultdict(list)
    for log, value in view.seen:
        sender = view.sender_of.get((log, value))
        if sender is not None and sender.begin_ns != UNKNOWN:
            found[log].append((sender.begin_ns, view.readers_of[log, value][0]))
    return {log: sorted(times, key=lambda pair: (pair[0], pair[1].index)) for log, times in found.items()}


def _may_be_superseded(view: View, log: int, send: Send, call: Call) -> bool:
    if not (view.run.logs.get(log) and view.run.logs[log].is_compacted):
        return False
    removal = view.removals[log]
    others = [record.call for record in removal.certain.get(send.key, ())]
    doubts = len(removal.doubtful.get(send.key, ())) > 1
    return send.is_tombstone or doubts or any(other.end_ns > call.begin_ns for other in others)


def torn_transaction(view: View) -> Iterator[Case]:
    """Of a call with several sends that is certain or failed: an ok call polled one of them, and another is lost, or a
    consumer's position moved over its offset without its being given, though it may not be gone."""
    lost = {(case.log, case.values[0]): case.ops[1] for case in lost_write(view)}
    missed = _passed_without(view)
    for call in view.calls:
        sends = [(log, send) for log, sends in call.sends.items() for send in sends]
        if len(sends) < 2 or not (call.is_certain_not or view.is_certain(call)):
            continue
        read = next(((log, send) for log, send in sends if (log, send.value) in view.seen), None)
        if read is None:
            continue
        reader = next(reader for reader in view.readers_of[read[0], read[1].value] if reader.is_ok)
        for log, send in sends:
            passed_by = lost.get((log, send.value), missed.get((log, send.value)))
            if passed_by is not None and (log, send.value) not in view.seen:
                yield Case(log=log, values=(send.value, read[1].value), ops=(call.index, passed_by, reader.index))


def _passed_without(view: View) -> Mapping[LogValue, int]:
    """Values of calls with several sends that some consumer has passed without being given them."""
    offsets: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for call in view.calls:
        if sum(map(len, call.sends.values())) > 1:
            for log, sends in call.sends.items():
                offsets[log] += [(send.offset, send.value) for send in sends if send.offset != UNKNOWN]
    for written in offsets.values():
        written.sort()
    found: dict[LogValue, int] = {}
    for call in view.calls:
        for log, span in call.trusted_spans():
            given = {record.value for record in call.polled.get(log, ())}
            written = offsets.get(log, [])
            start, end = (bisect_left(written, (offset,)) for offset in span)
            for _, value in written[start:end]:
                is_absent = value not in given and (log, value) not in found
                if is_absent and (
                    view.sender_of[log, value].is_certain_not or not view.removals[log].may_be_gone(value, call.end_ns)
                ):
                    found[log, value] = call.index
    return found


def fractured_read(view: View) -> Iterator[Case]:
    """Of one certain call, two values in what a consumer passed within one call: one given, the other not."""
    if not view.run.is_read_committed:
        return
    for call in view.calls:
        spans = dict(call.trusted_spans())
        given = {(log, record.value) for log in spans for record in call.polled.get(log, ())}
        senders = {view.sender_of[value].index: view.sender_of[value] for value in given if value in view.sender_of}
        for sender in senders.values():
            if not view.is_certain(sender):
                continue
            passed = [
                (log, send.value)
                for log, sends in sender.sends.items()
                for send in sends
                if log in spans
                and spans[log].start_offset <= view.order(log).offset_of(send.value) < spans[log].end_offset
            ]
            got = next((value for value in passed if value in given), None)
            for log, value in passed:
                gone = view.removals[log].may_be_gone(value, call.end_ns)
                if got is not None and (log, value) not in given and not gone:
                    yield Case(log=log, values=(value, got[1]), ops=(sender.index, call.index))


def _sends(view: View) -> Iterator[tuple[int, Send, Call]]:
    """What ok calls sent and no ok call polled."""
    for call in view.calls:
        if call.is_ok:
            for log, sends in call.sends.items():
                for send in sends:
                    if (log, send.value) not in view.seen:
                        yield log, send, call
