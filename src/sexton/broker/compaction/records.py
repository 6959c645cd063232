"""What a broker remembers of its replicas' compactions, and what of a replica goes into a plan."""

from __future__ import annotations

from dataclasses import dataclass

from sexton.broker.compaction.uncleanable import Sizes
from sexton.compaction.rules import LastOfProducer
from sexton.replication.local_replica import LocalReplica


@dataclass(slots=True)
class Totals:
    """Counts since this broker process started."""

    committed_count: int = 0
    adopted_count: int = 0
    refused_count: int = 0
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(frozen=True, slots=True)
class LastRun:
    finished_ms: int
    bytes_before: int
    bytes_after: int
    bytes_saved: int
    """Bytes saved by all compactions of the replica since this broker process started."""


@dataclass(frozen=True, slots=True)
class LastPass:
    """The last compaction of a replica that this process knows of."""

    number: int = 0
    """Its number among all compactions that this process has seen committed."""
    made_ms: int = 0
    """When it was planned, by the clock of the broker that made it."""
    how: str = ""
    """"compacted", or the broker from which it was adopted."""


def closed_sizes(replica: LocalReplica) -> Sizes:
    return frozenset((one.base_offset, one.size_bytes) for one in replica.log.summaries()[:-1])


def planned_producers(replica: LocalReplica, bound: int) -> tuple[LastOfProducer, ...]:
    """Producers whose last batch lies below the bound, or that have none in their epoch."""
    return tuple(one.last for one in replica.log.producers if one.last.last_data_offset < bound)
