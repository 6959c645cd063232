"""Correct histories, made from a seed by a small model of logs, for the judge's own test: nothing wrong may be found in
them. `sabotage` breaks them.

The model has transactions and their markers, last stable offsets, two replicas that compact at different times, a
leader that moves, retention, a group, an exactly-once copier, clients that die, and a nemesis. It shares nothing with
Sexton's. What a client does is a coroutine that a scheduler steps at random, so operations overlap as they would.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sexton.history.op import HEAL, NEMESIS, UNKNOWN, Ext, F, Log, MicroOp, Op, Poll, Record, Run, Send, Span, Type

QUEUES: Final = (0, 1)
SHORT_TABLE: Final = 2
LONG_TABLE: Final = 3
TABLES: Final = (SHORT_TABLE, LONG_TABLE)
INPUT: Final = 4
OUTPUT: Final = 5
SHARED: Final = 6
"""The log that a group reads."""
RETAINED: Final = 7

LOGS: Final = {
    0: Log("queue", 0),
    1: Log("queue", 1),
    SHORT_TABLE: Log("table", 0, is_compacted=True, delete_retention_ms=2_000),
    LONG_TABLE: Log("table", 1, is_compacted=True, delete_retention_ms=60_000),
    INPUT: Log("in", 0),
    OUTPUT: Log("out", 0, eos_input=(INPUT,)),
    SHARED: Log("shared", 0),
    RETAINED: Log("retained", 0, is_retained=True),
}
GROUP: Final = "members"
COPIERS: Final = "copiers"
REPLICAS: Final = (1, 2)
CONCURRENCY: Final = 16
MILLISECOND_NS: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class History:
    ops: Sequence[Op]
    run: Run


def correct(seed: int, steps: int = 600) -> History:
    world = _World(random.Random(seed))
    world.live(steps)
    run = Run(name=correct_name(seed), workload="mixed", logs=LOGS)
    return History(world.ops, run)


def correct_name(seed: int | str) -> str:
    return f"planted-{seed}"


@dataclass(slots=True)
class _Transaction:
    is_open: bool = True
    is_committed: bool = False


@dataclass(frozen=True, slots=True)
class _Entry:
    record: Record
    transaction: _Transaction | None
    time_ns: int

    @property
    def is_committed(self) -> bool:
        return self.transaction is None or self.transaction.is_committed


@dataclass(slots=True)
class _Partition:
    """One log. Replicas have the same entries, and each has removed some."""

    facts: Log
    entries: list[_Entry] = field(default_factory=list)
    start: int = 0
    end: int = 0
    removed: dict[int, set[int]] = field(default_factory=lambda: {replica: set() for replica in REPLICAS})
    leader: int = REPLICAS[0]
    leader_epoch: int = 0

    def append(self, send: Send, transaction: _Transaction | None, now_ns: int) -> int:
        record = Record(self.end, send.value, send.key, send.is_tombstone)
        self.entries.append(_Entry(record, transaction, now_ns))
        self.end += 1
        return record.offset

    def last_stable_offset(self) -> int:
        opened = (entry.record.offset for entry in self.entries if entry.transaction and entry.transaction.is_open)
        return min(opened, default=self.end)

    def read(self, position: int, count_max: int, replica: int | None = None) -> tuple[list[Record], Span]:
        removed = self.removed[self.leader if replica is None else replica]
        position = max(position, self.start)
        stable = self.last_stable_offset()
        found: list[Record] = []
        for entry in self.entries:
            offset = entry.record.offset
            if position <= offset < stable and entry.is_committed and offset not in removed:
                if len(found) == count_max:
                    return found, Span(position, found[-1].offset + 1)
                found.append(entry.record)
        return found, Span(position, max(stable, position))

    def compact(self, replica: int, now_ns: int) -> None:
        """A tombstone goes only when no replica has what it deleted."""
        stable = self.last_stable_offset()
        below = [entry for entry in self.entries if entry.record.offset < stable]
        newest = {entry.record.key: entry.record.offset for entry in below if entry.is_committed}
        for entry in below:
            record = entry.record
            if not entry.is_committed or record.offset < newest[record.key]:
                self.removed[replica].add(record.offset)
        for entry in below:
            is_old = entry.time_ns + self.facts.delete_retention_ms * MILLISECOND_NS <= now_ns
            if entry.record.is_tombstone and is_old and entry.record.offset == newest.get(entry.record.key):
                older = {
                    other.record.offset
                    for other in below
                    if other.record.key == entry.record.key and other.record.offset < entry.record.offset
                }
                if all(older <= self.removed[other] for other in REPLICAS):
                    self.removed[replica].add(entry.record.offset)


@dataclass(slots=True)
class _World:
    rng: random.Random
    partitions: dict[int, _Partition] = field(
        default_factory=lambda: {log: _Partition(facts) for log, facts in LOGS.items()}
    )
    ops: list[Op] = field(default_factory=list)
    now_ns: int = 0
    value: int = 0
    is_stopping: bool = False
    committed: dict[str, int] = field(default_factory=lambda: {GROUP: 0, COPIERS: 0})
    generation: int = 0
    owner: int = UNKNOWN

    def live(self, steps: int) -> None:
        clients: Sequence[Callable[[int], Iterator[None]]] = (
            self._producer,
            self._producer,
            self._producer,
            self._consumer,
            self._consumer,
            self._copier,
            self._member,
            self._member,
            self._table_reader,
            self._table_reader,
            self._prober,
            self._cleaner,
        )
        running: list[Iterator[None]] = [client(process) for process, client in enumerate(clients)]
        faults = {steps // 4: ("kill", "start"), steps // 2: ("kill", "stop"), steps * 3 // 4: (HEAL, "stop")}
        for step in range(steps):
            if step in faults:
                f, phase = faults[step]
                self._add(NEMESIS, Type.INFO, f, ext={Ext.PHASE: phase})
            next(self.rng.choice(running))
            self.now_ns += self.rng.randrange(1, 40) * MILLISECOND_NS
        self.is_stopping = True
        while running:
            client_running = self.rng.choice(running)
            if next(client_running, self) is self:
                running.remove(client_running)
            self.now_ns += self.rng.randrange(1, 40) * MILLISECOND_NS
        for _ in self._final_reads(CONCURRENCY * 1_000):
            self.now_ns += self.rng.randrange(1, 40) * MILLISECOND_NS

    def invoke(self, process: int, f: str, *micro_ops: MicroOp, **more: Any) -> None:
        self._add(process, Type.INVOKE, f, *micro_ops, **more)

    def complete(self, process: int, type: Type, f: str, *micro_ops: MicroOp, **more: Any) -> int:
        """Which process goes on: another one after an unknown end."""
        self._add(process, type, f, *micro_ops, **more)
        return process + CONCURRENCY if type is Type.INFO else process

    def _add(self, process: int, type: Type, f: str, *micro_ops: MicroOp, **more: Any) -> None:
        self.now_ns += 1_000
        self.ops.append(
            Op(index=len(self.ops), time_ns=self.now_ns, process=process, type=type, f=f, micro_ops=micro_ops, **more)
        )

    def _new_send(self, log: int) -> Send:
        self.value += 1
        if log not in TABLES:
            return Send(log, self.value)
        return Send(log, self.value, key=self.rng.randrange(6), is_tombstone=self.rng.random() < 0.3)

    def _append(self, send: Send, transaction: _Transaction | None = None) -> Send:
        return send._replace(offset=self.partitions[send.log].append(send, transaction, self.now_ns))

    def _end(self, transaction: _Transaction, sends: Sequence[Send], is_committed: bool) -> None:
        """Each log gets a marker."""
        transaction.is_open = False
        transaction.is_committed = is_committed
        for log in {send.log for send in sends}:
            self.partitions[log].end += 1

    def _producer(self, process: int) -> Iterator[None]:
        while not self.is_stopping:
            log = self.rng.choice((*QUEUES, *QUEUES, *TABLES, *TABLES, INPUT, SHARED, RETAINED))
            if log in (*QUEUES, *TABLES) and self.rng.random() < 0.4:
                process = yield from self._transaction(process)
                continue
            asked = self._new_send(log)
            self.invoke(process, F.SEND, asked)
            yield
            fate = self.rng.random()
            sent = asked if fate < 0.08 else self._append(asked)
            yield
            if fate < 0.04:
                process = self.complete(process, Type.FAIL, F.SEND, asked)
            elif fate < 0.12:
                process = self.complete(process, Type.INFO, F.SEND, asked)
            elif fate < 0.15 and log in QUEUES:
                process = self.complete(process, Type.OK, F.SEND, asked)
            else:
                process = self.complete(process, Type.OK, F.SEND, sent)
            yield

    def _transaction(self, process: int) -> Generator[None, None, int]:
        asked = [self._new_send(self.rng.choice((*QUEUES, *TABLES))) for _ in range(self.rng.randrange(1, 5))]
        self.invoke(process, F.TXN, *asked)
        yield
        transaction = _Transaction()
        sent = []
        for send in asked:
            sent.append(self._append(send, transaction))
            yield
        type_ = self.rng.choices((Type.OK, Type.FAIL, Type.INFO), (6, 3, 1))[0]
        self._end(transaction, sent, is_committed=type_ is Type.OK or (type_ is Type.INFO and self.rng.random() < 0.5))
        yield
        answered = sent if type_ is not Type.INFO or self.rng.random() < 0.5 else asked
        return self.complete(process, type_, F.TXN, *answered)

    def _poll(self, positions: dict[int, int]) -> tuple[Poll, dict[int, Span]]:
        """Moves the positions."""
        records, spans = {}, {}
        for log in sorted(positions):
            found, spans[log] = self.partitions[log].read(positions[log], self.rng.randrange(1, 9))
            if found:
                records[log] = found
            positions[log] = spans[log].end_offset
        return Poll(records), spans

    def _consumer(self, process: int) -> Iterator[None]:
        """Assigns logs to itself. Now and then it polls and sends in a transaction, and is rewound if that fails."""
        positions: dict[int, int] = {}
        while not self.is_stopping:
            if not positions or self.rng.random() < 0.03:
                logs = self.rng.sample((*QUEUES, *TABLES, RETAINED), 4)
                self.invoke(process, F.ASSIGN, logs=tuple(logs))
                yield
                process = self.complete(process, Type.OK, F.ASSIGN, logs=tuple(logs))
                positions = {log: positions.get(log, 0) for log in logs}
            elif self.rng.random() < 0.3:
                before = dict(positions)
                old = process
                process = yield from self._poll_and_send(process, positions)
                positions = {} if process != old else positions
                positions = before if self.ops[-1].type is Type.FAIL else positions
            else:
                self.invoke(process, F.POLL, Poll())
                yield
                if self.rng.random() < 0.03:
                    process = self.complete(process, Type.INFO, F.POLL, Poll())
                    positions = {}
                else:
                    poll, spans = self._poll(positions)
                    yield
                    process = self.complete(process, Type.OK, F.POLL, poll, spans=spans)
            yield

    def _poll_and_send(self, process: int, positions: dict[int, int]) -> Generator[None, None, int]:
        """In either order."""
        asked = self._new_send(self.rng.choice(QUEUES))
        sends_first = self.rng.random() < 0.5
        self.invoke(process, F.TXN, *((asked, Poll()) if sends_first else (Poll(), asked)))
        yield
        transaction = _Transaction()
        if sends_first:
            sent = self._append(asked, transaction)
            yield
        poll, spans = self._poll(positions)
        yield
        if not sends_first:
            sent = self._append(asked, transaction)
            yield
        type_ = self.rng.choices((Type.OK, Type.FAIL, Type.INFO), (6, 2, 1))[0]
        self._end(
            transaction, [sent], is_committed=type_ is Type.OK or (type_ is Type.INFO and self.rng.random() < 0.5)
        )
        yield
        done = (sent, poll) if sends_first else (poll, sent)
        return self.complete(process, type_, F.TXN, *done, spans=spans)

    def _copier(self, process: int) -> Iterator[None]:
        while not self.is_stopping:
            positions = {INPUT: self.committed[COPIERS]}
            self.invoke(process, F.EOS, Poll())
            yield
            poll, spans = self._poll(positions)
            yield
            transaction = _Transaction()
            sent = []
            for record in poll.records.get(INPUT, ()):
                self.value += 1
                sent.append(self._append(Send(OUTPUT, self.value, key=record.value), transaction))
                yield
            type_ = self.rng.choices((Type.OK, Type.FAIL, Type.INFO), (6, 2, 1))[0]
            is_committed = type_ is Type.OK or (type_ is Type.INFO and self.rng.random() < 0.5)
            self._end(transaction, sent, is_committed)
            if is_committed:
                self.committed[COPIERS] = positions[INPUT]
            yield
            process = self.complete(
                process,
                type_,
                F.EOS,
                poll,
                *sent,
                spans=spans,
                ext={Ext.GROUP: COPIERS, Ext.OFFSETS: {str(INPUT): positions[INPUT]}},
            )
            yield

    def _member(self, process: int) -> Iterator[None]:
        """Of a group that gives its log to one member, until that dies; a process is given it once."""
        while not self.is_stopping:
            self.invoke(process, F.SUBSCRIBE, logs=(SHARED,))
            yield
            process = self.complete(process, Type.OK, F.SUBSCRIBE, logs=(SHARED,))
            while self.owner != UNKNOWN and not self.is_stopping:
                yield
            if self.is_stopping:
                return
            self.owner = process
            self.generation += 1
            ext = {Ext.GROUP: GROUP, Ext.GENERATION: self.generation}
            positions = {SHARED: self.committed[GROUP]}
            rebalanced = frozenset({SHARED})
            while not self.is_stopping and self.rng.random() < 0.9:
                self.invoke(process, F.POLL, Poll())
                yield
                poll, spans = self._poll(positions)
                yield
                self.complete(process, Type.OK, F.POLL, poll, spans=spans, rebalanced=rebalanced, ext=ext)
                rebalanced = frozenset()
                yield
                if self.rng.random() < 0.5:
                    offsets = dict(positions)
                    self.invoke(process, F.COMMIT, offsets=offsets, ext=ext)
                    yield
                    self.committed[GROUP] = positions[SHARED]
                    yield
                    self.complete(process, Type.OK, F.COMMIT, offsets=offsets, ext=ext)
                    yield
            self.invoke(process, F.CRASH)
            yield
            process = self.complete(process, Type.INFO, F.CRASH)
            self.owner = UNKNOWN
            yield

    def _table_reader(self, process: int) -> Iterator[None]:
        while not self.is_stopping:
            log = self.rng.choice(TABLES)
            replica = self.rng.choice((None, *REPLICAS))
            f = F.TABLE if replica is None else F.SCAN
            self.invoke(process, f, Poll())
            yield
            records, span = self.partitions[log].read(0, len(self.partitions[log].entries), replica)
            yield
            ext = {} if replica is None else {Ext.REPLICA: replica}
            self.complete(process, Type.OK, f, Poll({log: records}), spans={log: span}, ext=ext)
            yield

    def _prober(self, process: int) -> Iterator[None]:
        while not self.is_stopping:
            if self.rng.random() < 0.3:
                asks = {Ext.GROUP: GROUP}
                self.invoke(process, F.COMMITTED, ext=asks)
                yield
                offsets = {SHARED: self.committed[GROUP]}
                yield
                self.complete(process, Type.OK, F.COMMITTED, offsets=offsets, ext=asks)
            else:
                self.invoke(process, F.DEBUG)
                yield
                ext = self._look()
                yield
                self.complete(process, Type.OK, F.DEBUG, ext=ext)
            yield

    def _look(self) -> Mapping[str, Mapping[str, int]]:
        by_log = {str(log): partition for log, partition in self.partitions.items()}
        return {
            Ext.HIGH_WATERMARKS: {log: partition.end for log, partition in by_log.items()},
            Ext.LAST_STABLE_OFFSETS: {log: partition.last_stable_offset() for log, partition in by_log.items()},
            Ext.LOG_STARTS: {log: partition.start for log, partition in by_log.items()},
            Ext.LEADER_EPOCHS: {log: partition.leader_epoch for log, partition in by_log.items()},
        }

    def _cleaner(self, process: int) -> Iterator[None]:
        while not self.is_stopping:
            partition = self.partitions[self.rng.choice((*TABLES, RETAINED))]
            if partition.facts.is_compacted:
                partition.compact(self.rng.choice(REPLICAS), self.now_ns)
            else:
                partition.start = self.rng.randrange(partition.start, partition.last_stable_offset() + 1)
            if self.rng.random() < 0.2:
                partition.leader = self.rng.choice(REPLICAS)
                partition.leader_epoch += 1
            yield

    def _final_reads(self, process: int) -> Iterator[None]:
        ext = {Ext.SEEK_TO_BEGINNING: True}
        positions = dict.fromkeys(LOGS, 0)
        self.invoke(process, F.DEBUG)
        yield
        self.complete(process, Type.OK, F.DEBUG, ext=self._look())
        self.invoke(process, F.ASSIGN, logs=tuple(LOGS), ext=ext)
        yield
        self.complete(process, Type.OK, F.ASSIGN, logs=tuple(LOGS), ext=ext)
        while any(position < self.partitions[log].end for log, position in positions.items()):
            self.invoke(process, F.POLL, Poll())
            yield
            poll, spans = self._poll(positions)
            yield
            self.complete(process, Type.OK, F.POLL, poll, spans=spans)
