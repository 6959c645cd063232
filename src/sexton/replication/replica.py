"""What a broker uses of a partition that it hosts, whatever kind of log the partition has.

API modules, markers, fetch sessions and the queue of batches to decompress know a replica by these two protocols alone.
`LocalReplica` (local_replica.py) is a replica with a log on this broker's disk. What only such a log has (segments,
flushes, roles, watermarks of compaction) is not part of the protocols: replication, compaction and the coordinators,
whose topics are always local, use the class itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from sexton.log.checks import Rules
from sexton.log.epochs import EpochHistory
from sexton.log.producers import ProducerStates, Verification
from sexton.log.types import AbortedTransaction, Appended, Read, TimedOffset
from sexton.ports.disk import Buffer
from sexton.ports.metastore import PartitionRow
from sexton.types import LeaderEpoch


class ReplicaLog(Protocol):
    """The records of one replica. Consumers may read them up to the replica's high watermark."""

    @property
    def start_offset(self) -> int: ...

    @property
    def end_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def producers(self) -> ProducerStates: ...

    @property
    def epochs(self) -> EpochHistory: ...

    @property
    def rules(self) -> Rules:
        """What the topic's config demands of the records inside a client's batch."""
        ...

    @property
    def looks_inside(self) -> bool:
        """Whether some of `rules` can be checked only inside a batch."""
        ...

    def aborted_transactions(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]: ...

    def offset_for_time(self, timestamp_ms: int, end_offset: int) -> TimedOffset | Awaitable[TimedOffset | None] | None:
        """The first record below `end_offset` with this timestamp or a later one. What is not on this broker has to be
        waited for."""
        ...

    def offset_of_max_timestamp(self, end_offset: int) -> TimedOffset | Awaitable[TimedOffset | None] | None: ...


class Replica(Protocol):
    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def row(self) -> PartitionRow: ...

    @property
    def log(self) -> ReplicaLog: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    def high_watermark(self) -> int: ...

    @property
    def last_stable_offset(self) -> int: ...

    def check_serving_as_leader(self) -> None:
        """Raises KafkaError unless this replica leads and its broker's lease is valid."""
        ...

    def check_epoch(self, current_leader_epoch: LeaderEpoch) -> None:
        """Raises KafkaError if a request names another leader epoch than the current one; -1 means that it names
        none."""
        ...

    def must_wait(self, size_bytes: int) -> bool:
        """Whether a client's batch of this size has to wait for room before it can be appended."""
        ...

    def wait_for_room(self, size_bytes: int, go_on: Callable[[], None]) -> Callable[[], None]:
        """Calls `go_on` when such a batch can be appended, after those that came before it; or when it never can be
        here, which `append` says then. Returns what to call if nobody waits any more: `go_on` is called then too,
        unless it was."""
        ...

    def append(
        self,
        records: Buffer,
        acks: int,
        now_ms: int,
        *,
        from_client: bool = True,
        verification: Verification | None = None,
        validated_by: Rules | None = None,
    ) -> tuple[Appended, asyncio.Future[None] | None]:
        """Appends batches as the leader. With acks=-1 the returned future resolves once all of them are committed, or
        fails with the error to send; None means that there is nothing to wait for."""
        ...

    def committed(self, end_offset: int) -> asyncio.Future[None] | None:
        """A future that resolves once everything below `end_offset` is committed, or fails if it may never be; None if
        it is committed already."""
        ...

    def read(self, offset: int, max_bytes: int, *, committed_only: bool, min_one: bool) -> Read:
        """Reads for a consumer: up to the high watermark, or up to the last stable offset if `committed_only`."""
        ...

    def is_held_by(self, follower: int, offset: int) -> bool:
        """Whether a follower is known to have what a consumer reads from `offset` on."""
        ...

    async def delete_records(self, offset: int) -> int:
        """Moves the log start; -1 means to the high watermark. Returns the new log start."""
        ...

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` whenever consumers may read more, or the role changes. Returns a function that cancels
        it."""
        ...
