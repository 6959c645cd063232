"""A stretch of a replica that is read from its broker, inside a Spark task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from sexton.audit.live import asking, worker
from sexton.audit.live.connecting import Connecting
from sexton.audit.live.pace import Pace
from sexton.audit.live.ranges import ANSWER_BYTES, EMPTY_MAX, PAUSE_MS, Answer, Range, Taken
from sexton.audit.live.shared_pace import Limit, SharedPace
from sexton.client.client import Client, Peer
from sexton.client.errors import ConnectionLostError, NotConnectedError, RefusedError
from sexton.client.metadata import Address
from sexton.protocol.errors import ErrorCode
from sexton.spark.stretches import Piece
from sexton.types import TopicPartition

AHEAD_COUNT: Final = 1
"""Answers that wait while a task works on one and another is on its way: three of them are in memory at most."""

_Item = Piece | Exception | None


@dataclass(frozen=True, slots=True)
class LiveStretch:
    """Implements `spark.stretches.Stretch`."""

    replica: int
    connecting: Connecting
    address: Address | None
    """None: whoever leads the partition."""
    topic: str
    partition: int
    from_offset: int
    to_offset: int
    size_bytes: int
    is_first: bool
    """Of those that are read one after the other: it takes the batch that its first offset lies in."""
    limit: Limit
    answer_bytes: int = ANSWER_BYTES
    """What to ask for at once."""
    wait_ms: int = 0
    """How long a broker may wait until it has something to send."""
    empty_max: int = EMPTY_MAX
    """So many answers without a record below the high watermark mean that there is none."""

    @property
    def place(self) -> str:
        name = f"{self.topic}-{self.partition}"
        return name if self.address is None else f"{name} at {self.address[0]}:{self.address[1]}"

    def pieces(self) -> Iterator[Piece]:
        thread = worker.of_this_process()
        pieces = thread.run(self._start(thread))
        try:
            while True:
                item = thread.run(pieces.get())
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    return
                yield item
        finally:
            thread.run(pieces.end())

    async def _start(self, thread: worker.LoopThread) -> _Ahead:
        return _Ahead(self.read(await thread.client(self.connecting)))

    async def read(self, client: Client) -> AsyncIterator[Piece]:
        """Each next question is sent before what came is handed over (by `_Ahead`)."""
        paces: dict[str, Pace | SharedPace] = {}
        place = (self.topic, self.partition)
        reading = Range(
            self.place,
            self.from_offset,
            self.to_offset,
            takes_straddling=self.is_first,
            answer_bytes=self.answer_bytes,
            wait_ms=self.wait_ms,
            empty_max=self.empty_max,
        )
        while not reading.is_done:
            broker, answer, pause_ms, note = await self._ask(client, place, reading)
            if answer is not None:
                taken = reading.take(answer, _now_ms())
                pause_ms = taken.pause_ms
                yield self._piece(answer, taken, note)
                pace = paces.setdefault(broker, self.limit.of(broker, time.monotonic()))
                pause_ms += round(1000 * pace.pause_s(len(answer.data), time.monotonic()))
            elif note:
                yield self._piece(Answer(b"", -1, -1, reading.offset), Taken(0, 0), note)
            if pause_ms:
                await asyncio.sleep(pause_ms / 1000)

    async def _ask(self, client: Client, place: TopicPartition, reading: Range) -> tuple[str, Answer | None, int, str]:
        """(broker, answer, how long to wait if there is none, note)."""
        try:
            peer = await self._peer(client)
            answer = await asking.fetch(peer, place, reading.next(), from_leader=self.address is None)
            return peer.rpc.peer, answer, 0, ""
        except RefusedError as error:
            client.forget()  # leadership may have moved
            if error.code == ErrorCode.offset_out_of_range:
                note = await self._moved(peer, place, reading)
                return "", None, PAUSE_MS if not note else 0, note
            if not error.code.retriable:
                raise
            return "", None, reading.failed(error.what, _now_ms()), ""
        except (NotConnectedError, ConnectionLostError) as error:
            client.forget()
            return "", None, reading.failed(error.what, _now_ms()), ""

    async def _peer(self, client: Client) -> Peer:
        if self.address is None:
            return await client.leader(self.topic, self.partition)
        return await client.peer_at(self.address)

    async def _moved(self, peer: Peer, place: TopicPartition, reading: Range) -> str:
        bounds = (await asking.log_bounds(peer, [place])).get(place)
        if bounds is None or bounds[0] <= reading.offset <= bounds[1]:  # it knows the offset again: asked once more
            reading.failed("the broker does not know where its log begins", _now_ms())
            return ""
        return reading.out_of_range(bounds[0])

    def _piece(self, answer: Answer, taken: Taken, note: str) -> Piece:
        data = np.frombuffer(answer.data, dtype=np.uint8)[taken.start : taken.end]
        return Piece(
            data=data,
            place=self.place,
            aborted=tuple(answer.aborted),
            note=note or taken.note,
            high_watermark=answer.high_watermark,
            last_stable_offset=answer.last_stable_offset,
            log_start_offset=answer.log_start_offset,
        )


def _now_ms() -> int:
    return round(1000 * asyncio.get_running_loop().time())


class _Ahead:
    """Reads on while what came is worked on."""

    def __init__(self, pieces: AsyncIterator[Piece]) -> None:
        self._queue: asyncio.Queue[_Item] = asyncio.Queue(AHEAD_COUNT)
        self._task = asyncio.ensure_future(self._fill(pieces))

    async def _fill(self, pieces: AsyncIterator[Piece]) -> None:
        try:
            async for piece in pieces:
                await self._queue.put(piece)
            await self._queue.put(None)
        except Exception as error:  # whatever it is: the task must raise it, not wait for ever
            await self._queue.put(error)

    async def get(self) -> _Item:
        return await self._queue.get()

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
