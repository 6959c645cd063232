"""Producing: every batch ends in one of three ways, and the caller is told which.

Acknowledged: `send` returns the first offset. Failed for sure (`ProduceFailedError`): the records are not in the log and will
not get there. Unknown (`ProduceUnknownError`): an answer was lost, and the time was over before another attempt could tell.

The idempotent producer repeats a batch under the same sequence number until its outcome is known; the broker answers a
duplicate with the first one's offset. A partition has one batch in flight, so order needs no further thought. Once an
outcome stays unknown, the sequence of that partition is unknown too: it goes on under a new producer id.
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
from sexton.protocol.errors import ErrorCode
from sexton.records import batch as batches
from sexton.records.batch import NO_PRODUCER_ID, NO_SEQUENCE, Header, Record

ACKS_ALL = -1
DELIVERY_TIMEOUT_MS = 120_000
"""How long a batch is tried, as in Kafka's clients (`delivery.timeout.ms`)."""

BATCH_BYTES_MAX = 500_000
"""Half of `max.message.bytes`: what records unfold to in a batch is estimated only."""

QUEUED_BYTES_MAX = 32 << 20
"""What one producer keeps in memory; `send` waits beyond it."""

RECORD_OVERHEAD_BYTES = 30
"""An upper estimate of what a record takes beside key, value and headers."""

_MAYBE_APPENDED = (ErrorCode.request_timed_out, ErrorCode.not_enough_replicas_after_append, ErrorCode.network_exception)
_SEQUENCE_LOST = (
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.unknown_producer_id,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.producer_fenced,
    ErrorCode.invalid_producer_id_mapping,
)


@dataclass(frozen=True, slots=True)
class Message:
    """A record to be: its timestamp is the time of the call unless given."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        size_bytes = RECORD_OVERHEAD_BYTES + len(self.key or b"") + len(self.value or b"")
        return size_bytes + sum(len(name) * 4 + len(value or b"") + 10 for name, value in self.headers)


@dataclass(slots=True)
class _Parcel:
    """What one `send` brought: it stays together in one batch."""

    records: Sequence[Message]
    size_bytes: int
    outcome: asyncio.Future[int]


@dataclass(slots=True)
class _Lane:
    """One partition: what waits, and where its sequence stands."""

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
        """Idempotent with acks=all unless told otherwise."""
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

    async def send(self, topic: str, partition: int, records: Sequence[Message]) -> int:
        """The first record's offset (−1 with acks=0); the others follow it. They are kept together and in order.

        Calls for one partition are sent in the order in which they were made, several in one batch."""
        return await (await self.queue(topic, partition, records))

    async def queue(self, topic: str, partition: int, records: Sequence[Message]) -> asyncio.Future[int]:
        """Like `send`, but returns once the records are queued. The future may be abandoned."""
        assert records
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
        """Returns when every outcome so far is known. It raises none: those who sent were told."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def close(self) -> None:
        """Ends at once: what is not delivered yet fails, or is unknown if it was under way. See `flush`."""
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # One partition's work

    async def _work(self, lane: _Lane) -> None:
        parcels: list[_Parcel] = []
        try:
            while lane.waiting:
                parcels = self._next_parcels(lane)
                await self._settle(lane, parcels)
                self._release(parcels)
        except asyncio.CancelledError:
            for parcel in parcels:
                _fail(parcel, ProduceUnknownError("the producer was closed while it was sending", lane.place))
            for parcel in lane.waiting:
                _fail(parcel, ProduceFailedError("the producer was closed before it was sent", lane.place))
            raise
        finally:
            lane.task = None

    def _next_parcels(self, lane: _Lane) -> list[_Parcel]:
        parcels = [lane.waiting.popleft()]
        size_bytes = parcels[0].size_bytes
        while lane.waiting and size_bytes + lane.waiting[0].size_bytes <= BATCH_BYTES_MAX:
            parcels.append(lane.waiting.popleft())
            size_bytes += parcels[-1].size_bytes
        return parcels

    def _release(self, parcels: Sequence[_Parcel]) -> None:
        self._queued_bytes -= sum(parcel.size_bytes for parcel in parcels)
        self._room.set()

    async def _settle(self, lane: _Lane, parcels: Sequence[_Parcel]) -> None:
        """Delivers and tells each sender. After an unknown outcome the lane starts over under a new id."""
        records = [record for parcel in parcels for record in parcel.records]
        try:
            base_offset = await self._deliver(lane, records)
        except ProduceUnknownError as error:
            lane.producer = None
            self._shared = None
            for parcel in parcels:
                _fail(parcel, ProduceUnknownError(error.what, error.place, error.remedy))
            return
        except (ProduceFailedError, BadAnswerError) as error:
            code = error.code if isinstance(error, ProduceFailedError) else ErrorCode.unsupported_version
            for parcel in parcels:
                _fail(parcel, ProduceFailedError(error.what, error.place, error.remedy, code))
            return
        offset = base_offset
        for parcel in parcels:
            if not parcel.outcome.done():
                parcel.outcome.set_result(offset)
            offset += len(parcel.records) if base_offset >= 0 else 0

    async def _deliver(self, lane: _Lane, records: Sequence[Message]) -> int:
        patience = Patience(self._client, self._delivery_timeout_ms)
        stamped_ms = self._client.clock.now_ms()
        maybe_appended = False
        while True:
            failure: RefusedError | NotConnectedError | ConnectionLostError | BadAnswerError
            try:
                if self._is_idempotent and lane.producer is None:
                    await self._take_producer_id(lane)
                data = self._encode(lane, records, stamped_ms)
                offset = await self._attempt(lane, data)
                lane.sequence = (lane.sequence + len(records)) & 0x7FFFFFFF
                return offset
            except RefusedError as error:
                failure = error
                if error.code == ErrorCode.duplicate_sequence_number:
                    lane.sequence = (lane.sequence + len(records)) & 0x7FFFFFFF
                    return -1  # it is in the log, but the broker no longer knows where
                maybe_appended = maybe_appended or error.code in _MAYBE_APPENDED
                if error.code in _SEQUENCE_LOST and self._is_idempotent and not maybe_appended:
                    lane.producer = self._shared = None
                    if patience.elapsed_ms < self._delivery_timeout_ms:
                        await patience.pause()
                        continue
            except NotConnectedError as error:
                failure = error
            except (ConnectionLostError, BadAnswerError) as error:
                failure = error
                maybe_appended = True
            self._client.forget()
            may_repeat = self._is_idempotent or not maybe_appended
            if not may_repeat or not patience.lasts(failure) or isinstance(failure, BadAnswerError):
                raise _outcome(failure, maybe_appended, lane.place)
            await patience.pause()

    async def _attempt(self, lane: _Lane, data: bytes) -> int:
        peer = await self._client.leader(lane.topic, lane.partition)
        body = {
            "acks": self._acks,
            "timeout": self._client.timeout_ms,
            "topic_data": [
                {"name": lane.topic, "partition_data": [{"index": lane.partition, "records": data}]},
            ],
        }
        if self._acks == 0:
            await peer.rpc.tell(apis.PRODUCE.key, peer.version(apis.PRODUCE), body)
            return -1
        answer = await peer.call(apis.PRODUCE, body, self._client.timeout_ms + 5_000)
        part = answer.responses[0].partition_responses[0]
        check(part.error_code, lane.place, getattr(part, "error_message", None))
        return int(part.base_offset)

    # Ids and sequences

    async def _take_producer_id(self, lane: _Lane) -> None:
        """All partitions share an id until one of them loses its sequence; whoever starts then takes a new one."""
        async with self._shared_lock:
            if self._shared is None:
                peer = await self._client.any_peer()
                body = {"transactional_id": None, "transaction_timeout": 0x7FFFFFFF}
                try:
                    answer = await peer.call(apis.INIT_PRODUCER_ID, body)
                except ConnectionLostError as error:
                    # No record was sent, and an id that nobody uses harms nobody.
                    raise NotConnectedError(error.what, error.place, error.remedy) from error
                check(answer.error_code, "producer id")
                self._shared = (int(answer.producer_id), int(answer.producer_epoch))
            lane.producer, lane.sequence = self._shared, 0

    def _encode(self, lane: _Lane, messages: Sequence[Message], stamped_ms: int) -> bytes:
        records = [
            Record(
                index,
                stamped_ms if message.timestamp_ms is None else message.timestamp_ms,
                message.key,
                message.value,
                tuple(Header(name, value) for name, value in message.headers),
            )
            for index, message in enumerate(messages)
        ]
        producer_id, epoch = lane.producer or (NO_PRODUCER_ID, -1)
        sequence = lane.sequence if lane.producer is not None else NO_SEQUENCE
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


def _outcome(
    failure: RefusedError | NotConnectedError | ConnectionLostError | BadAnswerError, maybe_appended: bool, place: str
) -> ProduceFailedError | ProduceUnknownError:
    if maybe_appended:
        what = f"whether the records are in the log is unknown: {failure.what}"
        return ProduceUnknownError(what, place, failure.remedy)
    code = failure.code if isinstance(failure, RefusedError) else ErrorCode.network_exception
    return ProduceFailedError(failure.what, place, failure.remedy, code)


def _fail(parcel: _Parcel, error: Exception) -> None:
    if not parcel.outcome.done():
        parcel.outcome.set_exception(error)
        parcel.outcome.exception()  # whoever abandoned it has decided not to know
