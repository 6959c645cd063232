"""What a history proves: false if something happened that may not, unknown if what should have been tested was not, and
only then true."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from sexton.checker.allowed import Model, is_excused, weight
from sexton.checker.anomalies import Weight
from sexton.checker.evidence import Finding, canonical_json
from sexton.checker.tables import compacted, passed_without
from sexton.checker.view import View
from sexton.history.op import HEAL, UNKNOWN, Ext, F, Type


class Verdict(StrEnum):
    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    found = set(verdicts)
    return next((worse for worse in (Verdict.FALSE, Verdict.UNKNOWN) if worse in found), Verdict.TRUE)


@dataclass(frozen=True, slots=True)
class Obligation:
    """What must have happened in a run for its silence to mean anything."""

    name: str
    is_met: bool

    def to_json(self) -> dict[str, Any]:
        return {"name": self.name, "met": self.is_met}


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    model: Model
    findings: Sequence[Finding]
    allowed: Mapping[str, str]
    """Of what was found: why it is allowed."""
    obligations: Sequence[Obligation]
    notes: Mapping[str, Any] = field(default_factory=dict)
    """What the history's reader let pass, if anything: it is not judged."""
    counted: Mapping[str, int] = field(default_factory=dict)
    """What the run's workload has counted for people. Nobody promises any of it, so it is not judged either."""

    def to_json(self) -> dict[str, Any]:
        return {
            "verdict": str(self.verdict),
            "model": str(self.model),
            "anomalies": [finding.to_json() for finding in self.findings],
            "allowed": dict(self.allowed),
            "obligations": [obligation.to_json() for obligation in self.obligations],
            "notes": dict(self.notes),
            "counted": dict(self.counted),
        }

    def canonical(self) -> str:
        return canonical_json(self.to_json())

    def wrong(self) -> list[str]:
        """What makes the verdict false."""
        return [
            finding.name
            for finding in self.findings
            if finding.name not in self.allowed and weight(finding.name, self.model) is Weight.WRONG
        ]


def judgement(
    findings: Sequence[Finding], model: Model, reasons: Mapping[str, str], obligations: Iterable[Obligation]
) -> Judgement:
    found = {finding.name for finding in findings}
    weights = {weight(name, model) for name in found - reasons.keys()}
    duties = [] if model is Model.JEPSEN else list(obligations)
    if Weight.WRONG in weights:
        verdict = Verdict.FALSE
    elif Weight.UNKNOWN in weights or not all(duty.is_met for duty in duties):
        verdict = Verdict.UNKNOWN
    else:
        verdict = Verdict.TRUE
    used = {name: reason for name, reason in sorted(reasons.items()) if name in found}
    return Judgement(verdict, model, findings, used, duties)


def obligations(view: View) -> Iterator[Obligation]:
    ok = [call for call in view.calls if call.is_ok]
    yield Obligation("a record was sent", any(call.sends for call in ok))
    yield Obligation("a record was polled", any(any(call.polled.values()) for call in ok))
    asked_for = {call.op.f for call in view.calls} - {F.CRASH, F.DEBUG}
    for f in sorted(asked_for):
        yield Obligation(f"{f} was ok once", any(call.op.f == f for call in ok))
    yield Obligation("somebody read to the end of every log", _is_read_to_the_end(view))
    if F.TXN in asked_for or F.EOS in asked_for:
        transactions = [call for call in view.calls if call.op.f in (F.TXN, F.EOS)]
        yield Obligation("a transaction was committed", any(call.is_ok and call.sends for call in transactions))
        yield Obligation("a transaction was aborted", any(call.op.type is Type.FAIL for call in transactions))
    if view.run.workload == "table":
        yield from compaction(view, **_removed(view))
    yield from replicas((call.op.ext, call.is_ok) for call in view.calls if call.op.f == F.SCAN)
    if view.run.workload == "groups":
        yield Obligation("a group was rebalanced", any(call.op.rebalanced for call in view.calls))
    yield from _faults(view)


def _is_read_to_the_end(view: View) -> bool:
    """By position or by record: nobody can say more where neither is known."""
    reached: dict[int, int] = {}
    for call in view.calls:
        if call.is_ok:
            ends = {log: span.end_offset for log, span in call.op.spans.items()}
            for log, records in call.polled.items():
                ends[log] = max([ends.get(log, 0), *(record.offset + 1 for record in records)])
            for log, end in ends.items():
                reached[log] = max(end, reached.get(log, 0))
    return all(reached.get(log, 0) > order.offsets[-1] for log, order in view.orders.items() if order.offsets)


def _removed(view: View) -> dict[str, bool]:
    passed = [record for log, removal in compacted(view) for _, record in passed_without(view, log, removal)]
    return {"removed": bool(passed), "tombstones": any(record.send.is_tombstone for record in passed)}


def compaction(view: View, *, removed: bool, tombstones: bool) -> Iterator[Obligation]:
    yield Obligation("compaction removed a record", removed)
    yield Obligation("compaction removed a tombstone", tombstones)
    epochs = {item for call in view.probes for item in view.by_log(call, Ext.LEADER_EPOCHS).items()}
    yield Obligation("a leader moved", len(epochs) > len({log for log, _ in epochs}))


def replicas(scans: Iterable[tuple[Mapping[str, Any], bool]]) -> Iterator[Obligation]:
    """Of every scan what it said, and whether it was ok: each replica that was to be read at the end was."""
    asked, read = set(), set()
    for ext, is_ok in scans:
        if ext.get(Ext.FINAL) is True and Ext.LOG in ext:
            replica = str(ext[Ext.LOG]), str(ext.get(Ext.REPLICA))
            asked.add(replica)
            if is_ok:
                read.add(replica)
    if asked:
        left = "; ".join(f"log {log} at broker {broker}" for log, broker in sorted(asked - read))
        yield Obligation(f"every replica was read to its end{f', but not {left}' if left else ''}", not left)


def _faults(view: View) -> Iterator[Obligation]:
    if not view.nemesis:
        return
    starts = [op.time_ns for op in view.nemesis if op.ext.get(Ext.PHASE) == "start" and op.is_completion]
    heals = [op.time_ns for op in view.nemesis if op.f == HEAL and op.is_completion]
    in_force = any(
        call.begin_ns != UNKNOWN and start_ns < call.end_ns and call.begin_ns < max(heals, default=view.end_ns)
        for start_ns in starts
        for call in view.calls
    )
    yield Obligation("a fault was in force while operations were in flight", in_force)
    yield from faults(view)


def faults(view: View) -> Iterator[Obligation]:
    """What single kinds of faults must have come to."""
    if any(op.f == "grave" for op in view.nemesis):
        missed = any(op.f == "grave" and op.ext.get(Ext.MISSED) for op in view.nemesis)
        yield Obligation("grave: the replica missed what was removed", missed)
    if is_excused(view):
        yield Obligation("what a system makes of damaged files is judged", False)
