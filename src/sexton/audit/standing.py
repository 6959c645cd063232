"""What was seen of a replica: its headers, and what follows from them for its consumers.

A replica that *lags* is judged by what it will be once it has caught up. What it has not read yet is what the reference
has now, from its end on, and nothing that was compacted away there will ever come: so its transactions end as the
reference's remaining markers say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sexton.audit.replica import AbortedClaim, Replica
from sexton.compaction.transactions import TransactionEvents, TransactionIndex, join_events
from sexton.errors import SextonError
from sexton.records.batch import ControlType
from sexton.types import INT64_MAX, NO_OFFSET

Gaps = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Marker:
    producer_id: int
    producer_epoch: int
    offset: int
    first_data_offset: int
    """Where its transaction's data begins in this log; NO_OFFSET if none is left."""
    control_type: ControlType

    @classmethod
    def of(cls, row: np.void) -> Marker:
        return cls(
            int(row["producer_id"]),
            int(row["producer_epoch"]),
            int(row["offset"]),
            int(row["first_data_offset"]),
            ControlType(int(row["control_type"])),
        )


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets [start, end) that no batch spans, and when the batches around it were written (-1: not seen)."""

    start: int
    end: int
    time_before_ms: int
    time_after_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    replica: Replica
    events: TransactionEvents
    gaps: Gaps
    has_all_gaps: bool = True
    """If not, these are the largest of them: nothing follows from one that is missing."""
    end_offset: int
    """How far it was read: its end, or the high watermark of a live one."""
    high_watermark: int
    """The replica's high watermark as its broker reports it; its log end if the broker does not."""
    committed_end: int = 0
    """Below it all is committed, by what all replicas say (`settle`), as far as this one reaches."""
    visible_end: int = 0
    """Its last stable offset by its own markers; of one that lags, after it has caught up."""
    is_current: bool = False
    """It was read past everything that any other had shown by then."""
    lags: bool = False
    """It has not got all that the reference has, nor had it a moment before."""
    aborted: tuple[AbortedClaim, ...] = ()
    epochs: tuple[tuple[int, int], ...] = ()
    """Leader epochs of its batches, and the offset after the last batch of each."""
    record_count: int = 0
    keyless_count: int = 0
    size_bytes: int = 0
    notes: tuple[str, ...] = ()
    failure: SextonError | None = None

    @property
    def label(self) -> str:
        return self.replica.label

    @property
    def start_offset(self) -> int:
        return self.replica.log_start_offset

    # ---- Transactions, by its own markers. ----

    def marker_ending(self, producer_id: int, offset: int) -> Marker | None:
        """The marker that ends the transaction which a batch at this offset is part of."""
        index = TransactionIndex(self.events.markers)
        found = int(index.next_marker(_one(producer_id), _one(offset))[0])
        return None if found < 0 else Marker.of(index.markers[found])

    def marker_at(self, offset: int) -> Marker | None:
        row = int(np.searchsorted(self.events.markers["offset"], offset))
        markers = self.events.markers
        return Marker.of(markers[row]) if row < len(markers) and markers["offset"][row] == offset else None

    def markers(self, control_type: ControlType | None = None, producer_id: int | None = None) -> Iterator[Marker]:
        rows = self.events.markers
        if control_type is not None:
            rows = rows[rows["control_type"] == control_type]
        if producer_id is not None:
            rows = rows[rows["producer_id"] == producer_id]
        return map(Marker.of, rows)

    def open_transactions(self) -> list[tuple[int, int]]:
        """Producer ids and first offsets, by offset."""
        pairs = zip(self.events.open_producer_ids.tolist(), self.events.open_first_offsets.tolist(), strict=True)
        return sorted(pairs, key=lambda pair: pair[1])

    # ---- Holes. ----

    def has_batch_at(self, offset: int) -> bool:
        """Whether a batch spans an offset, for certain."""
        inside = (self.gaps["start"] <= offset) & (self.gaps["end"] > offset)
        return self.has_all_gaps and self.start_offset <= offset < self.end_offset and not inside.any()

    def holes(self, after: int, before: int = INT64_MAX) -> list[Gap]:
        """Gaps that it copied, or that its own cleaner made: nobody can tell them apart where that has been."""
        return [_gap(row) for row in self.gaps[(self.gaps["start"] > after) & (self.gaps["end"] <= before)]]

    def may_have_cleaned(self, after: int) -> bool:
        """Whether its own cleaner may have taken something away above an offset. A live broker does not tell."""
        if self.replica.is_live and self.replica.clean_offset is None:
            return True
        clean = self.replica.clean_offset or 0
        inside = (self.gaps["start"] > after) & (self.gaps["start"] < clean)
        return bool(inside.any()) or (clean > after and not self.has_all_gaps)


def _gap(row: np.void) -> Gap:
    return Gap(int(row["start"]), int(row["end"]), int(row["time_before_ms"]), int(row["time_after_ms"]))


def _one(value: int) -> npt.NDArray[np.int64]:
    return np.array([value], dtype=np.int64)


# ---- All replicas of a partition beside each other. ----


def reference_of(standings: Mapping[int, Standing]) -> int:
    """The replica that others are held against where they lag: the leader; if nobody says who that is, the one of the
    highest leader epoch, and of those the one that reaches furthest."""

    def rank(number: int) -> tuple[bool, bool, int, int, int]:
        standing = standings[number]
        replica = standing.replica
        return (
            bool(replica.is_leader),
            replica.is_in_sync is not False,
            replica.leader_epoch,
            standing.end_offset,
            -number,
        )

    return max(standings, key=rank)


def settle(standings: Mapping[int, Standing]) -> dict[int, Standing]:
    """Decides, for replicas of one partition, how far each shows its log.

    The high watermark in a directory is up to five seconds old, or of a broker that was killed. What another replica
    knows to be committed is committed; what a cleaner has gone over is; and so is what all of them have, whoever leads.
    """
    if not standings:
        return {}
    reference = standings[reference_of(standings)]
    standings = {number: _truncated(each, reference) for number, each in standings.items()}
    committed = max(
        *(each.high_watermark for each in standings.values()),
        *(each.replica.clean_offset or 0 for each in standings.values()),
        min(each.end_offset for each in standings.values()),
    )
    ahead = min(committed, reference.end_offset)
    settled = {}
    for number, each in standings.items():
        committed_end = min(each.end_offset, committed)
        if each.end_offset >= ahead:
            stable = each.events.last_stable_offset(committed_end)
            settled[number] = replace(each, committed_end=committed_end, visible_end=stable)
            continue
        events = caught_up(each, reference)
        settled[number] = replace(
            each,
            committed_end=committed_end,
            events=events,
            gaps=np.concatenate([each.gaps, _coming_gaps(each, reference)]),
            has_all_gaps=each.has_all_gaps and reference.has_all_gaps,
            visible_end=events.last_stable_offset(ahead),
            lags=not each.is_current,
        )
    return settled


def _truncated(standing: Standing, reference: Standing) -> Standing:
    """What will be left of a replica, once it follows the reference. A leader that died has records in its directory
    that nobody else got; the next leader's epoch began below them. Where that was, compaction may have hidden: it lies
    above the reference's last batch of this epoch, and above what this replica knew to be committed."""
    if standing is reference or standing.replica.is_live or not standing.epochs:
        return standing
    last_epoch, _ = max(standing.epochs, key=lambda pair: pair[1])
    if all(epoch <= last_epoch for epoch, _ in reference.epochs):
        return standing
    same_end = max((end for epoch, end in reference.epochs if epoch <= last_epoch), default=0)
    end = max(same_end, standing.high_watermark, standing.replica.clean_offset or 0, standing.start_offset)
    if end >= standing.end_offset:
        return standing
    note = f"offsets {end:,} to {standing.end_offset:,} are not judged: a later leader began its epoch without them"
    return replace(
        standing,
        end_offset=end,
        is_current=False,
        events=events_below(standing.events, end),
        gaps=standing.gaps[standing.gaps["end"] <= end],
        aborted=tuple(each for each in standing.aborted if each.marker_offset < end),
        notes=(*standing.notes, note),
    )


def events_below(events: TransactionEvents, end: int) -> TransactionEvents:
    """As they were when the log ended there."""
    markers, firsts = events.markers, events.open_first_offsets
    is_open = (markers["offset"] >= end) & (markers["first_data_offset"] != NO_OFFSET)
    reopened = markers[is_open & (markers["first_data_offset"] < end)]
    kept = firsts < end
    return TransactionEvents(
        markers[markers["offset"] < end],
        np.concatenate([reopened["producer_id"], events.open_producer_ids[kept]]),
        np.concatenate([reopened["first_data_offset"], firsts[kept]]),
    )


def caught_up(standing: Standing, reference: Standing) -> TransactionEvents:
    """The transactions of a replica once it has copied the rest from the reference."""
    end = standing.end_offset
    theirs = reference.events
    markers = theirs.markers[theirs.markers["offset"] >= end].copy()
    markers["first_data_offset"][markers["first_data_offset"] < end] = NO_OFFSET
    later = theirs.open_first_offsets >= end
    rest = TransactionEvents(markers, theirs.open_producer_ids[later], theirs.open_first_offsets[later])
    return join_events([standing.events, rest])


def _coming_gaps(standing: Standing, reference: Standing) -> Gaps:
    """What it will not get."""
    gaps: Gaps = reference.gaps[reference.gaps["end"] > standing.end_offset].copy()
    gaps["start"] = np.maximum(gaps["start"], standing.end_offset)
    return gaps


def with_markers(claims: Sequence[AbortedClaim], events: TransactionEvents) -> tuple[AbortedClaim, ...]:
    """Claims of a Fetch answer do not say which marker they mean: it is the producer's next ABORT."""
    index = TransactionIndex(events.markers)
    found = []
    for claim in claims:
        if claim.marker_offset == NO_OFFSET:
            at = int(index.next_marker(_one(claim.producer_id), _one(claim.first_offset))[0])
            if at >= 0:
                claim = claim._replace(marker_offset=int(index.markers["offset"][at]))
        found.append(claim)
    return tuple(dict.fromkeys(found))
