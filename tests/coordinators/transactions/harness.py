"""One coordinator under an explicit clock, with everything that it wrote: what the tests of this folder stand on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from sexton.coordinators.timers import Now
from sexton.coordinators.transactions.coordinator import ProducerIdNeeded, TransactionCoordinator
from sexton.coordinators.transactions.messages import AddRequest, Effects, EndRequest, InitRequest, Markers, Record
from sexton.coordinators.transactions.records import encode_key, encode_value
from sexton.coordinators.transactions.states import State
from sexton.coordinators.transactions.transaction import Transaction
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.broker import TransactionSettings
from sexton.types import ProducerId, ProducerIdAndEpoch, TopicPartition

START_MS = 1_700_000_000_000
TIMEOUT_MS = 60_000
ID = "app"
OLD = 0
NEW = 2
"""Transaction versions of clients."""

P0, P1, P2 = (("t", number) for number in range(3))


@dataclass
class World:
    """What surrounds the coordinator: its log, the partitions, and the supply of producer ids."""

    records: list[Record] = field(default_factory=list)
    outstanding: list[tuple[Markers, TopicPartition]] = field(default_factory=list)
    next_id: int = 1000


class Harness:
    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.settings = settings or TransactionSettings()
        self.world = World()
        self.now_ms = 0
        self.coordinator = TransactionCoordinator(self.settings)
        self.take(self.coordinator.on_loaded(self.now))

    @property
    def now(self) -> Now:
        return Now(START_MS + self.now_ms, self.now_ms)

    def take(self, effects: Effects) -> None:
        self.world.records += effects.records
        for markers in effects.markers:
            self.world.outstanding += [(markers, place) for place in markers.partitions]
        self.coordinator.check_invariants()

    def advance(self, delay_ms: int) -> None:
        """Time passes, deadline by deadline."""
        end_ms = self.now_ms + delay_ms
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.coordinator.tick(self.now))
        self.now_ms = end_ms

    def fail_over(self) -> None:
        """Another broker loads what this one wrote. Markers that were on their way may or may not have arrived."""
        self.coordinator = self.replayed()
        self.world.outstanding.clear()
        self.take(self.coordinator.on_loaded(self.now))

    def replayed(self) -> TransactionCoordinator:
        fresh = TransactionCoordinator(self.settings)
        for name, transaction in self.world.records:
            fresh.replay(encode_key(name), None if transaction is None else encode_value(transaction))
        return fresh

    # Requests

    def init(
        self,
        expected: ProducerIdAndEpoch | None = None,
        *,
        timeout_ms: int = TIMEOUT_MS,
        transactional_id: str = ID,
    ) -> ProducerIdAndEpoch:
        request = InitRequest(transactional_id, timeout_ms, expected)
        try:
            producer, effects = self.coordinator.init(request, None, self.now)
        except ProducerIdNeeded:
            producer, effects = self.coordinator.init(request, self._fresh_id(), self.now)
        self.take(effects)
        return producer

    def add(
        self,
        producer: ProducerIdAndEpoch,
        *partitions: TopicPartition,
        client_version: int = OLD,
        transactional_id: str = ID,
    ) -> None:
        request = AddRequest(transactional_id, producer, partitions, client_version)
        self.take(self.coordinator.add(request, self.now))

    def verify(
        self, producer: ProducerIdAndEpoch, *partitions: TopicPartition, client_version: int = OLD
    ) -> list[ErrorCode]:
        request = AddRequest(ID, producer, partitions, client_version)
        return list(self.coordinator.verify(request).values())

    def end(
        self,
        producer: ProducerIdAndEpoch,
        is_commit: bool,
        *,
        client_version: int = OLD,
        transactional_id: str = ID,
        may_be_late: bool = False,
    ) -> ProducerIdAndEpoch:
        request = EndRequest(transactional_id, producer, is_commit, client_version, may_be_late)
        try:
            after, effects = self.coordinator.end(request, None, self.now)
        except ProducerIdNeeded:
            after, effects = self.coordinator.end(request, self._fresh_id(), self.now)
        self.take(effects)
        return after

    def commit(self, producer: ProducerIdAndEpoch, client_version: int = OLD) -> ProducerIdAndEpoch:
        return self.end(producer, True, client_version=client_version)

    def abort(self, producer: ProducerIdAndEpoch, client_version: int = OLD) -> ProducerIdAndEpoch:
        return self.end(producer, False, client_version=client_version)

    # Markers

    def deliver(self, count: int | None = None) -> list[tuple[Markers, TopicPartition]]:
        """The partitions write the markers that are due, the oldest first, and say so."""
        delivered = self.world.outstanding[:count]
        del self.world.outstanding[:count]
        for markers, place in delivered:
            self.take(self.coordinator.marker_written(markers.transactional_id, markers.producer, place, self.now))
        return delivered

    # Looking

    @property
    def transaction(self) -> Transaction:
        found = self.coordinator.get(ID)
        assert found is not None
        return found

    def state(self) -> State:
        return self.transaction.state

    def _fresh_id(self) -> ProducerId:
        self.world.next_id += 1
        return ProducerId(self.world.next_id - 1)


@contextmanager
def refused(code: ErrorCode) -> Iterator[None]:
    with pytest.raises(KafkaError) as caught:
        yield
    assert caught.value.code is code, caught.value
