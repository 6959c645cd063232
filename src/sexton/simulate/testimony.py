"""A simulated run as a history, judged by `checker`: the judge of real clusters, which knows nothing but what clients
asked for and were told.

What is left out is what nobody promises: partitions that may have lost something (`losses`), topics that were deleted
or made again, and where there are transactions, consumers that read uncommitted records. A record that was not
acknowledged by all in-sync replicas may be in the log or not, whatever its producer was told. Nor is a copy of a
record that was deleted before its producer had an answer: a leader whose log began above it knew nothing of it, and
took it once more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sexton.checker.reference import judge
from sexton.checker.verdict import Judgement
from sexton.history.op import HEAL, NEMESIS, UNKNOWN, Ext, F, Log, MicroOp, Op, Poll, Record, Run, Send, Span, Type
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.faults import Kind
from sexton.simulate.history import History, Outcome, Transaction, Write
from sexton.simulate.journal import Look
from sexton.simulate.plan import Plan
from sexton.types import TopicPartition

RULE = "history"
ACKS_ALL = -1
CLOCKS_MS = 10_000
"""By how much clocks differ that nobody has set: by a second at first, and by four parts in a hundred later."""

DELETER = 0
"""As a process: whoever deletes records."""

TYPES = {Outcome.OK: Type.OK, Outcome.FAILED: Type.FAIL}


def check(plan: Plan, history: History, healed_ns: int) -> None:
    """Raises SimulationFailure if clients have seen what may not be."""
    found = judged(plan, history, healed_ns)
    wrong = found.wrong()
    if wrong:
        finding = next(each for each in found.findings if each.name == wrong[0])
        others = f" (also {', '.join(wrong[1:])})" if wrong[1:] else ""
        logs = run_of(plan, history).logs
        case = finding.cases[0]
        where = f"{logs[case.log].topic}-{logs[case.log].partition}" if case.log in logs else "several partitions"
        told = f"{finding.count} times, at first in {where}: values {list(case.values)}, operations {list(case.ops)}"
        raise SimulationFailure(f"{RULE}: {wrong[0]}", f"{told}, {dict(case.detail)}{others}")


def judged(plan: Plan, history: History, healed_ns: int) -> Judgement:
    run = run_of(plan, history)
    return judge(operations(plan, history, healed_ns), run)


def run_of(plan: Plan, history: History) -> Run:
    logs: dict[int, Log] = {}
    for topic in plan.topics:
        for place in topic.places:
            if not _is_excused(history, place):
                logs[len(logs) + 1] = Log(
                    *place,
                    is_compacted=topic.is_compacted,
                    is_retained=topic.name in plan.retentions,
                    delete_retention_ms=int(topic.settings.get("delete.retention.ms", 86_400_000)),
                )
    jumps_ms = sum(abs(fault.amount) for fault in plan.faults if fault.kind is Kind.CLOCK_JUMP)
    return Run(name=f"seed {plan.seed}", workload="simulation", logs=logs, clock_skew_ms=CLOCKS_MS + jumps_ms)


def _is_excused(history: History, place: TopicPartition) -> bool:
    return (
        place in history.losses or place in history.doubtful or place in history.generations or history.is_gone(place)
    )


def operations(plan: Plan, history: History, healed_ns: int) -> list[Op]:
    run = run_of(plan, history)
    logs = {(log.topic, log.partition): number for number, log in run.logs.items()}
    compacted = frozenset(number for number, log in run.logs.items() if log.is_compacted)
    return list(_Translation(history, logs, compacted, bool(plan.transactors)).operations(healed_ns))


def _has_failed(what: object) -> bool:
    """Whether something that was never answered is certain not to have happened."""
    if isinstance(what, Transaction):
        return not what.may_be_committed
    return isinstance(what, Write) and what.outcome is Outcome.FAILED


@dataclass(slots=True)
class _Translation:
    history: History
    logs: Mapping[TopicPartition, int]
    compacted: frozenset[int]
    has_transactions: bool
    values: dict[bytes | None, int] = field(default_factory=dict)
    keys: dict[bytes | None, int] = field(default_factory=dict)
    index: int = 0
    processes_count: int = DELETER + 1
    free: dict[object, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Idle processes, by client."""
    busy: dict[int, tuple[int, object]] = field(default_factory=dict)
    """By the identity of what is being done: the process, and what it is."""
    second: dict[bytes, int] = field(default_factory=dict)
    """Records that may be a second copy, and the offset that was acknowledged."""

    def operations(self, healed_ns: int) -> Iterator[Op]:
        deleted = self._deleted()
        for write in self.history.writes:
            if write.may_be_second and write.base_offset >= 0:
                self.second.update((value, write.base_offset + number) for number, value in enumerate(write.values))
        yield self._op(0, DELETER, Type.INVOKE, F.DELETE_RECORDS, offsets=deleted)
        yield self._op(0, DELETER, Type.INFO, F.DELETE_RECORDS, offsets=deleted)
        yield self._op(0, NEMESIS, Type.INFO, "faults", ext={Ext.PHASE: "start"})
        is_healed, at_ns = False, 0
        for at_ns, is_end, what in self.history.journal.entries:
            if healed_ns <= at_ns and not is_healed:
                is_healed = True
                yield self._op(healed_ns, NEMESIS, Type.INFO, HEAL)
            if isinstance(what, Look):
                yield from self._look(at_ns, is_end, what)
            else:
                yield from self._sent(at_ns, is_end, what)
        for _, what in list(self.busy.values()):
            if _has_failed(what):
                yield from self._sent(at_ns, True, what)

    def _sent(self, at_ns: int, is_end: bool, what: object) -> Iterator[Op]:
        if isinstance(what, Write):
            yield from self._write(at_ns, is_end, what)
        elif isinstance(what, Transaction):
            yield from self._transaction(at_ns, is_end, what)

    def _deleted(self) -> dict[int, int]:
        """What may be gone, from the beginning on: it is not written down when somebody asked for it."""
        found = {self.logs[place]: offset for place, offset in self.history.start_bounds.items() if place in self.logs}
        return found | {self.logs[place]: UNKNOWN for place in self.history.deleting_all if place in self.logs}

    def _write(self, at_ns: int, is_end: bool, write: Write) -> Iterator[Op]:
        if write.place not in self.logs:
            return
        type_ = TYPES.get(write.outcome, Type.INFO) if is_end else Type.INVOKE
        if type_ is Type.OK and write.acks != ACKS_ALL:
            type_ = Type.INFO
        process = self._process((write.writer, write.place), write, type_)
        yield self._op(at_ns, process, type_, F.SEND, tuple(self._sends(write, has_offsets=is_end)))

    def _transaction(self, at_ns: int, is_end: bool, transaction: Transaction) -> Iterator[Op]:
        sends = [
            send
            for write in transaction.writes
            if write.place in self.logs
            for send in self._sends(write, has_offsets=is_end)
        ]
        type_ = Type.INVOKE
        if is_end:
            type_ = TYPES.get(transaction.outcome, Type.INFO) if transaction.may_be_committed else Type.FAIL
        process = self._process((transaction.transactional_id, transaction.instance), transaction, type_)
        yield self._op(at_ns, process, type_, F.TXN, tuple(sends))

    def _sends(self, write: Write, *, has_offsets: bool) -> Iterator[Send]:
        log = self.logs[write.place]
        for number, identity in enumerate(write.values):
            offset = write.base_offset + number if has_offsets and write.base_offset >= 0 else UNKNOWN
            send = Send(log, self._value(identity), offset)
            if log in self.compacted:
                record = write.records[number]
                send = send._replace(key=self._key(record.key), is_tombstone=record.value is None)
            yield send

    def _look(self, at_ns: int, is_end: bool, look: Look) -> Iterator[Op]:
        if self.has_transactions and not look.is_committed:
            return
        spans = {self.logs[place]: Span(*span) for place, span in look.positions.items() if place in self.logs}
        given: dict[int, list[Record]] = {}
        for place, offset, identity, key, is_tombstone in look.given if is_end else ():
            log = self.logs.get(place)
            if log is not None and not self._is_deleted_copy(place, offset, identity):
                record = Record(offset, self._value(identity))
                if log in self.compacted:
                    record = record._replace(key=self._key(key), is_tombstone=is_tombstone)
                given.setdefault(log, []).append(record)
        if not spans and not look.given:
            return
        type_ = Type.OK if is_end else Type.INVOKE
        process = self._process(look if look.is_shared or look.is_table else look.reader, look, type_)
        f = F.TABLE if look.is_table else F.POLL
        yield self._op(at_ns, process, type_, f, (Poll(given),), spans=spans if is_end else {})

    def _is_deleted_copy(self, place: TopicPartition, offset: int, identity: bytes | None) -> bool:
        """Whether this is the first copy of a record that may have been written again since this one was deleted."""
        return offset < min(self.second.get(identity or b"", 0), self.history.start_bounds.get(place, 0))

    def _process(self, client: object, what: object, type_: Type) -> int:
        """A client that does several things at once is several processes. One of which nobody knows what came of what
        it did is never heard of again."""
        client = id(client) if isinstance(client, Look) else client
        if type_ is Type.INVOKE:
            free = self.free[client]
            if free:
                process = free.pop()
            else:
                process, self.processes_count = self.processes_count, self.processes_count + 1
            self.busy[id(what)] = process, what
            return process
        process, _ = self.busy.pop(id(what))
        if type_ is not Type.INFO:
            self.free[client].append(process)
        return process

    def _value(self, identity: bytes | None) -> int:
        return self.values.setdefault(identity, len(self.values))

    def _key(self, key: bytes | None) -> int:
        return self.keys.setdefault(key, len(self.keys))

    def _op(
        self,
        at_ns: int,
        process: int,
        type_: Type,
        f: str,
        micro_ops: Sequence[MicroOp] = (),
        *,
        offsets: Mapping[int, int] | None = None,
        spans: Mapping[int, Span] | None = None,
        ext: Mapping[str, object] | None = None,
    ) -> Op:
        self.index += 1
        return Op(
            index=self.index - 1,
            time_ns=at_ns,
            process=process,
            type=type_,
            f=f,
            micro_ops=tuple(micro_ops),
            offsets=offsets or {},
            spans=spans or {},
            ext=ext or {},
        )
