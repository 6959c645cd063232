"""One partition of `__consumer_offsets` that this broker leads: the pure coordinator, its log, and waiting requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from sexton.coordinators.groups.coordinator import GroupCoordinator
from sexton.coordinators.groups.core import Effects
from sexton.coordinators.groups.records import encode
from sexton.coordinators.shard import APPEND_BYTES_MAX, CoordinatorLog, EndMarker, LedPartition, TransactionalLog, fail
from sexton.coordinators.timers import Now
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Batch, ControlType, Record
from sexton.supervision import Supervisor
from sexton.types import ProducerIdAndEpoch

__all__ = ["APPEND_BYTES_MAX", "CoordinatorLog", "Shard", "TransactionalLog"]


async def up_to_date() -> None:
    """For a coordinator whose topics do not change elsewhere."""


class Verification:
    """A verification by a transaction's coordinator that is in progress. It is valid only for the state that was loaded
    when it began."""

    __slots__ = ("shard",)

    def __init__(self, shard: Shard) -> None:
        self.shard = shard


class Shard(LedPartition):
    topic = OFFSETS_TOPIC

    def __init__(
        self,
        partition: int,
        log: TransactionalLog,
        coordinator: GroupCoordinator,
        now: Callable[[], Now],
        on_failed: Callable[[Shard, KafkaError], None],
        supervisor: Supervisor | None = None,
        catch_up: Callable[[], Awaitable[None]] = up_to_date,
    ) -> None:
        super().__init__(partition, log, now, on_failed, supervisor)
        self.transactional_log = log
        self.coordinator = coordinator
        self.parked: dict[int, asyncio.Future[Any]] = {}
        """Futures of waiting JoinGroup and SyncGroup requests, by token."""
        self._catch_up = catch_up
        self.has_caught_up = False
        self._last_token = 0
        self._verifications: dict[ProducerIdAndEpoch, Verification] = {}

    def replay(self, batch: Batch, record: Record) -> None:
        owner = ProducerIdAndEpoch(batch.producer_id, batch.producer_epoch) if batch.is_transactional else None
        if record.key is not None:
            self.coordinator.replay(record.key, record.value, record.timestamp_ms, owner)

    def replay_control(self, batch: Batch) -> None:
        self.coordinator.replay_end(batch.producer_id, batch.control_type is ControlType.COMMIT)

    def loaded(self) -> None:
        self.carry_out(self.coordinator.on_loaded(self.now()))

    async def load(self) -> None:
        """The view catches up before the log is read: other brokers may have written offsets of topics that this broker
        does not know yet, which must not be taken for deleted topics. This is done once per leadership, for afterwards
        only this broker writes here: so the log can be read again while the metastore is unreachable."""
        if not self.has_caught_up:
            await self._catch_up()
            self.has_caught_up = True
        await super().load()
        while not self.is_closed and (gone := self.coordinator.forget_deleted(None, self.now())).records:
            self.carry_out(gone)
            await asyncio.sleep(0)

    def park(self) -> tuple[int, asyncio.Future[Any]]:
        """Returns a token for the coordinator, and the future that gets the response when the coordinator answers that
        token."""
        self._last_token += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.parked[self._last_token] = future
        return self._last_token, future

    def carry_out(self, effects: Effects, marker: EndMarker | None = None) -> None:
        if effects.records or marker is not None:
            self.write([encode(record) for record in effects.records], effects.owner, marker)
        for token, answer in effects.answers:
            future = self.parked.pop(token, None)
            if future is not None:
                self.answer_when_committed(future, answer)
        self.set_alarm()

    # Transactions of clients

    def begin_verification(self, owner: ProducerIdAndEpoch) -> Verification:
        """A marker voids the verification (see `log/producers.py`)."""
        return self._verifications.setdefault(owner, Verification(self))

    def check_owner(self, owner: ProducerIdAndEpoch, verification: Verification | None) -> None:
        """Raises if the producer's transaction has ended, or its epoch is stale."""
        if verification is not None and verification.shard is not self:
            # A marker may have been written in between. The client retries, and with it comes a new verification.
            what = f"{self.place} was loaded while the transaction's coordinator was asked. Try again"
            raise KafkaError(ErrorCode.coordinator_load_in_progress, what)
        is_verified = verification is not None and self._verifications.get(owner) is verification
        if not is_verified and not self.coordinator.is_in_transaction(owner):
            what = "the transaction ended while its offsets were on their way"
            raise KafkaError(ErrorCode.invalid_txn_state, what)
        self.transactional_log.check_owner(owner)

    def end_verification(self, owner: ProducerIdAndEpoch, verification: Verification) -> None:
        """Called when the transaction's coordinator has refused."""
        if self._verifications.get(owner) is verification:
            del self._verifications[owner]

    def end_transaction(self, marker: EndMarker) -> bool:
        """Returns False if the marker was written before. Raises if it is stale."""
        is_new = self.transactional_log.check_marker(marker)
        if is_new:
            producer_id, last_epoch = marker.owner.producer_id, marker.last_epoch
            over = [o for o in self._verifications if o.producer_id == producer_id and o.epoch <= last_epoch]
            for owner in over:
                del self._verifications[owner]
        return is_new

    @property
    def effects(self) -> Effects:
        return self.coordinator.effects

    def next_deadline_ms(self) -> int | None:
        return self.coordinator.next_deadline_ms()

    def ring(self, now: Now) -> None:
        self.carry_out(self.coordinator.tick(now))

    def close(self, error: KafkaError) -> None:
        super().close(error)
        parked, self.parked = self.parked, {}
        for future in parked.values():
            fail(future, error)
