"""What kernels fill, and why they stop."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sexton.jit import kernel

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
Ints = npt.NDArray[np.int32]
Rows = npt.NDArray[np.void]

DONE, LEFT, OPS_FULL, MOPS_FULL, SPANS_FULL, TEXTS_FULL, LOGS_FULL, VALUES_FULL = range(8)
"""Why a kernel stopped: at the end, at a line that it leaves to the plain reader, or because an array is full."""

SEND, POLL, NOTHING, LOG, OFFSET, REBALANCED = range(6)
"""As `flat.Kind`."""

OTHER, MICRO_OPS, LOGS, OFFSETS = range(4)
"""What an operation's value is."""

BAD = -1
"""As a position: this line is left to the plain reader."""

UNKNOWN = -1
FIRST_NAMED = -2
DIGITS_MAX = 18
DEPTH_MAX = 64
INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1


class Tables(NamedTuple):
    """Of `flat`, with room for more rows; `counts` says how many of ops, mops and spans are in use."""

    ops: Rows
    mops: Rows
    spans: Rows
    counts: Longs


class Fs(NamedTuple):
    """The names of operations that have a value of ours."""

    data: Bytes
    ends: Longs
    kinds: Ints


@kernel
def put(mops: Rows, count: int, op: int, mop: int, seq: int, kind: int, log: int, offset: int) -> bool:
    """Fills a row that has no record. Returns False if there is no room."""
    if count >= len(mops):
        return False
    row = mops[count]
    row.op = op
    row.mop = mop
    row.seq = seq
    row.kind = kind
    row.log = log
    row.offset = offset
    row.value = UNKNOWN
    row.key = UNKNOWN
    row.flags = 0
    return True


@kernel
def clear(row: Any, index: int, line_offset: int) -> None:
    """An operation of which nothing else is known yet."""
    row.index = index
    row.time_ns = UNKNOWN
    row.process = UNKNOWN
    row.pair = UNKNOWN
    row.line_offset = line_offset
    row.f = 0
    row.client = 0
    row.error = 0
    row.ext = 0
    row.node = UNKNOWN
