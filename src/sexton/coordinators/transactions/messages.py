"""Requests to the transaction coordinator and its responses, independent of API versions: the API modules translate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from sexton.coordinators.transactions.states import State
from sexton.coordinators.transactions.transaction import Transaction
from sexton.protocol.errors import ErrorCode
from sexton.types import ProducerIdAndEpoch, TopicPartition


@dataclass(frozen=True, slots=True)
class InitRequest:
    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    """The producer's id and epoch, if it continues after an error (KIP-360)."""


@dataclass(frozen=True, slots=True)
class AddRequest:
    transactional_id: str
    producer: ProducerIdAndEpoch
    partitions: Collection[TopicPartition]
    client_version: int = 0


@dataclass(frozen=True, slots=True)
class EndRequest:
    transactional_id: str
    producer: ProducerIdAndEpoch
    is_commit: bool
    client_version: int = 0
    may_be_late: bool = False
    """Whether it came over a connection that does not show that it is about the current transaction
    (`connection_binding.py`)."""


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Filters of ListTransactions. An empty filter lets all pass."""

    states: Collection[State] = ()
    producer_ids: Collection[int] = ()
    longer_than_ms: int = -1
    transactional_id_pattern: str = ""


class Markers(NamedTuple):
    """Markers to write into each of the partitions, retried until each has its own."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_commit: bool
    client_version: int
    partitions: tuple[TopicPartition, ...]


Record: TypeAlias = tuple[str, Transaction | None]
"""A transactional id and its state; None deletes it."""


@dataclass(slots=True)
class Effects:
    """What the caller must do after one operation."""

    records: list[Record] = field(default_factory=list)
    """Records to append together: all or none."""
    markers: list[Markers] = field(default_factory=list)
    """Markers to send once the records are committed, and never before: a marker cannot be undone."""
    completed: list[str] = field(default_factory=list)
    """Transactional ids whose last transaction has all its markers: the next may begin."""


Verified: TypeAlias = Mapping[TopicPartition, ErrorCode]
