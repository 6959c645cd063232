"""One client of a run: a producer and a consumer of one driver, which do one operation after the other.

It runs in the client's own process (`clients/serve.py`), so that an operation is one question and one answer, whatever
it consists of. What a consumer was given and where it stood is told as the client tells it; after an operation that
failed, the consumer goes back to where the operation found it (KAFKA-17582: no client does so by itself).

A commit of which nobody knows what came is not followed by an abort, unless that is asked for: it is how KAFKA-17754 is
provoked. The operation ends in INFO, and whoever asked ends this process and starts another.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sexton.errors import SextonError
from sexton.history.op import UNKNOWN, Ext, F, MicroOp, Op, Poll, Record, Send, Span, Type
from sexton.verify.clients.base import ABORT, FATAL, FENCED, RETRY, Consumer, Failure, Frozen, Place, Producer, Refused
from sexton.verify.clients.base import Settings as ClientSettings
from sexton.verify.generator import NTH_REPLICA, Ask
from sexton.verify.outcomes import is_refused
from sexton.verify.reading import POLL_S, Reading, asked, content_of

if TYPE_CHECKING:
    from sexton.client.security.properties import Security

READ_ALL_S: Final = 30.0
"""For a fresh consumer to read logs from their start to their end. Half of it where it has waited for a transaction."""

SCAN_S: Final = 15.0
"""The same through one replica, which may be away."""

TOPIC_EXISTS: Final = 36

INTENDED: Final = "aborted on purpose"

FAILURES_MAX: Final = 3
"""Transactions of a producer that fail one after the other before it gets a successor, as a supervisor would see to:
kafka-python 3.0.12 whose transaction has timed out never asks for the new epoch that it needs to go on."""


@dataclass(frozen=True, slots=True)
class Topics:
    """How topics are made that are not there."""

    partitions: int
    replication: int
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    driver: str
    bootstrap: str
    transactional_id: str
    group: str
    isolation: str = "read_committed"
    transaction_timeout_ms: int = 1_000
    producer: ClientSettings = field(default_factory=dict)
    consumer: ClientSettings = field(default_factory=dict)
    fresh_consumer: ClientSettings = field(default_factory=dict)
    """Beside `consumer`, of one that reads whole logs and is not used again."""
    aborts_after_timeout: bool = False
    """Whether a commit that was not answered in time is followed by an abort, as Java's documentation long said."""
    rewinds: bool = True
    """Whether the consumer goes back after an operation that failed."""
    poll_s: float = POLL_S
    """How long a poll waits for something."""
    plain_producer: ClientSettings = field(default_factory=dict)
    """Beside `producer`, of what is sent without a transaction."""
    has_generation: bool = True
    """See `generator.Needs`."""
    security: Security | None = None
    """How to get in; None: the cluster is open."""


class Completion(NamedTuple):
    """A tuple, which goes through a pipe in a third of the time that it would take otherwise."""

    type: Type
    micro_ops: tuple[MicroOp, ...] = ()
    offsets: Mapping[int, int] = {}
    spans: Mapping[int, Span] = {}
    rebalanced: frozenset[int] = frozenset()
    error: str = ""
    ext: Mapping[str, Any] = {}

    def op(self, asked: Op, index: int, time_ns: int) -> Op:
        """The completion of this invocation."""
        return Op(
            *(index, time_ns, asked.process, self.type, asked.f, self.micro_ops or asked.micro_ops, asked.logs),
            offsets=self.offsets,
            spans=self.spans,
            rebalanced=self.rebalanced,
            error=self.error,
            client=asked.client,
            ext={**asked.ext, **self.ext},
        )


@dataclass(slots=True)
class Progress:
    """What an operation has done so far."""

    micro_ops: list[MicroOp]
    """Those to come are as they were asked for."""
    spans: dict[int, Span] = field(default_factory=dict)

    def polled(self, index: int, poll: Poll, spans: Mapping[int, Span]) -> None:
        self.micro_ops[index] = poll
        for log, span in spans.items():
            earlier = self.spans.get(log)
            self.spans[log] = span if earlier is None else Span(earlier.start_offset, span.end_offset)

    def completion(self, type_: Type, error: str = "", ext: Mapping[str, Any] | None = None) -> Completion:
        return Completion(type=type_, micro_ops=tuple(self.micro_ops), spans=self.spans, error=error, ext=ext or {})

    def ends(self) -> dict[int, int]:
        """Of the logs of which records were polled: where it stands there."""
        logs = {log for each in self.micro_ops if isinstance(each, Poll) for log in each.records}
        return {log: self.spans[log].end_offset for log in sorted(logs) if log in self.spans}


class _IntendedAbort(Exception):  # noqa: N818
    pass


@dataclass(frozen=True, slots=True)
class Given:
    """What a copier's last poll gave it, and the member of the group that it was then."""

    ends: Mapping[int, int]
    member: Frozen


class Session:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._driver: Any = importlib.import_module(f"sexton.verify.clients.{options.driver}")
        self._driver.prepare()
        self._places: dict[int, Place] = {}
        self._missing: dict[str, Topics] = {}
        """Topics that are to be made."""
        self._topics: set[str] = set()
        """Topics that exist."""
        self._producers: dict[str, Producer] = {}
        """Producers, by transactional id."""
        self._zombie: Producer | None = None
        """A producer that is in a transaction although it has a successor."""
        self._failures_count = 0
        """Of transactions, since the last that did not fail."""
        self._reading: Reading | None = None
        self._given: Given | None = None

    def do(self, ask: Ask, places: Mapping[int, Place], topics: Mapping[str, Topics]) -> Completion:
        """`places` and `topics` are those of logs that were not named before."""
        try:
            self.know(places, topics)
        except Refused as refused:
            return Completion(
                type=Type.FAIL, micro_ops=ask.micro_ops, error=f"{refused.name}: the topic could not be created"
            )
        match ask.f:
            case F.ASSIGN | F.SUBSCRIBE:
                done = self._read(ask)
            case F.TABLE:
                return self._table(ask)
            case F.SCAN:
                return self._scan(ask)
            case F.COMMIT:
                done = self._commit()
            case F.COMMITTED:
                done = self._committed(ask)
            case _:
                done = self._transaction(ask) if ask.ext.get("transaction") else self._plain(ask)
        moved = frozenset() if self._reading is None else self._reading.take_moved()
        return done._replace(rebalanced=moved) if moved else done

    def know(self, places: Mapping[int, Place], topics: Mapping[str, Topics]) -> None:
        """Raises Refused if a topic cannot be made."""
        if not (places or topics or self._missing):
            return
        self._places |= places
        self._missing |= {topic: wanted for topic, wanted in topics.items() if topic not in self._topics}
        if self._missing:
            self.create_topics()

    def end(self) -> None:
        """Without notice, as far as that can be had of a client whose process goes on."""
        for producer in list(self._producers.values()):
            self._drop(producer)
        if self._reading is not None:
            self._reading.close()

    def create_topics(self) -> None:
        admin = self._driver.Admin(self._options.bootstrap, self._options.security)
        try:
            for topic, wanted in sorted(self._missing.items()):
                try:
                    admin.create(topic, wanted.partitions, wanted.replication, wanted.settings)
                except Refused as refused:
                    if refused.code != TOPIC_EXISTS:
                        raise
                self._topics.add(topic)
                del self._missing[topic]
        finally:
            admin.close()

    # -- reading

    def _consumer(self, group: str | None) -> Consumer:
        options = self._options
        make = self._driver.Consumer
        settings = {**options.consumer, **({} if group else options.fresh_consumer)}
        made: Consumer = asked(make, options.bootstrap, options.isolation, group, settings, options.security)
        return made

    def _read(self, ask: Ask) -> Completion:
        """Who assigns logs to itself reads those that it had on where it stands, any other from its beginning. A member
        of a group begins where the group is; one that subscribes to nothing leaves it. A consumer is never first the
        one and then the other."""
        is_member = ask.f == F.SUBSCRIBE
        had = self._positions()
        try:
            if self._reading is not None and (self._reading.is_member != is_member or not ask.logs):
                self._reading.leave()
                self._reading = self._given = None
            if not ask.logs:
                return Completion(type=Type.OK)
            if self._reading is None:
                consumer = self._consumer(self._options.group)
                self._reading = Reading(consumer, self._places, is_member=is_member, poll_s=self._options.poll_s)
            if is_member:
                self._reading.subscribe(ask.logs)
            else:
                self._reading.assign({log: max(had.get(log, 0), 0) for log in ask.logs})
        except Failure as failure:
            return Completion(type=Type.INFO, error=str(failure))
        return Completion(type=Type.OK)

    def _table(self, ask: Ask) -> Completion:
        progress = Progress(list(ask.micro_ops))
        try:
            reading = Reading(self._consumer(None), self._places)
        except Failure as failure:
            return progress.completion(Type.FAIL, str(failure))
        try:
            bounds = {log: asked(reading.consumer.bounds, self._places[log]) for log in ask.logs}
            ends = {log: max(end, ask.offsets.get(log, 0)) for log, (_, end) in bounds.items()}
            reading.assign({log: start for log, (start, _) in bounds.items()})
            records: dict[int, tuple[Record, ...]] = {}
            open_s = self._options.transaction_timeout_ms / 1_000
            deadline_s = time.monotonic() + max(READ_ALL_S, open_s + READ_ALL_S / 2)
            while True:
                poll, spans = reading.poll()
                for log, given in poll.records.items():
                    records[log] = (*records.get(log, ()), *given)
                progress.polled(0, Poll(records), spans)
                if all(reading.positions[log] >= end for log, end in ends.items()):
                    return progress.completion(Type.OK)
                if time.monotonic() > deadline_s:
                    return progress.completion(Type.FAIL, "not at the end in time", {"ends": ends})
        except Failure as failure:
            return progress.completion(Type.FAIL, str(failure))
        finally:
            reading.close()

    def _scan(self, ask: Ask) -> Completion:
        """As a table is read, through a replica that is named, or chosen by number."""
        from sexton.verify import scanning  # Sexton's own client takes longer to import than all else here

        places = {log: self._places[log] for log in ask.logs}
        replica = ask.ext.get(Ext.REPLICA, UNKNOWN)
        wanted = scanning.Wanted(places, replica, ask.ext.get(NTH_REPLICA, 0), ask.offsets)
        try:
            options = self._options
            found = scanning.scan(options.bootstrap, wanted, options.isolation, SCAN_S, options.security)
        except SextonError as error:
            return Completion(type=Type.FAIL, error=str(error).partition("\n")[0])
        return Completion(
            type=Type.FAIL if found.error else Type.OK,
            micro_ops=(Poll({log: tuple(records) for log, records in found.records.items() if records}),),
            spans=found.spans,
            error=found.error.partition("\n")[0],
            ext={str(Ext.REPLICA): found.replica},
        )

    # -- offsets of a group

    def _commit(self) -> Completion:
        """What it has read so far, of the logs that it has."""
        offsets = {log: offset for log, offset in self._positions().items() if offset != UNKNOWN}
        if self._reading is None or not offsets:
            return Completion(type=Type.FAIL, error="it has nothing to commit", ext=self._grouped())
        consumer = self._reading.consumer
        try:
            asked(consumer.commit_offsets, {self._places[log]: offset for log, offset in offsets.items()}, "")
        except Failure as failure:
            type_ = Type.FAIL if is_refused(failure) else Type.INFO
            return Completion(type=type_, offsets=offsets, error=str(failure), ext=self._grouped())
        # Asked for afterwards: a member that joined again meanwhile is not taken for one of an older generation.
        generation = consumer.generation() if self._options.has_generation else UNKNOWN
        told = {} if generation == UNKNOWN else {str(Ext.GENERATION): generation}
        return Completion(type=Type.OK, offsets=offsets, ext=self._grouped() | told)

    def _committed(self, ask: Ask) -> Completion:
        try:
            if self._reading is None:
                self._reading = Reading(self._consumer(self._options.group), self._places)
            found = {log: asked(self._reading.consumer.committed, self._places[log]) for log in ask.logs}
        except Failure as failure:
            return Completion(type=Type.FAIL, error=str(failure), ext=self._grouped())
        offsets = {log: offset for log, offset in found.items() if offset is not None}
        return Completion(type=Type.OK, offsets=offsets, ext=self._grouped())

    # -- operations

    def _plain(self, ask: Ask) -> Completion:
        """Without a transaction there is one micro-operation."""
        progress = Progress(list(ask.micro_ops))
        (micro_op,) = ask.micro_ops
        if isinstance(micro_op, Poll):
            before = self._positions()
            try:
                self._poll(progress, 0)
                if self._reading is not None and self._reading.is_member:
                    self._given = self._now_given(progress)
                    if ask.ext.get("commits") and self._given is not None:
                        return self._polled_and_committed(progress)
                return progress.completion(Type.OK, ext=self._grouped())
            except Failure as failure:
                error = self._rewind(before)
                return progress.completion(Type.INFO if error else Type.FAIL, str(failure) + error, self._grouped())
        try:
            self._send(self._producer(""), progress, 0)
            return progress.completion(Type.OK)
        except Failure as failure:
            if failure.todo in (FENCED, FATAL):
                self._drop(self._producers.get(""))
            return progress.completion(Type.FAIL if is_refused(failure) else Type.INFO, str(failure))

    def _polled_and_committed(self, progress: Progress) -> Completion:
        """A commit that was refused leaves a poll as good as it was."""
        done = self._commit()
        ext = {**done.ext, str(Ext.OFFSETS): done.offsets} if done.type is not Type.FAIL else done.ext
        return progress.completion(Type.OK if done.type is Type.FAIL else done.type, done.error, ext)

    def _transaction(self, ask: Ask) -> Completion:
        progress = Progress(list(ask.micro_ops))
        before = self._positions()
        has_tried_to_commit = False
        producer: Producer | None = None
        try:
            producer = self._producer(self._options.transactional_id)
            producer.begin()
            for index in range(len(ask.micro_ops)):
                _abort_if_intended(ask, index)
                self._succeed_if_intended(ask, index)
                if index:
                    time.sleep(ask.ext.get("sleep_ms", 0) / 1_000)
                if isinstance(ask.micro_ops[index], Poll):
                    self._poll(progress, index)
                else:
                    self._send(producer, progress, index)
            _abort_if_intended(ask, len(ask.micro_ops))
            self._succeed_if_intended(ask, len(ask.micro_ops))
            time.sleep(ask.ext.get("late_ms", 0) / 1_000)
            given = self._given if ask.f == F.EOS else self._now_given(progress)
            ends = given.ends if given is not None else {}
            if given is not None and ends:
                producer.send_offsets({self._places[log]: offset for log, offset in ends.items()}, given.member)
            has_tried_to_commit = True
            producer.commit()
            self._failures_count = 0
            return progress.completion(Type.OK, ext=self._grouped() | ({str(Ext.OFFSETS): ends} if ends else {}))
        except _IntendedAbort:
            type_, error = Type.FAIL, INTENDED
            self._abort(producer)
        except Failure as failure:
            is_aborted = self._aborts_after(failure, has_tried_to_commit) and self._abort(producer)
            # One that had its successor before it tried to commit: that one's coming has aborted the transaction.
            is_fenced = failure.todo == FENCED and self._zombie is not None
            is_certain = is_aborted or not has_tried_to_commit or is_refused(failure) or is_fenced
            type_, error = Type.FAIL if is_certain else Type.INFO, str(failure)
            self._failures_count += 1
            if not is_aborted or self._failures_count == FAILURES_MAX:
                self._failures_count = 0
                self._drop(producer)
        finally:
            self._bury()
        unwound = "" if ask.ext.get("stays") else self._rewind(None if ask.f == F.EOS else before)
        return progress.completion(Type.INFO if unwound else type_, error + unwound, self._grouped())

    def _aborts_after(self, failure: Failure, has_tried_to_commit: bool) -> bool:
        if failure.todo == RETRY and has_tried_to_commit:
            return self._options.aborts_after_timeout
        return failure.todo == ABORT

    def _abort(self, producer: Producer | None) -> bool:
        """Whether it was acknowledged. A producer that cannot abort is not used again: the next one with its id does
        so, or time does."""
        if producer is None:
            return False
        try:
            producer.abort()
        except Failure:
            self._drop(producer)
            return False
        return True

    def _send(self, producer: Producer, progress: Progress, index: int) -> None:
        send = progress.micro_ops[index]
        assert isinstance(send, Send)
        value, key, headers = content_of(send)
        producer.send(*self._places[send.log], [value], key, headers)
        (offset,) = producer.flush()
        progress.micro_ops[index] = send._replace(offset=offset)

    def _poll(self, progress: Progress, index: int) -> None:
        if self._reading is not None:
            progress.polled(index, *self._reading.poll())

    # -- what an operation leaves behind

    def _producer(self, transactional_id: str) -> Producer:
        if transactional_id not in self._producers:
            options = self._options
            settings = options.producer if transactional_id else {**options.producer, **options.plain_producer}
            made: Producer = self._driver.Producer(
                options.bootstrap, transactional_id, options.transaction_timeout_ms, settings, options.security
            )
            self._producers[transactional_id] = made
            try:
                made.init()
            except Failure as failure:
                self._drop(made)
                raise Failure(FATAL, failure.name, failure.message) from None
        return self._producers[transactional_id]

    def _succeed_if_intended(self, ask: Ask, index: int) -> None:
        """The producer's id goes to a new one, as when a supervisor takes it for dead. It goes on, and must be
        fenced."""
        if ask.ext.get("succeeded_after") == index:
            self._zombie = self._producers.pop(self._options.transactional_id)
            self._producer(self._options.transactional_id)

    def _drop(self, producer: Producer | None) -> None:
        """The next one with its id is a new one."""
        for name in [name for name, each in self._producers.items() if each is producer]:
            with suppress(Exception):
                self._producers.pop(name).close()

    def _bury(self) -> None:
        """Whatever came of it."""
        zombie, self._zombie = self._zombie, None
        if zombie is not None:
            with suppress(Exception):
                zombie.close()

    def _positions(self) -> dict[int, int]:
        return {} if self._reading is None else dict(self._reading.positions)

    def _rewind(self, positions: Mapping[int, int] | None) -> str:
        """None: to what its group has committed. Why it could not: such a client is not asked again."""
        if self._reading is None or not self._options.rewinds:
            return ""
        try:
            if positions is None:
                self._reading.rewind_to_committed()
            else:
                self._reading.rewind(positions)
        except Failure as failure:
            return f"; not rewound: {failure}"
        return ""

    def _now_given(self, progress: Progress) -> Given | None:
        """Nothing for a client whose producers cannot be told a consumer's offsets."""
        ends = progress.ends()
        if not ends or self._reading is None or not getattr(self._driver, "SENDS_OFFSETS", True):
            return None
        return Given(ends, Frozen(self._reading.consumer))

    def _grouped(self) -> dict[str, Any]:
        return {} if self._reading is None else {str(Ext.GROUP): self._options.group}


def _abort_if_intended(ask: Ask, index: int) -> None:
    if ask.ext.get("abort_after") == index:
        raise _IntendedAbort
