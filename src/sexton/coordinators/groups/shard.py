"""One partition of `__consumer_offsets` that this broker leads: the pure coordinator, its log, and who waits for what.

**Nothing leaves before it is committed.** An operation changes the coordinator at once; its records go into a buffer;
its answer, and every answer given after it, waits until the records are on all in-sync replicas. So a reader, too, sees
only what cannot be lost.

**One append at a time.** What arrives while one is under way is gathered into the next: many requests, one batch. And
no record can be in the log without those that came before it: if an append fails, everything behind it fails too, and
the coordinator is thrown away.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

from sexton.coordinators.groups.coordinator import GroupCoordinator
from sexton.coordinators.groups.core import Effects
from sexton.coordinators.groups.records import encode
from sexton.coordinators.timers import Now
from sexton.errors import SextonError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records import batch as batches

APPEND_BYTES_MAX = 256 * 1024
"""Operations are gathered up to here: well under any `max.message.bytes`. A larger one travels alone."""

LATE_MS = 1_000
"""A timer that fires this much too late means that the process stood still. The heartbeats that came meanwhile are
still in the sockets: they are read first, for as long again, before anybody is declared dead."""

REPLAY_PAUSE_RECORDS = 500
"""While a log is loaded the loop gets a turn after so many records."""

EncodedRecord: TypeAlias = tuple[bytes, bytes | None]


class CoordinatorLog(Protocol):
    """What the coordinator needs of a leader's replica of `__consumer_offsets`."""

    def append(self, records: Sequence[EncodedRecord], now_ms: int) -> Awaitable[None]:
        """As one batch, in order of the calls. Resolves when it is committed (acks=all). Raises KafkaError when it is
        not, or when nobody knows."""
        ...

    def read(self) -> AsyncIterator[bytes]:
        """All batches from the log start to the log end at the time of the call; each item is one or more whole
        batches. Ends when all of that is committed: what is answered from it must not be lost any more."""
        ...


@dataclass(slots=True)
class Waiter:
    sequence: int
    future: asyncio.Future[Any]
    answer: Any


@dataclass(slots=True)
class Shard:
    partition: int
    log: CoordinatorLog
    coordinator: GroupCoordinator
    now: Callable[[], Now]
    on_failed: Callable[[Shard, KafkaError], None]
    is_loaded: bool = False
    is_doubtful: bool = False
    """Until it is loaded, another broker may be the coordinator."""
    is_closed: bool = False
    parked: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    """JoinGroup and SyncGroup, by token."""
    _last_token: int = 0
    _buffer: deque[tuple[int, list[EncodedRecord], int]] = field(default_factory=deque)
    """Sequence, records and bytes of operations that are not being appended yet."""
    _appended: int = 0
    """Sequence of the last operation that had records."""
    _committed: int = 0
    _waiters: deque[Waiter] = field(default_factory=deque)
    _appender: asyncio.Task[None] | None = None
    _alarm: asyncio.TimerHandle | None = None
    _alarm_ms: int = 0
    _has_waited: bool = False

    async def load(self) -> None:
        """Replays the log. Raises whatever reading it raises."""
        count = 0
        open_transactions: dict[int, list[tuple[bytes, bytes | None, int]]] = {}
        async for data in self.log.read():
            for batch in batches.decode_all(data, f"__consumer_offsets-{self.partition}"):
                for item in _committed_records(batch, open_transactions):
                    self.coordinator.replay(*item)
                    count += 1
                    if count % REPLAY_PAUSE_RECORDS == 0:
                        await asyncio.sleep(0)
        if not self.is_closed:
            self.is_loaded = True
            self.carry_out(self.coordinator.on_loaded(self.now()))

    def park(self) -> tuple[int, asyncio.Future[Any]]:
        """A place for an answer that comes later, and the token that the coordinator knows it by."""
        self._last_token += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.parked[self._last_token] = future
        return self._last_token, future

    def carry_out(self, effects: Effects) -> None:
        if effects.records:
            encoded = [encode(record) for record in effects.records]
            self._appended += 1
            size = sum(len(key) + len(value or b"") for key, value in encoded)
            self._buffer.append((self._appended, encoded, size))
            if self._appender is None:
                self._appender = asyncio.get_running_loop().create_task(self._append())
        for token, answer in effects.answers:
            future = self.parked.pop(token, None)
            if future is not None:
                self._answer_when_committed(future, answer)
        self.set_alarm()

    @property
    def is_committed(self) -> bool:
        return self._committed >= self._appended

    async def committed(self) -> None:
        """Returns once all that was written so far is committed; raises if it never will be."""
        if not self.is_committed:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._answer_when_committed(future, None)
            await future

    def close(self, error: KafkaError) -> None:
        """Everybody who waits is told; nothing more is written."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._appender is not None and self._appender is not _current_task():
            self._appender.cancel()
        futures = [waiter.future for waiter in self._waiters] + list(self.parked.values())
        self._waiters.clear()
        self.parked.clear()
        self._buffer.clear()
        for future in futures:
            if not future.done():
                future.set_exception(error)
                future.exception()  # whoever asked may be gone

    def _answer_when_committed(self, future: asyncio.Future[Any], answer: Any) -> None:
        if not self.is_committed:
            self._waiters.append(Waiter(self._appended, future, answer))
        elif not future.done():
            future.set_result(answer)

    async def _append(self) -> None:
        try:
            while self._buffer:
                sequence, records = self._next_batch()
                await _unless_cancelled(self.log.append(records, self.now().wall_ms))
                self._committed = sequence
                while self._waiters and self._waiters[0].sequence <= sequence:
                    waiter = self._waiters.popleft()
                    if not waiter.future.done():
                        waiter.future.set_result(waiter.answer)
        except KafkaError as error:
            self.on_failed(self, error)
        except SextonError as error:
            self.on_failed(self, KafkaError(ErrorCode.kafka_storage_error, str(error)))
        except Exception:
            self.on_failed(self, KafkaError(ErrorCode.unknown_server_error))
            raise
        finally:
            self._appender = None

    def _next_batch(self) -> tuple[int, list[EncodedRecord]]:
        sequence, records, size = self._buffer.popleft()
        records = list(records)
        while self._buffer and size + self._buffer[0][2] <= APPEND_BYTES_MAX:
            sequence, more, more_size = self._buffer.popleft()
            records += more
            size += more_size
        return sequence, records

    def set_alarm(self) -> None:
        """To be called whenever the coordinator may have a new deadline."""
        deadline_ms = self.coordinator.next_deadline_ms()
        if self.is_closed or deadline_ms is None:
            return
        if self._alarm is not None:
            if self._alarm_ms <= deadline_ms:
                return  # it fires early enough, and then looks again
            self._alarm.cancel()
        delay_ms = max(deadline_ms - self.now().monotonic_ms, 0)
        self._alarm_ms = deadline_ms
        self._alarm = asyncio.get_running_loop().call_later(delay_ms / 1000, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        now = self.now()
        if now.monotonic_ms - self._alarm_ms > LATE_MS and not self._has_waited:
            self._has_waited = True
            self._alarm_ms = now.monotonic_ms + LATE_MS
            self._alarm = asyncio.get_running_loop().call_later(LATE_MS / 1000, self._ring)
            return
        self._has_waited = False
        self.carry_out(self.coordinator.tick(now))


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # called by the loop itself


async def _unless_cancelled(append: Awaitable[None]) -> None:
    """Waits for it; whoever gives up waiting does not call it off, for others may wait for the same flush."""
    future = asyncio.ensure_future(append)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise


def _committed_records(
    batch: batches.Batch, open_transactions: dict[int, list[tuple[bytes, bytes | None, int]]]
) -> list[tuple[bytes, bytes | None, int]]:
    """What a batch makes true: at once, or, in a transaction, with its marker. Kafka's transactional commits of offsets
    are in this topic too; those of a transaction that never ended are left out."""
    if batch.is_control:
        kept = open_transactions.pop(batch.producer_id, [])
        return kept if batch.control_type is batches.ControlType.COMMIT else []
    items = [(record.key, record.value, record.timestamp_ms) for record in batch.records if record.key is not None]
    if not batch.is_transactional:
        return items
    open_transactions.setdefault(batch.producer_id, []).extend(items)
    return []
