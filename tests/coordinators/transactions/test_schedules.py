"""Random histories: clients, partitions, markers that are late, lost or doubled, and a coordinator that moves at any
time.

The partitions are modelled as Kafka's: each has, for a producer, an epoch and perhaps an open transaction. After every
step: what a coordinator would read from its log is what it believes; and rule 8: a transaction is ended as its own
EndTxn, or nobody's, said, and the same everywhere.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.coordinators.transactions.states import State
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import ProducerIdAndEpoch, TopicPartition
from tests.coordinators.transactions.harness import NEW, OLD, TIMEOUT_MS, Harness

PLACES = [("t", number) for number in range(3)]
STEPS_COUNT = 120


@dataclass
class Partition:
    """Of one producer id: what a leader knows, and what became of each transaction (by the client's own number)."""

    epoch: int = -1
    open: int | None = None
    outcomes: dict[int, bool] = field(default_factory=dict)

    def write(self, epoch: int, transaction: int) -> bool:
        """After the coordinator has verified it."""
        if epoch < self.epoch or (self.open is not None and self.open != transaction):
            return False
        self.epoch, self.open = epoch, transaction
        return True

    def mark(self, epoch: int, is_commit: bool, raises: bool) -> None:
        if epoch < self.epoch or (raises and epoch == self.epoch):
            return  # stale, or written before
        self.epoch = epoch
        if self.open is not None:
            self.outcomes[self.open] = is_commit
            self.open = None


@dataclass
class Client:
    """One producer after the other, with one transaction after the other. Knows what it was told, and nothing else."""

    h: Harness
    version: int
    producer: ProducerIdAndEpoch | None = None
    number: int = 0
    is_open: bool = False
    wrote: dict[int, set[TopicPartition]] = field(default_factory=dict)
    told: dict[int, bool] = field(default_factory=dict)
    partitions: dict[tuple[int, TopicPartition], Partition] = field(default_factory=dict)

    def partition(self, producer_id: int, place: TopicPartition) -> Partition:
        return self.partitions.setdefault((producer_id, place), Partition())

    def init(self) -> None:
        try:
            made = self.h.init()
        except KafkaError:
            return
        if made.producer_id >= 0:
            self.producer = made
            self.is_open = False

    def write(self, place: TopicPartition) -> None:
        if self.producer is None:
            return
        if not self.is_open:
            self.number += 1
            self.is_open = True
        try:
            self.h.add(self.producer, place, client_version=self.version)
            assert self.h.verify(self.producer, place, client_version=self.version) == [ErrorCode.none]
        except KafkaError as error:
            self._failed(error)
            return
        if self.partition(self.producer.producer_id, place).write(self.producer.epoch, self.number):
            self.wrote.setdefault(self.number, set()).add(place)

    def end(self, is_commit: bool) -> None:
        if self.producer is None or not self.is_open:
            return
        try:
            after = self.h.end(self.producer, is_commit, client_version=self.version)
        except KafkaError as error:
            self._failed(error)
            return
        self.told[self.number] = is_commit
        self.is_open = False
        if self.version == NEW:
            self.producer = after

    def _failed(self, error: KafkaError) -> None:
        if error.code is ErrorCode.concurrent_transactions:
            return  # it asks again
        if error.code in (ErrorCode.unknown_producer_id, ErrorCode.transaction_abortable):
            self._start_over()
            return
        self.producer = None  # it is a zombie, or confused: a new instance comes
        self.is_open = False

    def _start_over(self) -> None:
        assert self.producer is not None
        try:
            if self.version == NEW:
                self.producer = self.h.abort(self.producer, NEW)
            else:
                self._abort(self.producer)
                self.producer = self.h.init(self.producer)
        except KafkaError as error:
            if error.code is not ErrorCode.concurrent_transactions:
                raise AssertionError("a producer that timed out may come back") from error
            return
        self.is_open = False

    def _abort(self, producer: ProducerIdAndEpoch) -> None:
        """Or, as librdkafka does where the coordinator knows of nothing to abort, nothing but the new epoch."""
        try:
            self.h.abort(producer)
        except KafkaError as error:
            if error.code is not ErrorCode.unknown_producer_id:
                raise


def deliver(h: Harness, client: Client, rng: random.Random) -> None:
    """One marker reaches its partition, once or twice; the coordinator hears of it, or does not."""
    if not h.world.outstanding:
        return
    markers, place = h.world.outstanding[0] if rng.random() < 0.5 else rng.choice(h.world.outstanding)
    partition = client.partition(markers.producer.producer_id, place)
    for _ in range(rng.choice((1, 1, 2))):
        partition.mark(markers.producer.epoch, markers.is_commit, markers.client_version == NEW)
    if rng.random() < 0.8:
        h.world.outstanding.remove((markers, place))
        h.take(h.coordinator.marker_written(markers.transactional_id, markers.producer, place, h.now))


def step(h: Harness, client: Client, rng: random.Random) -> None:
    kind = rng.random()
    if client.producer is None or kind < 0.03:
        client.init()
    elif kind < 0.35:
        client.write(rng.choice(PLACES))
    elif kind < 0.5:
        client.end(rng.random() < 0.6)
    elif kind < 0.9:
        deliver(h, client, rng)
    elif kind < 0.95:
        h.fail_over()
    else:
        h.advance(rng.choice((1, TIMEOUT_MS // 2, TIMEOUT_MS)))


def check(h: Harness, client: Client) -> None:
    again = h.replayed()
    assert {one.transactional_id: one for one in again.transactions()} == {
        one.transactional_id: one for one in h.coordinator.transactions()
    }
    for number, places in client.wrote.items():
        outcomes = {
            partition.outcomes[number]
            for (_, place), partition in client.partitions.items()
            if place in places and number in partition.outcomes
        }
        assert len(outcomes) <= 1, f"rule 8: transaction {number} is torn"
        if number in client.told and outcomes:
            assert outcomes == {client.told[number]}, f"rule 8: transaction {number} is not what its client was told"


def run(seed: int, version: int) -> None:
    rng = random.Random(seed)
    h = Harness()
    client = Client(h, version)
    for _ in range(STEPS_COUNT):
        step(h, client, rng)
        check(h, client)
    h.advance(TIMEOUT_MS)  # whatever is left ends
    for _ in range(2_000):
        if not h.world.outstanding:
            break
        deliver(h, client, rng)
        check(h, client)
    assert all(partition.open is None for partition in client.partitions.values()), "nothing hangs"
    assert all(one.state.is_at_rest for one in h.coordinator.transactions())


@pytest.mark.parametrize("version", [OLD, NEW])
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_transactions_are_whole_whatever_happens(version: int, seed: int) -> None:
    run(seed, version)


@pytest.mark.parametrize("is_commit", [False, True])
@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("moved_at", range(8))
def test_a_coordinator_that_moves_in_the_middle_of_each_step_ends_it(
    is_commit: bool, version: int, moved_at: int
) -> None:
    """Between any two effects: before and after each record, and each marker."""
    h = Harness()
    client = Client(h, version)
    steps: list[Callable[[], None]] = [
        client.init,
        lambda: client.write(PLACES[0]),
        lambda: client.write(PLACES[1]),
        lambda: client.end(is_commit),
        lambda: deliver(h, client, random.Random(1)),
        lambda: deliver(h, client, random.Random(2)),
        lambda: client.write(PLACES[2]),
    ]
    for number, one in enumerate(steps):
        if number == moved_at:
            h.fail_over()
        one()
        check(h, client)
    if moved_at == len(steps):
        h.fail_over()
    rng = random.Random(3)
    while h.world.outstanding:
        deliver(h, client, rng)
        check(h, client)
    h.advance(TIMEOUT_MS)
    while h.world.outstanding:
        deliver(h, client, rng)
        check(h, client)
    assert {p.outcomes[1] for p in client.partitions.values() if 1 in p.outcomes} == {is_commit}
    assert h.state() in (State.COMPLETE_ABORT, State.COMPLETE_COMMIT)
