"""A cloud partition as its leader sees it.

    start_offset ≤ committed_offset ≤ end_offset
                   what the metastore has    the tentative tail

Appending checks a batch as a local log does (`log/checks.py`), gives it its offsets, and puts it into a *piece*: this
partition's part of the next object. Pieces are committed in order. The committed offset is the high watermark: what
lies above it is no one's until its piece is committed.

There is no rollback. A piece that cannot be committed takes the whole log with it (`drop`): the tail goes, with all
that it taught about producers, and the next leader loads what is committed. So nothing ever has to be taken out of the
middle, and no batch is accepted because the one before it was forgotten (trap T6).

No I/O, no clock: `now_ms` is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sexton.cloud import deltas
from sexton.cloud.extents import ExtentMap, summaries_of
from sexton.cloud.leveled import LeveledMap
from sexton.compaction import retention
from sexton.compaction.eligibility import SegmentSummary
from sexton.log.checks import (
    OWN_BATCH_BYTES_MAX,
    Rules,
    check_client_batch,
    check_frame,
    check_marker,
    check_producer,
    check_time,
    note_producer,
)
from sexton.log.epochs import EpochHistory
from sexton.log.inside import validated
from sexton.log.producers import EndedTransaction, Marker, ProducerStates, Verification
from sexton.log.reading import find_aborted
from sexton.log.segment import AbortedEntry
from sexton.log.types import AbortedTransaction, Appended
from sexton.ports.cloud import (
    INLINE_BYTES_MAX,
    AbortedRow,
    Claimed,
    CloudPartitionRow,
    Extent,
    Level,
    ObjectId,
    ProducersSnapshot,
    Run,
)
from sexton.ports.disk import Buffer
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.header import (
    CONTROL,
    Head,
    unpack,
    with_offset,
    with_offset_and_time,
)
from sexton.settings.topic import TopicConfig
from sexton.types import LeaderEpoch, PartitionId

DELTAS_MAX: Final = 64
DELTA_BYTES_MAX: Final = 256 * 1024
"""After so many commits with producers' batches, or so many bytes of them, a snapshot replaces them: what a claim has
to read stays small."""


@dataclass(slots=True, eq=False, kw_only=True)
class Piece:
    """One partition's part of an object; or, inline, markers that travel without one."""

    log: CloudLog
    base_offset: int
    end_offset: int
    is_inline: bool
    snapshot: ProducersSnapshot | None
    delta: bytearray
    batches: list[bytes] = field(default_factory=list)
    size_bytes: int = 0
    records_count: int = 0
    first_timestamp_ms: int = -1
    max_timestamp_ms: int = -1
    aborted: list[AbortedRow] = field(default_factory=list)
    stable_offset: int = 0
    """Once the piece is committed. Set when it is sealed."""
    is_sealed: bool = False

    @property
    def key(self) -> PartitionId:
        return self.log.key

    def run(self, position: int) -> Run:
        """What is sent to the metastore, of a piece that lies there in its object."""
        assert self.is_sealed, f"{self.log!r}: a piece is committed that still grows"
        return Run(
            topic_id=self.log.key[0],
            partition=self.log.key[1],
            writer_epoch=self.log.leader_epoch,
            base_offset=self.base_offset,
            end_offset=self.end_offset,
            position=position,
            size_bytes=self.size_bytes,
            first_timestamp_ms=self.first_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
            records_count=self.records_count,
            stable_offset=self.stable_offset,
            delta=bytes(self.delta),
            aborted=tuple(self.aborted),
            snapshot=self.snapshot,
            inline=b"".join(self.batches) if self.is_inline else None,
        )


class CloudLog:
    """Made from a claim. `leader_epoch` is the one that claimed."""

    def __init__(
        self,
        claimed: Claimed,
        place: str,
        config: TopicConfig,
        *,
        producer_expiry_ms: int,
        now_ms: int,
    ) -> None:
        row = claimed.row
        self.place = place
        self.key: PartitionId = (row.topic_id, row.partition)
        self.leader_epoch: LeaderEpoch = row.writer_epoch
        self.start_offset = row.start_offset
        self.committed_offset = row.end_offset
        self.end_offset = row.end_offset
        self.leveled_offset = row.leveled_offset
        self._told_leveled_offset = row.leveled_offset
        """What the metastore says. A leveling may overtake the answer to the commit that it builds on."""
        self.leveled = LeveledMap(row)
        self.extents = ExtentMap(claimed.extents)
        """The committed extents of L0."""
        self.producers = ProducerStates(place, producer_expiry_ms)
        deltas.load(self.producers, claimed, place, now_ms)
        self._deltas_count = len(claimed.deltas)
        self._delta_bytes = sum(len(delta.batches) for delta in claimed.deltas)
        self.epochs = EpochHistory()
        for epoch, start_offset in claimed.epochs:
            self.epochs.begin(epoch, start_offset)
        self.epochs.cut_start(self.start_offset)
        self._aborted = [AbortedEntry(*one) for one in claimed.aborted]
        self.piece: Piece | None = None
        """The one that grows. It always ends at the end of the log."""
        self.is_dropped = False
        self.reconfigure(config)
        self.check_invariants()

    def __repr__(self) -> str:
        return f"<CloudLog {self.place} {self.start_offset} to {self.committed_offset}, tentative {self.end_offset}>"

    def reconfigure(self, config: TopicConfig) -> None:
        self.config = config
        self.rules = Rules.of(self.place, config)
        self.looks_inside = self.rules.look_inside

    @property
    def size_bytes(self) -> int:
        """Size of what is committed."""
        return self.leveled.size_bytes + self.extents.size_bytes

    @property
    def last_stable_offset(self) -> int:
        return self.producers.last_stable_offset(self.committed_offset, self.start_offset)

    # Appending

    def append(
        self,
        records: Buffer,
        now_ms: int,
        *,
        from_client: bool = True,
        verification: Verification | None = None,
        validated_by: Rules | None = None,
    ) -> tuple[Appended, Piece | None]:
        """Appends one batch to the tail. Returns the piece that it went into; None for a duplicate. A marker where no
        piece grows gets an inline one, which is sealed at once."""
        assert not self.is_dropped, f"{self!r} was dropped"
        view = memoryview(records)
        rules = self.rules
        size_max = rules.batch_bytes_max if from_client else max(rules.batch_bytes_max, OWN_BATCH_BYTES_MAX)
        head = check_frame(view, self.place, size_max)
        if from_client:
            check_client_batch(head, self.place)
            if validated_by is not rules:
                check_time(head, rules, now_ms)
                if self.looks_inside:
                    view = memoryview(validated(view, rules, now_ms))
                    head = unpack(view)
        marker: tuple[Marker, int] | None = None
        if head.producer_id >= 0:
            if head.attributes & CONTROL:
                marker = check_marker(view, head, self.producers, self.place)
            else:
                past = check_producer(head, self.producers, from_client, verification)
                if past is not None:
                    time_ms = past.timestamp_ms if rules.stamps_time else -1
                    return Appended(past.first_offset, past.last_offset, time_ms, self.start_offset, True), None
        piece = self.piece or self._begin(is_inline=marker is not None and head.size_bytes <= INLINE_BYTES_MAX)
        appended = self._add(piece, view, head, marker, now_ms)
        if piece.is_inline:
            self.seal()
        return appended, piece

    def _begin(self, *, is_inline: bool) -> Piece:
        """The snapshot, if one is due, is of what lies below the piece: the state has not moved yet."""
        snapshot, delta = None, bytearray()
        if self._deltas_count >= DELTAS_MAX or self._delta_bytes >= DELTA_BYTES_MAX:
            snapshot = ProducersSnapshot(self.end_offset, self.producers.encode())
            delta += deltas.pack_earlier(self.producers)
            self._deltas_count, self._delta_bytes = 0, -len(delta)  # what comes with it is not what came since
        self.piece = Piece(
            log=self,
            base_offset=self.end_offset,
            end_offset=self.end_offset,
            is_inline=is_inline,
            snapshot=snapshot,
            delta=delta,
        )
        return self.piece

    def _add(
        self, piece: Piece, view: memoryview, head: Head, marker: tuple[Marker, int] | None, now_ms: int
    ) -> Appended:
        first = self.end_offset
        last = first + head.last_offset - head.base_offset
        if self.rules.stamps_time:
            first_ms = max_ms = now_ms
            parts = with_offset_and_time(view, head, first, self.leader_epoch, now_ms)
        else:
            first_ms, max_ms = head.base_timestamp_ms, head.max_timestamp_ms
            parts = with_offset(view, head, first, self.leader_epoch)
        if not piece.batches:
            piece.first_timestamp_ms = first_ms
        piece.batches.append(b"".join(parts))
        piece.size_bytes += head.size_bytes
        piece.records_count += head.record_count
        piece.max_timestamp_ms = max(piece.max_timestamp_ms, max_ms)
        piece.end_offset = self.end_offset = last + 1
        if head.producer_id >= 0:
            ended = note_producer(head, self.producers, first, last, max_ms, marker)
            if marker is None:
                piece.delta += deltas.pack_batch(head, first, last, max_ms)
            else:
                piece.delta += deltas.pack_batch(head, first, last, marker[1], marker[0].coordinator_epoch)
            if ended is not None and ended.is_abort:
                self._note_aborted(piece, ended)
        return Appended(first, last, now_ms if self.rules.stamps_time else -1, self.start_offset, False)

    def _note_aborted(self, piece: Piece, ended: EndedTransaction) -> None:
        row = AbortedRow(ended.producer_id, ended.first_offset, ended.last_offset, ended.last_stable_offset)
        piece.aborted.append(row)
        self._aborted.append(AbortedEntry(*row))

    def seal(self) -> Piece:
        """The piece that grew grows no more. What is appended from now on goes into another one."""
        piece = self.piece
        assert piece is not None, f"{self!r} has nothing to seal"
        assert piece.end_offset == self.end_offset, f"C5: {self!r} seals what is not its end"
        first_open = self.producers.first_open_offset
        piece.stable_offset = piece.end_offset if first_open is None else min(first_open, piece.end_offset)
        piece.is_sealed = True
        if piece.delta:
            self._deltas_count += 1
            self._delta_bytes += len(piece.delta)
        self.piece = None
        return piece

    # What became of it

    def note_committed(self, piece: Piece, object_id: ObjectId | None, position: int) -> Extent:
        """The metastore has accepted a piece: it is part of the log, and consumers may read it."""
        assert piece.base_offset == self.committed_offset, f"C5: {self!r} commits {piece.base_offset} out of order"
        extent = Extent(
            base_offset=piece.base_offset,
            end_offset=piece.end_offset,
            level=Level.L0,
            object_id=object_id,
            position=position,
            size_bytes=piece.size_bytes,
            first_timestamp_ms=piece.first_timestamp_ms,
            max_timestamp_ms=piece.max_timestamp_ms,
            records_count=piece.records_count,
            inline=b"".join(piece.batches) if piece.is_inline else None,
        )
        self.extents.add(extent)
        self.committed_offset = piece.end_offset
        self._trim_leveled()
        return extent

    def note_leveled(self, row: CloudPartitionRow) -> None:
        """What became of L0 and L1 in the meantime. What is leveled is not read from L0 any more."""
        self.leveled.note(row)
        self._told_leveled_offset = max(self._told_leveled_offset, row.leveled_offset)
        self._trim_leveled()

    def _trim_leveled(self) -> None:
        if not self.leveled_offset < self._told_leveled_offset <= self.committed_offset:
            return
        self.leveled_offset = self._told_leveled_offset
        self.extents.trim(self.leveled_offset)
        self._aborted = [one for one in self._aborted if one.last_offset >= self.leveled_offset]

    def drop(self) -> None:
        """Another leads, or will: the tail is nobody's. Pieces that are on their way are not committed any more."""
        self.is_dropped = True
        self.piece = None

    # The start

    def check_deletable(self, offset: int) -> int:
        """The log start that DeleteRecords may ask for; -1 means the high watermark."""
        target = self.committed_offset if offset == -1 else offset
        if not 0 <= target <= self.committed_offset:
            raise KafkaError(ErrorCode.offset_out_of_range, f"{offset} is beyond the high watermark")
        return target

    def retention_start(self, leveled: Sequence[Extent], now_ms: int) -> int:
        """Where retention would put the log start, by the extents of L1 and its own. As with a local log, the last one
        goes too once all of it is due. Extents with a gap are of two moments, or of an older metastore than this log
        was claimed from: what is missing is not known to be due."""
        extents = [*leveled, *(one for one in self.extents if not leveled or one.base_offset >= leveled[-1].end_offset)]
        ends = [self.start_offset, *(one.end_offset for one in extents)]
        bases = [*(one.base_offset for one in extents), self.committed_offset]
        if bases[0] > ends[0] or bases[1:] != ends[1:]:
            return self.start_offset
        summaries = [*summaries_of(extents), SegmentSummary(self.committed_offset, 0, -1, now_ms)]
        start = retention.retained_from(summaries, self.config, self.committed_offset, now_ms)
        return max(self.start_offset, start)

    def note_start(self, start_offset: int) -> list[Extent]:
        """The metastore has moved the start. Returns the extents that are not part of the log any more."""
        assert start_offset <= self.committed_offset, f"C6: {self!r} would start at {start_offset}"
        if start_offset <= self.start_offset:
            return []
        self.start_offset = start_offset
        self.epochs.cut_start(start_offset)
        removed = self.extents.trim(start_offset)
        base = self.extents.base_offset
        gone_below = self.committed_offset if base is None else base
        self._aborted = [one for one in self._aborted if one.last_offset >= gone_below]
        return removed

    # Reading

    def aborted_transactions(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        """L1 has none (C7)."""
        found: list[AbortedTransaction] = []
        find_aborted(self._aborted, max(start_offset, self.leveled_offset), end_offset, found)
        return found

    # Invariants

    def check_invariants(self) -> None:
        assert 0 <= self.start_offset <= self.committed_offset <= self.end_offset, f"C6: {self!r}"
        assert self.leveled_offset <= self.committed_offset, f"C6: {self!r} is leveled to {self.leveled_offset}"
        self.extents.check_invariants()
        last = next(reversed(list(self.extents)), None)
        if last is not None:
            assert last.end_offset == self.committed_offset, f"C5: {self!r} has extents up to {last.end_offset}"
        base = self.committed_offset if self.extents.base_offset is None else self.extents.base_offset
        assert base <= max(self.start_offset, self.leveled_offset), f"C5: {self!r} lacks offsets below {base}"
        if self.piece is not None:
            assert self.piece.end_offset == self.end_offset, f"C5: {self!r} has a piece that is not its end"
            assert self.piece.base_offset >= self.committed_offset, f"C5: {self!r} has committed what still grows"
        stable = self.last_stable_offset
        assert min(self.start_offset, stable) <= stable <= self.committed_offset, f"C6: {self!r}, stable {stable}"
