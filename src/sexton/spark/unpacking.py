"""Batches with their records decompressed, one run at a time: the first step of every pass over records."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from sexton.errors import CorruptLogError
from sexton.records.batch import WHAT_TO_DO_WITH_A_CORRUPT_BATCH
from sexton.records.codecs import Unpacker
from sexton.records.header import CODEC_MASK, HEADER_BYTES
from sexton.records.kernels.columns import RECORD_BYTES_MIN
from sexton.records.kernels.primitives import Bytes
from sexton.records.kernels.scan import Table

Longs = npt.NDArray[np.int64]
Run = tuple[slice, Bytes, Longs, Longs]
"""Rows of the table, a buffer with their records, and where each batch's records begin and end in it."""

RUN_BYTES = 8 * 1024 * 1024
"""Decompressed size of a run, give or take a batch (which ``Unpacker`` limits): batches of equal records can grow a
thousandfold. An Arrow batch of a run stays far below the 2 GiB that its 32-bit offsets reach."""

RUN_RECORDS = 1 << 15
"""Number of records in a run, give or take a batch: what is made of them stays in the cache."""

_unpackers: dict[int, Unpacker] = {}


def worker_unpacker(max_batch_bytes: int) -> Unpacker:
    """Returns this worker's unpacker: its buffer is worth keeping."""
    return _unpackers.setdefault(max_batch_bytes, Unpacker(max_batch_bytes))


def unpacked_runs(data: Bytes, table: Table, unpacker: Unpacker, place: str) -> Iterator[Run]:
    """Yields neighbouring batches in runs. A run is valid only until the next one is requested.

    Uncompressed batches are used in place; the others share the unpacker's buffer. No batch in a run claims more
    records than its bytes can hold, whatever its header says.
    """
    is_packed = (table["attributes"] & CODEC_MASK) != 0
    edges = np.flatnonzero(np.diff(is_packed)) + 1
    for first, last in pairwise([0, *edges.tolist(), len(table)]):
        runs = (
            _packed_runs(data, table, first, last, unpacker, place)
            if first < last and is_packed[first]
            else _plain_runs(data, table, first, last)
        )
        for rows, buffer, starts, ends in runs:
            too_many = np.flatnonzero(table["record_count"][rows] > (ends - starts) // RECORD_BYTES_MIN)
            if len(too_many):
                raise unparsable(place, int(table["position"][rows][too_many[0]]))
            yield rows, buffer, starts, ends


def place_of(path: str, position: int) -> str:
    return f"{path} at byte {position}"


def unparsable(path: str, position: int) -> CorruptLogError:
    return CorruptLogError(
        "the batch's records cannot be parsed, though its CRC is right",
        place_of(path, position),
        "A producer wrote it so. " + WHAT_TO_DO_WITH_A_CORRUPT_BATCH,
    )


def _plain_runs(data: Bytes, table: Table, first: int, last: int) -> Iterator[Run]:
    records = np.cumsum(table["record_count"][first:last], dtype=np.int64)
    sizes = np.cumsum(table["size"][first:last], dtype=np.int64)
    number = np.maximum(records // RUN_RECORDS, sizes // RUN_BYTES)
    cuts = np.flatnonzero(np.diff(number)) + 1
    for start, end in pairwise([first, *(first + cuts).tolist(), last]):
        if start < end:
            rows = slice(start, end)
            positions = table["position"][rows]
            yield rows, data, positions + HEADER_BYTES, positions + table["size"][rows]


def _packed_runs(data: Bytes, table: Table, first: int, last: int, unpacker: Unpacker, place: str) -> Iterator[Run]:
    view = memoryview(data)  # type: ignore[arg-type]
    positions = table["position"][first:last].tolist()
    sizes = table["size"][first:last].tolist()
    counts = table["record_count"][first:last].tolist()
    codecs = (table["attributes"][first:last] & CODEC_MASK).tolist()
    start = index = 0
    while start < len(positions):
        bounds = [0]
        record_count = 0
        while index < len(positions) and bounds[-1] < RUN_BYTES and record_count < RUN_RECORDS:
            position, end = positions[index], bounds[-1]
            packed = view[position + HEADER_BYTES : position + sizes[index]]
            if len(packed):
                end = unpacker.unpack(codecs[index], packed, end, place_of(place, position))
            bounds.append(end)
            record_count += counts[index]
            index += 1
        edges = np.array(bounds, dtype=np.int64)
        yield slice(first + start, first + index), unpacker.buffer, edges[:-1], edges[1:]
        start = index
