"""What a broker remembers of passes over its replicas, and what of a replica goes into a plan."""

from __future__ import annotations

from dataclasses import dataclass

from sexton.broker.compaction.uncleanable import Sizes
from sexton.compaction.contract import PlannedProducer
from sexton.log.replacement import last_words
from sexton.replication.replica import Replica


@dataclass(slots=True)
class Totals:
    """Since this broker started."""

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
    """By all runs since this broker started."""


@dataclass(frozen=True, slots=True)
class LastPass:
    """The last one on a replica, as far as this process knows."""

    number: int = 0
    """Of all passes that this process has seen committed."""
    made_ms: int = 0
    """When it was planned, by its maker's clock."""
    how: str = ""
    """Compacted here, or adopted from whom."""


def closed_sizes(replica: Replica) -> Sizes:
    return frozenset((one.base_offset, one.size_bytes) for one in replica.log.summaries()[:-1])


def planned_producers(replica: Replica, bound: int) -> tuple[PlannedProducer, ...]:
    """Those whose last batch lies below the bound, or who have none in their epoch."""
    words = last_words(replica.log.producers)
    return tuple(
        PlannedProducer(
            producer.producer_id,
            producer.epoch,
            words[producer.producer_id].last_data_offset,
            producer.last_timestamp_ms,
        )
        for producer in replica.log.producers
        if words[producer.producer_id].last_data_offset < bound
    )
