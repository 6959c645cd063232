"""What is asked of the coordinator and what it answers, without versions: the API modules translate."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from sexton.coordinators.transactions.states import State
from sexton.coordinators.transactions.transaction import ProducerIdAndEpoch, TopicPartition, Transaction
from sexton.protocol.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class InitRequest:
    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    """What the producer has, if it wants to go on after an error (KIP-360)."""


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
    """It came over a connection that does not show that it is about the present transaction (`connections.py`)."""


@dataclass(frozen=True, slots=True)
class ListRequest:
    """Empty filters let all pass."""

    states: Collection[State] = ()
    producer_ids: Collection[int] = ()
    longer_than_ms: int = -1
    transactional_id_pattern: str = ""


class Markers(NamedTuple):
    """To be written into each of the partitions, until each has it."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    is_commit: bool
    client_version: int
    partitions: tuple[TopicPartition, ...]


Record: TypeAlias = tuple[str, Transaction | None]
"""A transactional id and all that is known of it; None: it is forgotten."""


@dataclass(slots=True)
class Effects:
    """What the caller owes the world after one operation."""

    records: list[Record] = field(default_factory=list)
    """To be appended together: all or none."""
    markers: list[Markers] = field(default_factory=list)
    """To be sent once the records are committed, and never before: a marker cannot be taken back."""
    completed: list[str] = field(default_factory=list)
    """Transactional ids whose last transaction is over everywhere: the next may begin."""


Verified: TypeAlias = Mapping[TopicPartition, ErrorCode]
