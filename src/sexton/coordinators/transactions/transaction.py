"""The coordinator's state of one transactional id, and how each event changes it. It is an immutable value: an event
returns a new one, or raises.

**Epochs.** A producer is its id and an epoch. Raising the epoch fences producers with the old one. With transaction
version 2 (KIP-890) every end raises it: the markers carry the new epoch, the response returns it, and a request that
was sent for the old transaction cannot affect the next. With older versions it is raised by InitProducerId only.

**`last_epoch`** is the epoch before the last raise if its producer is still valid: it asked for the raise itself
(KIP-360) and may not have received the response, or the coordinator raised it because the transaction timed out
(KIP-588). It is NO_PRODUCER_EPOCH after another instance took over: then the old one is a zombie.

**Ids run out of epochs** after 32,766 raises. A producer that gets there continues with a new producer id at epoch 0
(`next_producer_id` while the markers of the old one are written, `previous_producer_id` after that, so that a retry
with the old id is still recognized).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from sexton.coordinators.transactions.states import Event, State, after
from sexton.types import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTION_VERSION_2,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
)

EPOCH_MAX: Final = ProducerEpoch(2**15 - 1)
LAST_EPOCH_FOR_CLIENTS: Final = ProducerEpoch(EPOCH_MAX - 1)
"""The highest epoch that a client gets. The one above is kept for the coordinator, which must always be able to fence a
producer."""


@dataclass(frozen=True, slots=True)
class Transaction:
    transactional_id: str
    producer_id: ProducerId
    epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    last_epoch: ProducerEpoch = NO_PRODUCER_EPOCH
    previous_producer_id: ProducerId = NO_PRODUCER_ID
    next_producer_id: ProducerId = NO_PRODUCER_ID
    timeout_ms: int = 0
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = frozenset()
    start_ms: int = NO_TIMESTAMP
    """When the transaction began, by the wall clock; that of the last transaction if none is open."""
    update_ms: int = NO_TIMESTAMP
    client_version: int = 0
    """The transaction version of the client that drives the transaction: with 2, its end raises the epoch."""
    has_timed_out: bool = False
    """Whether the coordinator aborted the last transaction because it timed out, and its producer has neither
    aborted it nor come back since."""

    @property
    def is_exhausted(self) -> bool:
        return self.epoch >= LAST_EPOCH_FOR_CLIENTS

    @property
    def is_commit(self) -> bool:
        """Only meaningful in PREPARE_COMMIT or PREPARE_ABORT."""
        return self.state is State.PREPARE_COMMIT

    def of_late_owner(self, epoch: ProducerEpoch) -> bool:
        """Whether that is the epoch of the producer whose transaction timed out."""
        return self.has_timed_out and epoch == self.last_epoch

    def is_next(self, producer: ProducerIdAndEpoch) -> bool:
        """Whether that is the producer's new name, which it was told while the markers still carry its old one."""
        return self.next_producer_id != NO_PRODUCER_ID and producer == (self.next_producer_id, 0)

    # Events

    def initialised(self, timeout_ms: int, is_same_producer: bool, now_ms: int) -> Transaction:
        """Raises the epoch, for a new instance of the producer or for the same one that starts over."""
        assert self.epoch < LAST_EPOCH_FOR_CLIENTS, "an id without epochs left is rotated"
        last_epoch = self.epoch if is_same_producer else NO_PRODUCER_EPOCH
        return self._at_rest(
            timeout_ms, now_ms, self.producer_id, ProducerEpoch(self.epoch + 1), last_epoch, self.previous_producer_id
        )

    def initialised_again(self, timeout_ms: int, now_ms: int) -> Transaction:
        """Keeps the epoch: its producer has not received it yet."""
        previous = self.previous_producer_id
        return self._at_rest(timeout_ms, now_ms, self.producer_id, self.epoch, self.last_epoch, previous)

    def rotated(self, fresh_id: ProducerId, timeout_ms: int, is_same_producer: bool, now_ms: int) -> Transaction:
        """Continues with a new producer id. `last_epoch` is the one that the producer knows: the one above it was the
        coordinator's own."""
        last_epoch = min(self.epoch, LAST_EPOCH_FOR_CLIENTS) if is_same_producer else NO_PRODUCER_EPOCH
        return self._at_rest(timeout_ms, now_ms, fresh_id, ProducerEpoch(0), last_epoch, self.producer_id)

    def _at_rest(
        self,
        timeout_ms: int,
        now_ms: int,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        last_epoch: ProducerEpoch,
        previous_id: ProducerId,
    ) -> Transaction:
        return replace(
            self,
            state=after(self.state, Event.INIT),
            producer_id=producer_id,
            epoch=epoch,
            last_epoch=last_epoch,
            previous_producer_id=previous_id,
            next_producer_id=NO_PRODUCER_ID,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            start_ms=NO_TIMESTAMP,
            update_ms=max(now_ms, self.update_ms),
            client_version=0,
            has_timed_out=False,
        )

    def with_partitions(self, added: Iterable[TopicPartition], client_version: int, now_ms: int) -> Transaction:
        is_first = self.state is not State.ONGOING
        return replace(
            self,
            state=after(self.state, Event.ADD),
            partitions=self.partitions.union(added),
            start_ms=now_ms if is_first else self.start_ms,
            update_ms=max(now_ms, self.update_ms),
            client_version=client_version,
            has_timed_out=False,
        )

    def ended(self, is_commit: bool, client_version: int, fresh_id: ProducerId, now_ms: int) -> Transaction:
        """The producer commits or aborts. `fresh_id` is its next id if this one has no epoch left, else
        NO_PRODUCER_ID."""
        state = after(self.state, Event.COMMIT if is_commit else Event.ABORT)
        raises = client_version >= TRANSACTION_VERSION_2
        return replace(
            self,
            state=state,
            epoch=ProducerEpoch(self.epoch + 1) if raises else self.epoch,
            last_epoch=self.epoch if raises else self.last_epoch,
            next_producer_id=fresh_id,
            start_ms=self.start_ms if self.state is State.ONGOING else now_ms,
            update_ms=max(now_ms, self.update_ms),
            client_version=client_version,
            has_timed_out=False,
        )

    def locked_out(self, owner_may_return: bool, has_timed_out: bool, now_ms: int) -> Transaction:
        """The coordinator fences the producer: it raises the epoch and aborts the transaction."""
        state = after(after(self.state, Event.FENCE), Event.ABORT)
        return replace(
            self,
            state=state,
            epoch=ProducerEpoch(self.epoch + 1),
            last_epoch=self.epoch if owner_may_return else NO_PRODUCER_EPOCH,
            next_producer_id=NO_PRODUCER_ID,
            update_ms=max(now_ms, self.update_ms),
            client_version=TRANSACTION_VERSION_2,
            has_timed_out=has_timed_out,
        )

    def late_owner_aborted(self) -> Transaction:
        """The producer knows that its transaction is aborted. It can only start over now: `last_epoch` stays."""
        return replace(self, has_timed_out=False)

    def completed(self, now_ms: int) -> Transaction:
        """Called when every partition has its marker."""
        state = after(self.state, Event.WRITTEN)
        has_new_id = self.next_producer_id != NO_PRODUCER_ID
        return replace(
            self,
            state=state,
            producer_id=self.next_producer_id if has_new_id else self.producer_id,
            previous_producer_id=self.producer_id if has_new_id else self.previous_producer_id,
            next_producer_id=NO_PRODUCER_ID,
            epoch=ProducerEpoch(0) if has_new_id else self.epoch,
            partitions=frozenset(),
            update_ms=max(now_ms, self.update_ms),
        )

    # Invariants

    def check_invariants(self) -> None:
        what = f"rule 8: {self!r}"
        assert self.producer_id >= 0, what
        assert 0 <= self.epoch <= EPOCH_MAX, what
        assert self.last_epoch < self.epoch or self.previous_producer_id != NO_PRODUCER_ID, what
        assert self.state not in (State.DEAD, State.PREPARE_EPOCH_FENCE), what
        assert self.state is not State.ONGOING or (self.partitions and self.start_ms != NO_TIMESTAMP), what
        assert not self.partitions or not self.state.is_at_rest, what
        assert self.next_producer_id == NO_PRODUCER_ID or self.state.is_prepared, what
        assert not self.has_timed_out or self.state in (State.PREPARE_ABORT, State.COMPLETE_ABORT), what
