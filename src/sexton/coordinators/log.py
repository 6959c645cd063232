"""What a coordinator needs of the log that it keeps its state in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from sexton.types import TRANSACTION_VERSION_2, ProducerEpoch, ProducerIdAndEpoch

EncodedRecord: TypeAlias = tuple[bytes, bytes | None]


class CoordinatorLog(Protocol):
    """What a coordinator needs of the leader's replica of its partition."""

    def append(self, records: Sequence[EncodedRecord], now_ms: int) -> Awaitable[None]:
        """Appends the records as one batch, in the order of the calls. Returns when it is committed (acks=all). Raises
        KafkaError when it is not committed, or when that is unknown."""
        ...

    def check_writable(self) -> None:
        """Raises KafkaError if an append would be refused now because there are too few in-sync replicas."""
        ...

    def read(self) -> AsyncIterator[bytes]:
        """Yields all batches from the log start to the log end at the time of the call; each item is one or more whole
        batches. Ends when all of them are committed: state that is served from them must not be lost."""
        ...


class EndMarker(NamedTuple):
    """A marker that ends a producer's transaction in one partition."""

    owner: ProducerIdAndEpoch
    is_commit: bool
    coordinator_epoch: int
    transaction_version: int = 0

    @property
    def raises_epoch(self) -> bool:
        """From transaction version 2 on a marker carries the epoch of the next transaction."""
        return self.transaction_version >= TRANSACTION_VERSION_2

    @property
    def last_epoch(self) -> ProducerEpoch:
        """The epoch of the transaction that it ends. A batch of the next transaction may already be waiting for the
        coordinator."""
        return ProducerEpoch(self.owner.epoch - 1) if self.raises_epoch else self.owner.epoch


class TransactionalLog(CoordinatorLog, Protocol):
    """A log that clients' transactions write to as well."""

    def append_in_transaction(
        self, owner: ProducerIdAndEpoch, records: Sequence[EncodedRecord], now_ms: int
    ) -> Awaitable[None]: ...

    def append_marker(self, marker: EndMarker, now_ms: int) -> Awaitable[None]: ...

    def check_owner(self, owner: ProducerIdAndEpoch) -> None:
        """Raises KafkaError if a newer epoch of the producer has written."""
        ...

    def check_marker(self, marker: EndMarker) -> bool:
        """Raises KafkaError if the marker is stale. Returns False if it was written before, so that nothing is left to
        do."""
        ...
