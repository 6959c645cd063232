"""Which transaction a batch belongs to, according to the log's own markers.

A transactional batch belongs to the transaction that the next marker of its producer ends. A replica that replays the
log sees it the same way, so this needs no index and cannot be misled by one. A batch after its producer's last marker
belongs to an open transaction.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sexton.compaction.terms import NO_HORIZON
from sexton.records.batch import ControlType
from sexton.records.header import CONTROL, DELETE_HORIZON, TRANSACTIONAL
from sexton.records.kernels.scan import Table
from sexton.types import NO_OFFSET, NO_PRODUCER_ID

Longs = npt.NDArray[np.int64]

MARKER = np.dtype(
    [
        ("producer_id", np.int64),
        ("offset", np.int64),
        ("first_data_offset", np.int64),
        ("horizon_ms", np.int64),
        ("producer_epoch", np.int16),
        ("control_type", np.int16),
    ]
)
"""A COMMIT or ABORT marker, the offset where its transaction's data begins (-1: none left in the log), and its delete
horizon or -1."""


@dataclass(frozen=True, slots=True)
class TransactionEvents:
    """The transactions in a range of the log: markers in offset order, and the transactions open at its end."""

    markers: npt.NDArray[np.void]
    open_producer_ids: Longs
    open_first_offsets: Longs

    def last_stable_offset(self, high_watermark: int) -> int:
        """No outcome below it can change: a marker at or above the high watermark may still be truncated."""
        undecided = self.markers["first_data_offset"][
            (self.markers["offset"] >= high_watermark) & (self.markers["first_data_offset"] != NO_OFFSET)
        ]
        first = np.concatenate([undecided, self.open_first_offsets]).min(initial=high_watermark)
        return int(first)


def events_of(table: Table) -> TransactionEvents:
    """The events of a batch table. ``first_data_offset`` looks no further back than the table."""
    attributes = table["attributes"]
    in_transaction = (attributes & TRANSACTIONAL) != 0
    is_control = (attributes & CONTROL) != 0
    relevant = table[(in_transaction & ~is_control) | (is_control & (table["control_type"] >= 0))]
    # By producer, and by offset within one (the sort is stable).
    rows = relevant[np.argsort(relevant["producer_id"], kind="stable")]
    is_marker = (rows["attributes"] & CONTROL) != 0
    new_producer = np.ones(len(rows), dtype=bool)
    new_producer[1:] = rows["producer_id"][1:] != rows["producer_id"][:-1]
    after_marker = np.zeros(len(rows), dtype=bool)
    after_marker[1:] = is_marker[:-1]
    transaction = np.cumsum(new_producer | after_marker) - 1
    first_row = np.flatnonzero(new_producer | after_marker)
    first_offset = np.where(is_marker[first_row], NO_OFFSET, rows["base_offset"][first_row])
    markers = np.zeros(int(is_marker.sum()), dtype=MARKER)
    marker_rows = rows[is_marker]
    markers["producer_id"] = marker_rows["producer_id"]
    markers["offset"] = marker_rows["last_offset"]
    markers["producer_epoch"] = marker_rows["producer_epoch"]
    markers["control_type"] = marker_rows["control_type"]
    has_horizon = (marker_rows["attributes"] & DELETE_HORIZON) != 0
    markers["horizon_ms"] = np.where(has_horizon, marker_rows["base_timestamp"], NO_HORIZON)
    markers["first_data_offset"] = first_offset[transaction[is_marker]]
    ended = np.zeros(len(first_row), dtype=bool)
    ended[transaction[is_marker]] = True
    open_rows = first_row[~ended]
    return TransactionEvents(
        markers[np.argsort(markers["offset"], kind="stable")],
        rows["producer_id"][open_rows].astype(np.int64),
        rows["base_offset"][open_rows].astype(np.int64),
    )


def join_events(parts: list[TransactionEvents]) -> TransactionEvents:
    """Joins the events of consecutive ranges: a transaction may begin in one and end in another."""
    open_transactions: dict[int, int] = {}
    joined = []
    for part in parts:
        markers = part.markers.copy()
        if open_transactions:
            for index in np.flatnonzero(np.isin(markers["producer_id"], list(open_transactions))):
                first = open_transactions.pop(int(markers[index]["producer_id"]), NO_OFFSET)
                if first != NO_OFFSET:
                    markers[index]["first_data_offset"] = first
        for producer_id, first in zip(part.open_producer_ids, part.open_first_offsets, strict=True):
            open_transactions.setdefault(int(producer_id), int(first))
        joined.append(markers)
    markers = np.concatenate(joined) if joined else np.zeros(0, dtype=MARKER)
    return TransactionEvents(
        markers,
        np.array(list(open_transactions.keys()), dtype=np.int64),
        np.array(list(open_transactions.values()), dtype=np.int64),
    )


def for_tasks(markers: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """The markers that a `TransactionIndex` needs, in its order. Where no data of a transaction is left, or it is
    settled, no batch needs its outcome: in a compacted log that is nearly all of them."""
    with_data: npt.NDArray[np.void] = markers[markers["first_data_offset"] != NO_OFFSET]
    return with_data[_by_producer(with_data)]


def _by_producer(markers: npt.NDArray[np.void]) -> npt.NDArray[np.intp]:
    return np.lexsort((markers["offset"], markers["producer_id"]))


class TransactionIndex:
    """Looks up, for whole columns of batches at once, how their transactions ended."""

    def __init__(self, markers: npt.NDArray[np.void], *, is_sorted: bool = False) -> None:
        """`is_sorted`: sorted by `for_tasks`, once for all tasks."""
        self.markers = markers if is_sorted else markers[_by_producer(markers)]
        self._producer_ids = np.ascontiguousarray(self.markers["producer_id"])
        self._offsets = np.ascontiguousarray(self.markers["offset"])

    def next_marker(self, producer_id: Longs, offset: Longs) -> npt.NDArray[np.intp]:
        """Index into ``markers`` of each producer's first marker at or above an offset; -1 when there is none."""
        if len(self.markers) == 0 or len(producer_id) == 0:
            return np.full(len(producer_id), -1, dtype=np.intp)
        low = np.searchsorted(self._producer_ids, producer_id, side="left")
        high = np.searchsorted(self._producer_ids, producer_id, side="right")
        # Offsets rise within a producer's run, so a binary search per query within [low, high).
        while np.any(low < high):
            middle = (low + high) // 2
            active = low < high
            goes_right = active & (self._offsets[np.minimum(middle, len(self._offsets) - 1)] < offset)
            low = np.where(goes_right, middle + 1, low)
            high = np.where(active & ~goes_right, middle, high)
        end = np.searchsorted(self._producer_ids, producer_id, side="right")
        return np.where(low < end, low, -1)

    def outcome(self, table: Table) -> npt.NDArray[np.int16]:
        """How each batch's transaction ended: a ControlType, or UNKNOWN for open ones and plain batches."""
        result = np.full(len(table), ControlType.UNKNOWN, dtype=np.int16)
        attributes = table["attributes"]
        asked = np.flatnonzero(
            ((attributes & TRANSACTIONAL) != 0)
            & ((attributes & CONTROL) == 0)
            & (table["producer_id"] != NO_PRODUCER_ID)
        )
        found = self.next_marker(table["producer_id"][asked], table["last_offset"][asked])
        known = found >= 0
        result[asked[known]] = self.markers["control_type"][found[known]]
        return result

    def has_data(self, table: Table) -> npt.NDArray[np.bool_]:
        """For markers: whether batches of their transaction are in the log."""
        result = np.zeros(len(table), dtype=bool)
        asked = np.flatnonzero(table["control_type"] >= 0)
        found = self.next_marker(table["producer_id"][asked], table["last_offset"][asked])
        # The marker itself, not the next one in the index: those without data may be missing.
        known = (
            (found >= 0) & (self._offsets[found] == table["last_offset"][asked]) if len(self.markers) else found >= 0
        )
        result[asked[known]] = self.markers["first_data_offset"][found[known]] != NO_OFFSET
        return result
