"""Applies the rules to the columns of a batch table: what happens to every batch of a slice, and why.

Which records of a batch survive is given as a sorted list of codes (see ``records.kernels.keys``): in a dirty chunk the
survivors, in a clean one the dead records and the tombstones. So most batches are decided without looking at a record.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from sexton.compaction import chunking, rules
from sexton.compaction.chunking import PartitionWork
from sexton.compaction.fates import Fate
from sexton.compaction.kernels.rewrite import OUTCOME
from sexton.compaction.rules import Action
from sexton.compaction.terms import NO_HORIZON, Terms
from sexton.compaction.transactions import TransactionIndex
from sexton.records.batch import ControlType
from sexton.records.header import CODEC_MASK, CONTROL, DELETE_HORIZON, TRANSACTIONAL
from sexton.records.kernels.keys import DEAD, FLAG_BITS, TOMBSTONE
from sexton.records.kernels.scan import Table
from sexton.types import NO_TIMESTAMP

Bools = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]


@dataclass(slots=True)
class Tally:
    """Number of records and markers by fate."""

    counts: dict[int, int] = field(default_factory=dict)
    held_back_bytes: int = 0
    """Bytes of tombstones and markers that wait for replicas; a batch counts by the share of its records."""

    def add(self, fate: int, count: int) -> None:
        if count:
            self.counts[fate] = self.counts.get(fate, 0) + int(count)

    def add_each(self, fates: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> None:
        for fate in np.unique(fates[weights > 0]):
            self.add(int(fate), int(weights[fates == fate].sum()))

    def merge(self, other: Tally) -> None:
        for fate, count in other.counts.items():
            self.add(fate, count)
        self.held_back_bytes += other.held_back_bytes

    def of(self, fate: Fate) -> int:
        return self.counts.get(int(fate), 0)


@dataclass(frozen=True, slots=True)
class BatchFacts:
    """What is known about the batches of a table besides their headers."""

    transaction_outcome: npt.NDArray[np.int16]
    marker_has_data: Bools
    must_keep: Bools


def facts_of(table: Table, work: PartitionWork, transactions: TransactionIndex) -> BatchFacts:
    return BatchFacts(
        transactions.outcome(table),
        transactions.has_data(table),
        rules.must_keep_batch(
            is_segment_end=np.isin(table["last_offset"], work.segment_ends),
            is_producers_last=_is_producers_last(table, work.producers),
        ),
    )


def is_aborted(table: Table, facts: BatchFacts) -> Bools:
    aborted: Bools = (facts.transaction_outcome == ControlType.ABORT) & ((table["attributes"] & CONTROL) == 0)
    return aborted


def decide(
    table: Table, work: PartitionWork, facts: BatchFacts, codes: Longs, lists_survivors: bool, segment: int
) -> tuple[Table, Tally]:
    """An OUTCOME row for each batch, and the tally of fates (key-less records count as newest or superseded here).

    The table covers a slice of segment number `segment`.
    """
    terms = work.terms
    tally = Tally()
    attributes = table["attributes"]
    is_control = (attributes & CONTROL) != 0
    aborted = is_aborted(table, facts)
    horizon = np.where((attributes & DELETE_HORIZON) != 0, table["base_timestamp"], NO_HORIZON)
    record_count = table["record_count"].astype(np.int64)

    start = np.searchsorted(codes, table["base_offset"] << FLAG_BITS, side="left")
    end = np.searchsorted(codes, (table["last_offset"] + 1) << FLAG_BITS, side="left")
    dead_listed = _count_between((codes & DEAD) != 0, start, end)
    tombstones = _count_between((codes & (TOMBSTONE | DEAD)) == TOMBSTONE, start, end)
    newest = (end - start - dead_listed) if lists_survivors else record_count - dead_listed
    newest = np.where(is_control | aborted, 0, newest)
    tombstones = np.where(is_control | aborted, 0, tombstones)

    tombstone_fates = rules.tombstone_fate(terms, table["last_offset"], horizon)
    drops_tombstones = tombstone_fates == Fate.TOMBSTONE_EXPIRED
    marker_fates = rules.marker_fate(
        terms,
        is_end_of_txn=table["control_type"] >= 0,
        has_data=facts.marker_has_data,
        offset=table["last_offset"],
        horizon_ms=horizon,
    )
    kept = np.where(drops_tombstones, newest - tombstones, newest)
    kept = np.where(is_control, np.where(marker_fates < Fate.SUPERSEDED, record_count, 0), kept)
    if not _has_room(table, kept, facts.must_keep, int(work.segment_sizes[segment])):
        tombstone_fates = _put_off(tombstone_fates, Fate.TOMBSTONE_STARTS_HORIZON, Fate.TOMBSTONE_WAITS_FOR_HORIZON)
        marker_fates = _put_off(marker_fates, Fate.MARKER_STARTS_HORIZON, Fate.MARKER_WAITS_FOR_HORIZON)
    starts_horizon = np.where(
        is_control,
        (marker_fates == Fate.MARKER_STARTS_HORIZON) & (record_count > 0),
        (tombstone_fates == Fate.TOMBSTONE_STARTS_HORIZON) & (tombstones > 0),
    )
    settles = rules.is_settled(
        terms,
        is_transactional=(attributes & TRANSACTIONAL) != 0,
        is_control=is_control,
        has_ended=facts.transaction_outcome != ControlType.UNKNOWN,
        batch_last=table["last_offset"],
    )
    action = rules.batch_action(
        record_count=record_count,
        kept_count=kept,
        must_keep=facts.must_keep,
        starts_horizon=starts_horizon,
        settles=settles,
    )

    data = ~is_control
    tally.add(Fate.ABORTED, record_count[aborted].sum())
    tally.add(Fate.SUPERSEDED, (record_count - newest)[data & ~aborted].sum())
    tally.add(Fate.NEWEST, (newest - tombstones).sum())
    tally.add_each(tombstone_fates, tombstones)
    tally.add_each(marker_fates, np.where(is_control, record_count, 0))
    waiting = np.where(tombstone_fates == Fate.TOMBSTONE_WAITS_FOR_REPLICAS, tombstones, 0)
    waiting = np.where(is_control, np.where(marker_fates == Fate.MARKER_WAITS_FOR_REPLICAS, record_count, 0), waiting)
    tally.held_back_bytes = int((table["size"] * waiting // np.maximum(record_count, 1)).sum())

    outcomes = np.zeros(len(table), dtype=OUTCOME)
    outcomes["action"] = action
    outcomes["kept_count"] = kept
    outcomes["drops_tombstones"] = drops_tombstones
    outcomes["list_start"] = start
    outcomes["list_end"] = end
    outcomes["attributes"], outcomes["base_timestamp"] = _new_headers(table, terms, action, settles, starts_horizon)
    return outcomes, tally


def _has_room(table: Table, kept: Longs, must_keep: Bools, segment_bytes: int) -> bool:
    """Whether what is left of the segment may grow, estimated from the share that is left of this slice."""
    sizes = table["size"].astype(np.int64)
    left_bytes = int(sizes[(kept > 0) | must_keep].sum())
    return left_bytes * segment_bytes <= chunking.HORIZON_SEGMENT_BYTES_MAX * int(sizes.sum())


def _put_off(fates: Longs, starts: Fate, waits: Fate) -> Longs:
    return np.where(fates == starts, waits, fates)


def _new_headers(
    table: Table, terms: Terms, action: npt.NDArray[np.int64], settles: Bools, starts_horizon: Bools
) -> tuple[npt.NDArray[np.int16], Longs]:
    attributes = np.where(settles, table["attributes"] & ~TRANSACTIONAL, table["attributes"])
    base_timestamp = table["base_timestamp"]
    attributes = np.where(starts_horizon, attributes | DELETE_HORIZON, attributes)
    base_timestamp = np.where(starts_horizon, terms.horizon_ms, base_timestamp)
    emptied = action == Action.EMPTY
    attributes = np.where(emptied, attributes & ~(CODEC_MASK | DELETE_HORIZON), attributes)
    base_timestamp = np.where(emptied, NO_TIMESTAMP, base_timestamp)
    return attributes, base_timestamp


def _is_producers_last(table: Table, producers: npt.NDArray[np.void]) -> Bools:
    """Whether a batch is the last one of a live producer (`LastOfProducer`). ``producers`` is sorted by id."""
    result = np.zeros(len(table), dtype=bool)
    if len(producers) == 0:
        return result
    found = np.minimum(np.searchsorted(producers["producer_id"], table["producer_id"]), len(producers) - 1)
    known = producers[found]
    same = known["producer_id"] == table["producer_id"]
    is_last: Bools = same & rules.is_producers_last(
        last_data_offset=known["last_data_offset"],
        last_epoch=known["producer_epoch"],
        batch_last=table["last_offset"],
        batch_epoch=table["producer_epoch"],
        is_control=(table["attributes"] & CONTROL) != 0,
    )
    return is_last


def _count_between(flags: Bools, start: npt.NDArray[np.intp], end: npt.NDArray[np.intp]) -> Longs:
    total = np.concatenate([[0], np.cumsum(flags, dtype=np.int64)])
    between: Longs = total[end] - total[start]
    return between
