"""One partition of `__transaction_state` that this broker leads: the pure coordinator on its log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sexton.coordinators.shard import CoordinatorLog, LedPartition, fail
from sexton.coordinators.timers import Now
from sexton.coordinators.transactions.coordinator import TransactionCoordinator
from sexton.coordinators.transactions.messages import Effects, Markers
from sexton.coordinators.transactions.records import encode_key, encode_value
from sexton.metadata.topics import TRANSACTIONS_TOPIC
from sexton.protocol.errors import KafkaError
from sexton.records.batch import Batch, Record
from sexton.supervision import Supervisor


class Shard(LedPartition):
    topic = TRANSACTIONS_TOPIC

    def __init__(
        self,
        partition: int,
        epoch: int,
        log: CoordinatorLog,
        coordinator: TransactionCoordinator,
        now: Callable[[], Now],
        on_failed: Callable[[Shard, KafkaError], None],
        on_decided: Callable[[Shard, Markers], None],
        supervisor: Supervisor | None = None,
    ) -> None:
        """`epoch` is the leader epoch: markers carry it, so that a former coordinator's markers can be recognized.
        `on_decided` is called when markers are to be sent."""
        super().__init__(partition, log, now, on_failed, supervisor)
        self.epoch = epoch
        self.coordinator = coordinator
        self._on_decided = on_decided
        self._until_completed: dict[str, list[asyncio.Future[None]]] = {}

    def replay(self, batch: Batch, record: Record) -> None:
        if record.key is not None:
            self.coordinator.replay(record.key, record.value)

    def loaded(self) -> None:
        self.carry_out(self.coordinator.on_loaded(self.now()))

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
                self._on_decided(self, markers)

        self.when_committed(send)

    @property
    def effects(self) -> Effects:
        return self.coordinator.effects

    def next_deadline_ms(self) -> int | None:
        return self.coordinator.next_deadline_ms()

    def ring(self, now: Now) -> None:
        self.carry_out(self.coordinator.tick(now))

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
