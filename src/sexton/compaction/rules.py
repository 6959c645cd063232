"""The compaction rules: what may be removed, what must be kept, and why.

Words, as in docs/rules.md: a *pass* compacts one partition's log up to a *bound* that is never above the last stable
offset or the high watermark and never inside the active segment. MTRO and MXRO are the offsets below which every
replica is known to have compacted (tombstones) and settled (markers); `Terms.independent()` puts them at infinity,
which is Kafka's time-only behaviour.

Each rule is a pure function, written once. They work elementwise, on numbers or on NumPy arrays alike: the reference
compactor calls them for one record or marker, the Spark pipeline for the columns of a batch table, and a broker for the
headers of what a compactor hands back (`acceptance`). NumPy is imported only for columns: a broker starts without it.
Nothing here reads a log.

Rule numbers in comments are those of docs/rules.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Protocol

from sexton.compaction.fates import Fate
from sexton.compaction.terms import NO_HORIZON, Terms
from sexton.records.header import CONTROL


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
    return _first_of(
        (is_aborted, Fate.ABORTED),
        (_not(has_key), Fate.KEYLESS_DROPPED if terms.drop_keyless else Fate.KEYLESS_KEPT),
        (_not(is_newest), Fate.SUPERSEDED),
        (_not(is_tombstone), Fate.NEWEST),
        otherwise=tombstone_fate(terms, batch_last, horizon_ms),
    )


def tombstone_fate(terms: Terms, batch_last: Any, horizon_ms: Any) -> Any:
    """The fate of a tombstone that is its key's newest record (rule 5).

    A negative horizon does not count: it is the result of an overflow (in an earlier build of ours), and has not
    passed.
    """
    waits = Fate.TOMBSTONE_WAITS_FOR_HORIZON
    first = waits if terms.horizon_ms == NO_HORIZON else Fate.TOMBSTONE_STARTS_HORIZON
    return _first_of(
        (batch_last >= terms.mtro, Fate.TOMBSTONE_WAITS_FOR_REPLICAS),
        (horizon_ms < 0, first),
        (horizon_ms > terms.now_ms, waits),
        otherwise=Fate.TOMBSTONE_EXPIRED,
    )


def marker_fate(terms: Terms, *, is_end_of_txn: Any, has_data: Any, offset: Any, horizon_ms: Any) -> Any:
    """The fate of a control record (rule 6). ``has_data``: transactional batches of its transaction are in the log.

    Settled batches are plain, so below MXRO there is no such data when replicas are coordinated; Kafka's independent
    compaction needs the condition.
    """
    waits = Fate.MARKER_WAITS_FOR_HORIZON
    first = waits if terms.horizon_ms == NO_HORIZON else Fate.MARKER_STARTS_HORIZON
    return _first_of(
        (_not(is_end_of_txn), Fate.CONTROL_OF_OTHER_KIND),
        (has_data, Fate.MARKER_HAS_DATA),
        (marker_waits_for_replicas(offset, terms.mxro), Fate.MARKER_WAITS_FOR_REPLICAS),
        (horizon_ms < 0, first),
        (horizon_ms > terms.now_ms, waits),
        otherwise=Fate.MARKER_EXPIRED,
    )


def marker_waits_for_replicas(offset: Any, mxro: int) -> Any:
    """The part of rule 6 that a header shows: from MXRO on, some replica may hold unsettled records that it ends."""
    return offset >= mxro


def must_keep_batch(*, is_segment_end: Any, is_producers_last: Any) -> Any:
    """Whether a batch is kept even if no record is left in it.

    The last batch of a segment carries the segment's end. Without it, a new replica could never reach the log end;
    elsewhere, an interrupted swap could not tell which segments it replaced. (The next compaction removes those that
    have been merged into the middle of a segment.) A live producer's last batch carries its sequence number, without
    which a retry would be refused or, worse, appended twice.
    """
    return is_segment_end | is_producers_last


def is_producers_last(
    *, last_data_offset: Any, last_epoch: Any, batch_last: Any, batch_epoch: Any, is_control: Any
) -> Any:
    """Whether a batch of a live producer is the last one: that of its last data, or, if it has none in its epoch (a
    negative offset), a marker of that epoch."""
    return (batch_last == last_data_offset) | ((last_data_offset < 0) & is_control & (batch_epoch == last_epoch))


class BatchHeader(Protocol):
    @property
    def last_offset(self) -> int: ...
    @property
    def attributes(self) -> int: ...
    @property
    def producer_id(self) -> int: ...
    @property
    def producer_epoch(self) -> int: ...


@dataclass(frozen=True, slots=True)
class LastOfProducer:
    """A live producer, of which the last batch must be kept, emptied if need be."""

    producer_id: int
    producer_epoch: int
    last_data_offset: int
    """Last offset of its last data batch in its epoch; -1 if it has none there."""

    def is_in(self, batch: BatchHeader) -> bool:
        return batch.producer_id == self.producer_id and bool(
            is_producers_last(
                last_data_offset=self.last_data_offset,
                last_epoch=self.producer_epoch,
                batch_last=batch.last_offset,
                batch_epoch=batch.producer_epoch,
                is_control=bool(batch.attributes & CONTROL),
            )
        )


def is_settled(terms: Terms, *, is_transactional: Any, is_control: Any, has_ended: Any, batch_last: Any) -> Any:
    """Whether a transactional batch becomes a plain one in this compaction (MXFO's definition).

    That includes aborted batches: their records are removed, and a batch that stays for its producer's sequence number
    is empty.
    """
    return is_transactional & _not(is_control) & has_ended & (batch_last < terms.settle_below)


def batch_action(*, record_count: Any, kept_count: Any, must_keep: Any, starts_horizon: Any, settles: Any) -> Any:
    """What is written for a batch of which ``kept_count`` records stay."""
    nothing_left = kept_count == 0
    unchanged = (kept_count == record_count) & _not(starts_horizon)
    return _first_of(
        (nothing_left & _not(must_keep), Action.DROP),
        (nothing_left & (record_count != 0), Action.EMPTY),
        (unchanged & settles, Action.PATCH),
        (unchanged, Action.COPY),
        otherwise=Action.REWRITE,
    )


def leveled_action(*, is_control: Any, is_aborted: Any, is_transactional: Any, is_end: Any) -> Any:
    """What leveling writes for a batch of L0 below the last stable offset: L1 is settled (C7). ``is_end``: the batch
    ends the run, and carries its end as that of a segment does."""
    goes = is_control | is_aborted
    return _first_of(
        (goes & _not(is_end), Action.DROP),
        (goes, Action.EMPTY),
        (is_transactional, Action.PATCH),
        otherwise=Action.COPY,
    )


def _not(flag: Any) -> Any:
    """`not` works on one flag and `~` on a column of them; this works on both."""
    return flag ^ True


def _first_of(*cases: tuple[Any, Any], otherwise: Any) -> Any:
    """The value of the first case that applies; of columns, row by row."""
    if all(isinstance(applies, bool) for applies, _ in cases):
        return next((value for applies, value in cases if applies), otherwise)
    import numpy as np

    return np.select([applies for applies, _ in cases], [value for _, value in cases], otherwise)
