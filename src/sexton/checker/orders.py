"""What offsets and values say of each other: 1, 2, 39, and values that nobody sent (18)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise

from sexton.checker.evidence import Case
from sexton.checker.view import Call, View


def inconsistent_offsets(view: View) -> Iterator[Case]:
    for log, order in view.orders.items():
        for index, (offset, values) in enumerate(zip(order.offsets, order.values, strict=True)):
            if len(values) > 1:
                yield Case(
                    log=log,
                    values=values,
                    ops=_witnesses(view, log, values, offset),
                    severity=len(values),
                    detail={"offset": offset, "index": index},
                )


def duplicate(view: View) -> Iterator[Case]:
    for log, order in view.orders.items():
        offsets_of: dict[int, list[int]] = defaultdict(list)
        for offset, values in zip(order.offsets, order.values, strict=True):
            for value in values:
                offsets_of[value].append(offset)
        for value, offsets in offsets_of.items():
            if len(offsets) > 1:
                ops = _witnesses(view, log, (value,), *offsets)
                yield Case(log=log, values=(value,), ops=ops, severity=len(offsets), detail={"offsets": offsets})


def unwritten_read(view: View) -> Iterator[Case]:
    """Jepsen's checker throws here."""
    for (log, value), readers in view.readers_of.items():
        if (log, value) not in view.sender_of:
            yield Case(
                log=log, values=(value,), ops=tuple(sorted({reader.index for reader in readers})), severity=len(readers)
            )


def moved(view: View) -> Iterator[Case]:
    """A value of a compacted log that is a duplicate by reads of different times: each look at the earlier offset had
    ended when those at the later began."""
    for case in duplicate(view):
        log, value = case.log, case.values[0]
        if log not in view.run.logs or not view.run.logs[log].is_compacted:
            continue
        by_offset: dict[int, list[Call]] = defaultdict(list)
        for call in view.readers_of.get((log, value), ()):
            for record in call.polled[log]:
                if record.value == value:
                    by_offset[record.offset].append(call)
        looks = sorted((max(call.end_ns for call in calls), offset) for offset, calls in by_offset.items())
        for (end_ns, before), (_, after) in pairwise(looks):
            if min(call.begin_ns for call in by_offset[after]) > end_ns:
                ops = (by_offset[before][0].index, by_offset[after][0].index)
                yield Case(log=log, values=(value,), ops=ops, detail={"offsets": [before, after]})


def _witnesses(view: View, log: int, values: tuple[int, ...], *offsets: int) -> tuple[int, ...]:
    """Who sent or polled one of the values at one of the offsets. At most one reader and the sender of each."""
    found = set()
    for value in values:
        sender = view.sender_of.get((log, value))
        if sender and any(send.value == value and send.offset in offsets for send in sender.sends[log]):
            found.add(sender.index)
        for offset in offsets:
            for reader in view.readers_of.get((log, value), ()):
                if any(record.value == value and record.offset == offset for record in reader.polled[log]):
                    found.add(reader.index)
                    break
    return tuple(sorted(found))
