"""One instance of a transactional producer, as Kafka's clients behave: before transaction version 2, and with it.

It repeats what got no answer, over a new connection if the old one was given up, aborts when it must, and takes a new
epoch after every abort that left something in doubt (Java since 2.5, librdkafka). It has several batches of a partition
on the way at once (`pipeline.py`). One level below a real client's interface: whoever uses it says what is sent, and
learns which of three things happened.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sexton.client import apis
from sexton.client.apis import Api
from sexton.client.client import Client, Peer
from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError, RefusedError, check
from sexton.client.transaction_admin import TRANSACTION_KEY
from sexton.protocol.errors import ErrorCode
from sexton.records import batch as batches
from sexton.records.batch import Record
from sexton.records.header import TRANSACTIONAL
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.history import Outcome
from sexton.simulate.pipeline import AbortableError, Pipeline, Started
from sexton.types import TopicPartition

CallError = (NotConnectedError, ConnectionLostError, BadAnswerError, RefusedError)

NO_PRODUCER = (-1, -1)
TIMEOUT_MS = 5_000
BACKOFF_S = 0.1
QUICK_BACKOFF_S = 0.002
"""Of clients that are there again before the brokers' own timers are: markers are repeated after 100 ms."""

INIT = Api(22, "InitProducerId", 4, 4)
ADD_PARTITIONS = Api(24, "AddPartitionsToTxn", 3, 3)
ADD_OFFSETS = Api(25, "AddOffsetsToTxn", 3, 3)
PRODUCE = {1: Api(0, "Produce", 11, 11), 2: Api(0, "Produce", 12, 12)}
END = {1: Api(26, "EndTxn", 3, 3), 2: Api(26, "EndTxn", 5, 5)}
OFFSET_COMMIT = {1: Api(28, "TxnOffsetCommit", 3, 3), 2: Api(28, "TxnOffsetCommit", 5, 5)}
"""The API to use, by transaction version."""

FENCED = frozenset(
    {
        ErrorCode.producer_fenced,
        ErrorCode.invalid_producer_epoch,
        ErrorCode.invalid_producer_id_mapping,
        ErrorCode.transactional_id_not_found,
    }
)


class FencedError(Exception):
    """Another instance has taken over, or nothing can be made of this one any more."""


class TransactionalProducer:
    def __init__(
        self,
        *,
        client: Client,
        transactional_id: str,
        version: int,
        timeout_ms: int,
        patience_s: float,
        rng: random.Random,
        may_start_at: Callable[[TopicPartition, int], bool],
        codec: int = 0,
        backoff_s: float = BACKOFF_S,
    ) -> None:
        self._may_start_at = may_start_at
        self._backoff_s = backoff_s
        self._client = client
        self._codec = codec
        self._id = transactional_id
        self._version = version
        self._timeout_ms = timeout_ms
        self._patience_s = patience_s
        self._rng = rng
        self._producer = NO_PRODUCER
        self._coordinator: int | None = None
        self._sequences: dict[TopicPartition, int] = {}
        self._pipelines: dict[TopicPartition, Pipeline] = {}
        self._added: set[TopicPartition] = set()
        self.last_error: str = ""

    # The life of a producer

    async def init(self) -> None:
        await self._take_epoch(NO_PRODUCER)

    async def recover(self) -> None:
        """After AbortableError or a commit of unknown outcome: whatever is open is aborted, in a new epoch."""
        await self._take_epoch(self._producer)

    async def _take_epoch(self, expected: tuple[int, int]) -> None:
        body = {
            "transactional_id": self._id,
            "transaction_timeout": self._timeout_ms,
            "producer_id": expected[0],
            "producer_epoch": expected[1],
        }
        answer = await self._ask(INIT, body, is_endless=True)
        self._become(int(answer.producer_id), int(answer.producer_epoch))

    def _become(self, producer_id: int, epoch: int) -> None:
        if (producer_id, epoch) != self._producer:
            self._producer = producer_id, epoch
            self._sequences.clear()
            self._pipelines.clear()
        self._added.clear()

    # In a transaction

    async def add(self, places: Sequence[TopicPartition]) -> None:
        """Clients of version 2 need not."""
        fresh = [place for place in places if place not in self._added]
        if self._version >= 2 or not fresh:
            return
        topics: dict[str, list[int]] = {}
        for topic, partition in fresh:
            topics.setdefault(topic, []).append(partition)
        body = {
            "v3_and_below_transactional_id": self._id,
            "v3_and_below_producer_id": self._producer[0],
            "v3_and_below_producer_epoch": self._producer[1],
            "v3_and_below_topics": [{"name": name, "partitions": parts} for name, parts in topics.items()],
        }
        await self._ask(ADD_PARTITIONS, body, _first_partition_error)
        self._added.update(fresh)

    async def send(self, place: TopicPartition, records: Sequence[Record]) -> int:
        """One batch, repeated until it is acknowledged. Its first offset; -1 if the broker has forgotten it. The next
        may be sent before this one is acknowledged: they go out in the order of the calls."""
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = sequence + len(records)
        made = batches.make_batch(
            records,
            attributes=TRANSACTIONAL | self._codec,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=sequence,
            leader_epoch=-1,
        )
        partition = {"index": place[1], "records": batches.encode(made)}
        body = {
            "transactional_id": self._id,
            "acks": -1,
            "timeout": TIMEOUT_MS,
            "topic_data": [{"name": place[0], "partition_data": [partition]}],
        }

        async def start() -> Started:
            peer = await self._client.leader(*place)
            return peer, asyncio.ensure_future(peer.call(PRODUCE[self._version], body, 2 * TIMEOUT_MS))

        pipeline = self._pipelines.setdefault(place, Pipeline(place, self._may_start_at))
        batch = pipeline.enter(sequence, sequence + len(records))
        with batch.on_its_way():
            part = await self._repeat(lambda: batch.attempt(start), lambda part: batch.judge(_produced(part)))
        return int(part.base_offset)

    async def send_offset(self, group: str, place: TopicPartition, offset: int) -> None:
        if self._version < 2:
            body = {"transactional_id": self._id, **self._named(), "group_id": group}
            await self._ask(ADD_OFFSETS, body)
        partition = {
            "partition_index": place[1],
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        body = {
            "transactional_id": self._id,
            "group_id": group,
            **self._named(),
            "generation_id": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": place[0], "partitions": [partition]}],
        }

        async def attempt() -> Any:
            peer = await self._client.coordinator(group)
            return (await peer.call(OFFSET_COMMIT[self._version], body, TIMEOUT_MS)).topics[0].partitions[0]

        await self._repeat(attempt, lambda answer: ErrorCode(answer.error_code), group=group)

    # Its end

    async def commit(self) -> Outcome:
        """OK, FAILED if it is surely aborted, or UNKNOWN. Asked for again and again: nothing else may follow."""
        try:
            await self._end(is_commit=True)
        except AbortableError:
            # With version 2 only a transaction that took too long is refused so.
            is_late = self.last_error == ErrorCode.transaction_abortable.name and self._version >= 2
            return Outcome.FAILED if is_late else Outcome.UNKNOWN
        return Outcome.OK

    async def abort(self) -> None:
        await self._end(is_commit=False)

    async def _end(self, *, is_commit: bool) -> None:
        body = {"transactional_id": self._id, **self._named(), "committed": is_commit}
        answer = await self._ask(END[self._version], body, is_endless=True)
        if self._version >= 2:
            self._become(int(answer.producer_id), int(answer.producer_epoch))
        self._added.clear()

    def _named(self) -> dict[str, int]:
        return {"producer_id": self._producer[0], "producer_epoch": self._producer[1]}

    # Asking

    async def _ask(
        self,
        api: Api,
        body: Mapping[str, Any],
        error: Callable[[Any], ErrorCode] | None = None,
        *,
        is_endless: bool = False,
    ) -> Any:
        """The coordinator, until it answers."""

        async def attempt() -> Any:
            return await (await self._coordinating()).call(api, body, TIMEOUT_MS)

        return await self._repeat(attempt, error or _error, is_endless=is_endless)

    async def _coordinating(self) -> Peer:
        if self._coordinator is None:
            peer = await self._client.any_peer()
            body = {"key_type": TRANSACTION_KEY, "coordinator_keys": [self._id]}
            found = (await peer.call(apis.FIND_COORDINATOR, body)).coordinators[0]
            check(found.error_code, self._id, found.error_message)
            self._coordinator = int(found.node_id)
        if self._coordinator not in self._client.metadata.brokers:
            await self._client.refresh(())
        return await self._client.peer(self._coordinator)

    async def _repeat(
        self,
        attempt: Callable[[], Awaitable[Any]],
        error: Callable[[Any], ErrorCode],
        *,
        group: str | None = None,
        is_endless: bool = False,
    ) -> Any:
        """Until there is an answer that says more than "try again", or patience is over."""
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + self._patience_s
        while True:
            try:
                answer = await attempt()
                code = error(answer)
            except CallError as failure:
                answer, code = None, failure.code if isinstance(failure, RefusedError) else ErrorCode.network_exception
            if code is ErrorCode.none:
                return answer
            self.last_error = code.name
            if code in FENCED:
                raise FencedError(code.name)
            if not (code.retriable or code is ErrorCode.concurrent_transactions):
                raise AbortableError(code.name)
            self._coordinator = None
            self._client.forget(group)
            if not is_endless and loop.time() > deadline_s:
                raise AbortableError(f"patience is over: {code.name}")
            await asyncio.sleep(self._backoff_s * (0.5 + self._rng.random()))


def _error(answer: Any) -> ErrorCode:
    return ErrorCode(answer.error_code)


def _first_partition_error(answer: Any) -> ErrorCode:
    codes = [
        ErrorCode(one.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    ]
    wrong = [code for code in codes if code not in (ErrorCode.none, ErrorCode.operation_not_attempted)]
    return wrong[0] if wrong else ErrorCode.none


def _produced(part: Any) -> ErrorCode:
    code = ErrorCode(part.error_code)
    if code is not ErrorCode.none and part.base_offset != -1:
        raise SimulationFailure("rule 9", f"{code.name} came with base offset {part.base_offset}")
    return ErrorCode.none if code is ErrorCode.duplicate_sequence_number else code
