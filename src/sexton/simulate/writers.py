"""Producers that write unique values and remember what they were told about each.

They build batches and read answers themselves, one level below the client's own producer: several batches in flight per
partition, repeated under the same sequence numbers, and every answer looked at for rule 9.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from sexton.client import apis
from sexton.client.client import Client, Peer
from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError, RefusedError, check
from sexton.protocol.errors import ErrorCode
from sexton.records import batch as batches
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import History, Outcome, Write
from sexton.simulate.loop import SimulatedLoop
from sexton.simulate.trace import Trace
from sexton.simulate.values import Values
from sexton.types import NO_PRODUCER_ID, NO_SEQUENCE, TopicPartition

CallError = (NotConnectedError, ConnectionLostError, BadAnswerError, RefusedError)

ACKS_ALL = -1
TIMEOUT_MS = 5_000
BACKOFF_S = 0.1
NOT_WRITTEN = (
    ErrorCode.not_enough_replicas,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.invalid_record,
)
"""Errors of acks=all that are noticed before the write. A topic that is unknown may be known a moment later, but the
batch was not appended by whoever said so."""


Limits = tuple[int, int | None]
"""How many bytes a batch may have at most, and from how many on it must be refused, if that is certain."""


@dataclass(frozen=True, slots=True)
class WriterPlan:
    name: str
    places: tuple[TopicPartition, ...]
    acks: int
    is_idempotent: bool
    interval_ms: int
    records_max: int
    value_bytes_max: int
    window_count: int
    codec: int = 0
    large_probability: float = 0.0
    """How often a batch is as large as a topic allows, to the byte or nearly so."""
    refused_probability: float = 0.0
    """How often one is sent that is larger, which must be refused."""


LARGE_WITHIN_BYTES = 60
"""So close below a limit are batches that are to come close."""


RECALLED_BYTES = 1 << 20
"""A leader that starts looks through so much of its log's end for batches of before."""

OVERHEAD_BYTES = 150
"""At most so much of a record, and of the batch it is in, is not its value."""


@dataclass(slots=True)
class SentBatch:
    write: Write
    sequence: int
    data: bytes
    sent_in_epoch: int | None = None
    """The partition's leader epoch when it was sent for the first time."""


@dataclass(slots=True)
class Lane:
    place: TopicPartition
    pending: list[SentBatch] = field(default_factory=list)
    sequence: int = 0
    producer: tuple[int, int] = (NO_PRODUCER_ID, -1)
    newest_known: int = -1
    """The highest sequence that was acknowledged."""
    newest_end_offset: int = -1
    """The offset after that batch, if it is known."""
    overtaking: list[SentBatch] = field(default_factory=list)
    """Those that were acknowledged while an older one was pending, which still is."""
    losses_count: int = 0
    """How often the partition had lost something when it began."""
    last_error: ErrorCode | None = None
    """Error of the oldest pending batch; None if there was no response."""


class Writer:
    def __init__(
        self,
        *,
        plan: WriterPlan,
        client: Client,
        history: History,
        trace: Trace,
        loop: SimulatedLoop,
        rng: random.Random,
        values: Values,
        is_over: Callable[[], bool],
        limits: Mapping[str, Limits] | None = None,
        waiting: Collection[str] = (),
    ) -> None:
        """`limits` say of topics how large a batch may be. In `waiting` topics acks=1 means what acks=all means."""
        self._plan = plan
        self._waiting = waiting
        self._limits = limits or {}
        self._client = client
        self._history = history
        self._trace = trace
        self._loop = loop
        self._rng = rng
        self._is_over = is_over
        self._values = values
        self._lanes = [Lane(place) for place in plan.places]

    async def run(self) -> None:
        """Until the simulation says that it is over, and then until everything has an outcome."""
        await asyncio.gather(*(self._work(lane) for lane in self._lanes))

    def stuck(self) -> list[str]:
        """What has no outcome yet, for whoever wonders why this does not end.

        A batch whose predecessor was acknowledged is never out of order for a leader that has lost nothing; one that
        was cut off may say so, but not for long."""
        return [
            f"{self._plan.name} has {len(lane.pending)} batches pending for {lane.place[0]}-{lane.place[1]}, the first "
            f"with sequence {lane.pending[0].sequence}, last told {lane.last_error and lane.last_error.name}"
            for lane in self._lanes
            if lane.pending
        ]

    async def _work(self, lane: Lane) -> None:
        if self._plan.is_idempotent:
            await self._take_producer_id(lane)
        while not self._is_over() and not self._history.is_gone(lane.place):
            await asyncio.sleep(self._plan.interval_ms * (0.5 + self._rng.random()) / 1000)
            for _ in range(self._rng.randint(1, self._plan.window_count)):
                self._add_batch(lane)
            if self._plan.is_idempotent:
                await self._deliver(lane)
            else:
                await self._try_once(lane)
            if self._rng.random() < self._plan.refused_probability:
                await self._try_too_large(lane.place)

    # Making batches

    def _add_batch(self, lane: Lane) -> None:
        plan, rng = self._plan, self._rng
        now_ms = self._client.clock.now_ms()
        codec, limits = plan.codec, self._limits.get(lane.place[0])
        if limits is not None and rng.random() < plan.large_probability:
            size = limits[0] - rng.choice((0, 1, rng.randrange(LARGE_WITHIN_BYTES)))
            codec, (records, values) = 0, self._values.sized(lane.place, size, now_ms)
        else:
            records, values = self._values.records(lane.place, rng.randint(1, plan.records_max), now_ms)
        write = Write(
            writer=plan.name,
            place=lane.place,
            acks=ACKS_ALL if lane.place[0] in self._waiting else plan.acks,
            is_idempotent=plan.is_idempotent,
            values=values,
            started_ns=self._loop.now_ns,
            records=records,
        )
        producer_id, epoch = lane.producer
        sequence = lane.sequence if plan.is_idempotent else NO_SEQUENCE
        data = batches.encode(
            batches.make_batch(
                records,
                attributes=codec,
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=sequence,
                leader_epoch=-1,
            )
        )
        lane.sequence += len(records)
        lane.pending.append(SentBatch(self._history.begin(write), sequence, data))

    async def _begin_anew(self, lane: Lane, why: str) -> None:
        """As a producer must whose sequence numbers mean nothing to the leader any more."""
        lane.losses_count = self._history.losses_count(lane.place)
        self._give_up(lane, why)
        lane.sequence, lane.newest_known, lane.newest_end_offset = 0, -1, -1
        lane.overtaking.clear()
        await self._take_producer_id(lane)

    async def _take_producer_id(self, lane: Lane) -> None:
        while True:
            try:
                peer = await self._client.any_peer()
                answer = await peer.call(
                    apis.INIT_PRODUCER_ID, {"transactional_id": None, "transaction_timeout": 0x7FFFFFFF}, TIMEOUT_MS
                )
                check(answer.error_code, "producer id")
            except CallError:
                await asyncio.sleep(BACKOFF_S)
                continue
            lane.producer = (int(answer.producer_id), int(answer.producer_epoch))
            return

    # Sending

    async def _deliver(self, lane: Lane) -> None:
        """Repeats what is pending, in order, until all of it is acknowledged."""
        while lane.pending:
            if lane.place[0] in self._history.dropped_topics:
                self._give_up(lane, "the topic was deleted")
                return
            if lane.losses_count != self._history.losses_count(lane.place):
                await self._begin_anew(lane, "the partition has lost something")
                return
            peer = await self._leader(lane.place)
            if peer is None:
                await asyncio.sleep(BACKOFF_S)
                continue
            window = list(lane.pending)
            epoch = self._history.leader_epochs.get(lane.place, 0)
            for each in window:
                each.sent_in_epoch = epoch if each.sent_in_epoch is None else each.sent_in_epoch
            results = await asyncio.gather(*(self._produce(peer, each) for each in window))
            is_unknown, epoch_now = self.may_be_unknown(lane), self._history.leader_epochs.get(lane.place, 0)
            for index, (each, code) in enumerate(zip(window, results, strict=True)):
                if code is ErrorCode.none or code is ErrorCode.duplicate_sequence_number:
                    each.write.may_be_second = is_unknown and each.sent_in_epoch != epoch_now
                    lane.pending.remove(each)
                    lane.overtaking.append(each)
                    if each.sequence > lane.newest_known:
                        lane.newest_known, lane.newest_end_offset = each.sequence, _end_offset(each.write)
                elif code is ErrorCode.out_of_order_sequence_number and self.is_forgotten(lane, each):
                    self._end(each, Outcome.OK, "before one that was acknowledged")
                    lane.pending.remove(each)
                elif index == 0:
                    lane.last_error = code
            if not lane.pending:
                lane.overtaking.clear()
            elif (
                results[0] is ErrorCode.out_of_order_sequence_number
                and lane.pending[0] is window[0]
                and self.may_be_unknown(lane)
            ):
                await self._begin_anew(lane, "its leader may not know the producer")
            else:
                self._client.forget()
                await asyncio.sleep(BACKOFF_S * (0.5 + self._rng.random()))

    def is_forgotten(self, lane: Lane, each: SentBatch) -> bool:
        """A producer snapshot has the last batch of a producer only, as in Kafka; a leader that has read its log since
        learns the others from the end of the log. An older one that is no longer there, because compaction dropped it,
        somebody asked for what lies there to be deleted, or more has followed than is looked through, is out of order
        for it when it is sent again. That it was taken follows from a later one that was. A leader that has been there
        all the time knows its duplicates. (Java's client would number it anew and write it a second time.)"""
        epoch = self._history.leader_epochs.get(lane.place, 0)
        if each.sent_in_epoch is None or each.sent_in_epoch >= epoch:
            return False
        if each.sequence < lane.newest_known and (
            self._values.is_compacted(lane.place) or self._bytes_since(each.write) > RECALLED_BYTES
        ):
            return True
        deleted_below = self._history.start_bounds.get(lane.place, 0)
        return any(
            each.sequence < later.sequence and 0 <= later.write.base_offset <= deleted_below
            for later in lane.overtaking
        )

    def may_be_unknown(self, lane: Lane) -> bool:
        """Whether a leader may know nothing of what was acknowledged: it was deleted, and a replica that begins where
        the log begins has never seen it. Such a leader takes any sequence number for the first, so that a batch older
        than what was acknowledged, repeated, is appended once more, and the next one that is new is out of order for
        ever. (Java's client raises its epoch.)"""
        deleted_below = self._history.start_bounds.get(lane.place, 0)
        return lane.newest_known < 0 < deleted_below or 0 <= lane.newest_end_offset <= deleted_below

    def _bytes_since(self, write: Write) -> int:
        """How much may have been appended to its partition from then on, by anybody: as if nothing were compressed."""
        return sum(
            len(value) + OVERHEAD_BYTES
            for other in self._history.writes
            if other.place == write.place and other.started_ns >= write.started_ns
            if other.outcome is not Outcome.FAILED
            for value in other.values
        )

    async def _try_once(self, lane: Lane) -> None:
        """Without idempotence a batch is sent once, so that nothing can be in the log twice."""
        for each in lane.pending:
            peer = await self._leader(each.write.place)
            if peer is None:
                self._end(each, Outcome.FAILED, "no leader")
            else:
                await self._produce(peer, each)
        lane.pending.clear()

    async def _try_too_large(self, place: TopicPartition) -> None:
        """One that must be refused, of no producer in particular. That nobody reads it is seen to by the history."""
        refused_bytes = self._limits.get(place[0], (0, None))[1]
        if refused_bytes is None:
            return
        size = refused_bytes + self._rng.choice((2, 10, 1_000))  # it may lack a byte of what was asked for
        records, values = self._values.sized(place, size, self._client.clock.now_ms())
        write = Write(
            writer=self._plan.name,
            place=place,
            acks=ACKS_ALL,
            is_idempotent=False,
            values=values,
            started_ns=self._loop.now_ns,
            outcome=Outcome.FAILED,
            records=records,
        )
        data = batches.encode(batches.make_batch(records, leader_epoch=-1))
        peer = await self._leader(place)
        if peer is None:
            return
        self._history.begin(write)
        body = {"acks": ACKS_ALL, "timeout": TIMEOUT_MS, "topic_data": _topic_data(place, data)}
        try:
            answer = await peer.call(apis.PRODUCE, body, 2 * TIMEOUT_MS)
        except CallError:
            return
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        self._trace.note(self._plan.name, f"{len(data)} bytes at once to {place[0]}-{place[1]}: {code.name}")
        if code is ErrorCode.none:
            raise SimulationFailure(
                "limits", f"{place[0]} took a batch of {len(data)} bytes, its limit is {refused_bytes - 1}"
            )

    async def _leader(self, place: TopicPartition) -> Peer | None:
        try:
            return await self._client.leader(*place)
        except CallError:
            self._client.forget()
            return None

    async def _produce(self, peer: Peer, each: SentBatch) -> ErrorCode | None:
        """One attempt; None if no answer came."""
        body = {
            "acks": self._plan.acks,
            "timeout": TIMEOUT_MS,
            "topic_data": _topic_data(each.write.place, each.data),
        }
        is_final = not self._plan.is_idempotent
        try:
            answer = await peer.call(apis.PRODUCE, body, 2 * TIMEOUT_MS)
        except NotConnectedError as error:
            if is_final:
                self._end(each, Outcome.FAILED, error.what)
            return None
        except (ConnectionLostError, BadAnswerError) as error:
            if is_final:
                self._end(each, Outcome.UNKNOWN, error.what)
            return None
        return self._answered(each, answer.responses[0].partition_responses[0], is_final)

    def _answered(self, each: SentBatch, part: Any, is_final: bool) -> ErrorCode:
        code = ErrorCode(part.error_code)
        if code is ErrorCode.none:
            self._end(each, Outcome.OK, f"at {part.base_offset}", int(part.base_offset))
            return code
        if part.base_offset != -1:
            raise SimulationFailure(
                "rule 9",
                f"{self._plan.name} was told {code.name} with base offset {part.base_offset} for a batch to "
                f"{each.write.place[0]}-{each.write.place[1]}",
            )
        if code is ErrorCode.duplicate_sequence_number:
            self._end(each, Outcome.OK, "as a duplicate")
        elif is_final:
            is_sure = code in NOT_WRITTEN or (each.write.acks == 1 and code is ErrorCode.not_leader_or_follower)
            self._end(each, Outcome.FAILED if is_sure else Outcome.UNKNOWN, code.name)
        return code

    def _end(self, each: SentBatch, outcome: Outcome, why: str, base_offset: int = -1) -> None:
        write = each.write
        if write.outcome is not Outcome.PENDING:
            if (
                outcome is Outcome.OK
                and -1 not in (write.base_offset, base_offset)
                and write.base_offset != base_offset
            ):
                raise SimulationFailure(
                    "rule 2", f"one batch was acknowledged at {write.base_offset} and {base_offset}"
                )
            return
        write.outcome, write.base_offset = outcome, base_offset
        self._history.journal.ended(write)
        self._history.acknowledged_count += outcome is Outcome.OK
        place = f"{write.place[0]}-{write.place[1]}"
        self._trace.note(self._plan.name, f"{len(write.values)} records to {place}: {outcome} {why}")

    def _give_up(self, lane: Lane, why: str) -> None:
        for each in lane.pending:
            self._end(each, Outcome.UNKNOWN, why)
        lane.pending.clear()


def _end_offset(write: Write) -> int:
    return write.base_offset + len(write.values) if write.base_offset >= 0 else -1


def _topic_data(place: TopicPartition, data: bytes) -> list[dict[str, Any]]:
    return [{"name": place[0], "partition_data": [{"index": place[1], "records": data}]}]
