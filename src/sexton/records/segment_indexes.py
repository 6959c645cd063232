"""Chooses the batches of a segment that get an index entry, by Kafka's rule, over a batch table."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from sexton.jit import kernel
from sexton.records import indexes
from sexton.records.kernels.scan import Table


@kernel
def _indexed_batches(sizes: npt.NDArray[np.int32], interval_bytes: int) -> npt.NDArray[np.bool_]:
    """A batch gets an entry when more than ``index.interval.bytes`` came since the last entry."""
    result = np.zeros(len(sizes), dtype=np.bool_)
    since = 0
    for index in range(len(sizes)):
        if since > interval_bytes:
            result[index] = True
            since = 0
        since += sizes[index]
    return result


def build(table: Table, base_offset: int, interval_bytes: int) -> tuple[bytes, bytes]:
    """Returns the .index and .timeindex of a closed segment whose batches are ``table``."""
    if len(table) == 0:
        return b"", b""
    chosen = _indexed_batches(np.ascontiguousarray(table["size"]), interval_bytes)
    offset_index = indexes.make_offset_entries(base_offset, table["last_offset"][chosen], table["position"][chosen])
    newest = np.maximum.accumulate(table["max_timestamp"])
    # The first batch that has the newest timestamp so far.
    raised = np.ones(len(table), dtype=bool)
    raised[1:] = newest[1:] > newest[:-1]
    holder = np.maximum.accumulate(np.where(raised, np.arange(len(table)), 0))
    rows = np.flatnonzero(chosen)
    if len(rows) == 0 or rows[-1] != len(table) - 1:
        rows = np.append(rows, len(table) - 1)  # a closed segment's last entry is its newest timestamp
    timestamps = newest[rows]
    rises = np.ones(len(rows), dtype=bool)
    rises[1:] = timestamps[1:] > timestamps[:-1]
    rises &= timestamps >= 0
    time_index = indexes.make_time_entries(base_offset, timestamps[rises], table["last_offset"][holder[rows[rises]]])
    return indexes.encode(offset_index), indexes.encode(time_index)
