"""Compacted logs by record key: what was written, and what may have been.

Keys are numbered by log and key (a *kid*), in rising order, so that those of a log are neighbours. The twin of
`removal.Removal`, as far as it is asked about keys.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sexton.checker.kernels.arrays import Bools, Longs
from sexton.checker.kernels.columns import Columns, ranks, sort_by
from sexton.checker.kernels.removal import Cuts, Removals
from sexton.checker.removal import NEVER_NS
from sexton.history.op import UNKNOWN
from sexton.jit import kernel


class Keys(NamedTuple):
    key_of: Longs
    """By kid."""
    log_start: Longs
    """By log, its first kid; and where the last ends."""
    start: Longs
    """By kid, the first of the next rows, which are by kid and offset: what is certain."""
    offset: Longs
    vid: Longs
    call: Longs
    is_tombstone: Bools
    newer_start: Longs
    """By kid, the first of the next rows, likewise: what is certain, and what is doubtful and has an offset."""
    newer_offset: Longs
    newer_ns: Longs
    """When this record or one behind it may have been written at the earliest."""
    anywhere_ns: Longs
    """By kid: when a record of which no offset is known may have been written at the earliest."""
    since_ns: Longs
    """By vid."""
    cuts: Cuts
    kept_ns: Longs
    """By log: for how long a tombstone is there at the least."""


class Polled(NamedTuple):
    """What was polled of compacted logs, by call and log, and in order."""

    row: Longs
    """Of `polls`."""
    call: Longs
    log: Longs
    kid: Longs
    vid: Longs
    offset: Longs
    is_tombstone: Bools


def keys_of(columns: Columns, removals: Removals) -> tuple[Keys, Polled]:
    sends, polls = columns.sends, columns.polls
    sent = np.flatnonzero(removals.is_compacted[sends.log] & (removals.is_certain | removals.is_doubtful))
    polled = np.flatnonzero(removals.is_compacted[polls.log])
    polled = polled[sort_by(columns.pack(polls.call[polled], polls.log[polled]))]
    log = np.concatenate([sends.log[sent], polls.log[polled]])
    key = np.concatenate([sends.key[sent], polls.key[polled]])
    kid, first = ranks(log, key)
    kids = np.arange(len(first) + 1)
    sent_kid, polled_kid = kid[: len(sent)], kid[len(sent) :]
    offset = columns.order.offset_of(sends.vid[sent])
    begin_ns = columns.begin_ns[sends.call[sent]]
    anywhere_ns = np.full(len(first), NEVER_NS)
    is_nowhere = offset == UNKNOWN
    np.minimum.at(anywhere_ns, sent_kid[is_nowhere], begin_ns[is_nowhere])
    order = sort_by(sent_kid, offset)
    newer = order[~is_nowhere[order]]
    certain = order[removals.is_certain[sent[order]]]
    rows = sent[certain]
    keys = Keys(
        key_of=key[first],
        log_start=np.searchsorted(log[first], np.arange(len(columns.logs) + 1)),
        start=np.searchsorted(sent_kid[certain], kids),
        offset=offset[certain],
        vid=sends.vid[rows],
        call=sends.call[rows],
        is_tombstone=sends.is_tombstone[rows],
        newer_start=np.searchsorted(sent_kid[newer], kids),
        newer_offset=offset[newer],
        newer_ns=_earliest_behind(sent_kid[newer], begin_ns[newer]),
        anywhere_ns=anywhere_ns,
        since_ns=removals.since_ns,
        cuts=removals.cuts,
        kept_ns=removals.kept_ns,
    )
    given = Polled(
        row=polled,
        call=polls.call[polled],
        log=polls.log[polled],
        kid=polled_kid,
        vid=polls.vid[polled],
        offset=polls.offset[polled],
        is_tombstone=polls.is_tombstone[polled],
    )
    return keys, given


@kernel
def _earliest_behind(kid: Longs, begin_ns: Longs) -> Longs:
    found = begin_ns.copy()
    for row in range(len(kid) - 2, -1, -1):
        if kid[row] == kid[row + 1]:
            found[row] = min(found[row], found[row + 1])
    return found


@kernel
def newest_below(keys: Keys, kid: int, end_offset: int) -> int:
    """A row of what is certain, or UNKNOWN."""
    first, end = keys.start[kid], keys.start[kid + 1]
    place = first + np.searchsorted(keys.offset[first:end], end_offset)
    return place - 1 if place > first else UNKNOWN


@kernel
def may_have_newer(keys: Keys, kid: int, offset: int, now_ns: int) -> bool:
    first, end = keys.newer_start[kid], keys.newer_start[kid + 1]
    place = first + np.searchsorted(keys.newer_offset[first:end], offset)
    return bool(keys.anywhere_ns[kid] <= now_ns or (place < end and keys.newer_ns[place] <= now_ns))
