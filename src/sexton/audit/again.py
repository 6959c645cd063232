"""Reads again what a running broker lists of a transaction, and that transaction's own records and marker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from sexton.audit.claims import Mismatch, WrongClaim, find_mismatches, wrong_claims
from sexton.audit.replica import AbortedClaim, Source
from sexton.audit.standing import Standing, with_markers
from sexton.compaction.transactions import TransactionEvents, events_of, join_events
from sexton.records.kernels.scan import scan_whole

CLAIM_LOOKS: Final = 2
"""How often what a running broker lists is read again, before it is told."""
WEDGED_PAUSE_S: Final = 0.5
"""Before each time that a broker is asked again for its last stable offset."""


def is_still_claimed(source: Source, claim: WrongClaim, standings: Mapping[int, Standing]) -> bool:
    """A broker's list and its markers come one after the other, and its cleaner takes both: so they are read again,
    just these."""
    first, last = (int(str(claim.facts[name])) for name in ("first_offset", "marker_offset"))

    def is_found(again: Standing) -> bool:
        found = wrong_claims({**standings, claim.replica: again})
        return any(each.replica == claim.replica and each.facts == claim.facts for each in found)

    return _is_so_each_time(source, standings[claim.replica], first, last, is_found)


def is_still_mismatched(source: Source, number: int, mismatch: Mismatch, standings: Mapping[int, Standing]) -> bool:
    def is_found(again: Standing) -> bool:
        found = find_mismatches({**standings, number: again}).get(number, ())
        return any((each.marker, each.first) == (mismatch.marker, mismatch.first) for each in found)

    return _is_so_each_time(source, standings[number], mismatch.first, mismatch.marker.offset, is_found)


def _is_so_each_time(
    source: Source, standing: Standing, first: int, last: int, is_found: Callable[[Standing], bool]
) -> bool:
    if not standing.replica.is_working:
        return True
    for _ in range(CLAIM_LOOKS):
        again = read_again(source, standing, first, last)
        if again is None or not is_found(again):
            return False
    return True


def read_again(source: Source, standing: Standing, low: int, high: int) -> Standing | None:
    """How the replica stands by that much of its log, as it is now. None if its broker does not answer."""
    (now,) = source.now([standing.replica.id])
    if not now.is_read:
        return None
    events: list[TransactionEvents] = []
    claims = {} if now.is_live else dict.fromkeys(now.aborted)
    for stretch in source.stretches(now, 0, low, high + 1):
        for piece in stretch.pieces():
            claims |= {AbortedClaim(*each): None for each in piece.aborted}
            events.append(events_of(scan_whole(piece.data, 0, len(piece.data), piece.place, check_crc=False)))
    seen = join_events(events)
    return replace(
        standing,
        replica=replace(now, log_start_offset=standing.start_offset, aborted_below=high + 1),
        events=seen,
        aborted=with_markers(list(claims), seen),
        end_offset=high + 1 if now.is_live else standing.end_offset,
    )
