"""The transaction coordinator of one broker: a thin asyncio shell around one pure coordinator for each partition of
`__transaction_state` that this broker leads.

How the broker uses it:

    transactions = TransactionService(host, settings, next_producer_id=…, send_markers=…)
    transactions.load(partition, epoch, log)    when it has become the leader of that partition
    transactions.unload(partition)              when it no longer is
    transactions.marker_written(...)            for each partition that has its marker
    await transactions.close()

Every other method is one request of the protocol. Each raises KafkaError: NOT_COORDINATOR if another broker coordinates
the transactional id, COORDINATOR_LOAD_IN_PROGRESS while its log is being read, COORDINATOR_NOT_AVAILABLE if the change
could not be committed.

A request that arrives while the markers of the previous transaction are being written waits for them, for a moment
(`CONCURRENT_WAIT_MS`), before it gets CONCURRENT_TRANSACTIONS.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from sexton.coordinators.hashing import partition_for
from sexton.coordinators.host import Host
from sexton.coordinators.log import CoordinatorLog
from sexton.coordinators.partition import UNWRITABLE_PAUSE_MS, LedPartition, fail
from sexton.coordinators.service import CoordinatorService
from sexton.coordinators.transactions.coordinator import LateEnd, ProducerIdNeeded, TransactionCoordinator
from sexton.coordinators.transactions.ending import EarlyCommitError
from sexton.coordinators.transactions.messages import (
    AddRequest,
    Effects,
    EndRequest,
    InitRequest,
    ListRequest,
    Markers,
    Verified,
)
from sexton.coordinators.transactions.records import encode_key, encode_value
from sexton.coordinators.transactions.transaction import Transaction
from sexton.metadata.topics import TRANSACTIONS_TOPIC
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Batch, Record
from sexton.settings.broker import TransactionSettings
from sexton.types import NO_PRODUCER_ID, ProducerId, ProducerIdAndEpoch, TopicPartition

T = TypeVar("T")
logger = logging.getLogger(__name__)

COMMIT_TIMEOUT_MS: Final = 5_000
"""How long a response waits until the state that it depends on is committed."""

CONCURRENT_WAIT_MS: Final = 1_000
"""How long a request waits for the markers of the previous transaction before it gets CONCURRENT_TRANSACTIONS: most are
written within milliseconds, and clients would retry only after 20 to 100."""

NOTHING = Effects()
"""Effects of a read: none."""


class DueMarkers(NamedTuple):
    """Markers with the partition of `__transaction_state` and the leader epoch that they come from."""

    coordinator_partition: int
    coordinator_epoch: int
    markers: Markers


class TransactionsPartition(LedPartition[TransactionCoordinator]):
    """One partition of `__transaction_state` that this broker leads: the pure coordinator on its log."""

    topic = TRANSACTIONS_TOPIC
    _service: TransactionService

    def __init__(
        self,
        partition: int,
        epoch: int,
        log: CoordinatorLog,
        coordinator: TransactionCoordinator,
        service: TransactionService,
    ) -> None:
        """`epoch` is the leader epoch: markers carry it, so that a former coordinator's markers can be recognized."""
        super().__init__(partition, log, coordinator, service)
        self.epoch = epoch
        self.counted_later: set[tuple[DueMarkers, TopicPartition]] = set()
        """Markers that are written, and are not owed any more, while that cannot be recorded."""
        self._until_completed: dict[str, list[asyncio.Future[None]]] = {}

    def replay(self, batch: Batch, record: Record) -> None:
        if record.key is not None:
            self.coordinator.replay(record.key, record.value)

    def carry_out(self, effects: Effects) -> None:
        if effects.records:
            self.write(
                [
                    (encode_key(name), None if transaction is None else encode_value(transaction))
                    for name, transaction in effects.records
                ]
            )
        for markers in effects.markers:
            self._send_when_committed(markers)
        for name in effects.completed:
            self._wake(name)
        self.set_alarm()

    def _send_when_committed(self, markers: Markers) -> None:
        """A marker cannot be undone, so the decision must be committed before it is sent."""

        def send(error: KafkaError | None) -> None:
            if error is None and not self.is_closed:
                self._service.send_markers(DueMarkers(self.partition, self.epoch, markers))

        self.when_committed(send)

    async def completed(self, transactional_id: str) -> None:
        """Returns when the markers of the transaction are written, as far as this broker knows."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._until_completed.setdefault(transactional_id, []).append(future)
        try:
            await future
        finally:
            self._forget(transactional_id, future)

    def _forget(self, transactional_id: str, future: asyncio.Future[None]) -> None:
        waiting = self._until_completed.get(transactional_id)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._until_completed[transactional_id]

    def _wake(self, transactional_id: str) -> None:
        for future in self._until_completed.pop(transactional_id, []):
            if not future.done():
                future.set_result(None)

    def close(self, error: KafkaError) -> None:
        super().close(error)
        waiting, self._until_completed = self._until_completed, {}
        for futures in waiting.values():
            for future in futures:
                fail(future, error)


class TransactionService(CoordinatorService[TransactionsPartition]):
    topic = TRANSACTIONS_TOPIC
    invalid_name = ErrorCode.invalid_request
    refusals = (KafkaError, ProducerIdNeeded, LateEnd)

    def __init__(
        self,
        host: Host,
        settings: TransactionSettings,
        *,
        next_producer_id: Callable[[], Awaitable[ProducerId]],
        send_markers: Callable[[DueMarkers], None],
    ) -> None:
        super().__init__(host)
        self.settings = settings
        self.concurrent_wait_ms = CONCURRENT_WAIT_MS
        self._next_producer_id = next_producer_id
        self.send_markers = send_markers

    def reconfigure(self, settings: TransactionSettings) -> None:
        self.settings = settings
        for led in self.led.values():
            led.coordinator.settings = settings

    def load(self, partition: int, epoch: int, log: CoordinatorLog) -> asyncio.Task[None]:
        coordinator = TransactionCoordinator(self.settings)
        return self._load_into(TransactionsPartition(partition, epoch, log, coordinator, self))

    def _commit_timeout_ms(self) -> int:
        return COMMIT_TIMEOUT_MS

    def _empty(self, led: TransactionsPartition) -> None:
        led.coordinator = TransactionCoordinator(self.settings)

    def _load_again(self, led: TransactionsPartition) -> None:
        self.load(led.partition, led.epoch, led.log)

    def check_invariants(self) -> None:
        for led in self.led.values():
            if led.is_loaded and not led.is_closed:
                led.coordinator.check_invariants()

    # Markers

    def owes(self, due: DueMarkers, partition: TopicPartition) -> bool:
        """Whether the marker is still to be written, as far as this broker knows. False while the log is being read:
        afterwards all markers that are left are sent again."""
        led = self._find_for(due)
        is_written = led is None or (due, partition) in led.counted_later
        return led is not None and not is_written and led.coordinator.owes(due.markers, partition)

    def _find_for(self, due: DueMarkers) -> TransactionsPartition | None:
        led = self.led.get(due.coordinator_partition)
        return led if led is not None and led.is_loaded and led.epoch == due.coordinator_epoch else None

    def marker_written(self, due: DueMarkers, partition: TopicPartition) -> None:
        """Called when a marker was written, or is no longer needed because the partition was deleted. While nothing can
        be recorded, it counts later, if the partition is not loaded again before: then all markers are sent again, and
        the transaction must not end, and another begin, while they are on their way."""
        led = self._find_for(due)
        if led is None or (due, partition) in led.counted_later:
            return
        if not led.is_writable:
            led.counted_later.add((due, partition))
            asyncio.get_running_loop().call_later(UNWRITABLE_PAUSE_MS / 1000, self._count, led, due, partition)
            return
        markers = due.markers

        def note() -> tuple[None, Effects]:
            written = led.coordinator.marker_written
            return None, written(markers.transactional_id, markers.producer, partition, self.now())

        self._carry_out(led, note)

    def _count(self, led: TransactionsPartition, due: DueMarkers, partition: TopicPartition) -> None:
        if self._find_for(due) is led:
            led.counted_later.discard((due, partition))
            self.marker_written(due, partition)

    # Requests

    def is_ready(self, transactional_id: str) -> bool:
        """Whether this broker is the coordinator of the id and has read its log."""
        count = self._host.partitions_count(self.topic)
        led = self.led.get(partition_for(transactional_id, count)) if count else None
        return led is not None and led.is_loaded

    async def init(self, request: InitRequest) -> ProducerIdAndEpoch:
        def attempt(led: TransactionsPartition, fresh_id: ProducerId | None) -> tuple[ProducerIdAndEpoch, Effects]:
            return led.coordinator.init(request, fresh_id, self.now())

        async def run(led: TransactionsPartition) -> ProducerIdAndEpoch:
            producer = await self._run_with_id(led, attempt)
            if producer.producer_id == NO_PRODUCER_ID:  # its open transaction is being aborted
                raise KafkaError(ErrorCode.concurrent_transactions)
            return producer

        return await self._patiently(request.transactional_id, run)

    async def add(self, request: AddRequest) -> None:
        async def run(led: TransactionsPartition) -> None:
            await self._run(led, lambda: (None, led.coordinator.add(request, self.now())))

        await self._patiently(request.transactional_id, run)

    async def verify(self, request: AddRequest) -> Verified:
        """Waits for the commit of the state that it returns: a batch must not be appended because of uncommitted
        state."""

        async def run(led: TransactionsPartition) -> Verified:
            return await self._run(led, lambda: (led.coordinator.verify(request), NOTHING))

        return await self._patiently(request.transactional_id, run, self._find)

    async def end(self, request: EndRequest) -> ProducerIdAndEpoch:
        def attempt(led: TransactionsPartition, fresh_id: ProducerId | None) -> tuple[ProducerIdAndEpoch, Effects]:
            return led.coordinator.end(request, fresh_id, self.now())

        async def run(led: TransactionsPartition) -> ProducerIdAndEpoch:
            return await self._run_with_id(led, attempt)

        return await self._patiently(request.transactional_id, run)

    async def describe(self, transactional_id: str) -> tuple[Transaction, tuple[TopicPartition, ...]]:
        """Returns the transaction, and the partitions in which it may be open."""
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "an empty transactional id")
        led = self._find(transactional_id)
        found, unmarked = await self._run(
            led,
            lambda: (
                (led.coordinator.get(transactional_id), led.coordinator.unmarked(transactional_id)),
                NOTHING,
            ),
        )
        if found is None:
            raise KafkaError(ErrorCode.transactional_id_not_found)
        return found, unmarked if found.state.is_prepared else tuple(sorted(found.partitions))

    async def list_all(self, request: ListRequest) -> list[Transaction]:
        """Lists the transactions of all partitions that this broker leads. While one is loading its transactions are
        unknown, so this raises."""
        listed: list[Transaction] = []
        for partition in self.partitions():
            led = self.led.get(partition)
            if led is None:
                continue
            if not led.is_loaded:
                raise KafkaError(ErrorCode.coordinator_load_in_progress)
            listed += await self._list_one(led, request)
        return listed

    async def _list_one(self, led: TransactionsPartition, request: ListRequest) -> list[Transaction]:
        return await self._run(led, lambda: (led.coordinator.matching(request, self.now()), NOTHING))

    # Internals

    async def _patiently(
        self,
        transactional_id: str,
        run: Callable[[TransactionsPartition], Awaitable[T]],
        find: Callable[[str], TransactionsPartition] | None = None,
    ) -> T:
        """Runs the operation; while the previous transaction's markers are being written, waits for them and tries
        again."""
        find = find or self._find_to_write
        deadline_ms = self._host.clock.monotonic_ms() + self.concurrent_wait_ms
        while True:
            led = find(transactional_id)
            try:
                return await run(led)
            except EarlyCommitError:
                raise
            except KafkaError as error:
                left_ms = deadline_ms - self._host.clock.monotonic_ms()
                if error.code is not ErrorCode.concurrent_transactions or left_ms <= 0:
                    raise
                if not await self._wait_until_completed(led, transactional_id, left_ms):
                    raise

    async def _wait_until_completed(self, led: TransactionsPartition, transactional_id: str, wait_ms: int) -> bool:
        found = led.coordinator.get(transactional_id)
        if found is None or not found.state.is_prepared:
            return True
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await led.completed(transactional_id)
        except TimeoutError:
            return False
        return True

    async def _run_with_id(
        self,
        led: TransactionsPartition,
        attempt: Callable[[TransactionsPartition, ProducerId | None], tuple[T, Effects]],
    ) -> T:
        """Producer ids come from the metastore, so one is allocated only if the operation needs it."""
        try:
            return await self._run(led, lambda: attempt(led, None))
        except ProducerIdNeeded:
            fresh_id = await self._next_producer_id()
        if led.is_closed:
            raise KafkaError(ErrorCode.not_coordinator)
        return await self._run(led, lambda: attempt(led, fresh_id))

    def _find(self, transactional_id: str) -> TransactionsPartition:
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "an empty transactional id")
        return super()._find(transactional_id)
