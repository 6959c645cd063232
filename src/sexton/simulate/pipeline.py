"""Batches of one producer and one partition on their way, as Java's client has them (five at once, it sends).

They go out one behind the other, without waiting for answers. From the first failure on each waits until it is the
oldest before it is sent again, so that retries keep the order. A batch that is refused for its sequence is repeated
then, if an older one was on its way; but if all before it are acknowledged, and nothing of it can be in the log, the
broker has mixed up the order: clients before 4.0 give up their producer upon that. Unless the last of those before it
may have been deleted (DeleteRecords): a replica that was copied since has never seen the producer, and may know it by
the marker of its transaction alone, as with Kafka.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sexton.client.client import Peer
from sexton.protocol.errors import ErrorCode
from sexton.simulate.errors import SimulationFailure
from sexton.types import TopicPartition

Started = tuple[Peer, asyncio.Future[Any]]
"""Whom it was sent to, and the answer to come."""


POLL_S = 0.01


class AbortableError(Exception):
    """The transaction cannot go on; the producer can, after a new epoch."""


class Pipeline:
    """`acknowledged`: the sequence up to which all is, over which connection the last answer came, and the offset
    behind that batch."""

    def __init__(self, place: TopicPartition, may_start_at: Callable[[TopicPartition, int], bool]) -> None:
        """`may_start_at` says whether somebody asked for all below an offset to be deleted."""
        self.place = place
        self.may_start_at = may_start_at
        self.batches: list[Batch] = []
        self.is_in_order = True
        """Nothing has to be sent again."""
        self.is_broken = False
        """A batch was given up: none behind it can be taken."""
        self.acknowledged: tuple[int, Peer | None, int] = 0, None, 0
        self.sending = asyncio.Lock()

    def enter(self, sequence: int, next_sequence: int) -> Batch:
        self.batches.append(Batch(self, sequence, next_sequence))
        return self.batches[-1]


class Batch:
    def __init__(self, pipeline: Pipeline, sequence: int, next_sequence: int) -> None:
        self._pipeline = pipeline
        self._sequence = sequence
        self._next_sequence = next_sequence
        self._attempts_count = 0
        self._peer: Peer | None = None
        self._end_offset = 0

    @contextmanager
    def on_its_way(self) -> Iterator[None]:
        pipeline = self._pipeline
        try:
            yield
            pipeline.acknowledged = self._next_sequence, self._peer, self._end_offset
        except BaseException:
            pipeline.is_broken = True
            raise
        finally:
            pipeline.batches.remove(self)
            if not pipeline.batches:
                pipeline.is_in_order = not pipeline.is_broken

    @property
    def is_oldest(self) -> bool:
        return self._pipeline.batches[0] is self

    async def attempt(self, start: Callable[[], Awaitable[Started]]) -> Any:
        """Sends it when it may be sent; the partition's part of the answer."""
        answer = await self._send(start)
        try:
            part = (await answer).responses[0].partition_responses[0]
            if part.base_offset >= 0:
                self._end_offset = part.base_offset + self._next_sequence - self._sequence
            return part
        except BaseException:
            self._pipeline.is_in_order = False
            raise

    async def _send(self, start: Callable[[], Awaitable[Started]]) -> asyncio.Future[Any]:
        pipeline = self._pipeline
        while True:
            await self._until_it_may_go()
            async with pipeline.sending:
                if not self._may_go:
                    continue
                self._attempts_count += 1
                try:
                    self._peer, answer = await start()
                except BaseException:
                    pipeline.is_in_order = False
                    raise
                return answer

    @property
    def _may_go(self) -> bool:
        return self.is_oldest or (self._pipeline.is_in_order and self._attempts_count == 0)

    async def _until_it_may_go(self) -> None:
        while not self._may_go and not self._pipeline.is_broken:
            await asyncio.sleep(POLL_S)
        if self._pipeline.is_broken:
            raise AbortableError("a batch before it was given up")

    def judge(self, code: ErrorCode) -> ErrorCode:
        """What to make of the answer."""
        pipeline = self._pipeline
        if code is ErrorCode.none:
            return code
        pipeline.is_in_order = False
        if code is ErrorCode.out_of_order_sequence_number:
            if not self.is_oldest:
                return ErrorCode.not_enough_replicas  # to be sent again, after those before it
            if self._attempts_count == 1 and self._is_behind_what_is_there:
                raise SimulationFailure(
                    "rule 8",
                    f"{pipeline.place}: sequence {self._sequence} is refused as out of order, though all before it "
                    "are acknowledged",
                )
        return code

    @property
    def _is_behind_what_is_there(self) -> bool:
        """By the very broker that refuses it, over the same connection; or there is nothing before it."""
        if self._sequence == 0:
            return True
        sequence, peer, end_offset = self._pipeline.acknowledged
        return (sequence, peer) == (self._sequence, self._peer) and not self._may_be_deleted(end_offset)

    def _may_be_deleted(self, end_offset: int) -> bool:
        return self._pipeline.may_start_at(self._pipeline.place, end_offset)
