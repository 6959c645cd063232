"""What brokers claim of transactions, held against their own logs and against each other.

A broker does not look at markers when it answers a consumer. It has lists: of aborted transactions (.txnindex), and of
open ones (its producers' state). They are made when markers arrive, from what the broker knew then. Where a list and
the log behind it part, consumers see what the list says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from sexton.audit.replica import AbortedClaim, OpenClaim, Replica
from sexton.audit.standing import Marker, Standing
from sexton.records.batch import ControlType
from sexton.types import NO_OFFSET


@dataclass(frozen=True, slots=True)
class Mismatch:
    """An ABORT that ends a longer transaction on this replica than on all others that know where it begins."""

    marker: Marker
    first: int
    elsewhere: int
    """The first offset there, the smallest."""


Mismatches = Mapping[int, Sequence[Mismatch]]


@dataclass(frozen=True, slots=True)
class WrongClaim:
    replica: int
    because: str
    facts: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Wedged:
    """A broker whose last stable offset is below what its own log gives, and below another broker's: its consumers with
    read_committed wait for nothing that could come."""

    replica: int
    offset: int
    """Its last stable offset, as it says."""
    expected: int
    """By its own markers: no transaction below it is open."""
    listed: OpenClaim | None = None
    """One that the broker lists as open there, all the same."""

    def is_still_so(self, now: Replica) -> bool:
        """A broker tells of its high watermark a moment before its last stable offset follows, so it is asked again."""
        return now.is_read and now.last_stable_offset == self.offset


def find_wedged(standings: Mapping[int, Standing]) -> list[Wedged]:
    found = []
    for number, each in standings.items():
        offset, cut = each.replica.last_stable_offset, each.replica.cut
        if not each.replica.is_live or each.lags or offset is None or cut is None:
            continue
        if offset < min(cut, each.visible_end):
            listed = next((claim for claim in each.replica.open if claim.first_offset <= offset), None)
            found.append(Wedged(number, offset, each.visible_end, listed))
    return found


def find_mismatches(standings: Mapping[int, Standing]) -> Mismatches:
    beginnings = {number: _beginnings(standing) for number, standing in standings.items()}
    found: dict[int, list[Mismatch]] = {}
    for number, standing in standings.items():
        for place, first in beginnings[number].items():
            theirs = [each[place] for other, each in beginnings.items() if other != number and place in each]
            if theirs and min(theirs) > first:
                marker = standing.marker_at(place[1])
                if marker is not None and marker.control_type == ControlType.ABORT:
                    found.setdefault(number, []).append(Mismatch(marker, first, min(theirs)))
    return found


def _beginnings(standing: Standing) -> dict[tuple[int, int], int]:
    """By producer and ABORT marker, where its transaction begins: as the broker noted it when the marker came, or where
    its data begins now, whichever is earlier."""
    rows = standing.events.markers[standing.events.markers["control_type"] == ControlType.ABORT]
    found: dict[tuple[int, int], int] = {}
    columns = (rows[name].tolist() for name in ("producer_id", "offset", "first_data_offset"))
    for producer_id, offset, first in zip(*columns, strict=True):
        if first != NO_OFFSET:
            found[(producer_id, offset)] = first
    for claim in standing.aborted:
        place = (claim.producer_id, claim.marker_offset)
        found[place] = min(claim.first_offset, found.get(place, claim.first_offset))
    return found


def wrong_claims(standings: Mapping[int, Standing]) -> list[WrongClaim]:
    """Lists that tell consumers something else than the log they are about. Only such as do so: an index that covers
    more than is left in a compacted log is as it should be."""
    found: dict[tuple[int, str], WrongClaim] = {}
    for number, standing in standings.items():
        for because, facts in (
            *_against_own_markers(standing),
            *_open_ones(standing),
        ):
            found.setdefault((number, repr(facts)), WrongClaim(number, because, facts))
    return list(found.values())


Finding = tuple[str, Mapping[str, object]]


def _against_own_markers(standing: Standing) -> Iterator[Finding]:
    markers = {(each.producer_id, each.offset): each for each in standing.markers()}
    claims = {(each.producer_id, each.marker_offset): each for each in standing.aborted}
    commits: dict[int, list[Marker]] = {}
    for marker in markers.values():
        if marker.control_type == ControlType.COMMIT and marker.first_data_offset != NO_OFFSET:
            commits.setdefault(marker.producer_id, []).append(marker)
    for place, claim in claims.items():
        same = markers.get(place)
        if same is not None and same.control_type == ControlType.COMMIT:
            yield (
                f"{standing.label} lists the transaction of producer {claim.producer_id} from offset "
                f"{claim.first_offset:,} as aborted, and its log has a COMMIT at {claim.marker_offset:,}",
                _facts(claim),
            )
        covered = _committed_inside(claim, commits.get(claim.producer_id, ()))
        if covered is not None:
            yield (
                f"{standing.label} lists offsets {claim.first_offset:,} to {claim.marker_offset:,} of producer "
                f"{claim.producer_id} as aborted, and its log has a COMMIT in between, at {covered.offset:,}",
                _facts(claim),
            )
    if not standing.replica.claims_are_complete:
        return
    for place, marker in markers.items():
        if marker.control_type != ControlType.ABORT or marker.first_data_offset == NO_OFFSET:
            continue
        if marker.first_data_offset < standing.start_offset or marker.offset >= standing.end_offset:
            continue
        limit = standing.replica.aborted_below
        if limit is not None and marker.first_data_offset >= limit:
            continue
        mine = claims.get(place)
        if mine is None or mine.first_offset > marker.first_data_offset:
            lists = "does not list it" if mine is None else f"lists it from {mine.first_offset:,} on only"
            yield (
                f"the log of {standing.label} has a transaction of producer {marker.producer_id} from offset "
                f"{marker.first_data_offset:,}, aborted at {marker.offset:,}, and the broker {lists}: its consumers "
                "see aborted data",
                {
                    "producer_id": marker.producer_id,
                    "first_offset": marker.first_data_offset,
                    "marker_offset": marker.offset,
                },
            )


def _committed_inside(claim: AbortedClaim, commits: Sequence[Marker]) -> Marker | None:
    for marker in commits:
        if claim.first_offset <= marker.first_data_offset and marker.offset < claim.marker_offset:
            return marker
    return None


def _open_ones(standing: Standing) -> Iterator[Finding]:
    """A transaction that the broker holds to be open, and whose marker its log has."""
    replica = standing.replica
    if replica.open_as_of is not None and replica.open_as_of != standing.end_offset:
        return
    if replica.is_live and replica.cut is None:  # its marker may have come between the question and the reading
        return
    for claim in replica.open:
        marker = standing.marker_ending(claim.producer_id, claim.first_offset)
        limit = replica.cut if replica.cut is not None else standing.end_offset
        if marker is not None and marker.offset < standing.end_offset and claim.first_offset < limit:
            yield (
                f"{standing.label} holds the transaction of producer {claim.producer_id} at offset "
                f"{claim.first_offset:,} to be open, and its log has a marker at {marker.offset:,}",
                {"producer_id": claim.producer_id, "first_offset": claim.first_offset, "marker_offset": marker.offset},
            )


def _facts(claim: AbortedClaim) -> Mapping[str, object]:
    return {
        "producer_id": claim.producer_id,
        "first_offset": claim.first_offset,
        "marker_offset": claim.marker_offset,
    }
