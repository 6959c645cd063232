"""The compaction rules: what may be removed, what must be kept, and why.

Words, as in docs/rules.md: a *pass* compacts one partition's log up to a *bound* that is never above the last stable
offset or the high watermark and never inside the active segment. MTRO and MXRO are the offsets below which every
replica is known to have compacted (tombstones) and settled (markers); `Terms.independent()` puts them at infinity,
which is Kafka's time-only behaviour.

Each rule is a pure function, written once. They work elementwise, on numbers or on NumPy arrays alike: the reference
compactor calls them for one record or marker, the Spark pipeline for the columns of a batch table. Nothing here reads a
log.

Rule numbers in comments are those of docs/rules.md.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np

from sexton.compaction.fates import Fate
from sexton.compaction.terms import NO_HORIZON, Terms


class Action(IntEnum):
    """What a compaction does with a batch."""

    COPY = 0  # byte for byte
    PATCH = 1  # same records, new header: settled
    REWRITE = 2  # some records, or a new delete horizon
    EMPTY = 3  # header only: its producer's sequence, or the segment's end, must survive
    DROP = 4


def record_fate(
    terms: Terms,
    *,
    has_key: Any,
    is_newest: Any,
    is_aborted: Any,
    is_tombstone: Any,
    batch_last: Any,
    horizon_ms: Any,
) -> Any:
    """The fate of a data record. ``is_newest``: no committed record of its key below the bound is newer (rule 3).

    A delete horizon belongs to a batch, so a tombstone counts as below MTRO only when its whole batch is.
    """
    keyless = Fate.KEYLESS_DROPPED if terms.drop_keyless else Fate.KEYLESS_KEPT
    return np.select(
        [is_aborted, np.logical_not(has_key), np.logical_not(is_newest), np.logical_not(is_tombstone)],
        [Fate.ABORTED, keyless, Fate.SUPERSEDED, Fate.NEWEST],
        tombstone_fate(terms, batch_last, horizon_ms),
    )


def tombstone_fate(terms: Terms, batch_last: Any, horizon_ms: Any) -> Any:
    """The fate of a tombstone that is its key's newest record (rule 5).

    A negative horizon does not count: it is the result of an overflow (in an earlier build of ours), and has not
    passed.
    """
    waits = Fate.TOMBSTONE_WAITS_FOR_HORIZON
    first = waits if terms.horizon_ms == NO_HORIZON else Fate.TOMBSTONE_STARTS_HORIZON
    return np.select(
        [np.greater_equal(batch_last, terms.mtro), np.less(horizon_ms, 0), terms.now_ms < horizon_ms],
        [Fate.TOMBSTONE_WAITS_FOR_REPLICAS, first, waits],
        Fate.TOMBSTONE_EXPIRED,
    )


def marker_fate(terms: Terms, *, is_end_of_txn: Any, has_data: Any, offset: Any, horizon_ms: Any) -> Any:
    """The fate of a control record (rule 6). ``has_data``: transactional batches of its transaction are in the log.

    Settled batches are plain, so below MXRO there is no such data when replicas are coordinated; Kafka's independent
    compaction needs the condition.
    """
    waits = Fate.MARKER_WAITS_FOR_HORIZON
    first = waits if terms.horizon_ms == NO_HORIZON else Fate.MARKER_STARTS_HORIZON
    return np.select(
        [
            np.logical_not(is_end_of_txn),
            has_data,
            np.greater_equal(offset, terms.mxro),
            np.less(horizon_ms, 0),
            terms.now_ms < horizon_ms,
        ],
        [Fate.CONTROL_OF_OTHER_KIND, Fate.MARKER_HAS_DATA, Fate.MARKER_WAITS_FOR_REPLICAS, first, waits],
        Fate.MARKER_EXPIRED,
    )


def must_keep_batch(*, is_segment_end: Any, is_producers_last: Any) -> Any:
    """Whether a batch is kept even if no record is left in it.

    The last batch of a segment carries the segment's end. Without it, a new replica could never reach the log end;
    elsewhere, an interrupted swap could not tell which segments it replaced. (The next compaction removes those that
    have been merged into the middle of a segment.) A live producer's last batch carries its sequence number, without
    which a retry would be refused or, worse, appended twice.
    """
    return np.logical_or(is_segment_end, is_producers_last)


def is_settled(terms: Terms, *, is_transactional: Any, is_control: Any, has_ended: Any, batch_last: Any) -> Any:
    """Whether a transactional batch becomes a plain one in this compaction (MXFO's definition).

    That includes aborted batches: their records are removed, and a batch that stays for its producer's sequence number
    is empty.
    """
    data = np.logical_and(is_transactional, np.logical_not(is_control))
    return np.logical_and(np.logical_and(data, has_ended), np.less(batch_last, terms.settle_below))


def batch_action(*, record_count: Any, kept_count: Any, must_keep: Any, starts_horizon: Any, settles: Any) -> Any:
    """What is written for a batch of which ``kept_count`` records stay."""
    nothing_left = np.equal(kept_count, 0)
    unchanged = np.logical_and(np.equal(kept_count, record_count), np.logical_not(starts_horizon))
    return np.select(
        [
            np.logical_and(nothing_left, np.logical_not(must_keep)),
            np.logical_and(nothing_left, np.not_equal(record_count, 0)),
            np.logical_and(unchanged, settles),
            unchanged,
        ],
        [Action.DROP, Action.EMPTY, Action.PATCH, Action.COPY],
        Action.REWRITE,
    )
