"""What the metastore knows of cloud topics: objects, partitions, extents, and the operations that change them.

The words and the rules C1 to C12 are in docs/rules.md, "Cloud topics". In short: an *object* is an immutable blob in
the store, registered here before its first byte is sent; an *extent* says that offsets [base, end) of a partition are a
run inside an object (or *inline*, in the row itself). The extents of a partition tile its log. Every operation is one
transaction that checks what it builds on; what does not fit is refused for that partition, and the others go on.

**Unknown outcomes.** Whoever gets no answer (MetastoreUnavailableError) sends the same call again, for ever: every
operation can be carried out twice, and answers the second time what it did the first time (C10). Nobody undoes.

`now_ms` is the caller's wall clock. It only fills columns that say since when something waits.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Final, NamedTuple, Protocol, TypeAlias

from sexton.types import CompactionEpoch, LeaderEpoch, PartitionId, ProducerId, Round

STORAGE_MODE: Final = "storage.mode"
CLOUD: Final = "cloud"
"""A topic whose settings say so when it is made has rows here, made in the same transaction. No other topic has."""

INLINE_BYTES_MAX: Final = 4096
"""Of an extent without an object: markers alone, of which one has 78 bytes."""

CLAIMS_MAX: Final = 200
"""Partitions in one claim, whose answer holds their L0 extents."""

RUNS_MAX: Final = 4000
"""Partitions' runs in one commit, of all its gathers: several objects of `cloud.l0.partitions.max` (500) each."""

VIEW_AGE_MS_MAX: Final = 10_000
"""The largest `cloud.view.age.max.ms`. Whoever compacts knows no broker's settings: no delete horizon is shorter than
twice this (C8)."""

ObjectId: TypeAlias = uuid.UUID
"""UUIDv7, used once: an object that is gone is never made again (C1)."""


class Level(IntEnum):
    L0 = 0
    """As leaders wrote it: many partitions an object, transactions and markers included."""
    L1 = 1
    """Sorted by partition and settled: no aborted record, no transactional batch, no marker (C7)."""


class ObjectState(IntEnum):
    """Only forward (C3); after GARBAGE the row is deleted."""

    PENDING = 0
    LIVE = 1
    GARBAGE = 2


class OwnerKind(IntEnum):
    BROKER = 0
    COMPACTOR = 1


class Owner(NamedTuple):
    """Who registered an object: one registration of a broker, or a compactor's lease. It is dead for ever once it is
    fenced, replaced or removed."""

    kind: OwnerKind
    id: str
    epoch: int

    @classmethod
    def broker(cls, broker_id: int, epoch: int) -> Owner:
        return cls(OwnerKind.BROKER, str(broker_id), epoch)

    @classmethod
    def compactor(cls, compactor_id: uuid.UUID) -> Owner:
        return cls(OwnerKind.COMPACTOR, compactor_id.hex, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectRow:
    object_id: ObjectId
    level: Level
    state: ObjectState
    owner: Owner
    size_bytes: int
    """0 while it is pending."""
    refs_count: int
    """Extents that refer to it: never 0 while it is live."""
    live_bytes: int
    """Of those extents. Where it is a small part of the size, the rest is waste."""
    round: Round
    """Of its registration, then of its becoming garbage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudPartitionRow:
    """Offsets are exclusive upper bounds and never go back (C6): cleaned ≤ leveled ≤ stable ≤ end, start ≤ end."""

    topic_id: uuid.UUID
    partition: int
    start_offset: int
    """Readers skip what lies below it, also inside an extent."""
    end_offset: int
    """Of what is committed: the high watermark."""
    stable_offset: int
    """The last stable offset as the leader computed it with its last commit; readers take max(stable, start)."""
    leveled_offset: int
    cleaned_offset: int
    writer_epoch: LeaderEpoch
    writer_id: int
    writer_broker_epoch: int
    """The registration that claimed the partition, so that a claim whose answer was lost can be repeated."""
    compaction_epoch: CompactionEpoch
    producers_offset: int
    """The producers' snapshot sums up everything below it."""
    l0_bytes: int
    l0_extents_count: int
    l0_since_ms: int
    """Since when something waits to be leveled, by the clock of whoever committed it; 0 if nothing does."""
    l1_bytes: int
    dirty_bytes: int
    """Of L1, above the cleaned offset."""
    dirty_since_ms: int
    horizon_ms: int
    """When another compaction would remove a tombstone; 0 if none waits for that."""


@dataclass(frozen=True, slots=True)
class Extent:
    base_offset: int
    end_offset: int
    level: Level
    object_id: ObjectId | None
    """None: inline."""
    position: int
    size_bytes: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    records_count: int
    inline: bytes | None = None


class AbortedRow(NamedTuple):
    """An aborted transaction with data or marker in L0, as a log's aborted index has it."""

    producer_id: ProducerId
    first_offset: int
    marker_offset: int
    last_stable_offset: int


class ProducersSnapshot(NamedTuple):
    """Kafka's format (`records/producer_snapshot.py`), of everything below the offset."""

    offset: int
    data: bytes


class ProducerDelta(NamedTuple):
    """The batches with a producer id of one run, packed; the run ends at the offset."""

    end_offset: int
    batches: bytes


class EpochStart(NamedTuple):
    leader_epoch: LeaderEpoch
    start_offset: int


class Outcome(Enum):
    """What became of one partition's part of a change."""

    ACCEPTED = "accepted"
    """Done, by this call or by the one that it repeats."""
    FENCED = "fenced"
    """Another leader has claimed the partition, or never was it claimed in that epoch. Drop the tail."""
    GONE = "gone"
    """The topic is deleted, or has no such partition."""
    MISPLACED = "misplaced"
    """It does not continue what is there: another end, leveled offset, compaction epoch, or inputs that are gone. The
    caller's picture is old or wrong: drop it, read again."""
    LOST = "lost"
    """The object is not pending any more, so it cannot be committed, and this part of it never was. Put the bytes
    under another id and commit that."""
    SKIPPED = "skipped"
    """Not looked at, because a gather before it was lost. Its object is as it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One partition's part of a gather: where it lies, what it builds on, and what the leader knows after it."""

    topic_id: uuid.UUID
    partition: int
    writer_epoch: LeaderEpoch
    base_offset: int
    """Must be the partition's end offset."""
    end_offset: int
    position: int
    size_bytes: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    records_count: int
    stable_offset: int
    delta: bytes = b""
    aborted: Sequence[AbortedRow] = ()
    """Transactions that a marker of this run aborts."""
    snapshot: ProducersSnapshot | None = None
    """Replaces the one before, and the deltas up to its offset."""
    inline: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """One object, or markers that travel without one (object_id None, each run inline)."""

    object_id: ObjectId | None
    size_bytes: int
    runs: Sequence[Run]
    released: Sequence[ObjectId] = ()
    """Other objects with the same bytes, sent because this one took long."""


class WrittenObject(NamedTuple):
    object_id: ObjectId
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeveledPartition:
    """L0 in [base, end) becomes these extents of L1, which tile it."""

    topic_id: uuid.UUID
    partition: int
    base_offset: int
    """Must be the partition's leveled offset."""
    end_offset: int
    extents: Sequence[Extent]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """Extents of one partition's L1 become others, which tile the same offsets: a compaction, or a merge of small runs
    (bound 0: nothing has become clean). A compaction that changed nothing has neither inputs nor outputs."""

    topic_id: uuid.UUID
    partition: int
    compaction_epoch: CompactionEpoch
    """Must be the partition's."""
    settings_hash: int
    """Of the topic's settings as the plan read them, with those for all brokers (`hash_of_settings`)."""
    inputs: Sequence[Extent]
    outputs: Sequence[Extent]
    bound: int
    horizon_ms: int


@dataclass(frozen=True, slots=True)
class Claimed:
    """All that a leader needs to know of a partition. The store is not asked."""

    row: CloudPartitionRow
    producers: bytes | None
    deltas: Sequence[ProducerDelta]
    aborted: Sequence[AbortedRow]
    extents: Sequence[Extent]
    """L0 alone."""
    epochs: Sequence[EpochStart]


@dataclass(frozen=True, slots=True)
class ExtentsPage:
    """One moment of a partition (C9, T24)."""

    row: CloudPartitionRow
    extents: Sequence[Extent]
    aborted: Sequence[AbortedRow]
    """Of L0, as far as it lies within these extents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Copied:
    """What the log of a local partition was when the last of it had been copied, and nothing could be appended."""

    start_offset: int
    end_offset: int
    stable_offset: int
    producers: bytes
    """A snapshot (`ProducersSnapshot`), at the end offset."""
    earlier: bytes
    """The batches that a snapshot leaves out (`ProducerDelta`)."""
    epochs: Sequence[EpochStart]
    """The log's history, up to the epoch that copied it."""

    @property
    def offsets(self) -> tuple[int, int]:
        return self.start_offset, self.end_offset


class StartAdvanced(NamedTuple):
    outcome: Outcome
    start_offset: int
    has_more: bool
    """The start is not there yet: call again."""


class CollectionRow(NamedTuple):
    round: Round
    scrub_round: Round
    """When the last scrub ended; -1 before the first."""
    scrub_ms: int


class PinRow(NamedTuple):
    """Nothing that became garbage in or after `round` is deleted while the pin lasts."""

    pin_id: uuid.UUID
    round: Round
    until_round: Round
    """The last round that it lasts for, unless it is renewed."""
    owner: str
    what: str


class ObjectsSum(NamedTuple):
    """All objects of a level in a state."""

    level: Level
    state: ObjectState
    objects_count: int
    size_bytes: int
    """0 of pending ones: what they will have nobody knows."""
    live_bytes: int


def hash_of_settings(settings: Mapping[str, str]) -> int:
    """A compaction that was planned by other settings than there are now is refused."""
    text = json.dumps(dict(settings), sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]) >> 1


class CloudStore(Protocol):
    """Raises MetastoreUnavailableError like all of the metastore, LeaseLostError where the owner must be alive and is
    not, ValueError for a call that makes no sense whatever is stored."""

    async def register_objects(self, owner: Owner, level: Level, ids: Sequence[ObjectId]) -> None:
        """Makes them pending (C1). Raises LeaseLostError if the owner is dead, AlreadyExistsError if an id was
        used."""
        ...

    async def release_objects(self, owner: Owner, ids: Sequence[ObjectId]) -> None:
        """Those of the owner's that are pending still become garbage: it will not commit them."""
        ...

    async def claim_partitions(
        self, broker_id: int, broker_epoch: int, wanted: Sequence[tuple[PartitionId, LeaderEpoch]]
    ) -> Sequence[Claimed | Outcome]:
        """Fences every writer of a lower epoch. FENCED if the epoch is not higher than the last one (but for the same
        registration that asks again), GONE if there is no such cloud partition. At most CLAIMS_MAX."""
        ...

    async def commit_l0(self, owner: Owner, gathers: Sequence[Gather], now_ms: int) -> Sequence[Sequence[Outcome]]:
        """Commits what was uploaded, in order, in one transaction. Returns an outcome for each run of each gather."""
        ...

    async def commit_inline(self, owner: Owner, runs: Sequence[Run], now_ms: int) -> Sequence[Outcome]:
        """Commits markers of partitions that have nothing else on the way."""
        ...

    async def read_extents(self, partition: PartitionId, from_offset: int, limit: int) -> ExtentsPage | None:
        """From the extent that has the offset on. None if there is no such cloud partition."""
        ...

    async def find_time(self, partition: PartitionId, timestamp_ms: int, from_offset: int = 0) -> Extent | None:
        """The first extent that has a record of that time or later, of those that end above the offset."""
        ...

    async def find_max_time(self, partition: PartitionId) -> Extent | None:
        """The first extent that has the latest record."""
        ...

    async def advance_start(self, partition: PartitionId, writer_epoch: LeaderEpoch, offset: int) -> StartAdvanced:
        """Moves the start, with each call over at most 1,000 extents, which go. FENCED if another leader has claimed,
        MISPLACED if the offset lies above the end."""
        ...

    async def commit_level(
        self, owner: Owner, objects: Sequence[WrittenObject], partitions: Sequence[LeveledPartition], now_ms: int
    ) -> Sequence[Outcome]: ...

    async def commit_compactions(
        self, owner: Owner, objects: Sequence[WrittenObject], replacements: Sequence[Replacement], now_ms: int
    ) -> Sequence[Outcome]:
        """Of partitions that share these objects: each whole or not at all (rule 10). Objects of which nothing was
        accepted are garbage."""
        ...

    async def expire_owners(self, limit: int) -> int:
        """Pending objects of dead owners become garbage. Returns how many did; call again until that is 0."""
        ...

    async def read_collection(self) -> CollectionRow: ...

    async def advance_round(self, seen: Round) -> Round:
        """Raises the round by one if it is still `seen`. Returns what it is now."""
        ...

    async def collect(self, grace_rounds: int, limit: int) -> Sequence[ObjectRow]:
        """Garbage whose bytes may be deleted: for `grace_rounds` already, and no pin is older (C4)."""
        ...

    async def forget_objects(self, ids: Sequence[ObjectId]) -> None:
        """Deletes the rows of garbage whose bytes are gone by the store's word."""
        ...

    async def find_unknown(self, ids: Sequence[ObjectId]) -> Sequence[ObjectId]:
        """Those that have no row. Of keys that were listed *before*, these are nobody's (C4)."""
        ...

    async def note_scrub(self, round: Round, now_ms: int) -> None: ...

    async def pin(self, pin_id: uuid.UUID, owner: str, what: str, rounds: int) -> PinRow:
        """Taken before extents are read that will be used for longer than a round. Lasts for that many rounds from
        now."""
        ...

    async def renew_pin(self, pin_id: uuid.UUID, rounds: int) -> PinRow:
        """Raises StaleError if it has ended: what it protected may be gone."""
        ...

    async def unpin(self, pin_id: uuid.UUID) -> None: ...

    async def read_pins(self) -> Sequence[PinRow]:
        """Those that last, the oldest first."""
        ...

    async def find_purgeable(self, limit: int) -> Sequence[uuid.UUID]:
        """Deleted topics that have rows here."""
        ...

    async def purge_topic(self, topic_id: uuid.UUID, limit: int) -> bool:
        """Removes at most `limit` extents of a deleted topic, then its partitions. Returns whether anything is left.
        Raises StaleError if the topic exists."""
        ...

    async def read_objects(
        self, states: Sequence[ObjectState], after: ObjectId | None, limit: int
    ) -> Sequence[ObjectRow]:
        """In order of ids, for those who look after the cluster."""
        ...

    async def read_object(self, object_id: ObjectId) -> ObjectRow | None: ...

    async def sum_objects(self) -> Sequence[ObjectsSum]: ...

    async def find_references(self, object_id: ObjectId, limit: int) -> Sequence[tuple[PartitionId, Extent]]:
        """Extents that refer to an object, by partition."""
        ...

    async def read_cloud_partitions(self) -> Sequence[CloudPartitionRow]:
        """All of them, by topic and partition."""
        ...
