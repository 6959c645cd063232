"""What an audit knows of one replica before it reads it, and where replicas come from: the seam between the audit and
its two sources, log directories and brokers that answer.

A `Source` finds replicas, says how each stands, cuts it into stretches that Spark tasks read
(`sexton.spark.stretches.Stretch`), and looks single batches up again for evidence. The audit never asks which source a
replica came from: whatever differs between the two is a field here.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from sexton.errors import SextonError
from sexton.records.batch import Batch
from sexton.spark.stretches import Stretch
from sexton.types import NO_EPOCH, NO_OFFSET, TopicPartition


class ReplicaId(NamedTuple):
    """One broker's copy of a partition."""

    topic: str
    partition: int
    broker: int

    @property
    def topic_partition(self) -> TopicPartition:
        return self.topic, self.partition


class AbortedClaim(NamedTuple):
    """A transaction that a broker tells consumers was aborted: in a Fetch answer's list, or in a .txnindex file. Its
    own markers may say otherwise."""

    producer_id: int
    first_offset: int
    marker_offset: int = NO_OFFSET
    """NO_OFFSET in a Fetch answer, which does not tell."""


class OpenClaim(NamedTuple):
    """A transaction that a broker takes for open: DescribeProducers, or a .snapshot file."""

    producer_id: int
    producer_epoch: int
    first_offset: int
    since_ms: int = -1
    """When its producer wrote last; -1 if that is unknown."""
    is_known: bool | None = None
    """Whether the transaction's coordinator knows of it. None: nobody could be asked."""


class Skipped(NamedTuple):
    """Something that was found and not read."""

    place: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """How a replica stands, by what its broker or its directory says of itself. Offsets are None where nobody says."""

    id: ReplicaId
    label: str
    """Short, for tables: "broker 3", or "broker 3 (directory)"."""
    place: str
    """Where it was read: a directory, or host and port."""
    topic_id: uuid.UUID | None = None
    is_live: bool = False
    """Read from a broker that answers. If not, from files."""
    is_down: bool = False
    """Its directory was read and no process holds that directory's lock. It is judged by what it will do when it
    comes back. Never of a live replica."""
    was_stopped_cleanly: bool = False
    """Of one that is down: its broker has written all it knew. If not, it was killed, or this is a copy, and its files
    may be of different moments."""
    is_leader: bool | None = None
    is_in_sync: bool | None = None
    leader_epoch: int = NO_EPOCH
    log_start_offset: int = 0
    high_watermark: int | None = None
    """Nothing at or above it was read from a live replica; from a directory all is read, and this is up to five
    seconds old."""
    last_stable_offset: int | None = None
    """As claimed. What the audit compares is below the one that the replica's own markers give."""
    log_end_offset: int | None = None
    clean_offset: int | None = None
    """Below it the broker's cleaner has been (its checkpoint). A live broker does not tell."""
    cut: int | None = None
    """The leader's last stable offset at a moment whose high watermark (`barrier`) this replica has passed since. If
    its own is below it, it is stuck for certain. None: there was no barrier (directories), or it was not passed."""
    barrier: int | None = None
    aborted: tuple[AbortedClaim, ...] = ()
    """As far as they are known before reading; a live replica's come with its stretches (`Piece.aborted`)."""
    open: tuple[OpenClaim, ...] = ()
    open_as_of: int | None = None
    """The log end that `open` is about, of a snapshot file; None: it is about now."""
    claims_are_complete: bool = False
    """Whether all claims there are have been asked for, or will come with the stretches, so that a missing one is a
    finding."""
    aborted_below: int | None = None
    """Of transactions that begin at or above it brokers were not asked whether they are aborted. None: of all."""
    is_read: bool = True
    """If not, `failure` or `skipped` says why, and the partition can at best agree among the others."""
    failure: SextonError | None = None
    skipped: tuple[Skipped, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.id.topic}-{self.id.partition}"

    @property
    def is_working(self) -> bool:
        """Its broker goes on writing and compacting while it is read, whether from the broker or from its files."""
        return self.is_live or not self.is_down


class Source(Protocol):
    """Where replicas are read: log directories, or brokers. Used by one thread, the driver's. Nothing is ever changed.

    The audit calls `find`, and again if a partition must be read again; then `stretches` of each replica's
    [log start, end); then `read_on` and `stretches` of what came since, a few times; then `look_up` for each
    difference, and `now` last, to see whether leaders changed.
    """

    def find(self) -> Sequence[Replica]:
        """All replicas in scope. For brokers: the barrier has been waited for, and each replica says how it stood
        afterwards. A replica that cannot be read is among them, with `is_read` false and why."""
        ...

    def stretches(self, replica: Replica, number: int, from_offset: int, to_offset: int | None) -> Sequence[Stretch]:
        """What tasks read: all whole batches that begin in [from, to); to the end there is if `to` is None. Pieces of
        about 64 MB to 1 GB, or less. ``number`` is the replica's number in the job, which each stretch carries."""
        ...

    def read_on(self, wanted: Mapping[ReplicaId, int]) -> Sequence[Replica]:
        """Waits (bounded) until each replica's high watermark, or end, has reached an offset; returns how each of them
        stands then, whether it did or not. Directories are looked at again."""
        ...

    def look_up(self, replica: Replica, offsets: Sequence[int]) -> Mapping[int, Batch]:
        """The batches, with records, that span these offsets now. One in a gap, or gone, is left out."""
        ...

    def now(self, ids: Sequence[ReplicaId]) -> Sequence[Replica]:
        """How replicas stand now, without waiting: for leader epochs that changed meanwhile."""
        ...

    def close(self) -> None: ...
