"""The compaction rules: what may go, what must stay, and why.

Words, as in docs/rules.md: a *pass* cleans one partition's log up to a *bound* that is never above the last stable
offset or the high watermark and never inside the active segment. MTRO and MXRO are the offsets below which every
replica is known to have cleaned (tombstones) and settled (markers); `Terms.independent()` puts them at infinity,
which is Kafka's time-only behaviour.

Each rule is a pure function, written once. They work elementwise, on numbers or on NumPy arrays alike: the reference
compactor calls them for one record or marker, the Spark pipeline for the columns of a batch table. Facts come in,
fates go out; nothing here reads a log.

Rule numbers in comments are those of docs/rules.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np

NO_HORIZON = -1
OFFSET_MAX = 2**63 - 1
TIMESTAMP_MAX_MS = 2**63 - 1


class Fate(IntEnum):
    """What becomes of a record or marker in a pass, and why. The values below 100 stay."""

    NEWEST = 0
    KEYLESS_KEPT = 1
    TOMBSTONE_WAITS_FOR_REPLICAS = 2
    TOMBSTONE_STARTS_HORIZON = 3
    TOMBSTONE_WAITS_FOR_HORIZON = 4
    MARKER_HAS_DATA = 5
    MARKER_WAITS_FOR_REPLICAS = 6
    MARKER_STARTS_HORIZON = 7
    MARKER_WAITS_FOR_HORIZON = 8
    CONTROL_OF_OTHER_KIND = 9
    SUPERSEDED = 100
    ABORTED = 101
    TOMBSTONE_EXPIRED = 102
    KEYLESS_DROPPED = 103
    MARKER_EXPIRED = 104

    @property
    def stays(self) -> bool:
        return self < 100

    @property
    def why(self) -> str:
        return _WHY[self]


_WHY = {
    Fate.NEWEST: "the newest committed record of its key",
    Fate.KEYLESS_KEPT: "has no key, so nothing can supersede it (Kafka's cleaner would drop it)",
    Fate.TOMBSTONE_WAITS_FOR_REPLICAS: "at or above MTRO: a replica may still hold the value that it deletes",
    Fate.TOMBSTONE_STARTS_HORIZON: "seen below MTRO for the first time: delete.retention.ms starts now",
    Fate.TOMBSTONE_WAITS_FOR_HORIZON: "its delete horizon has not passed: a slow consumer may still need it",
    Fate.MARKER_HAS_DATA: "records of its transaction were still in the log",
    Fate.MARKER_WAITS_FOR_REPLICAS: "at or above MXRO: a replica may still hold unsettled records of its transaction",
    Fate.MARKER_STARTS_HORIZON: "seen below MXRO with nothing left of its transaction: delete.retention.ms starts now",
    Fate.MARKER_WAITS_FOR_HORIZON: "its delete horizon has not passed",
    Fate.CONTROL_OF_OTHER_KIND: "a control record that is neither COMMIT nor ABORT",
    Fate.SUPERSEDED: "a newer committed record has the same key",
    Fate.ABORTED: "its transaction was aborted",
    Fate.TOMBSTONE_EXPIRED: "below MTRO and its delete horizon has passed",
    Fate.KEYLESS_DROPPED: "has no key (dropped as Kafka's cleaner does)",
    Fate.MARKER_EXPIRED: "below MXRO and its delete horizon has passed",
}


class Action(IntEnum):
    """What becomes of a batch."""

    COPY = 0  # byte for byte
    PATCH = 1  # same records, new header: settled
    REWRITE = 2  # some records, or a new delete horizon
    EMPTY = 3  # header only: its producer's sequence, or the log's end, must survive
    DROP = 4


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one pass over one partition."""

    now_ms: int
    bound: int
    """Exclusive: nothing at or above it is touched. A segment's base offset."""
    delete_retention_ms: int
    mtro: int = 0
    mxro: int = 0
    settle_below: int = 0
    """Committed transactional batches that end below it are rewritten as plain ones."""
    drop_keyless: bool = False

    def independent(self) -> Terms:
        """Kafka's behaviour: no other replica is asked, time alone decides. It exists to show and measure the bug."""
        return replace(self, mtro=OFFSET_MAX, mxro=OFFSET_MAX, settle_below=0, drop_keyless=True)

    @property
    def horizon_ms(self) -> int:
        """Of tombstones and markers whose time starts in this pass; `NO_HORIZON` if it never ends.

        delete.retention.ms=Long.MAX_VALUE is how people say "for ever": its horizon is no timestamp any more. None is
        written then, as in Kafka, so that a shorter retention counts from when it is set.
        """
        horizon_ms = self.now_ms + self.delete_retention_ms
        return horizon_ms if horizon_ms <= TIMESTAMP_MAX_MS else NO_HORIZON

    def check_invariants(self) -> None:
        assert self.bound >= 0, "a bound is an offset"
        assert self.settle_below <= self.bound, "rule 8: nothing above the bound (and so the LSO) is settled"


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

    A delete horizon belongs to a batch, so a tombstone counts as below MTRO when all of its batch is.
    """
    keyless = Fate.KEYLESS_DROPPED if terms.drop_keyless else Fate.KEYLESS_KEPT
    return np.select(
        [is_aborted, np.logical_not(has_key), np.logical_not(is_newest), np.logical_not(is_tombstone)],
        [Fate.ABORTED, keyless, Fate.SUPERSEDED, Fate.NEWEST],
        tombstone_fate(terms, batch_last, horizon_ms),
    )


def tombstone_fate(terms: Terms, batch_last: Any, horizon_ms: Any) -> Any:
    """The fate of a tombstone that is its key's newest record (rule 5).

    A horizon before 1970 is none: it is what an overflow left (of a build of ours, once), and it has not passed.
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
    cleaning needs the condition.
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
    """Whether a batch stays even with nothing in it.

    The last batch of a segment carries the segment's end. At the log's end a new replica could otherwise never reach
    it; everywhere else an interrupted swap could not tell which segments it replaced. (The next pass takes those that
    have been merged into the middle of a segment.) A live producer's last batch carries its sequence, without which a
    retry would be refused or, worse, appended twice.
    """
    return np.logical_or(is_segment_end, is_producers_last)


def is_settled(terms: Terms, *, is_transactional: Any, is_control: Any, has_ended: Any, batch_last: Any) -> Any:
    """Whether a transactional batch becomes a plain one in this pass (MXFO's definition).

    Aborted batches count, too: their records go, and one that stays for its producer's sequence has nothing to hide.
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
