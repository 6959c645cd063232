"""Produce: appends batches to partitions that this broker leads.

Versions 3 to 13. With acks=-1 the answer waits until every batch is committed, at most `timeout` ms; with acks=1 it
is given after the append; with acks=0 there is none, and a failure closes the connection, as in Kafka, so that the
client at least notices. Every failed partition carries base offset -1 (rule 9), also one that was appended but not
committed in time, where Kafka tells the offset. NOT_LEADER_OR_FOLLOWER names the leader from version 10 on (KIP-951).
The first batch of a transaction in a partition waits for the transaction's coordinator (`produce_in_transaction.py`).
What a client sent behind a batch that was refused for the moment is refused too (`refused.py`), where Kafka takes it.
Internal topics are their coordinators' alone: what a client wrote there would be believed at the next failover. Kafka
makes an exception for clients that call themselves `__admin_client`; here there is none.

Hand-encoded: this is the hot path.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sexton.broker.api.produce_in_transaction import Held, check_answer, hold, is_in_transaction
from sexton.broker.leader_hints import LeaderHint, encode_hint, leader_hint, write_endpoints
from sexton.broker.refused import TopicKey
from sexton.broker.request import Answer, DropConnectionError, Request, milliseconds
from sexton.cluster.topics import INTERNAL_TOPICS
from sexton.protocol.encoder import write_varint
from sexton.protocol.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from sexton.broker.broker import Broker
    from sexton.log.types import Appended
    from sexton.ports.disk import Buffer
    from sexton.replication.replica import Replica

API_KEY = 0
VERSIONS = (3, 13)

logger = logging.getLogger(__name__)

NO_OFFSET = -1
NO_TIME = -1

_PARTITION_V3 = struct.Struct(">ihqq")
_PARTITION_V5 = struct.Struct(">ihqqq")
_PARTITION_GOOD = struct.Struct(">ihqqqBBB")
_HEADER = struct.Struct(">ii")
_HEADER_TAGGED = struct.Struct(">iiB")


class _Outcome:
    """Of one partition. Starts as the failure that it is until the append has succeeded."""

    __slots__ = ("append_time_ms", "base_offset", "code", "committed", "hint", "index", "log_start_offset", "message")

    def __init__(self, index: int) -> None:
        self.index = index
        self.code: int = 0
        self.base_offset = NO_OFFSET
        self.append_time_ms = NO_TIME
        self.log_start_offset = NO_OFFSET
        self.message = ""
        self.hint: LeaderHint | None = None
        self.committed: asyncio.Future[None] | None = None

    def take(self, appended: Appended, committed: asyncio.Future[None] | None) -> None:
        self.base_offset = appended.first_offset
        self.append_time_ms = appended.log_append_time_ms
        self.log_start_offset = appended.log_start_offset
        self.committed = committed

    def fail(self, code: ErrorCode, message: str) -> None:
        self.code = code
        self.message = message
        self.base_offset = self.log_start_offset = NO_OFFSET
        self.append_time_ms = NO_TIME


class _Produce:
    """One request on its way."""

    __slots__ = ("acks", "broker", "correlation_id", "is_holding", "topics", "version")

    def __init__(self, broker: Broker, request: Request) -> None:
        self.broker = broker
        self.acks: int = request.body.acks
        self.is_holding = False
        """Whether it keeps batches in memory, until a transaction's coordinator has answered."""
        self.version = request.version
        self.correlation_id = request.correlation_id
        self.topics: list[tuple[Any, str, list[_Outcome]]] = []
        """(name or id as it is answered, name, outcomes)"""

    def append(self, request: Request) -> list[_Outcome]:
        """Appends everything; returns the partitions that are not committed yet."""
        broker = self.broker
        acks = self.acks
        now_ms = broker.clock.now_ms()
        waiting: list[_Outcome] = []
        for topic in request.body.topic_data:
            outcomes: list[_Outcome] = []
            if self.version >= 13:
                row = broker.view.topic_by_id(topic.topic_id) if topic.topic_id is not None else None
                key, name = topic.topic_id, row.name if row is not None else None
            else:
                key = name = topic.name
            for data in topic.partition_data:
                outcome = _Outcome(data.index)
                outcomes.append(outcome)
                try:
                    if name is None:
                        raise KafkaError(ErrorCode.unknown_topic_id, "no topic has this id")
                    if name in INTERNAL_TOPICS:
                        raise KafkaError(ErrorCode.invalid_topic_exception, f"only brokers write to {name}")
                    if not data.records:
                        raise KafkaError(ErrorCode.invalid_record, "a partition without a batch")
                    replica = broker.replicas.leader(name, data.index)
                    records = data.records
                    held = hold(broker, request, replica, records) if is_in_transaction(records) else None
                    if held is not None:
                        self._hold(outcome, key, replica, records, held)
                    else:
                        if broker.refused:
                            broker.refused.check(key, replica, records)
                        outcome.take(*replica.append(records, acks, now_ms))
                except KafkaError as error:
                    self._refused(outcome, key, name, data.records, error)
                except OSError as error:
                    self._broken(outcome, name, error)
                if outcome.committed is not None:
                    waiting.append(outcome)
            self.topics.append((key, name or "", outcomes))
        return waiting

    def _hold(self, outcome: _Outcome, key: TopicKey, replica: Replica, records: Buffer, held: Held) -> None:
        """Appends when the coordinator has answered. If the time is over by then the client sends it again, and what it
        sent behind it must not be taken first."""
        self.is_holding = True
        kept = bytes(records)
        committed = outcome.committed = asyncio.get_running_loop().create_future()

        def go_on(code: ErrorCode) -> None:
            if committed.done():
                self.broker.refused.note(key, outcome.index, kept, ErrorCode.request_timed_out)
                return
            try:
                check_answer(replica, held, code, self.version)
                self.broker.refused.check(key, replica, kept)
                now_ms = self.broker.clock.now_ms()
                appended, then = replica.append(kept, self.acks, now_ms, verification=held.verification)
            except KafkaError as error:
                self._refused(outcome, key, replica.topic, kept, error)
                committed.set_result(None)
            except OSError as error:
                self._broken(outcome, replica.topic, error)
                committed.set_result(None)
            else:
                outcome.take(appended, committed)
                _follow(committed, then)

        self.broker.transactions.verifier.ask(held.question, held.place, go_on)

    def _broken(self, outcome: _Outcome, name: str | None, error: OSError) -> None:
        logger.error("%s-%d: cannot append: %s. Check the disk", name, outcome.index, error)
        outcome.fail(ErrorCode.kafka_storage_error, error.strerror or str(error))

    def _refused(
        self, outcome: _Outcome, key: TopicKey, name: str | None, records: Buffer | None, error: KafkaError
    ) -> None:
        """Not appended."""
        if records:
            self.broker.refused.note(key, outcome.index, records, error.code)
        self._failed(outcome, name, error)

    def _failed(self, outcome: _Outcome, name: str | None, error: KafkaError) -> None:
        outcome.fail(error.code, error.message)
        if error.code is ErrorCode.kafka_storage_error:
            self.broker.dispatch.complain("%s-%d: cannot append: %s", name, outcome.index, error.message)
        if name is not None and self.version >= 10:
            outcome.hint = leader_hint(self.broker, name, outcome.index, error.code)

    def settle(self) -> None:
        """Every future is done: what failed meanwhile becomes a failure."""
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

    def answer(self) -> Answer:
        """None with acks=0, unless something failed: then the connection ends."""
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
        version = self.version
        if version < 9:
            return self._encode_old()
        out = bytearray(9)
        hints: list[LeaderHint] = []
        write_varint(out, len(self.topics) + 1)
        for key, _, outcomes in self.topics:
            if version >= 13:
                out += key.bytes if key is not None else bytes(16)
            else:
                name = key.encode()
                write_varint(out, len(name) + 1)
                out += name
            write_varint(out, len(outcomes) + 1)
            for outcome in outcomes:
                if outcome.code:
                    _write_failure(out, outcome, hints)
                else:
                    out += _PARTITION_GOOD.pack(
                        outcome.index,
                        0,
                        outcome.base_offset,
                        outcome.append_time_ms,
                        outcome.log_start_offset,
                        1,
                        0,
                        0,
                    )
            out.append(0)
        out += b"\x00\x00\x00\x00"
        if hints:
            write_endpoints(out, self.broker, hints)
        else:
            out.append(0)
        _HEADER_TAGGED.pack_into(out, 0, len(out) - 4, self.correlation_id, 0)
        return bytes(out)

    def _encode_old(self) -> bytes:
        version = self.version
        out = bytearray(8)
        out += struct.pack(">i", len(self.topics))
        for key, _, outcomes in self.topics:
            name = key.encode()
            out += struct.pack(">h", len(name))
            out += name
            out += struct.pack(">i", len(outcomes))
            for outcome in outcomes:
                where = outcome.index, outcome.code, outcome.base_offset, outcome.append_time_ms
                if version < 5:
                    out += _PARTITION_V3.pack(*where)
                else:
                    out += _PARTITION_V5.pack(*where, outcome.log_start_offset)
                if version >= 8:
                    _write_old_messages(out, outcome)
        out += b"\x00\x00\x00\x00"
        _HEADER.pack_into(out, 0, len(out) - 4, self.correlation_id)
        return bytes(out)


def _write_failure(out: bytearray, outcome: _Outcome, hints: list[LeaderHint]) -> None:
    out += _PARTITION_V5.pack(outcome.index, outcome.code, NO_OFFSET, NO_TIME, NO_OFFSET)
    out.append(1)
    if outcome.message:
        text = outcome.message.encode()
        write_varint(out, len(text) + 1)
        out += text
    else:
        out.append(0)
    if outcome.hint is None:
        out.append(0)
    else:
        content = encode_hint(outcome.hint)
        out += bytes((1, 0, len(content)))
        out += content
        hints.append(outcome.hint)


def _write_old_messages(out: bytearray, outcome: _Outcome) -> None:
    out += b"\x00\x00\x00\x00"
    if outcome.message:
        text = outcome.message.encode()[:0x7FFF]
        out += struct.pack(">h", len(text))
        out += text
    else:
        out += b"\xff\xff"


def handle(broker: Broker, request: Request) -> Answer | Awaitable[Answer]:
    body = request.body
    produce = _Produce(broker, request)
    if not -1 <= body.acks <= 1:
        return _refuse_acks(produce, body)
    waiting = produce.append(request)
    if waiting:
        answer = _Wait(produce, waiting, milliseconds(body.timeout)).answer
        return _holding(answer) if produce.is_holding else answer
    return produce.answer()


async def _holding(answer: asyncio.Future[Answer]) -> Answer:
    """A task, for the memory that it keeps to be counted."""
    return await answer


def _refuse_acks(produce: _Produce, body: Any) -> Answer:
    for topic in body.topic_data:
        outcomes = [_Outcome(data.index) for data in topic.partition_data]
        for outcome in outcomes:
            outcome.fail(ErrorCode.invalid_required_acks, f"acks must be -1, 0 or 1, not {body.acks}")
        produce.topics.append((topic.topic_id if produce.version >= 13 else topic.name, "", outcomes))
    return produce.encode()


def _follow(future: asyncio.Future[None], other: asyncio.Future[None] | None) -> None:
    """What becomes of the other becomes of this one, unless it has been given up on."""
    if other is None:
        future.set_result(None)
        return

    def settle(done: asyncio.Future[None]) -> None:
        error = None if done.cancelled() else done.exception()
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(None)

    other.add_done_callback(settle)


class _Wait:
    """Until every partition is committed, has failed, or the time is over."""

    __slots__ = ("_left", "_produce", "_timer", "_waiting", "answer")

    def __init__(self, produce: _Produce, waiting: Sequence[_Outcome], timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[Answer] = loop.create_future()
        self._produce = produce
        self._waiting = waiting
        self._left = len(waiting)
        for outcome in waiting:
            assert outcome.committed is not None
            outcome.committed.add_done_callback(self._one_done)
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._too_late)

    def _one_done(self, committed: asyncio.Future[None]) -> None:
        if not committed.cancelled():
            committed.exception()  # looked at, whether or not somebody is left to be told
        self._left -= 1
        if self._left:
            return
        self._timer.cancel()
        if not self.answer.done():
            try:
                self._produce.settle()
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
