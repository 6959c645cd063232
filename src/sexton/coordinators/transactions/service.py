"""The transaction coordinator of one broker: a thin asyncio shell around one pure coordinator for each partition of
`__transaction_state` that this broker leads.

How the broker uses it:

    transactions = TransactionService(clock, settings, partitions_count, next_producer_id, send_markers, may_serve)
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
from sexton.coordinators.service import CoordinatorService
from sexton.coordinators.shard import CoordinatorLog
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
from sexton.coordinators.transactions.shard import Shard
from sexton.coordinators.transactions.transaction import Transaction
from sexton.metadata.topics import TRANSACTIONS_TOPIC
from sexton.ports.clock import Clock
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.broker import TransactionSettings
from sexton.supervision import Supervisor
from sexton.types import NO_PRODUCER_ID, ProducerIdAndEpoch, TopicPartition

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


class TransactionService(CoordinatorService[Shard]):
    topic = TRANSACTIONS_TOPIC
    invalid_name = ErrorCode.invalid_request
    refusals = (KafkaError, ProducerIdNeeded, LateEnd)

    def __init__(
        self,
        clock: Clock,
        settings: TransactionSettings,
        partitions_count: Callable[[], int],
        next_producer_id: Callable[[], Awaitable[int]],
        send_markers: Callable[[DueMarkers], None],
        may_serve: Callable[[], bool] = lambda: True,
        supervisor: Supervisor | None = None,
        is_elected: Callable[[str, int], bool] = lambda topic, partition: False,
    ) -> None:
        """Reads, too, check `may_serve`: a partition that is verified for a transaction that has ended would get a
        hanging transaction."""
        super().__init__(clock, partitions_count, may_serve, supervisor, is_elected)
        self.settings = settings
        self.concurrent_wait_ms = CONCURRENT_WAIT_MS
        self._next_producer_id = next_producer_id
        self._send_markers = send_markers

    def reconfigure(self, settings: TransactionSettings) -> None:
        self.settings = settings
        for shard in self._shards.values():
            shard.coordinator.settings = settings

    def load(self, partition: int, epoch: int, log: CoordinatorLog) -> asyncio.Task[None]:
        coordinator = TransactionCoordinator(self.settings)
        return self._load_into(
            Shard(partition, epoch, log, coordinator, self._now, self._on_failed, self._on_decided, self.supervisor)
        )

    def _commit_timeout_ms(self) -> int:
        return COMMIT_TIMEOUT_MS

    def _empty(self, shard: Shard) -> None:
        shard.coordinator = TransactionCoordinator(self.settings)

    def _load_again(self, shard: Shard) -> None:
        self.load(shard.partition, shard.epoch, shard.log)

    def check_invariants(self) -> None:
        for shard in self._shards.values():
            if shard.is_loaded and not shard.is_closed:
                shard.coordinator.check_invariants()

    # Markers

    def _on_decided(self, shard: Shard, markers: Markers) -> None:
        self._send_markers(DueMarkers(shard.partition, shard.epoch, markers))

    def owes(self, due: DueMarkers, partition: TopicPartition) -> bool:
        """Whether the marker is still to be written, as far as this broker knows. False while the log is being read:
        afterwards all markers that are left are sent again."""
        shard = self._shard_of(due)
        return shard is not None and shard.coordinator.owes(due.markers, partition)

    def _shard_of(self, due: DueMarkers) -> Shard | None:
        shard = self._shards.get(due.coordinator_partition)
        return shard if shard is not None and shard.is_loaded and shard.epoch == due.coordinator_epoch else None

    def marker_written(self, due: DueMarkers, partition: TopicPartition) -> None:
        """Called when a marker was written, or is no longer needed because the partition was deleted."""
        shard = self._shard_of(due)
        if shard is None:
            return
        markers = due.markers

        def note() -> tuple[None, Effects]:
            written = shard.coordinator.marker_written
            return None, written(markers.transactional_id, markers.producer, partition, self._now())

        self._carry_out(shard, note)

    # Requests

    def is_ready(self, transactional_id: str) -> bool:
        """Whether this broker is the coordinator of the id and has read its log."""
        count = self._partitions_count()
        shard = self._shards.get(partition_for(transactional_id, count)) if count else None
        return shard is not None and shard.is_loaded

    async def init(self, request: InitRequest) -> ProducerIdAndEpoch:
        def attempt(shard: Shard, fresh_id: int | None) -> tuple[ProducerIdAndEpoch, Effects]:
            return shard.coordinator.init(request, fresh_id, self._now())

        async def run(shard: Shard) -> ProducerIdAndEpoch:
            producer = await self._run_with_id(shard, attempt)
            if producer.producer_id == NO_PRODUCER_ID:  # its open transaction is being aborted
                raise KafkaError(ErrorCode.concurrent_transactions)
            return producer

        return await self._patiently(request.transactional_id, run)

    async def add(self, request: AddRequest) -> None:
        async def run(shard: Shard) -> None:
            await self._run(shard, lambda: (None, shard.coordinator.add(request, self._now())))

        await self._patiently(request.transactional_id, run)

    async def verify(self, request: AddRequest) -> Verified:
        """Waits for the commit of the state that it returns: a batch must not be appended because of uncommitted
        state."""

        async def run(shard: Shard) -> Verified:
            return await self._run(shard, lambda: (shard.coordinator.verify(request), NOTHING))

        return await self._patiently(request.transactional_id, run, self._shard)

    async def end(self, request: EndRequest) -> ProducerIdAndEpoch:
        def attempt(shard: Shard, fresh_id: int | None) -> tuple[ProducerIdAndEpoch, Effects]:
            return shard.coordinator.end(request, fresh_id, self._now())

        async def run(shard: Shard) -> ProducerIdAndEpoch:
            return await self._run_with_id(shard, attempt)

        return await self._patiently(request.transactional_id, run)

    async def describe(self, transactional_id: str) -> tuple[Transaction, tuple[TopicPartition, ...]]:
        """Returns the transaction, and the partitions in which it may be open."""
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "an empty transactional id")
        shard = self._shard(transactional_id)
        found, unmarked = await self._run(
            shard,
            lambda: (
                (shard.coordinator.get(transactional_id), shard.coordinator.unmarked(transactional_id)),
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
            shard = self._shards.get(partition)
            if shard is None:
                continue
            if not shard.is_loaded:
                raise KafkaError(ErrorCode.coordinator_load_in_progress)
            listed += await self._list_one(shard, request)
        return listed

    async def _list_one(self, shard: Shard, request: ListRequest) -> list[Transaction]:
        return await self._run(shard, lambda: (shard.coordinator.matching(request, self._now()), NOTHING))

    # Internals

    async def _patiently(
        self,
        transactional_id: str,
        run: Callable[[Shard], Awaitable[T]],
        find: Callable[[str], Shard] | None = None,
    ) -> T:
        """Runs the operation; while the previous transaction's markers are being written, waits for them and tries
        again."""
        find = find or self._shard_to_write
        deadline_ms = self._clock.monotonic_ms() + self.concurrent_wait_ms
        while True:
            shard = find(transactional_id)
            try:
                return await run(shard)
            except EarlyCommitError:
                raise
            except KafkaError as error:
                left_ms = deadline_ms - self._clock.monotonic_ms()
                if error.code is not ErrorCode.concurrent_transactions or left_ms <= 0:
                    raise
                if not await self._wait_until_completed(shard, transactional_id, left_ms):
                    raise

    async def _wait_until_completed(self, shard: Shard, transactional_id: str, wait_ms: int) -> bool:
        found = shard.coordinator.get(transactional_id)
        if found is None or not found.state.is_prepared:
            return True
        try:
            async with asyncio.timeout(wait_ms / 1000):
                await shard.completed(transactional_id)
        except TimeoutError:
            return False
        return True

    async def _run_with_id(self, shard: Shard, attempt: Callable[[Shard, int | None], tuple[T, Effects]]) -> T:
        """Producer ids come from the metastore, so one is allocated only if the operation needs it."""
        try:
            return await self._run(shard, lambda: attempt(shard, None))
        except ProducerIdNeeded:
            fresh_id = await self._next_producer_id()
        if shard.is_closed:
            raise KafkaError(ErrorCode.not_coordinator)
        return await self._run(shard, lambda: attempt(shard, fresh_id))

    def _shard(self, transactional_id: str) -> Shard:
        if not transactional_id:
            raise KafkaError(ErrorCode.invalid_request, "an empty transactional id")
        return super()._shard(transactional_id)
