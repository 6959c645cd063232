"""One client of a run: a producer and a consumer of one driver, which do one operation after the other.

It runs in the client's own process (`clients/serve.py`), so that an operation is one question and one answer, whatever
it consists of. What a consumer was given and where it stood is told as the client tells it; after an operation that
failed, the consumer goes back to where the operation found it (KAFKA-17582: no client does so by itself).

A commit of which nobody knows what came is never followed by an abort. The operation ends in INFO, and whoever asked
ends this process and starts another.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sexton.history.op import UNKNOWN, Ext, F, MicroOp, Poll, Record, Send, Span, Type
from sexton.verify.clients.base import ABORT, FATAL, FENCED, Consumer, Failure, Message, Place, Producer, Refused
from sexton.verify.clients.base import Settings as ClientSettings
from sexton.verify.generator import Ask
from sexton.verify.outcomes import is_refused

T = TypeVar("T")

POLL_S: Final = 0.1
READ_ALL_S: Final = 30.0
"""For a fresh consumer to read logs from their start to their end. Longer than a transaction can stay open."""

TOPIC_EXISTS: Final = 36

ID_HEADER: Final = "id"
"""Has the value of a tombstone, whose record has none."""

INTENDED: Final = "aborted on purpose"

FAILURES_MAX: Final = 3
"""Transactions of a producer that fail one after the other before it gets a successor, as a supervisor would see to:
kafka-python 3.0.12 whose transaction has timed out never asks Sexton for the new epoch that it needs to go on."""


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
    topics: Topics
    isolation: str = "read_committed"
    transaction_timeout_ms: int = 1_000
    producer: ClientSettings = field(default_factory=dict)
    consumer: ClientSettings = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    type: Type
    micro_ops: tuple[MicroOp, ...] = ()
    spans: Mapping[int, Span] = field(default_factory=dict)
    error: str = ""
    ext: Mapping[str, Any] = field(default_factory=dict)


def encoded(number: int) -> bytes:
    """As Java's LongSerializer does."""
    return number.to_bytes(8, "big", signed=True)


def decoded(data: bytes | None) -> int:
    return UNKNOWN if data is None else int.from_bytes(data, "big", signed=True)


def record_of(message: Message) -> Record:
    if message.value is not None:
        return Record(message.offset, decoded(message.value), decoded(message.key))
    return Record(message.offset, decoded(dict(message.headers).get(ID_HEADER)), decoded(message.key), True)


class Reading:
    """A consumer that reads the logs that it was assigned, and where it is in each."""

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.positions: dict[int, int] = {}
        self._places: dict[int, Place] = {}

    def assign(self, starts: Mapping[int, int], places: Mapping[int, Place]) -> None:
        self._places = {log: places[log] for log in starts}
        self.positions = dict(starts)
        _asked(self.consumer.assign, {self._places[log]: offset for log, offset in starts.items()})

    def rewind(self, positions: Mapping[int, int]) -> None:
        if positions != self.positions:
            self.assign(positions, self._places)

    def poll(self) -> tuple[Poll, dict[int, Span]]:
        """What one poll of the client returned, and what its positions moved over. A position that went back is no
        span: the client was told to read on elsewhere."""
        before = dict(self.positions)
        log_of = {place: log for log, place in self._places.items()}
        found: dict[int, list[Record]] = {}
        for message in _asked(self.consumer.poll_messages, POLL_S):
            log = log_of[message.topic, message.partition]
            found.setdefault(log, []).append(record_of(message))
        for log, place in self._places.items():
            given = found[log][-1].offset + 1 if log in found else 0
            told = _asked(self.consumer.position, place)
            self.positions[log] = max(told, given) if max(told, given) > 0 else before[log]
        spans = {log: Span(start, self.positions[log]) for log, start in before.items() if start <= self.positions[log]}
        return Poll({log: tuple(records) for log, records in found.items()}), spans


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


class Session:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._driver: Any = importlib.import_module(f"sexton.verify.clients.{options.driver}")
        self._driver.prepare()
        self._places: dict[int, Place] = {}
        self._topics: set[str] = set()
        self._producers: dict[str, Producer] = {}
        """By transactional id."""
        self._failures_count = 0
        """Of transactions, since the last that did not fail."""
        self._reading: Reading | None = None

    def do(self, ask: Ask, places: Mapping[int, Place]) -> Completion:
        """`places` are those of logs that were not named before."""
        self._places |= places
        try:
            self._create_topics()
        except Refused as refused:
            return Completion(
                type=Type.FAIL, micro_ops=ask.micro_ops, error=f"{refused.name}: the topic could not be created"
            )
        if ask.f == F.ASSIGN:
            return self._assign(ask)
        if ask.f == F.TABLE:
            return self._table(ask)
        return self._transaction(ask) if ask.ext.get("transaction") else self._plain(ask)

    def _create_topics(self) -> None:
        missing = {topic for topic, _ in self._places.values()} - self._topics
        if not missing:
            return
        admin = self._driver.Admin(self._options.bootstrap)
        wanted = self._options.topics
        try:
            for topic in sorted(missing):
                try:
                    admin.create(topic, wanted.partitions, wanted.replication, wanted.settings)
                except Refused as refused:
                    if refused.code != TOPIC_EXISTS:
                        raise
                self._topics.add(topic)
        finally:
            admin.close()

    # -- reading

    def _consumer(self, group: str | None) -> Consumer:
        options = self._options
        make = self._driver.Consumer
        made: Consumer = _asked(make, options.bootstrap, options.isolation, group, options.consumer)
        return made

    def _assign(self, ask: Ask) -> Completion:
        """A log that it had is read on where it stands, any other from its beginning."""
        try:
            if self._reading is None:
                self._reading = Reading(self._consumer(self._options.group))
            had = self._reading.positions
            self._reading.assign({log: had.get(log, 0) for log in ask.logs}, self._places)
        except Failure as failure:
            return Completion(type=Type.INFO, error=str(failure))
        return Completion(type=Type.OK)

    def _table(self, ask: Ask) -> Completion:
        progress = Progress(list(ask.micro_ops))
        try:
            reading = Reading(self._consumer(None))
        except Failure as failure:
            return progress.completion(Type.FAIL, str(failure))
        try:
            bounds = {log: _asked(reading.consumer.bounds, self._places[log]) for log in ask.logs}
            ends = {log: max(end, ask.offsets.get(log, 0)) for log, (_, end) in bounds.items()}
            reading.assign({log: start for log, (start, _) in bounds.items()}, self._places)
            records: dict[int, tuple[Record, ...]] = {}
            deadline_s = time.monotonic() + READ_ALL_S
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
            with suppress(Exception):
                reading.consumer.close()

    # -- operations

    def _plain(self, ask: Ask) -> Completion:
        """Without a transaction there is one micro-operation."""
        progress = Progress(list(ask.micro_ops))
        (micro_op,) = ask.micro_ops
        if isinstance(micro_op, Poll):
            before = self._positions()
            try:
                self._poll(progress, 0)
                return progress.completion(Type.OK, ext=self._grouped())
            except Failure as failure:
                self._rewind(before)
                return progress.completion(Type.FAIL, str(failure), self._grouped())
        try:
            self._send(self._producer(""), progress, 0)
            return progress.completion(Type.OK)
        except Failure as failure:
            if failure.todo in (FENCED, FATAL):
                self._drop("")
            return progress.completion(Type.FAIL if is_refused(failure) else Type.INFO, str(failure))

    def _transaction(self, ask: Ask) -> Completion:
        progress = Progress(list(ask.micro_ops))
        before = self._positions()
        has_tried_to_commit = False
        try:
            producer = self._producer(self._options.transactional_id)
            producer.begin()
            for index in range(len(ask.micro_ops)):
                _abort_if_intended(ask, index)
                if isinstance(ask.micro_ops[index], Poll):
                    self._poll(progress, index)
                else:
                    self._send(producer, progress, index)
            _abort_if_intended(ask, len(ask.micro_ops))
            ends = progress.ends()
            if ends and self._reading is not None:
                offsets = {self._places[log]: offset for log, offset in ends.items()}
                producer.send_offsets(offsets, self._reading.consumer)
            has_tried_to_commit = True
            producer.commit()
            self._failures_count = 0
            return progress.completion(Type.OK, ext=self._grouped() | ({str(Ext.OFFSETS): ends} if ends else {}))
        except _IntendedAbort:
            type_, error = Type.FAIL, INTENDED
            self._abort()
        except Failure as failure:
            is_aborted = failure.todo == ABORT and self._abort()
            is_certain = is_aborted or not has_tried_to_commit or is_refused(failure)
            type_, error = Type.FAIL if is_certain else Type.INFO, str(failure)
            self._failures_count += 1
            if not is_aborted or self._failures_count == FAILURES_MAX:
                self._failures_count = 0
                self._drop(self._options.transactional_id)
        self._rewind(before)
        return progress.completion(type_, error, self._grouped())

    def _abort(self) -> bool:
        """Whether it was acknowledged. A producer that cannot abort is not used again: the next one with its id does
        so, or time does."""
        try:
            self._producers[self._options.transactional_id].abort()
        except Failure:
            self._drop(self._options.transactional_id)
            return False
        return True

    def _send(self, producer: Producer, progress: Progress, index: int) -> None:
        send = progress.micro_ops[index]
        assert isinstance(send, Send)
        value = encoded(send.value)
        producer.send(
            *self._places[send.log],
            [None if send.is_tombstone else value],
            None if send.key == UNKNOWN else encoded(send.key),
            [(ID_HEADER, value)] if send.is_tombstone else [],
        )
        (offset,) = producer.flush()
        progress.micro_ops[index] = send._replace(offset=offset)

    def _poll(self, progress: Progress, index: int) -> None:
        if self._reading is not None:
            progress.polled(index, *self._reading.poll())

    # -- what an operation leaves behind

    def _producer(self, transactional_id: str) -> Producer:
        if transactional_id not in self._producers:
            options = self._options
            made: Producer = self._driver.Producer(
                options.bootstrap, transactional_id, options.transaction_timeout_ms, options.producer
            )
            self._producers[transactional_id] = made
            try:
                made.init()
            except Failure as failure:
                self._drop(transactional_id)
                raise Failure(FATAL, failure.name, failure.message) from None
        return self._producers[transactional_id]

    def _drop(self, transactional_id: str) -> None:
        producer = self._producers.pop(transactional_id, None)
        if producer is not None:
            with suppress(Exception):
                producer.close()

    def _positions(self) -> dict[int, int]:
        return {} if self._reading is None else dict(self._reading.positions)

    def _rewind(self, positions: Mapping[int, int]) -> None:
        if self._reading is not None:
            self._reading.rewind(positions)

    def _grouped(self) -> dict[str, Any]:
        return {} if self._reading is None else {str(Ext.GROUP): self._options.group}


def _asked(call: Callable[..., T], *arguments: Any) -> T:
    """Of a consumer. Drivers leave many of its errors as the client raises them; whatever it is, nothing was read."""
    try:
        return call(*arguments)
    except Failure:
        raise
    except Exception as error:
        raise Failure(ABORT, type(error).__name__, str(error)) from None


def _abort_if_intended(ask: Ask, index: int) -> None:
    if ask.ext.get("abort_after") == index:
        raise _IntendedAbort
