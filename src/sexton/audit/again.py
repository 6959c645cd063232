"""Reads again what a running broker lists of a transaction, and that transaction's own records and marker."""

from __future__ import annotations

from dataclasses import replace

from sexton.audit.claims import WrongClaim
from sexton.audit.replica import AbortedClaim, Source
from sexton.audit.standing import Standing, with_markers
from sexton.compaction.transactions import TransactionEvents, events_of, join_events
from sexton.records.kernels.scan import scan_whole


def read_again(source: Source, standing: Standing, claim: WrongClaim) -> Standing | None:
    """How the replica stands by that much of its log, as it is now. None if its broker does not answer."""
    low, high = (int(str(claim.facts[name])) for name in ("first_offset", "marker_offset"))
    (now,) = source.now([standing.replica.id])
    if not now.is_read:
        return None
    events: list[TransactionEvents] = []
    claims: dict[AbortedClaim, None] = {}
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
        end_offset=high + 1,
    )
