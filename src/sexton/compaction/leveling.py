"""Leveling of runs by columns: batches of L0 become batches of L1, which are settled (`rules.leveled_action`).

How a transaction ended is told by the metastore's list of aborted ones, never by markers among the bytes that are read:
the marker of what lies below the last stable offset may lie above it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sexton.compaction import rules
from sexton.compaction.kernels.rewrite import OUTCOME, write_batches
from sexton.compaction.rules import Action
from sexton.compaction.transactions import MARKER, TransactionIndex
from sexton.errors import DamagedObjectError
from sexton.records.batch import ControlType
from sexton.records.header import CODEC_MASK, CONTROL, DELETE_HORIZON, TRANSACTIONAL
from sexton.records.kernels.primitives import Bytes
from sexton.records.kernels.scan import Table, scan_whole
from sexton.types import NO_TIMESTAMP

Aborted = tuple[int, int, int]
"""Producer id, first offset, offset of the marker."""

_NO_CODES = np.zeros(0, dtype=np.int64)


def aborted_index(aborted: Sequence[Aborted]) -> TransactionIndex:
    markers = np.zeros(len(aborted), dtype=MARKER)
    for name, column in zip(("producer_id", "first_data_offset", "offset"), range(3), strict=True):
        markers[name] = [row[column] for row in aborted]
    markers["control_type"] = ControlType.ABORT
    return TransactionIndex(markers)


def level_run(
    data: Bytes, base_offset: int, end_offset: int, aborted: TransactionIndex, place: str, *, keeps_end: bool
) -> Bytes:
    """Returns what is left of the batches of [base, end), which must be exactly these bytes. `keeps_end`: the last one
    stays, emptied if need be, because a run of L1 ends with it."""
    table = scan_whole(data, 0, len(data), place, check_crc=True, previous_offset=base_offset - 1)
    _check_dense(table, base_offset, end_offset, place)
    attributes = table["attributes"]
    is_control = (attributes & CONTROL) != 0
    is_transactional = ((attributes & TRANSACTIONAL) != 0) & ~is_control
    is_end = np.zeros(len(table), dtype=bool)
    is_end[-1] = keeps_end
    action = rules.leveled_action(
        is_control=is_control,
        is_aborted=is_transactional & is_aborted(table, aborted),
        is_transactional=is_transactional,
        is_end=is_end,
    )
    emptied = action == Action.EMPTY
    settled = attributes & ~(TRANSACTIONAL | CONTROL)
    outcomes = np.zeros(len(table), dtype=OUTCOME)
    outcomes["action"] = action
    outcomes["attributes"] = np.where(emptied, settled & ~(CODEC_MASK | DELETE_HORIZON), settled)
    outcomes["base_timestamp"] = np.where(emptied, NO_TIMESTAMP, table["base_timestamp"])
    outcomes["kept_count"] = np.where(emptied, 0, table["record_count"])
    out = np.empty(len(data), dtype=np.uint8)
    row, filled, status = write_batches(data, table, outcomes, 0, _NO_CODES, False, out, 0)
    if status or row != len(table):
        raise AssertionError(f"{place}: leveling stopped at batch {row} with status {status}")
    return out[:filled]


def is_aborted(table: Table, aborted: TransactionIndex) -> npt.NDArray[np.bool_]:
    """A producer has one transaction at a time: a batch belongs to the aborted one whose marker comes next, if that
    one had begun. Markers of commits are not in the list."""
    result = np.zeros(len(table), dtype=bool)
    if len(aborted.markers) == 0:
        return result
    found = aborted.next_marker(table["producer_id"], table["last_offset"])
    known = found >= 0
    first = aborted.markers["first_data_offset"][found[known]]
    result[known] = first <= table["base_offset"][known]
    return result


def _check_dense(table: Table, base_offset: int, end_offset: int, place: str) -> None:
    """L0 has no gaps: fewer batches than the extent has are damage, not an empty log (T9)."""
    if len(table) == 0:
        raise DamagedObjectError(f"no batch, where offsets {base_offset} to {end_offset - 1} should be", place)
    bases = np.append(table["base_offset"], end_offset)
    ends = np.append(base_offset, table["last_offset"] + 1)
    wrong = np.flatnonzero(bases != ends)
    if len(wrong):
        raise DamagedObjectError(f"offset {bases[wrong[0]]} follows {ends[wrong[0]] - 1}", place)
