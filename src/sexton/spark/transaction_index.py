"""The .txnindex of new segments: an entry for each ABORT marker that stays; an entry is removed with its marker."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sexton.compaction import rules
from sexton.compaction.chunking import Output, PartitionWork
from sexton.compaction.fates import Fate
from sexton.compaction.transactions import TransactionEvents
from sexton.log.stopped.partition import PartitionLog
from sexton.records import checkpoints, indexes, names
from sexton.records.batch import ControlType
from sexton.types import NO_OFFSET


def of_outputs(
    log: PartitionLog, work: PartitionWork, events: TransactionEvents, outputs: Sequence[Output]
) -> dict[int, bytes]:
    """Returns the index content by base offset. An entry is taken from the old index if it is there and refers to an
    existing marker; if it is missing it is made from the log, as long as the log still shows where the transaction
    began."""
    staying = _staying_aborts(work, events)
    result = {}
    for output, following in zip(outputs, [*outputs[1:], None], strict=True):
        end = work.terms.bound if following is None else following.new.base_offset
        mine = staying[(staying["offset"] >= output.new.base_offset) & (staying["offset"] < end)]
        known = {
            (int(entry["producer_id"]), int(entry["last_offset"])): entry
            for base_offset in output.new.old_base_offsets
            for entry in _old_entries(log, base_offset)
        }
        result[output.new.base_offset] = indexes.encode(_entries(mine, known, events))
    return result


def _staying_aborts(work: PartitionWork, events: TransactionEvents) -> npt.NDArray[np.void]:
    markers = events.markers
    fates = rules.marker_fate(
        work.terms,
        is_end_of_txn=np.ones(len(markers), dtype=bool),
        has_data=markers["first_data_offset"] != NO_OFFSET,
        offset=markers["offset"],
        horizon_ms=markers["horizon_ms"],
    )
    stays = (fates < Fate.SUPERSEDED) & (markers["offset"] < work.terms.bound)
    aborts: npt.NDArray[np.void] = markers[stays & (markers["control_type"] == ControlType.ABORT)]
    return aborts


def _entries(
    markers: npt.NDArray[np.void], known: dict[tuple[int, int], np.void], events: TransactionEvents
) -> npt.NDArray[np.void]:
    rows: list[tuple[int, int, int, int]] = []
    stable_so_far = 0
    for marker in markers:
        producer_id, offset = int(marker["producer_id"]), int(marker["offset"])
        entry = known.get((producer_id, offset))
        if entry is not None:
            first, stable = int(entry["first_offset"]), int(entry["last_stable_offset"])
        elif marker["first_data_offset"] != NO_OFFSET:
            first = int(marker["first_data_offset"])
            stable = _stable_after(offset, events)
        else:
            continue
        stable_so_far = max(stable_so_far, stable)
        rows.append((producer_id, first, offset, min(stable_so_far, offset + 1)))
    columns = [np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)] or [
        np.zeros(0, dtype=np.int64) for _ in range(4)
    ]
    return indexes.make_transaction_entries(*columns)


def _stable_after(offset: int, events: TransactionEvents) -> int:
    """Returns the last stable offset once the marker at ``offset`` is written: where the oldest open transaction
    begins."""
    markers = events.markers
    spans = (markers["first_data_offset"] != NO_OFFSET) & (markers["first_data_offset"] < offset)
    begun = markers["first_data_offset"][spans & (markers["offset"] > offset)]
    opened = events.open_first_offsets[events.open_first_offsets < offset]
    return int(min([*begun.tolist(), *opened.tolist(), offset + 1]))


def _old_entries(log: PartitionLog, base_offset: int) -> npt.NDArray[np.void]:
    path = log.directory / names.transaction_index_file_name(base_offset)
    return indexes.decode_transaction_index(checkpoints.read_file(path) or b"")
