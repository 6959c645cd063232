"""Compacted logs, and the tables that are read from them: 31 to 38, 40.

A *pass* is a chain of looks of one consumer without a gap; where it went back, what it read again takes the place of
what it had read. A pass that begins at the log's start is *full*: folded by key, newest last, it is a table as of its
end. A table or scan is a full pass by itself.

Who is accused of having lost a record had no reason for removing it: see `removal`. Where a newer record of the key may
have been sent, wherever it lies, nothing is said of the older ones.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sexton.checker.evidence import Case
from sexton.checker.removal import Removal, Written
from sexton.checker.view import Look, View
from sexton.history.op import UNKNOWN, Ext, F, Record, Span, Type


@dataclass(slots=True)
class Pass:
    log: int
    looks: list[Look] = field(default_factory=list)

    @property
    def begin_ns(self) -> int:
        return self.looks[0].call.begin_ns

    @property
    def end_ns(self) -> int:
        return self.looks[-1].call.end_ns

    @property
    def end_offset(self) -> int:
        return self.looks[-1].span.end_offset

    @property
    def op(self) -> int:
        return self.looks[-1].call.index

    @property
    def replica(self) -> int:
        return int(self.looks[-1].call.op.ext.get(Ext.REPLICA, UNKNOWN))

    def look_over(self, offset: int) -> Look | None:
        return next((look for look in self.looks if look.is_over(offset)), None)

    def fold(self, below_offset: int) -> dict[int, tuple[Record, Look]]:
        """By key, the newest record, and who was given it."""
        found: dict[int, tuple[Record, Look]] = {}
        for look in self.looks:
            for record in look.records:
                newest = found.get(record.key)
                if record.offset < below_offset and (newest is None or newest[0].offset <= record.offset):
                    found[record.key] = (record, look)
        return found


def full_passes(view: View, log: int) -> list[Pass]:
    """Those by a call of their own, and those of standing consumers, by when they ended."""
    found = []
    for look in view.looks_at.get(log, ()):
        if look.call.op.f in (F.TABLE, F.SCAN) and look.call.is_ok:
            found.append(Pass(log, [look]))
    return sorted([*found, *standing_passes(view, log)], key=lambda a_pass: (a_pass.end_ns, a_pass.op))


def standing_passes(view: View, log: int) -> list[Pass]:
    found: list[Pass] = []
    for calls in view.by_process.values():
        chain: Pass | None = None
        from_start = False
        for call in calls:
            if call.op.f in (F.ASSIGN, F.SUBSCRIBE) and call.op.type is not Type.FAIL:
                from_start = bool(call.op.ext.get(Ext.SEEK_TO_BEGINNING))
                if log not in call.op.logs or from_start:
                    chain = None
            elif call.op.f in (F.POLL, F.TXN, F.EOS):
                if log in call.op.rebalanced:
                    chain = None
                span = call.op.spans.get(log)
                if span is None or log in call.op.rebalanced or call.begin_ns == UNKNOWN:
                    continue
                look = Look(call, span, call.polled.get(log, ()))
                if chain is not None and span.start_offset <= chain.end_offset:
                    _rewind(chain, span.start_offset)
                    if not chain.looks and span.start_offset:
                        chain = None
                elif from_start or span.start_offset == 0:
                    chain = Pass(log)
                    found.append(chain)
                else:
                    chain = None
                from_start = False
                if chain is not None:
                    chain.looks.append(look)
    return [chain for chain in found if chain.looks]


def _rewind(chain: Pass, position: int) -> None:
    while chain.looks and chain.looks[-1].span.start_offset >= position:
        chain.looks.pop()
    if chain.looks and chain.looks[-1].span.end_offset > position:
        last = chain.looks[-1]
        records = [record for record in last.records if record.offset < position]
        chain.looks[-1] = Look(last.call, Span(last.span.start_offset, position), records)


def compacted(view: View) -> Iterator[tuple[int, Removal]]:
    for log, facts in sorted(view.run.logs.items()):
        if facts.is_compacted:
            yield log, view.removals[log]


def lost_record(view: View) -> Iterator[Case]:
    for log, removal in compacted(view):
        for look, record in passed_without(view, log, removal):
            if not removal.may_be_gone(record.value, look.call.end_ns):
                ops = (record.call.index, look.call.index)
                yield Case(log=log, values=(record.value,), ops=ops, detail={"offset": record.offset})


def passed_without(view: View, log: int, removal: Removal) -> Iterator[tuple[Look, Written]]:
    """Looks over a certain record that were not given it."""
    written = sorted((record for records in removal.certain.values() for record in records), key=_offset)
    for look in view.looks_at.get(log, ()):
        given = {record.value for record in look.records}
        start = bisect_left(written, look.span.start_offset, key=_offset)
        end = bisect_left(written, look.span.end_offset, key=_offset)
        for record in written[start:end]:
            if record.value not in given:
                yield look, record


def _offset(record: Written) -> int:
    return record.offset


def tombstone_too_early(view: View) -> Iterator[Case]:
    """A lost record that is a tombstone and its key's newest, and was gone before `delete.retention.ms` were over."""
    for case in lost_record(view):
        sender = view.sender_of[case.log, case.values[0]]
        if any(send.value == case.values[0] and send.is_tombstone for send in sender.sends[case.log]):
            yield case


def lost_key(view: View) -> Iterator[Case]:
    for a_pass, newest, found in _missing_values(view):
        if found is None:
            yield Case(log=a_pass.log, values=(newest.value,), ops=(newest.call.index, a_pass.op))


def stale_value(view: View) -> Iterator[Case]:
    for a_pass, newest, found in _missing_values(view):
        if found is not None:
            yield Case(log=a_pass.log, values=(newest.value, found.value), ops=(newest.call.index, a_pass.op))


def _missing_values(view: View) -> Iterator[tuple[Pass, Written, Record | None]]:
    """Full passes that lack a key's newest value, and the newest of the key that they have."""
    for log, removal in compacted(view):
        for a_pass in full_passes(view, log):
            table = a_pass.fold(a_pass.end_offset)
            for key in sorted(removal.certain):
                newest = removal.newest_below(key, a_pass.end_offset)
                if newest is None or newest.send.is_tombstone:
                    continue
                look = a_pass.look_over(newest.offset)
                found = table.get(key)
                is_there = found is not None and (found[0].offset >= newest.offset or found[0].value == newest.value)
                if look is not None and not is_there and not removal.may_be_gone(newest.value, look.call.end_ns):
                    yield a_pass, newest, found[0] if found is not None else None


def resurrected_key(view: View) -> Iterator[Case]:
    return (case for is_proven, case in _resurrections(view) if is_proven)


def slow_reader(view: View) -> Iterator[Case]:
    return (case for is_proven, case in _resurrections(view) if not is_proven)


def _resurrections(view: View) -> Iterator[tuple[bool, Case]]:
    """A full pass yields a value of a key whose newest certain record below the pass's end is a tombstone, and not the
    tombstone. That proves a resurrection if the pass was so quick that the tombstone cannot have been removed after
    the value was read; or, whatever `delete.retention.ms` is, if somebody else had passed the tombstone's offset
    without being given it before the value was read: then the value was still there when the tombstone was gone."""
    for log, removal in compacted(view):
        gone_ns = _tombstones_gone(view, log, removal)
        for a_pass in full_passes(view, log):
            for key, (value, look) in sorted(a_pass.fold(a_pass.end_offset).items()):
                newest = removal.newest_below(key, a_pass.end_offset)
                if newest is None or not newest.send.is_tombstone or value.offset >= newest.offset:
                    continue
                over = a_pass.look_over(newest.offset)
                if over is None or value.is_tombstone:
                    continue
                if removal.may_have_newer(key, newest.offset + 1, over.call.end_ns):
                    continue
                if removal.may_be_cut(newest.offset, over.call.end_ns):
                    continue
                is_quick = over.call.end_ns - look.call.begin_ns < _kept_ns(view, log)
                was_gone = look.call.begin_ns > gone_ns.get(newest.value, view.end_ns)
                ops = (newest.call.index, a_pass.op)
                yield is_quick or was_gone, Case(log=log, values=(newest.value, value.value), ops=ops)


def _kept_ns(view: View, log: int) -> int:
    """For how long a tombstone is there at the least."""
    return (view.run.logs[log].delete_retention_ms - view.run.clock_skew_ms) * 1_000_000


def _tombstones_gone(view: View, log: int, removal: Removal) -> Mapping[int, int]:
    """By value: when at the latest a tombstone was gone, because somebody had passed it without being given it."""
    found: dict[int, int] = {}
    for look, record in passed_without(view, log, removal):
        if record.send.is_tombstone:
            found[record.value] = min(look.call.end_ns, found.get(record.value, look.call.end_ns))
    return found


def aborted_in_table(view: View) -> Iterator[Case]:
    for log, _ in compacted(view):
        for a_pass in full_passes(view, log):
            for look in a_pass.looks:
                for record in look.records:
                    sender = view.sender_of.get((log, record.value))
                    if look.call.is_ok and sender is not None and sender.is_certain_not:
                        yield Case(log=log, values=(record.value,), ops=(sender.index, look.call.index))


def reappeared(view: View) -> Iterator[Case]:
    """Three looks over one offset, each begun after the one before had ended: there, gone, there. Needs no knowledge of
    what was sent. In a compacted log that alone is no harm: replicas compact at different times, and what one has
    removed another may still have, as long as it also has what superseded it. So there the last must be a full pass
    whose table has the record, no newer record of the key may lie behind the pass's end, and the pass must be quicker
    than tombstones are kept: a slow reader may miss one."""
    for log, facts in sorted(view.run.logs.items()):
        if view.removals[log].is_cut_at_its_start:
            continue
        looks = sorted(view.looks_at.get(log, ()), key=lambda look: (look.call.end_ns, look.call.index))
        seen: dict[tuple[int, int], list[Look]] = defaultdict(list)
        for look in looks:
            for record in look.records:
                seen[record.offset, record.value].append(look)
        again = _in_tables(view, log) if facts.is_compacted else seen
        times = {
            record: (seen[record][0], max(there, key=lambda look: (look.call.begin_ns, look.call.index)))
            for record, there in sorted(again.items())
        }
        yield from _gone_between(log, looks, times)


def _gone_between(
    log: int, looks: Sequence[Look], times: Mapping[tuple[int, int], tuple[Look, Look]]
) -> Iterator[Case]:
    """Of records, by offset and value, that were in two looks: the first look between them that passed one without
    being given it."""
    records = sorted(record for record, (first, last) in times.items() if first.call.end_ns < last.call.begin_ns)
    found = set()
    for look in looks:
        given = {record.value for record in look.records}
        start, end = (bisect_left(records, (offset,)) for offset in look.span)
        for offset, value in records[start:end]:
            first, last = times[offset, value]
            is_between = first.call.end_ns < look.call.begin_ns and look.call.end_ns < last.call.begin_ns
            if is_between and value not in given and value not in found:
                found.add(value)
                ops = (first.call.index, look.call.index, last.call.index)
                yield Case(log=log, values=(value,), ops=ops, detail={"offset": offset})


def _in_tables(view: View, log: int) -> dict[tuple[int, int], list[Look]]:
    """Of values that are their key's newest in a quick full pass behind which there is nothing newer: who was given
    them. A tombstone that only some replicas have removed does no harm."""
    found: dict[tuple[int, int], list[Look]] = defaultdict(list)
    for a_pass in full_passes(view, log):
        for key, (record, look) in a_pass.fold(a_pass.end_offset).items():
            is_quick = a_pass.end_ns - look.call.begin_ns < _kept_ns(view, log)
            if (
                is_quick
                and not record.is_tombstone
                and not view.removals[log].may_have_newer(key, a_pass.end_offset, a_pass.end_ns)
            ):
                found[record.offset, record.value].append(look)
    return found


def replicas_disagree(view: View) -> Iterator[Case]:
    """Two scans, each the latest of its replica when the later of them ended, compared below the end that both have
    reached."""
    for log, removal in compacted(view):
        latest: dict[int, Pass] = {}
        for scan in full_passes(view, log):
            if scan.replica == UNKNOWN:
                continue
            for replica, other in sorted(latest.items()):
                if replica != scan.replica:
                    yield from _difference(view, removal, other, scan)
            latest[scan.replica] = scan


def _difference(view: View, removal: Removal, first: Pass, second: Pass) -> Iterator[Case]:
    end_offset = min(first.end_offset, second.end_offset)
    end_ns = max(first.end_ns, second.end_ns)
    tables = first.fold(end_offset), second.fold(end_offset)
    newer = [a_pass.fold(a_pass.end_offset) for a_pass in (first, second)]
    for key in sorted(tables[0].keys() | tables[1].keys()):
        if removal.may_have_newer(key, end_offset, end_ns):
            continue
        if any(key in table and table[key][0].offset >= end_offset for table in newer):
            continue
        found = [table.get(key) for table in tables]
        if any(record is not None and removal.may_be_cut(record[0].offset, end_ns) for record in found):
            continue
        values = [record[0].value for record in found if record is not None and not record[0].is_tombstone]
        if len(values) == 0 or (len(values) == 2 and values[0] == values[1]):
            continue
        if len(values) == 1 and not _is_quick(view, first, second, found[0] is None or found[0][0].is_tombstone):
            continue
        shown = tuple(record[0].value for record in found if record is not None)
        detail = {"key": key, "replicas": [first.replica, second.replica]}
        yield Case(log=first.log, values=shown, ops=(first.op, second.op), detail=detail)


def _is_quick(view: View, first: Pass, second: Pass, second_has_value: bool) -> bool:
    """Whether the pass that has a value where the other has none did not miss a tombstone by its slowness: it took less
    than tombstones are kept, or it began when the other had ended."""
    has, lacks = (second, first) if second_has_value else (first, second)
    return has.end_ns - has.begin_ns < _kept_ns(view, first.log) or has.begin_ns > lacks.end_ns


def table_drift(view: View) -> Iterator[Case]:
    """A standing consumer that has reached the end of a fresh table or beyond holds of a key a record that is newer
    than the fresh table's, and no newer record of the key may lie behind that end. A tombstone counts as nothing: it
    may be gone from the fresh table, but then what it deleted must be, too."""
    for log, removal in compacted(view):
        standing = standing_passes(view, log)
        for look in view.looks_at.get(log, ()):
            if look.call.op.f not in (F.TABLE, F.SCAN) or not look.call.is_ok:
                continue
            end_offset, end_ns = look.span.end_offset, look.call.end_ns
            fresh = Pass(log, [look]).fold(end_offset)
            for kept in standing:
                if kept.end_offset < end_offset:
                    continue
                for key, (record, given_by) in sorted(kept.fold(end_offset).items()):
                    found = fresh[key][0] if key in fresh else None
                    if found is not None and (found.offset >= record.offset or found.value == record.value):
                        continue
                    if record.is_tombstone and (found is None or found.is_tombstone):
                        continue
                    if record.is_tombstone and end_ns - look.call.begin_ns >= _kept_ns(view, log):
                        continue
                    if removal.may_have_newer(key, record.offset + 1, end_ns) or removal.may_be_cut(
                        record.offset, end_ns
                    ):
                        continue
                    values = (record.value,) if found is None else (record.value, found.value)
                    yield Case(log=log, values=values, ops=(given_by.call.index, look.call.index))
