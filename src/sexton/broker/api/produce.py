"""Produce, versions 3 to 13: appends batches to partitions that this broker leads.

With acks=-1 the response waits until every batch is committed, at most `timeout` ms; with acks=1 it is sent after the
append; with acks=0 there is none, and a failure closes the connection, as in Kafka, so that the client at least
notices. Every failed partition carries base offset -1 (rule 9), also one that was appended but not committed in time,
where Kafka returns the offset. NOT_LEADER_OR_FOLLOWER names the leader from version 10 on (KIP-951). The first batch of
a transaction in a partition waits for the transaction's coordinator (`broker/produce/in_transaction.py`). Batches that
must be decompressed wait for that (`broker/produce/unpacking.py`), those of cloud topics for room (`cloud/room.py`).
From version 8 on the response names invalid records. Batches that a client sent after one that was refused with a
retriable error are refused too (`broker/produce/refused.py`), where Kafka accepts them. Only coordinators write to
internal topics: a client's records there would be replayed at the next failover. Kafka makes an exception for clients
that call themselves `__admin_client`; here there is none.

**How a response comes to wait.** No coroutine runs for a request that is appended at once: a replica keeps a future for
each append that is not committed yet (`log/waiting.py`). It is the `committed` of a `PartitionAnswer`; or, for a
batch that had to wait before it could be appended, that is a future of its own, which completes as the replica's
does (`_follow`). `_Wait` completes the request's future when all of them are done or the time is over, and the
connection, which holds a place for the response, sends it when those before it are sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sexton.broker.leader_hints import leader_hint
from sexton.broker.network.request import DropConnectionError, Request, Response, milliseconds
from sexton.broker.produce.answer import PartitionAnswer, encode
from sexton.broker.produce.in_transaction import HeldBatch, check_answer, hold, is_in_transaction
from sexton.broker.produce.refused import BehindRefusedError, TopicKey
from sexton.broker.produce.unpacking import Validated
from sexton.log.inside import is_zstd
from sexton.metadata.topics import INTERNAL_TOPICS
from sexton.protocol.errors import ErrorCode, KafkaError, RecordsError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sexton.broker.broker import Broker
    from sexton.ports.disk import Buffer
    from sexton.replication.replica import Replica

API_KEY = 0
VERSIONS = (3, 13)
ZSTD_SINCE = 7


class _Produce:
    """One Produce request from its arrival to its response."""

    __slots__ = ("acks", "broker", "correlation_id", "is_holding", "topics", "version")

    def __init__(self, broker: Broker, request: Request) -> None:
        self.broker = broker
        self.acks: int = request.body.acks
        self.is_holding = False
        """Whether the request keeps batches in memory until a transaction's coordinator has answered, or until they
        have been decompressed."""
        self.version = request.version
        self.correlation_id = request.correlation_id
        self.topics: list[tuple[Any, str, list[PartitionAnswer]]] = []
        """(name or id as in the response, name, outcomes)"""

    def append(self, request: Request) -> list[PartitionAnswer]:
        """Appends all batches; returns the partitions that are not committed yet."""
        broker = self.broker
        now_ms = broker.clock.now_ms()
        waiting: list[PartitionAnswer] = []
        for topic in request.body.topic_data:
            outcomes: list[PartitionAnswer] = []
            if self.version >= 13:
                row = broker.view.topic_by_id(topic.topic_id) if topic.topic_id is not None else None
                key, name = topic.topic_id, row.name if row is not None else None
            else:
                key = name = topic.name
            for data in topic.partition_data:
                outcome = PartitionAnswer(data.index)
                outcomes.append(outcome)
                try:
                    if name is None:
                        raise KafkaError(ErrorCode.unknown_topic_id, "no topic has this id")
                    if name in INTERNAL_TOPICS:
                        raise KafkaError(ErrorCode.invalid_topic_exception, f"only brokers write to {name}")
                    if not data.records:
                        raise KafkaError(ErrorCode.invalid_record, "a partition without a batch")
                    if self.version < ZSTD_SINCE and is_zstd(data.records):
                        what = f"zstd is known to clients since version {ZSTD_SINCE} of Produce"
                        raise KafkaError(ErrorCode.unsupported_compression_type, what)
                    replica = broker.replicas.leader(name, data.index)
                    if broker.unpacking.is_due(replica, data.records):
                        self._unpack(outcome, request, key, replica, data.records)
                    else:
                        self._enter(outcome, request, key, replica, Validated(data.records, None), now_ms)
                except KafkaError as error:
                    self._refused(outcome, key, name, data.records, error)
                if outcome.committed is not None:
                    waiting.append(outcome)
            self.topics.append((key, name or "", outcomes))
        return waiting

    def _enter(
        self,
        outcome: PartitionAnswer,
        request: Request,
        key: TopicKey,
        replica: Replica,
        batch: Validated,
        now_ms: int,
        waiting: asyncio.Future[None] | None = None,
        *,
        has_room: bool = False,
    ) -> None:
        """Appends the batch, or holds it until there is room for it, or until the transaction's coordinator has
        answered. A batch that has waited before already has its future, `waiting`."""
        broker = self.broker
        records, rules = batch
        if not has_room and replica.must_wait(len(records)):
            self._wait_for_room(outcome, request, key, replica, batch, waiting)
            return
        if is_in_transaction(records):
            held = hold(broker, request, replica, records)
            if held is not None:
                self._hold(outcome, request, key, replica, batch, held, waiting)
                return
        if broker.refused:
            broker.refused.check(key, replica, records)
        try:
            appended, then = replica.append(records, self.acks, now_ms, validated_by=rules)
        except KafkaError as error:
            if not _is_suspicion(error):
                raise
            self._unpack(outcome, request, key, replica, records, waiting, is_suspect=True)
            return
        if waiting is None:
            outcome.take(appended, then)
        else:
            outcome.take(appended, waiting)
            _follow(waiting, then)

    def _wait_for_room(
        self,
        outcome: PartitionAnswer,
        request: Request,
        key: TopicKey,
        replica: Replica,
        batch: Validated,
        waiting: asyncio.Future[None] | None,
    ) -> None:
        """Goes on with the batch when it can be appended. If the request has timed out by then the client retries it,
        and the batches that it sent after this one must not be appended first."""
        self.is_holding = True
        kept = Validated(bytes(batch.records), batch.rules)
        committed = outcome.committed = waiting or asyncio.get_running_loop().create_future()
        go_on = self._then(
            outcome,
            key,
            replica,
            kept.records,
            committed,
            lambda: self._enter(
                outcome, request, key, replica, kept, self.broker.clock.now_ms(), committed, has_room=True
            ),
        )
        give_up = replica.wait_for_room(len(kept.records), go_on)
        committed.add_done_callback(lambda _: give_up())

    def _then(
        self,
        outcome: PartitionAnswer,
        key: TopicKey,
        replica: Replica,
        kept: Buffer,
        committed: asyncio.Future[None],
        step: Callable[[], None],
    ) -> Callable[[], None]:
        """What is done with a batch that has waited, unless its request has timed out meanwhile."""

        def go_on() -> None:
            if committed.done():
                self.broker.refused.note(key, outcome.index, kept, ErrorCode.request_timed_out)
                return
            try:
                step()
            except KafkaError as error:
                self._refused(outcome, key, replica.topic, kept, error)
                committed.set_result(None)
            except Exception as error:  # the connection is closed
                committed.set_exception(error)

        return go_on

    def _unpack(
        self,
        outcome: PartitionAnswer,
        request: Request,
        key: TopicKey,
        replica: Replica,
        records: Buffer,
        waiting: asyncio.Future[None] | None = None,
        *,
        is_suspect: bool = False,
    ) -> None:
        """Goes on with the batch when it has been decompressed and checked, after the batches that arrived before
        it."""
        broker = self.broker
        small = broker.unpacking.at_once(replica, records, is_suspect)
        if small is not None:
            self._enter(outcome, request, key, replica, small, broker.clock.now_ms(), waiting)
            return
        self.is_holding = True
        kept = bytes(records)
        committed = outcome.committed = waiting or asyncio.get_running_loop().create_future()

        def enter(found: Validated | Exception) -> None:
            if isinstance(found, Exception):
                raise found
            self._enter(outcome, request, key, replica, found, broker.clock.now_ms(), committed)

        def go_on(found: Validated | Exception) -> None:
            self._then(outcome, key, replica, kept, committed, lambda: enter(found))()

        broker.unpacking.add(replica, kept, is_suspect, go_on)

    def _hold(
        self,
        outcome: PartitionAnswer,
        request: Request,
        key: TopicKey,
        replica: Replica,
        batch: Validated,
        held: HeldBatch,
        waiting: asyncio.Future[None] | None,
    ) -> None:
        """Appends the batch when the transaction's coordinator has answered. If the request has timed out by then the
        client retries it, and the batches that it sent after this one must not be appended first."""
        self.is_holding = True
        kept = bytes(batch.records)
        committed = outcome.committed = waiting or asyncio.get_running_loop().create_future()

        def enter(code: ErrorCode) -> None:
            if code is ErrorCode.none:
                self.broker.refused.check(key, replica, kept)
            check_answer(replica, held, code, self.version)
            now_ms = self.broker.clock.now_ms()
            try:
                appended, then = replica.append(
                    kept, self.acks, now_ms, verification=held.verification, validated_by=batch.rules
                )
            except KafkaError as error:
                if not _is_suspicion(error):
                    raise
                self._unpack(outcome, request, key, replica, kept, committed, is_suspect=True)
                return
            outcome.take(appended, committed)
            _follow(committed, then)

        def go_on(code: ErrorCode) -> None:
            self._then(outcome, key, replica, kept, committed, lambda: enter(code))()

        self.broker.transactions.verifier.ask(held.question, held.place, held.verification, go_on)

    def _refused(
        self, outcome: PartitionAnswer, key: TopicKey, name: str | None, records: Buffer | None, error: KafkaError
    ) -> None:
        """Fails a partition whose batch was not appended."""
        if records and not isinstance(error, BehindRefusedError):
            self.broker.refused.note(key, outcome.index, records, error.code)
        self._failed(outcome, name, error)

    def _failed(self, outcome: PartitionAnswer, name: str | None, error: KafkaError) -> None:
        outcome.fail(error.code, error.message)
        if isinstance(error, RecordsError):
            outcome.faults = error.faults
        if error.code is ErrorCode.kafka_storage_error:
            self.broker.dispatch.complain("%s-%d: cannot append: %s", name, outcome.index, error)
        if name is not None and self.version >= 10:
            outcome.hint = leader_hint(self.broker, name, outcome.index, error.code)

    def note_failures(self) -> None:
        """Called when every future is done: turns the exceptions of futures into failed outcomes."""
        for _, name, outcomes in self.topics:
            for outcome in outcomes:
                committed = outcome.committed
                if committed is None:
                    continue
                if committed.cancelled():
                    outcome.fail(ErrorCode.request_timed_out, "the connection was closed")
                    continue
                error = committed.exception()
                if isinstance(error, KafkaError):
                    self._failed(outcome, name, error)
                elif error is not None:
                    raise error

    def answer(self) -> Response:
        """Returns None with acks=0. If a partition failed then, raises DropConnectionError."""
        if self.acks != 0:
            return self.encode()
        failures = [(name, outcome) for _, name, outcomes in self.topics for outcome in outcomes if outcome.code]
        if failures:
            name, first = failures[0]
            raise DropConnectionError(
                f"{len(failures)} partitions of a produce request with acks=0 failed, the first of them "
                f"{name}-{first.index}: {KafkaError(ErrorCode(first.code), first.message)}"
            )
        return None

    def encode(self) -> bytes:
        return encode(self.broker, self.version, self.correlation_id, self.topics)


def handle(broker: Broker, request: Request) -> Response | Awaitable[Response]:
    body = request.body
    produce = _Produce(broker, request)
    if not -1 <= body.acks <= 1:
        return _refuse_acks(produce, body)
    waiting = produce.append(request)
    if waiting:
        answer = _Wait(produce, waiting, milliseconds(body.timeout)).answer
        return _holding(answer) if produce.is_holding else answer
    return produce.answer()


async def _holding(answer: asyncio.Future[Response]) -> Response:
    """Wraps the future in a task, because only a task's memory counts against the budget for requests."""
    return await answer


def _refuse_acks(produce: _Produce, body: Any) -> Response:
    for topic in body.topic_data:
        outcomes = [PartitionAnswer(data.index) for data in topic.partition_data]
        for outcome in outcomes:
            outcome.fail(ErrorCode.invalid_required_acks, f"acks must be -1, 0 or 1, not {body.acks}")
        produce.topics.append((topic.topic_id if produce.version >= 13 else topic.name, "", outcomes))
    return produce.encode()


def _is_suspicion(error: KafkaError) -> bool:
    """By its header the batch has a timestamp out of range; which record has it must still be found."""
    return error.code is ErrorCode.invalid_timestamp and not isinstance(error, RecordsError)


def _follow(future: asyncio.Future[None], other: asyncio.Future[None] | None) -> None:
    """Completes `future` as `other` completes, unless `future` is done already (the request timed out)."""
    if other is None:
        future.set_result(None)
        return

    def complete(done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)

    other.add_done_callback(complete)


class _Wait:
    """Waits until every partition is committed or has failed, or the timeout has passed."""

    __slots__ = ("_left", "_produce", "_timer", "_waiting", "answer")

    def __init__(self, produce: _Produce, waiting: Sequence[PartitionAnswer], timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Response] = loop.create_future()
        self._produce = produce
        self._waiting = waiting
        self._left = len(waiting)
        for outcome in waiting:
            assert outcome.committed is not None
            outcome.committed.add_done_callback(self._one_done)
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._too_late)

    def _one_done(self, committed: asyncio.Future[None]) -> None:
        if not committed.cancelled():
            committed.exception()  # retrieved even if the response has been sent, so that asyncio does not warn
        self._left -= 1
        if self._left:
            return
        self._timer.cancel()
        if not self.answer.done():
            try:
                self._produce.note_failures()
                answer = self._produce.answer()
            except Exception as error:
                self.answer.set_exception(error)
                return
            self.answer.set_result(answer)

    def _too_late(self) -> None:
        for outcome in self._waiting:
            if outcome.committed is not None and not outcome.committed.done():
                outcome.committed.set_exception(
                    KafkaError(ErrorCode.request_timed_out, "not every in-sync replica has it yet")
                )
