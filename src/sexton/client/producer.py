"""Producing: every batch ends in one of three ways, and the caller learns which.

Acknowledged: `send` returns the first offset. Failed (`ProduceFailedError`): the records are not in the log and will
not get there. Unknown (`ProduceUnknownError`): a response was lost, or said nothing about the outcome, and the timeout
passed before another attempt could tell.

Few errors prove that nothing was written: a leader that waits for its followers and loses leadership meanwhile returns
NOT_LEADER_OR_FOLLOWER, like one that never was the leader, and its successor may well hold the records. So an error
that is not known to be checked before the write counts as unknown.

The idempotent producer repeats a batch under the same sequence number until its outcome is known; the broker answers a
duplicate with the first one's offset. A partition has only one batch in flight, so batches stay in order. When an
outcome stays unknown, the sequence of that partition is unknown too: it continues with a new producer id.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sexton.client import apis
from sexton.client.client import Client, Patience
from sexton.client.errors import (
    BadAnswerError,
    ConnectionLostError,
    NotConnectedError,
    ProduceFailedError,
    ProduceUnknownError,
    RefusedError,
    check,
)
from sexton.client.packed import PackedBatch
from sexton.protocol.errors import ErrorCode
from sexton.records import batch as batches
from sexton.records.batch import Header, Record
from sexton.types import NO_PRODUCER_ID, NO_SEQUENCE

_Failure = RefusedError | NotConnectedError | ConnectionLostError | BadAnswerError

ACKS_ALL = -1
DELIVERY_TIMEOUT_MS = 120_000
"""How long a batch is retried, as in Kafka's clients (`delivery.timeout.ms`)."""

BATCH_BYTES_MAX = 500_000
"""Half of `max.message.bytes`: the size of records in a batch is only estimated."""

QUEUED_BYTES_MAX = 32 << 20
"""Bytes of records that one producer keeps in memory; `send` waits beyond it."""

ANSWER_MARGIN_MS = 5_000
"""How much longer than the request's timeout we wait for the broker's response."""

RECORD_OVERHEAD_BYTES = 30
"""Upper estimate of the bytes of a record beside key, value and headers."""

_SURELY_NOT_WRITTEN = frozenset(
    {
        ErrorCode.corrupt_message,
        ErrorCode.invalid_record,
        ErrorCode.invalid_required_acks,
        ErrorCode.invalid_timestamp,
        ErrorCode.invalid_topic_exception,
        ErrorCode.message_too_large,
        ErrorCode.not_enough_replicas,
        ErrorCode.policy_violation,
        ErrorCode.record_list_too_large,
        ErrorCode.topic_authorization_failed,
        ErrorCode.unsupported_compression_type,
        ErrorCode.unsupported_for_message_format,
        ErrorCode.unsupported_version,
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.unknown_producer_id,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_id_mapping,
    }
)
"""Errors that are checked before the write."""

_NOT_THE_LEADER = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.fenced_leader_epoch,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.leader_not_available,
)
"""Without acks=all a leader waits for nothing after the write: then these errors, too, were found before it."""

_SEQUENCE_LOST = (
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.unknown_producer_id,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_id_mapping,
)


@dataclass(frozen=True, slots=True)
class Message:
    """A record to send: its timestamp is the time of the call unless given."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        size_bytes = RECORD_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"")
        return size_bytes + sum(len(name) * 4 + len(value or b"") + 10 for name, value in self.headers)


Records = Sequence[Message] | PackedBatch


def records_of(messages: Sequence[Message], stamped_ms: int) -> list[Record]:
    """Returns the records as they are sent in a batch: offsets count from 0."""
    return [
        Record(
            index,
            stamped_ms if message.timestamp_ms is None else message.timestamp_ms,
            message.key,
            message.value,
            tuple(Header(name, value) for name, value in message.headers),
        )
        for index, message in enumerate(messages)
    ]


@dataclass(slots=True)
class _Parcel:
    """The records of one `send`: they stay together in one batch."""

    records: Records
    size_bytes: int
    outcome: asyncio.Future[int]


@dataclass(slots=True)
class _Lane:
    """One partition's queue, and its producer id and next sequence."""

    topic: str
    partition: int
    waiting: deque[_Parcel] = field(default_factory=deque)
    task: asyncio.Task[None] | None = None
    producer: tuple[int, int] | None = None
    sequence: int = 0

    @property
    def place(self) -> str:
        return f"{self.topic}-{self.partition}"


class Producer:
    def __init__(
        self,
        client: Client,
        *,
        acks: int = ACKS_ALL,
        idempotent: bool | None = None,
        codec: int = 0,
        delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS,
    ) -> None:
        """Idempotent by default with acks=all."""
        self._client = client
        self._acks = acks
        self._is_idempotent = acks == ACKS_ALL if idempotent is None else idempotent
        assert acks == ACKS_ALL or not self._is_idempotent, "an idempotent producer needs acks=all"
        self._codec = codec
        self._delivery_timeout_ms = delivery_timeout_ms
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._shared: tuple[int, int] | None = None
        self._shared_lock = asyncio.Lock()
        self._queued_bytes = 0
        self._room = asyncio.Event()

    async def send(self, topic: str, partition: int, records: Records) -> int:
        """Returns the first record's offset (-1 with acks=0, or if the broker has forgotten it); the others follow it.

        The records stay together. Calls for one partition are sent in the order in which they were made, many in a
        batch.
        """
        return await (await self.queue(topic, partition, records))

    async def queue(self, topic: str, partition: int, records: Records) -> asyncio.Future[int]:
        """Like `send`, but returns once the records are queued. The caller may drop the future."""
        assert records
        if isinstance(records, PackedBatch):
            size_bytes = records.size_bytes
        else:
            size_bytes = sum(record.size_bytes for record in records)
        while self._queued_bytes and self._queued_bytes + size_bytes > QUEUED_BYTES_MAX:
            self._room.clear()
            await self._room.wait()
        self._queued_bytes += size_bytes
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        lane = self._lanes.setdefault((topic, partition), _Lane(topic, partition))
        lane.waiting.append(_Parcel(records, size_bytes, outcome))
        if lane.task is None:
            lane.task = asyncio.ensure_future(self._work(lane))
        return outcome

    async def flush(self) -> None:
        """Returns when every outcome so far is known. It raises no errors: the callers of `send` get them."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Stops at once: what has not been delivered yet fails, or is unknown if it was in flight. See `flush`."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self._lanes.values():
            if lane.task is not None:  # it was cancelled before it could begin
                lane.task = None
                self._abandon(lane, [])

    # One partition's work

    async def _work(self, lane: _Lane) -> None:
        parcels: list[_Parcel] = []
        try:
            while lane.waiting:
                parcels = self._next_parcels(lane)
                await self._complete(lane, parcels)
                self._release(parcels)
                parcels = []
        except BaseException:  # above all cancellation
            self._abandon(lane, parcels)
            raise
        finally:
            lane.task = None

    def _abandon(self, lane: _Lane, under_way: Sequence[_Parcel]) -> None:
        """Records in flight may have been written, and have used their sequence; those that wait never will be."""
        for parcel in under_way:
            _fail(parcel, ProduceUnknownError("the producer was closed while it was sending", lane.place))
        lane.producer = self._shared = None
        unsent = list(lane.waiting)
        lane.waiting.clear()
        for parcel in unsent:
            _fail(parcel, ProduceFailedError("the producer was closed before it was sent", lane.place))
        self._release([*under_way, *unsent])

    def _next_parcels(self, lane: _Lane) -> list[_Parcel]:
        parcels = [lane.waiting.popleft()]
        size_bytes = parcels[0].size_bytes
        if isinstance(parcels[0].records, PackedBatch):
            return parcels
        while lane.waiting and size_bytes + lane.waiting[0].size_bytes <= BATCH_BYTES_MAX:
            if isinstance(lane.waiting[0].records, PackedBatch):
                break
            parcels.append(lane.waiting.popleft())
            size_bytes += parcels[-1].size_bytes
        return parcels

    def _release(self, parcels: Sequence[_Parcel]) -> None:
        self._queued_bytes -= sum(parcel.size_bytes for parcel in parcels)
        self._room.set()

    async def _complete(self, lane: _Lane, parcels: Sequence[_Parcel]) -> None:
        """Delivers the batch and sets the callers' futures. After an unknown outcome the partition starts over with a
        new producer id."""
        records: Records = parcels[0].records
        if not isinstance(records, PackedBatch):
            records = [record for parcel in parcels for record in _messages(parcel)]
        try:
            base_offset = await self._deliver(lane, records)
        except ProduceUnknownError as error:
            lane.producer = None
            self._shared = None
            for parcel in parcels:
                _fail(parcel, ProduceUnknownError(error.what, error.place, error.remedy))
            return
        except ProduceFailedError as error:
            for parcel in parcels:
                _fail(parcel, ProduceFailedError(error.what, error.place, error.remedy, error.code))
            return
        offset = base_offset
        for parcel in parcels:
            if not parcel.outcome.done():
                parcel.outcome.set_result(offset)
            offset += len(parcel.records) if base_offset >= 0 else 0

    async def _deliver(self, lane: _Lane, records: Records) -> int:
        """Retries until the outcome is known or the timeout has passed."""
        patience = Patience(self._client, self._delivery_timeout_ms)
        stamped_ms = self._client.clock.now_ms()
        maybe_written = False
        while True:
            try:
                return await self._attempt(lane, records, stamped_ms)
            except _NotSentError as error:
                failure: _Failure = error.cause
            except (ConnectionLostError, BadAnswerError) as error:
                failure = error
                maybe_written = True
            except RefusedError as error:
                failure = error
                maybe_written = maybe_written or not self._is_surely_not_written(error.code)
                if error.code in _SEQUENCE_LOST and self._is_idempotent and not maybe_written:
                    lane.producer = self._shared = None
                    if patience.elapsed_ms < self._delivery_timeout_ms:
                        await patience.pause()
                        continue
            self._client.forget()
            may_repeat = self._is_idempotent or not maybe_written
            if not may_repeat or not patience.lasts(failure):
                raise _outcome(failure, maybe_written, lane.place)
            await patience.pause()

    def _is_surely_not_written(self, code: ErrorCode) -> bool:
        return code in _SURELY_NOT_WRITTEN or (self._acks != ACKS_ALL and code in _NOT_THE_LEADER)

    async def _attempt(self, lane: _Lane, records: Records, stamped_ms: int) -> int:
        try:
            if self._is_idempotent and lane.producer is None:
                await self._take_producer_id(lane)
            peer = await self._client.leader(lane.topic, lane.partition)
            version = peer.version(apis.PRODUCE)
        except (RefusedError, NotConnectedError, ConnectionLostError, BadAnswerError) as error:
            raise _NotSentError(error) from error
        data = self._encode(lane, records, stamped_ms)
        body = {
            "acks": self._acks,
            "timeout": self._client.timeout_ms,
            "topic_data": [{"name": lane.topic, "partition_data": [{"index": lane.partition, "records": data}]}],
        }
        limit_ms = self._client.timeout_ms + ANSWER_MARGIN_MS
        try:
            if self._acks == 0:
                await peer.rpc.tell(apis.PRODUCE.key, version, body)
                return -1
            answer = await peer.rpc.call(apis.PRODUCE.key, version, body, timeout_ms=limit_ms)
        except NotConnectedError as error:
            raise _NotSentError(error) from error
        part = answer.responses[0].partition_responses[0]
        if part.error_code != ErrorCode.duplicate_sequence_number:  # in the log, but the broker has forgotten where
            check(part.error_code, lane.place, getattr(part, "error_message", None))
        lane.sequence = (lane.sequence + len(records)) & 0x7FFFFFFF
        return int(part.base_offset)

    # Ids and sequences

    async def _take_producer_id(self, lane: _Lane) -> None:
        """All partitions share an id until one of them loses its sequence; the next partition that starts takes a new
        one."""
        async with self._shared_lock:
            if self._shared is None:
                peer = await self._client.any_peer()
                body = {"transactional_id": None, "transaction_timeout": 0x7FFFFFFF}
                answer = await peer.call(apis.INIT_PRODUCER_ID, body)
                check(answer.error_code, "producer id")
                self._shared = (int(answer.producer_id), int(answer.producer_epoch))
            lane.producer, lane.sequence = self._shared, 0

    def _encode(self, lane: _Lane, messages: Records, stamped_ms: int) -> bytes:
        producer_id, epoch = lane.producer or (NO_PRODUCER_ID, -1)
        sequence = lane.sequence if lane.producer is not None else NO_SEQUENCE
        if isinstance(messages, PackedBatch):
            return messages.encoded(producer_id, epoch, sequence)
        records = records_of(messages, stamped_ms)
        return batches.encode(
            batches.make_batch(
                records,
                attributes=self._codec,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                leader_epoch=-1,
            )
        )


def _messages(parcel: _Parcel) -> Sequence[Message]:
    assert not isinstance(parcel.records, PackedBatch), "a packed batch travels alone"
    return parcel.records


class _NotSentError(Exception):
    """The attempt ended before the records were sent."""

    def __init__(self, cause: _Failure) -> None:
        super().__init__(cause)
        self.cause = cause


def _outcome(failure: _Failure, maybe_written: bool, place: str) -> ProduceFailedError | ProduceUnknownError:
    if maybe_written:
        what = f"whether the records are in the log is unknown: {failure.what}"
        return ProduceUnknownError(what, place, failure.remedy)
    code = failure.code if isinstance(failure, RefusedError) else ErrorCode.network_exception
    return ProduceFailedError(failure.what, place, failure.remedy, code)


def _fail(parcel: _Parcel, error: Exception) -> None:
    if not parcel.outcome.done():
        parcel.outcome.set_exception(error)
        parcel.outcome.exception()  # retrieved, in case the caller has dropped the future
