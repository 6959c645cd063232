"""What an index file must be to be right about its segment (`sexton.records.indexes` says why).

Stricter than a broker, which uses what it finds. Each function raises AssertionError at what is wrong. A file ends with
its last entry: no zeros behind it, which a broker would take for entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sexton.records import indexes
from sexton.records.batch import Batch
from sexton.types import NO_OFFSET, NO_TIMESTAMP

Longs = npt.NDArray[np.int64]


def check_offset_index(data: bytes, base_offset: int, batches: Sequence[Batch]) -> None:
    """Every entry is the start of a batch and the batch's last offset."""
    entries = np.frombuffer(data, indexes.OFFSET_ENTRY)
    relative, position = longs(entries["relative_offset"]), longs(entries["position"])
    assert rises(relative)
    assert rises(position)
    starts = np.cumsum([0] + [batch.size_bytes for batch in batches]).tolist()
    ends = {start: batch.last_offset for start, batch in zip(starts, batches, strict=False)}
    assert [ends.get(start) for start in position.tolist()] == (base_offset + relative).tolist()


def check_time_index(data: bytes, base_offset: int, batches: Sequence[Batch]) -> None:
    """The last entry names the largest timestamp of the segment, and the end of the first batch that has it."""
    entries = np.frombuffer(data, indexes.TIME_ENTRY)
    timestamp_ms, relative = longs(entries["timestamp_ms"]), longs(entries["relative_offset"])
    assert (timestamp_ms >= 0).all()
    assert rises(timestamp_ms)
    assert (relative >= 0).all()
    assert (np.diff(relative) >= 0).all()
    newest_ms = max((batch.max_timestamp_ms for batch in batches), default=NO_TIMESTAMP)
    holder = next((batch.last_offset for batch in batches if batch.max_timestamp_ms == newest_ms), NO_OFFSET)
    if newest_ms >= 0:
        assert int(timestamp_ms[-1]) == newest_ms
        assert base_offset + int(relative[-1]) <= holder
    else:
        assert len(entries) == 0


def check_transaction_index(data: bytes, base_offset: int, batches: Sequence[Batch]) -> None:
    entries = np.frombuffer(data, indexes.TRANSACTION_ENTRY)
    assert (entries["version"] == indexes.TRANSACTION_ENTRY_VERSION).all()
    first, last, stable = (longs(entries[name]) for name in ("first_offset", "last_offset", "last_stable_offset"))
    assert rises(last)
    assert ((first >= 0) & (first <= last)).all()
    assert ((stable >= 0) & (stable <= last + 1)).all()
    assert (np.diff(stable) >= 0).all()
    end_offset = batches[-1].next_offset if batches else base_offset
    assert ((last >= base_offset) & (last < end_offset)).all()


def longs(column: npt.NDArray[Any]) -> Longs:
    return column.astype(np.int64)


def rises(column: Longs) -> bool:
    return bool((np.diff(column) > 0).all())
