"""What clients did and saw. The judge reads this; nothing of it comes from the brokers' own state."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from sexton.records.batch import Record
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.journal import Journal
from sexton.types import TopicPartition


class Outcome(StrEnum):
    PENDING = "pending"
    OK = "ok"
    FAILED = "failed"
    """For sure: the records are not in the log and will not get there."""
    UNKNOWN = "unknown"


IDENTITY = "identity"
"""The header that tells two tombstones apart. Everything else is known by its value."""


def identity(record: Record) -> bytes | None:
    """What no other record of the simulation has; None if no client of ours wrote it."""
    if record.value is not None:
        return record.value
    return next((header.value for header in record.headers if header.name == IDENTITY), None)


@dataclass(slots=True)
class Transaction:
    """One transaction of one instance of a transactional producer, as its client saw it."""

    transactional_id: str
    instance: int
    number: int
    writes: list[Write] = field(default_factory=list)
    offset: int | None = None
    """What it sets its group's offset to: its own place among all transactions of the id."""
    is_commit_asked: bool = False
    """From here on it may be committed. Before, it must not be."""
    outcome: Outcome = Outcome.PENDING
    """OK: the commit was acknowledged. FAILED: it is surely aborted."""
    fates: dict[TopicPartition, bool] = field(default_factory=dict)
    """What the markers in the logs say: whether it was committed there."""

    def __str__(self) -> str:
        return f"transaction {self.number} of {self.transactional_id}.{self.instance}"

    @property
    def may_be_committed(self) -> bool:
        return self.is_commit_asked and self.outcome is not Outcome.FAILED


@dataclass(slots=True)
class Write:
    """One batch of one writer to one partition. Its values are unique in the whole simulation."""

    writer: str
    place: TopicPartition
    acks: int
    is_idempotent: bool
    values: tuple[bytes, ...]
    started_ns: int
    outcome: Outcome = Outcome.PENDING
    base_offset: int = -1
    transaction: Transaction | None = None
    records: Sequence[Record] = ()
    """The records as they were sent, one for each of `values`."""
    may_be_second: bool = False
    """It was acknowledged by a leader that may have known nothing of its producer, after another leader had been sent
    it: that one may have appended it first."""

    @property
    def is_acknowledged(self) -> bool:
        return self.outcome is Outcome.OK


class Loss(NamedTuple):
    """From `offset` on, what was written before `at_ns` (true time) may be gone."""

    offset: int
    at_ns: int


@dataclass(slots=True)
class History:
    writes: list[Write] = field(default_factory=list)
    reads: dict[TopicPartition, dict[int, bytes]] = field(default_factory=dict)
    """Every record that any consumer was ever given."""
    start_bounds: dict[TopicPartition, int] = field(default_factory=dict)
    """Up to where somebody has asked for records to be deleted, or retention may have done so: what is below may be
    gone."""
    deleting_all: list[TopicPartition] = field(default_factory=list)
    """Somebody has asked for everything below the high watermark to be deleted, wherever that is when it is carried
    out, and has not been told: once for each who asked."""
    settled_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    """Of cloud topics: below, records of aborted transactions are gone, as no broker has them in its way any more."""
    cloud_topics: frozenset[str] = frozenset()
    """Of which a broker may have to load what is asked for."""
    dropped_topics: set[str] = field(default_factory=set)
    """Somebody has asked for them to be deleted."""
    losses: dict[TopicPartition, list[Loss]] = field(default_factory=dict)
    """What partitions may have lost, in order. Clients that had something to lose begin anew."""
    doubtful: set[TopicPartition] = field(default_factory=set)
    """Partitions that may have lost something, of which no leader has shown yet what is left."""
    leader_epochs: dict[TopicPartition, int] = field(default_factory=dict)
    """The latest of each partition. A broker that starts again leads in a new one."""
    generations: dict[TopicPartition, int] = field(default_factory=dict)
    """How often a leader was forced on a partition."""
    written: dict[bytes, Write] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    committed_reads: dict[TopicPartition, dict[int, None]] = field(default_factory=dict)
    """What read_committed consumers were given."""
    journal: Journal = field(default_factory=Journal)
    is_lenient: bool = False
    """What consumers are given is written down, and not judged at once."""
    reads_count: int = 0
    acknowledged_count: int = 0

    def begin(self, write: Write) -> Write:
        self.writes.append(write)
        for value in write.values:
            self.written[value] = write
        if write.transaction is None:
            self.journal.began(write)
        return write

    def saw(
        self, reader: str, place: TopicPartition, offset: int, value: bytes | None, *, is_committed: bool = False
    ) -> None:
        """A consumer was given a record. Rule 2: an offset has one value for life, whoever reads it and when. Rule 8:
        what read_committed shows, `is_committed`, is of no transaction that is aborted or not asked to commit."""
        self.reads_count += 1
        if self.is_lenient:
            return
        if value is None or value not in self.written:
            raise SimulationFailure("rule 2", f"{reader} read {value!r} at {_at(place, offset)}: nobody wrote that")
        write = self.written[value]
        if write.place != place:
            raise SimulationFailure("rule 2", f"{reader} read {value!r} at {_at(place, offset)}: it is {write.place}'s")
        if write.outcome is Outcome.FAILED:
            raise SimulationFailure(
                "rule 9", f"{reader} read {value!r} at {_at(place, offset)}: its producer was told that it failed"
            )
        if self.may_be_lost(write, offset):
            return  # an answer of before the loss may come late, and an end of its transaction be lost
        transaction = write.transaction
        if is_committed:
            # Below a loss too: where the end of one is lost, that of the next ends both.
            if transaction is not None and not transaction.may_be_committed and not self.is_torn(write):
                state = "was aborted" if transaction.is_commit_asked else "was never asked to commit"
                where = _at(place, offset)
                raise SimulationFailure("rule 8", f"{reader} read {value!r} at {where}: {transaction} {state}")
            self.committed_reads.setdefault(place, {})[offset] = None
        seen = self.reads.setdefault(place, {})
        before = seen.setdefault(offset, value)
        if before != value:
            raise SimulationFailure(
                "rule 2", f"{reader} read {value!r} at {_at(place, offset)}, where {before!r} was read before"
            )

    def deleting_records(self, place: TopicPartition, before_offset: int) -> None:
        self.start_bounds[place] = max(self.start_bounds.get(place, 0), before_offset)

    def may_start_at(self, place: TopicPartition, start_offset: int) -> bool:
        """Whether somebody asked for what lies below to be deleted."""
        return start_offset <= self.start_bounds.get(place, 0) or place in self.deleting_all

    def starts(self, place: TopicPartition, start_offset: int, high_watermark: int) -> None:
        """A replica was seen to start there. If that is where somebody's request has put it, it counts from now on."""
        if place in self.deleting_all and self.start_bounds.get(place, 0) < start_offset <= high_watermark:
            self.deleting_records(place, start_offset)

    # Excuses: each with what it excuses, and nothing else

    def lost(self, place: TopicPartition, offset: int, at_ns: int) -> None:
        """A leader goes on from `offset`: what had been written there and above is lost, and was not to be relied on.
        What was read of it is forgotten: another record may stand there from now on."""
        self.losses.setdefault(place, []).append(Loss(offset, at_ns))
        reads = self.reads.get(place, {})
        for read in [read for read in reads if read >= offset]:
            del reads[read]
            self.committed_reads.get(place, {}).pop(read, None)

    def goes_on_losing(self, place: TopicPartition, at_ns: int) -> None:
        """A leader that was replaced by one that was not in sync has not heard of it: what is sent to it, and read from
        it, is lost like what it had before."""
        if losses := self.losses.get(place):
            losses[-1] = Loss(losses[-1].offset, at_ns)

    def losses_count(self, place: TopicPartition) -> int:
        return len(self.losses.get(place, ()))

    def lost_from(self, place: TopicPartition) -> int | None:
        """The lowest offset at which something may have been lost, ever; None if nothing was."""
        return min((loss.offset for loss in self.losses.get(place, ())), default=None)

    def may_be_lost(self, write: Write, offset: int) -> bool:
        """Whether what was at that offset, or had been promised to be there, went with a loss: only what was sent
        before. An offset that nobody was told (-1) may be any."""
        return any(
            write.started_ns <= loss.at_ns and (offset < 0 or offset >= loss.offset)
            for loss in self.losses.get(write.place, ())
        )

    def is_torn(self, write: Write) -> bool:
        """Whether the end of its transaction may be lost where it was written: it began before a loss. That it was
        ended is told once."""
        losses = self.losses.get(write.place)
        return losses is not None and write.started_ns <= losses[-1].at_ns

    def settled(self, place: TopicPartition, leveled_offset: int) -> None:
        self.settled_offsets[place] = max(self.settled_offsets.get(place, 0), leveled_offset)

    def is_settled(self, write: Write | None, offset: int) -> bool:
        """Whether leveling has taken a record away, as it must: by its marker its transaction was aborted. An offset
        that nobody was told (-1) may be any."""
        transaction = None if write is None else write.transaction
        return (
            write is not None
            and transaction is not None
            and transaction.fates.get(write.place) is False
            and offset < self.settled_offsets.get(write.place, 0)
        )

    def is_gone(self, place: TopicPartition) -> bool:
        """Its topic is deleted, or about to be."""
        return place[0] in self.dropped_topics

    def acknowledged(self, place: TopicPartition) -> Iterator[Write]:
        return (write for write in self.writes if write.place == place and write.is_acknowledged)


def _at(place: TopicPartition, offset: int) -> str:
    return f"{place[0]}-{place[1]}@{offset}"
