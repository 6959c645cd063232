"""One partition of a coordinator's topic that this broker leads: its pending appends, and the callers that wait for
them.

**No response is sent before its state is committed.** An operation changes the coordinator at once; its records go into
a buffer; its response, and every later response, waits until the records are on all in-sync replicas. So a read, too,
returns only what cannot be lost.

**One append at a time.** Operations that arrive during an append are gathered into the next one: many requests, one
batch. And no record can be in the log without those that came before it: if an append fails, everything behind it fails
too, and the coordinator is discarded.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from sexton.coordinators.bounds import BACKLOG_BYTES_MAX, BATCH_BYTES_MAX, RECORD_OVERHEAD_BYTES
from sexton.coordinators.log import CoordinatorLog, EncodedRecord, EndMarker
from sexton.coordinators.timers import Now
from sexton.errors import CorruptLogError, SextonError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records import batch as batches
from sexton.records.batch import Batch, Record
from sexton.supervision import Supervisor
from sexton.types import ProducerIdAndEpoch

C = TypeVar("C", bound="Coordinator")
logger = logging.getLogger(__name__)

APPEND_BYTES_MAX = 256 * 1024
"""Records are gathered into one append up to this size. A larger operation is appended alone."""

LATE_MS = 50
WAIT_MS_MAX = 1_000
"""`LATE_MS` and `WAIT_MS_MAX`: a timer that fires more than LATE_MS late means that the process was suspended. Requests
that came meanwhile are still in the sockets: they are read first, for as long as the timer was late (at most
WAIT_MS_MAX), before members count as expired. The suspension may have lasted a whole session timeout of which the timer
saw only the last bit."""

UNWRITABLE_PAUSE_MS = 1_000
"""Interval between two checks whether the log can be written again, while there is something to write."""

REPLAY_PAUSE_RECORDS = 500
"""Number of records after which loading a log yields to the event loop."""

LOST_LEADERSHIP = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.kafka_storage_error,
        ErrorCode.not_coordinator,
        ErrorCode.unknown_topic_or_partition,
    }
)
"""After these errors another broker may be the coordinator."""


class _Entry(NamedTuple):
    """The records of one operation, or a part of them. With an owner or a marker they are a batch of their own."""

    sequence: int
    """Number of the last operation that is committed with this entry."""
    records: list[EncodedRecord]
    size_bytes: int
    owner: ProducerIdAndEpoch | None = None
    marker: EndMarker | None = None

    @property
    def is_plain(self) -> bool:
        return self.owner is None and self.marker is None


class Coordinator(Protocol):
    """The state of one partition, as a pure state machine: its operations return effects."""

    @property
    def effects(self) -> Any:
        """Effects of the last operation, also if it was refused."""
        ...

    def on_loaded(self, now: Now) -> Any:
        """Called when the log has been read: timers run from here on."""
        ...

    def next_deadline_ms(self) -> int | None:
        """When `tick` should be called, on the monotonic clock."""
        ...

    def tick(self, now: Now) -> Any:
        """Handles expired timers."""
        ...


class PartitionService(Protocol):
    """The coordinator service, as its partitions see it."""

    @property
    def supervisor(self) -> Supervisor: ...

    def now(self) -> Now: ...

    def on_failed(self, led: Any, error: KafkaError) -> None:
        """Called when the state in memory may differ from the log: an append failed, or there was a bug."""
        ...


class LedPartition(ABC, Generic[C]):
    topic: ClassVar[str]

    def __init__(
        self,
        partition: int,
        log: CoordinatorLog,
        coordinator: C,
        service: PartitionService,
    ) -> None:
        self._service = service
        self._supervisor = service.supervisor
        self.partition = partition
        self.log = log
        self.coordinator = coordinator
        self.now = service.now
        self.place = f"{self.topic}-{partition}"
        self.is_loaded = False
        self.is_doubtful = False
        """Whether another broker may be the coordinator; only meaningful until the partition is loaded."""
        self.load_after_s = 0.0
        self.is_closed = False
        self._buffer: deque[_Entry] = deque()
        self._backlog_bytes = 0
        self._appended = 0
        """Number of the last operation that had records."""
        self._committed = 0
        self._waiters: deque[tuple[int, Callable[[KafkaError | None], None]]] = deque()
        self._appender: asyncio.Task[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_ms = 0
        self._quiet_until_ms = 0
        """Timers are not handled before this time."""
        self._could_not_write = False
        """Whether the log could not be written when timers were last due."""

    async def load(self) -> None:
        """Replays the log. Raises any error of reading it.

        A record that cannot be parsed is skipped: one that no coordinator wrote (clients could write to these topics in
        the past) must not keep all others from being served for ever. Kafka skips kinds that it does not know, and
        fails at the rest.
        """
        count = unreadable_count = 0
        first = ""
        async for data in self.log.read():
            for batch in batches.decode_all(data, self.place):
                if batch.is_control:
                    self.replay_control(batch)
                    continue
                for record in batch.records:
                    try:
                        self.replay(batch, record)
                    except CorruptLogError as error:
                        unreadable_count += 1
                        first = first or f"at offset {record.offset}: {error}"
                    count += 1
                    if count % REPLAY_PAUSE_RECORDS == 0:
                        await asyncio.sleep(0)
        if unreadable_count:
            logger.error(
                "%s: skipped %d of %d records, which cannot be read: what they were meant to say is not known here. "
                "The first %s",
                self.place,
                unreadable_count,
                count,
                first,
            )
        if not self.is_closed:
            self.is_loaded = True
            self.carry_out(self.coordinator.on_loaded(self.now()))

    @abstractmethod
    def replay(self, batch: Batch, record: Record) -> None:
        """Raises CorruptLogError, and has changed nothing, if the record cannot be parsed."""

    def replay_control(self, batch: Batch) -> None:
        """Replays a marker of a client's transaction."""
        del batch

    @abstractmethod
    def carry_out(self, effects: Any) -> None:
        """Carries out the effects of one operation of its coordinator."""

    # Writing

    def write(
        self, records: Sequence[EncodedRecord], owner: ProducerIdAndEpoch | None = None, marker: EndMarker | None = None
    ) -> None:
        """Records that are too large for one batch go into several, one after the other. A crash may then keep only the
        first of them: the client has not got a response, and retries."""
        self._appended += 1
        parts = _parts(records)
        for number, (part, size_bytes) in enumerate(parts, 1):
            sequence = self._appended if number == len(parts) else self._appended - 1
            self._buffer.append(_Entry(sequence, part, size_bytes, owner, marker))
            self._backlog_bytes += size_bytes
        if self._appender is None:
            self._appender = self._supervisor.work(self._append(), "a coordinator's append", self.partition)

    def check_writable(self) -> None:
        """For operations that will write: refusing them before they have changed anything affects no other request."""
        if self._backlog_bytes > BACKLOG_BYTES_MAX:
            what = f"{self.place}: {self._backlog_bytes} bytes wait to be written. Try again"
            raise KafkaError(ErrorCode.coordinator_not_available, what)
        try:
            self.log.check_writable()
        except KafkaError as error:
            raise KafkaError(answer_to_failed_append(error.code), error.message) from error

    async def until_writable(self) -> None:
        """Returns when operations that write are not refused, or when the partition is closed. For work that can wait:
        an append that fails has the partition loaded again, which disturbs all its users."""
        while not self.is_closed and not self.is_writable:
            await asyncio.sleep(UNWRITABLE_PAUSE_MS / 1000)

    @property
    def is_writable(self) -> bool:
        try:
            self.check_writable()
        except KafkaError:
            return False
        return True

    @property
    def is_committed(self) -> bool:
        return self._committed >= self._appended

    @property
    def has_committed(self) -> bool:
        """Whether anything was committed since it was loaded."""
        return self._committed > 0

    async def committed(self) -> None:
        """Returns when everything written so far is committed; raises if it never will be."""
        if not self.is_committed:
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self.answer_when_committed(future, None)
            await future

    def answer_when_committed(self, future: asyncio.Future[Any], answer: Any) -> None:
        def complete(error: KafkaError | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(answer)
            else:
                fail(future, error)

        self.when_committed(complete)

    def when_committed(self, callback: Callable[[KafkaError | None], None]) -> None:
        """Calls back when everything written so far is committed (at once, if it is), or with the error if it never
        will be."""
        if self.is_committed:
            callback(None)
        else:
            self._waiters.append((self._appended, callback))

    def close(self, error: KafkaError) -> None:
        """Fails all waiting callers; nothing more is written."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._alarm is not None:
            self._alarm.cancel()
        if self._appender is not None and self._appender is not _current_task():
            self._appender.cancel()
        waiters = list(self._waiters)
        self._waiters.clear()
        self._buffer.clear()
        self._backlog_bytes = 0
        for _, callback in waiters:
            callback(error)

    async def _append(self) -> None:
        try:
            while self._buffer:
                sequence, append = self._next_append()
                await _unless_cancelled(append)
                self._committed = sequence
                while self._waiters and self._waiters[0][0] <= sequence:
                    self._waiters.popleft()[1](None)
        except KafkaError as error:
            self._service.on_failed(self, error)
        except SextonError as error:
            self._service.on_failed(self, KafkaError(ErrorCode.kafka_storage_error, str(error)))
        except Exception:
            self._service.on_failed(self, KafkaError(ErrorCode.unknown_server_error))
            raise
        finally:
            self._appender = None

    def _next_append(self) -> tuple[int, Awaitable[None]]:
        entry = self._take_entry()
        now_ms = self.now().wall_ms
        if not entry.is_plain:
            log: Any = self.log
            if entry.marker is not None:
                return entry.sequence, log.append_marker(entry.marker, now_ms)
            return entry.sequence, log.append_in_transaction(entry.owner, entry.records, now_ms)
        sequence, records, size = entry.sequence, entry.records, entry.size_bytes
        while self._buffer and self._buffer[0].is_plain and size + self._buffer[0].size_bytes <= APPEND_BYTES_MAX:
            entry = self._take_entry()
            sequence = entry.sequence
            records += entry.records
            size += entry.size_bytes
        return sequence, self.log.append(records, now_ms)

    def _take_entry(self) -> _Entry:
        entry = self._buffer.popleft()
        self._backlog_bytes -= entry.size_bytes
        return entry

    # Time

    def set_alarm(self) -> None:
        """Must be called whenever there may be a new deadline."""
        deadline_ms = self.coordinator.next_deadline_ms()
        if self.is_closed or deadline_ms is None:
            return
        now_ms = self.now().monotonic_ms
        ring_ms = max(deadline_ms, self._quiet_until_ms, now_ms)
        if self._alarm is not None:
            if self._alarm_ms <= ring_ms:
                return  # it fires early enough, and the deadline is checked again then
            self._alarm.cancel()
        self._alarm_ms = ring_ms
        self._alarm = asyncio.get_running_loop().call_later((ring_ms - now_ms) / 1000, self.ring)

    def ring(self) -> None:
        """The alarm has gone off: timers that are due are handled, unless this broker was late or cannot write."""
        self._alarm = None
        now = self.now()
        has_waited = self._alarm_ms == self._quiet_until_ms
        late_ms = now.monotonic_ms - self._alarm_ms
        if late_ms > LATE_MS and not has_waited:
            self._wait(now.monotonic_ms + min(late_ms, WAIT_MS_MAX))
            return
        try:
            self.log.check_writable()
        except KafkaError:
            # Handling timers would write, and that would fail. Live members go on sending heartbeats.
            self._could_not_write = True
            self._wait(now.monotonic_ms + UNWRITABLE_PAUSE_MS)
            return
        if self._could_not_write:
            # Who has tried to join meanwhile was refused, and asks again first.
            self._could_not_write = False
            self._wait(now.monotonic_ms + UNWRITABLE_PAUSE_MS)
            return
        try:
            self.carry_out(self.coordinator.tick(now))
        except Exception as bug:
            # The state may be inconsistent, and no alarm would ring again: it is loaded again.
            self._supervisor.survived(bug, "a coordinator's timers", self.partition)
            self._service.on_failed(self, KafkaError(ErrorCode.unknown_server_error))

    def _wait(self, until_ms: int) -> None:
        self._quiet_until_ms = until_ms
        self.set_alarm()


def answer_to_failed_append(code: ErrorCode) -> ErrorCode:
    """Error for the callers that waited for the append. It is always retriable: most of them did nothing that
    failed."""
    return ErrorCode.not_coordinator if code in LOST_LEADERSHIP else ErrorCode.coordinator_not_available


def _parts(records: Sequence[EncodedRecord]) -> list[tuple[list[EncodedRecord], int]]:
    """Splits the records so that each part fits into a batch; there is at least one part."""
    parts: list[tuple[list[EncodedRecord], int]] = []
    part: list[EncodedRecord] = []
    part_bytes = 0
    for key, value in records:
        size_bytes = len(key) + len(value or b"") + RECORD_OVERHEAD_BYTES
        if part and part_bytes + size_bytes > BATCH_BYTES_MAX:
            parts.append((part, part_bytes))
            part, part_bytes = [], 0
        part.append((key, value))
        part_bytes += size_bytes
    return [*parts, (part, part_bytes)]


def fail(future: asyncio.Future[Any], error: KafkaError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # retrieved, because the caller may be gone


def _current_task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None  # called by the event loop itself


async def _unless_cancelled(append: Awaitable[None]) -> None:
    """Waits for the append. Cancelling the wait does not cancel the append, for others may wait for the same flush."""
    future = asyncio.ensure_future(append)
    try:
        await asyncio.shield(future)
    except asyncio.CancelledError:
        future.add_done_callback(lambda done: done.cancelled() or done.exception())
        raise
