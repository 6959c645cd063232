"""Groups, what they have committed, exactly-once copies of logs, and what brokers say of themselves: 24 to 29."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sexton.checker.evidence import Case
from sexton.checker.view import Call, View
from sexton.history.op import NAMES_OFFSETS, UNKNOWN, Ext, F, Type

_GIVES = frozenset({F.POLL, F.TXN, F.EOS})


@dataclass(frozen=True, slots=True)
class Committed:
    """That an offset was committed: by this call, or it is what the call was told."""

    offset: int
    call: Call


class _Highest:
    """The highest offset by time."""

    def __init__(self, timed: Iterable[tuple[int, Committed]]) -> None:
        self._times_ns: list[int] = []
        self._highest: list[Committed] = []
        for time_ns, committed in sorted(timed, key=lambda pair: (pair[0], pair[1].call.index)):
            if not self._highest or self._highest[-1].offset < committed.offset:
                self._times_ns.append(time_ns)
                self._highest.append(committed)

    def before(self, time_ns: int) -> Committed | None:
        place = bisect_left(self._times_ns, time_ns)
        return self._highest[place - 1] if place else None


@dataclass(slots=True)
class Group:
    """One group, in one log."""

    name: str
    log: int
    members: list[Call] = field(default_factory=list)
    """Their calls that poll."""
    commits: list[Committed] = field(default_factory=list)
    """What was asked to be committed and did not fail, whether it is certain or not."""
    certain: list[Committed] = field(default_factory=list)
    """What ok calls committed, or were told."""

    def unaccounted(self) -> Iterator[tuple[int, Call]]:
        """Calls of which nobody knows how far they got, and from where on: members that died while they polled."""
        positions: dict[int, int] = {}
        for call in self.members:
            span = call.op.spans.get(self.log)
            if span is not None:
                positions[call.op.process] = span.end_offset
            elif call.op.type is Type.INFO and self.log not in call.polled:
                yield positions.get(call.op.process, 0), call


def groups(view: View) -> Sequence[Group]:
    found: dict[tuple[str, int], Group] = {}
    for call in view.calls:
        name = str(call.op.ext.get(Ext.GROUP, ""))
        if not name or call.begin_ns == UNKNOWN:
            continue
        offsets = call.op.offsets if call.op.f in NAMES_OFFSETS else view.by_log(call, Ext.OFFSETS)
        logs = {*call.op.spans, *call.polled, *offsets}
        if call.op.f in _GIVES and call.op.type is Type.INFO:
            logs |= {log for group, log in found if group == name}
        for log in sorted(logs):
            group = found.setdefault((name, log), Group(name, log))
            if call.op.f in _GIVES:
                group.members.append(call)
            if log in offsets and call.op.type is not Type.FAIL:
                committed = Committed(offsets[log], call)
                if call.op.f != F.COMMITTED:
                    group.commits.append(committed)
                if call.is_ok:
                    group.certain.append(committed)
    return [group for _, group in sorted(found.items())]


def committed_too_far(view: View) -> Iterator[Case]:
    """Above the end of every span that a member's call had, if that call began before this one ended. Not where a
    member died polling, or its client does not tell its position: nobody knows how far it was."""
    for group in groups(view):
        if not any(group.log in call.op.spans for call in group.members):
            continue
        given = _Highest(
            (call.begin_ns, Committed(call.op.spans[group.log].end_offset, call))
            for call in group.members
            if group.log in call.op.spans
        )
        placeless = [call for call in group.members if call.polled.get(group.log) and group.log not in call.op.spans]
        doubtful = [*placeless, *(call for _, call in group.unaccounted())]
        doubtful_ns = min((call.begin_ns for call in doubtful), default=view.end_ns + 1)
        for committed in group.certain:
            if committed.call.end_ns >= doubtful_ns:
                continue
            highest = given.before(committed.call.end_ns)
            given_to = highest.offset if highest is not None else 0
            if committed.offset > given_to:
                yield Case(
                    log=group.log,
                    ops=(committed.call.index,),
                    severity=committed.offset - given_to,
                    detail={"group": group.name, "offset": committed.offset, "given-to": given_to},
                )


def group_skip(view: View) -> Iterator[Case]:
    """Nor one that died may have been given it, and it may not be gone by the end."""
    for group in groups(view):
        highest = max(group.certain, key=lambda committed: (committed.offset, -committed.call.index), default=None)
        if highest is None or not group.members:
            continue
        given = {record.value for call in group.members for record in call.polled.get(group.log, ())}
        doubtful_from = min((offset for offset, _ in group.unaccounted()), default=highest.offset)
        order = view.order(group.log)
        for value in sorted(order.last):
            offset = order.offset_of(value)
            sender = view.sender_of.get((group.log, value))
            if value in given or offset >= min(highest.offset, doubtful_from) or sender is None:
                continue
            if view.is_certain(sender) and not view.removals[group.log].may_be_gone(value, view.end_ns):
                detail = {"group": group.name, "offset": offset, "committed": highest.offset}
                yield Case(log=group.log, values=(value,), ops=(sender.index, highest.call.index), detail=detail)


def offset_went_back(view: View) -> Iterator[Case]:
    """Lower than what a call that had ended before this one began committed or was told. What a call is told may be
    explained by a commit that may have been carried out after the higher one. Not judged: a group that goes back on
    purpose, and one whose offsets are committed by those who assign logs to themselves, each from its own place."""
    assigned = {call.op.process for call in view.calls if call.op.f == F.ASSIGN}
    for group in groups(view):
        commits = [commit.call.op for commit in group.commits]
        if any(op.ext.get(Ext.RESET) or op.process in assigned for op in commits):
            continue
        committed = _Highest((committed.call.end_ns, committed) for committed in group.certain)
        for later in group.certain:
            higher = committed.before(later.call.begin_ns)
            if higher is None or higher.offset <= later.offset:
                continue
            if later.call.op.f == F.COMMITTED and _is_explained(group, higher, later):
                continue
            yield Case(
                log=group.log,
                ops=(higher.call.index, later.call.index),
                severity=higher.offset - later.offset,
                detail={"group": group.name, "from": higher.offset, "to": later.offset},
            )


def _is_explained(group: Group, higher: Committed, later: Committed) -> bool:
    for commit in group.commits:
        may_end_ns = later.call.end_ns if commit.call.op.type is Type.INFO else commit.call.end_ns
        is_later = higher.call.begin_ns <= may_end_ns and commit.call.begin_ns < later.call.end_ns
        if commit.offset == later.offset and is_later:
            return True
    return False


def zombie_commit(view: View) -> Iterator[Case]:
    by_group: dict[str, list[tuple[int, Call]]] = defaultdict(list)
    for call in view.calls:
        if Ext.GENERATION in call.op.ext and call.is_ok:
            by_group[str(call.op.ext.get(Ext.GROUP, ""))].append((int(call.op.ext[Ext.GENERATION]), call))
    for name, calls in sorted(by_group.items()):
        seen = _Highest((call.end_ns, Committed(generation, call)) for generation, call in calls)
        for generation, call in calls:
            if call.op.f != F.COMMIT:
                continue
            later = seen.before(call.begin_ns)
            if later is not None and later.offset > generation and later.call.op.process != call.op.process:
                detail = {"group": name, "generation": generation, "later-generation": later.offset}
                ops = (later.call.index, call.index)
                yield Case(ops=ops, severity=later.offset - generation, detail=detail)


def eos_duplicate(view: View) -> Iterator[Case]:
    for log, outputs in _outputs(view):
        for value, made in sorted(outputs.items()):
            copies = _copies_expected(view, view.run.logs[log].eos_input, value)
            if len(made) > copies:
                ops = tuple(sorted({call.index for call in made.values()}))
                detail = {"input": value}
                yield Case(log=log, values=tuple(sorted(made)), ops=ops, severity=len(made), detail=detail)


def eos_loss(view: View) -> Iterator[Case]:
    for log, outputs in _outputs(view):
        maybe = {send.key for call in view.calls if not call.is_certain_not for send in call.sends.get(log, ())}
        for input_log in view.run.logs[log].eos_input:
            for value, offset, commit in _counted_as_processed(view, input_log):
                sender = view.sender_of[input_log, value]
                if value not in outputs and value not in maybe:
                    detail = {"offset": offset, "committed": commit.offset}
                    ops = (sender.index, commit.call.index)
                    yield Case(log=input_log, values=(value,), ops=ops, detail=detail)


def _outputs(view: View) -> Iterator[tuple[int, Mapping[int, Mapping[int, Call]]]]:
    """By output log, by input value: what was certainly made of it, and who sent or read that."""
    for log, facts in sorted(view.run.logs.items()):
        if not facts.eos_input:
            continue
        found: dict[int, dict[int, Call]] = defaultdict(dict)
        for call in view.calls:
            if view.is_certain(call):
                for send in call.sends.get(log, ()):
                    found[send.key][send.value] = call
            if call.is_ok and view.run.is_read_committed:
                for record in call.polled.get(log, ()):
                    found[record.key].setdefault(record.value, call)
        yield log, found


def _copies_expected(view: View, input_logs: Sequence[int], value: int) -> int:
    """A value is unique within its log only."""
    return max(1, sum((log, value) in view.sender_of for log in input_logs))


def _counted_as_processed(view: View, log: int) -> Iterator[tuple[int, int, Committed]]:
    """Values below what the group of the copiers has committed."""
    copiers = {str(call.op.ext.get(Ext.GROUP, "")) for call in view.calls if call.op.f == F.EOS}
    commits = [
        committed for group in groups(view) if group.log == log and group.name in copiers for committed in group.certain
    ]
    highest = max(commits, key=lambda committed: (committed.offset, -committed.call.index), default=None)
    order = view.order(log)
    for value in sorted(order.last):
        sender = view.sender_of.get((log, value))
        offset = order.offset_of(value)
        if highest is None or offset >= highest.offset or sender is None or not view.is_certain(sender):
            continue
        if not view.removals[log].may_be_gone(value, view.end_ns):
            yield value, offset, highest


def watermark_went_back(view: View) -> Iterator[Case]:
    return (case for is_same, case in _went_back(view) if is_same)


def watermark_went_back_at_failover(view: View) -> Iterator[Case]:
    return (case for is_same, case in _went_back(view) if not is_same)


def _went_back(view: View) -> Iterator[tuple[bool, Case]]:
    """Whether the leader was the same, and the case: of looks one of which had ended when the other began."""
    for name in (Ext.HIGH_WATERMARKS, Ext.LAST_STABLE_OFFSETS):
        by_log: dict[int, list[tuple[int, int, Call]]] = defaultdict(list)
        for call in view.probes:
            epochs = view.by_log(call, Ext.LEADER_EPOCHS)
            for log, offset in view.by_log(call, name).items():
                by_log[log].append((offset, epochs.get(log, UNKNOWN), call))
        for log, looks in sorted(by_log.items()):
            ever = _Highest((call.end_ns, Committed(offset, call)) for offset, _, call in looks)
            in_epoch = {
                epoch: _Highest((call.end_ns, Committed(offset, call)) for offset, at, call in looks if at == epoch)
                for epoch in {epoch for _, epoch, _ in looks}
            }
            for offset, epoch, call in looks:
                same, any_leader = in_epoch[epoch].before(call.begin_ns), ever.before(call.begin_ns)
                is_same = same is not None and same.offset > offset
                before = same if is_same else any_leader
                if before is not None and before.offset > offset:
                    detail = {"which": str(name), "from": before.offset, "to": offset}
                    ops = (before.call.index, call.index)
                    yield is_same, Case(log=log, ops=ops, severity=before.offset - offset, detail=detail)
