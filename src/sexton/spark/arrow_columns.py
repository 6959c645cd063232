"""Log records as Arrow columns, for the ``kafkalog`` data source.

Works column by column over runs of batches: a kernel finds the positions of keys, values and headers, another gathers
their bytes, and batch fields are spread over the batch's records by index. Only the requested columns are built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sexton.compaction.transactions import TransactionIndex
from sexton.records.batch import ControlType
from sexton.records.codecs import Codec, Unpacker
from sexton.records.header import CODEC_MASK, CONTROL, DELETE_HORIZON, LOG_APPEND_TIME, TRANSACTIONAL
from sexton.records.kernels import columns
from sexton.records.kernels.columns import HEADER, NOTHING_BAD, RECORD, Records
from sexton.records.kernels.primitives import Bytes
from sexton.records.kernels.scan import Table, scan
from sexton.spark.unpacking import unpacked_runs, unparsable
from sexton.types import INT64_MAX

SCAN_ROWS = 1 << 12
"""Number of batches that are scanned together: small, so that a reader that stops early has read little."""

TIMESTAMP_MS_MAX = INT64_MAX // 1000
"""Spark's timestamps are microseconds. A timestamp beyond that range, from a broken clock, becomes null."""

CODEC_NAMES = [codec.name.lower() for codec in Codec]
CONTROL_NAMES = [ControlType.ABORT.name.lower(), ControlType.COMMIT.name.lower()]
OUTCOME_NAMES = ["aborted", "committed", "open"]
OPEN = 2

Array: TypeAlias = "pa.Array[Any]"
Column = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Source:
    """The range of a segment to read, and which of its records are wanted."""

    path: str
    segment: str
    topic: str
    partition: int
    start: int
    end: int
    previous_offset: int
    from_offset: int
    to_offset: int
    includes_control: bool
    includes_aborted: bool
    markers: npt.NDArray[np.void]
    """The markers that end the range's transactions; empty if outcomes are not needed."""

    @property
    def size_bytes(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Run:
    """Records of some batches: their positions in ``data``, and their batches' headers."""

    source: Source
    data: Bytes
    table: Table
    outcome: npt.NDArray[np.int16]
    records: Records

    def of_batch(self, name: str) -> Column:
        """Returns a header field, spread over the records."""
        column: Column = self.table[name][self.records["batch"]]
        return column

    def has_attribute(self, mask: int) -> Mask:
        result: Mask = (self.of_batch("attributes") & mask) != 0
        return result


def read_runs(data: Bytes, source: Source, unpacker: Unpacker) -> Iterator[Run]:
    """Yields the wanted records of a range, in order. A run is valid only until the next one is requested."""
    transactions = TransactionIndex(source.markers)
    tables = scan(
        data,
        source.start,
        source.end,
        source.path,
        check_crc=True,
        previous_offset=source.previous_offset,
        rows_per_step=SCAN_ROWS,
    )
    for table in tables:
        outcome = transactions.outcome(table)
        wanted = (table["last_offset"] >= source.from_offset) & (table["base_offset"] < source.to_offset)
        if not source.includes_control:
            wanted &= (table["attributes"] & CONTROL) == 0
        if not source.includes_aborted:
            wanted &= outcome != ControlType.ABORT
        kept, kept_outcome = table[wanted], outcome[wanted]
        for rows, body, starts, ends in unpacked_runs(data, kept, unpacker, source.path):
            run_table = kept[rows]
            records = walk(body, starts, ends, run_table, source.path, source.from_offset, source.to_offset)
            if len(records):
                yield Run(source, body, run_table, kept_outcome[rows], records)


def walk(
    body: Bytes, starts: Longs, ends: Longs, table: Table, place: str, from_offset: int = 0, to_offset: int = INT64_MAX
) -> Records:
    """Returns the records of a run of batches."""
    records = np.empty(int(table["record_count"].sum(dtype=np.int64)), dtype=RECORD)
    filled, bad = columns.walk_records(body, starts, ends, table, from_offset, to_offset, records)
    if bad != NOTHING_BAD:
        raise unparsable(place, int(table["position"][bad]))
    return records[:filled]


def to_arrow(run: Run, schema: pa.Schema) -> pa.RecordBatch:
    """Converts the run's records to a schema of names in ``BUILDERS``."""
    arrays = [BUILDERS[field.name](run, field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _key(run: Run, kind: Any) -> Array:
    return _gathered(run.data, run.records["key_start"], run.records["key_size"], kind)


def _value(run: Run, kind: Any) -> Array:
    return _gathered(run.data, run.records["value_start"], run.records["value_size"], kind)


def _headers(run: Run, kind: Any) -> Array:
    """Null where there are none, as in Spark's Kafka source."""
    counts = run.records["header_count"]
    found = np.empty(int(counts.sum(dtype=np.int64)), dtype=HEADER)
    columns.walk_headers(run.data, run.records, found)
    fields = list(kind.value_type)
    names = _gathered(run.data, found["name_start"], found["name_size"], pa.binary())
    values = _gathered(run.data, found["value_start"], found["value_size"], pa.binary())
    pairs = pa.StructArray.from_arrays([_text(names), values], fields=fields)
    offsets = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(counts, out=offsets[1:])
    buffers = [_validity(counts > 0), _buffer(offsets)]
    return pa.Array.from_buffers(kind, len(counts), buffers, null_count=-1, children=[pairs])


def _text(names: Array) -> Array:
    """Header names as text. Kafka writes UTF-8, but no broker checks it; invalid bytes become U+FFFD, as Kafka reads
    them."""
    try:
        return names.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([cast(bytes, name).decode(errors="replace") for name in names.to_pylist()], type=pa.string())


def _offset(run: Run, kind: Any) -> Array:
    return _numbers(run.records["offset"], kind)


def _timestamp(run: Run, kind: Any) -> Array:
    return moments(run.records["timestamp"], None, kind)


def _timestamp_type(run: Run, kind: Any) -> Array:
    return _numbers(run.has_attribute(LOG_APPEND_TIME), kind)


def _sequence(run: Run, kind: Any) -> Array:
    """A record's own sequence, which wraps around after 2^31 - 1 as a producer's does."""
    base = run.of_batch("base_sequence").astype(np.int64)
    sequence = (base + run.records["offset"] - run.of_batch("base_offset")) % (1 << 31)
    return _numbers(sequence, kind, base < 0)


def _delete_horizon(run: Run, kind: Any) -> Array:
    return moments(run.of_batch("base_timestamp").astype(np.int64), ~run.has_attribute(DELETE_HORIZON), kind)


def _codec(run: Run, kind: Any) -> Array:
    return _names(run.of_batch("attributes") & CODEC_MASK, CODEC_NAMES)


def _control_type(run: Run, kind: Any) -> Array:
    return _names(run.of_batch("control_type"), CONTROL_NAMES)


def _transaction_outcome(run: Run, kind: Any) -> Array:
    outcome = run.outcome.astype(np.int64)
    attributes = run.table["attributes"]
    of_transaction = (attributes & (TRANSACTIONAL | CONTROL)) == TRANSACTIONAL
    outcome = np.where(of_transaction, np.where(outcome < 0, OPEN, outcome), -1)
    return _names(outcome[run.records["batch"]], OUTCOME_NAMES)


def _constant(fact: str) -> Callable[[Run, Any], Array]:
    return lambda run, kind: pa.repeat(cast(Any, pa.scalar(getattr(run.source, fact), type=kind)), len(run.records))


def _batch_number(name: str, null: int | None = None) -> Callable[[Run, Any], Array]:
    def build(run: Run, kind: Any) -> Array:
        values = run.of_batch(name)
        return _numbers(values, kind, None if null is None else values == null)

    return build


def _flag(mask: int) -> Callable[[Run, Any], Array]:
    return lambda run, kind: pa.array(run.has_attribute(mask), type=kind)


BUILDERS: dict[str, Callable[[Run, Any], Array]] = {
    "key": _key,
    "value": _value,
    "topic": _constant("topic"),
    "partition": _constant("partition"),
    "offset": _offset,
    "timestamp": _timestamp,
    "timestampType": _timestamp_type,
    "headers": _headers,
    "producerId": _batch_number("producer_id", -1),
    "producerEpoch": _batch_number("producer_epoch", -1),
    "sequence": _sequence,
    "isTransactional": _flag(TRANSACTIONAL),
    "isControl": _flag(CONTROL),
    "controlType": _control_type,
    "transactionOutcome": _transaction_outcome,
    "batchBaseOffset": _batch_number("base_offset"),
    "batchLastOffset": _batch_number("last_offset"),
    "leaderEpoch": _batch_number("leader_epoch"),
    "codec": _codec,
    "deleteHorizon": _delete_horizon,
    "segment": _constant("segment"),
}
"""The function that builds each column."""


def _gathered(data: Bytes, starts: Longs, sizes: npt.NDArray[np.int32], kind: Any) -> Array:
    sizes = np.ascontiguousarray(sizes)
    offsets = np.zeros(len(sizes) + 1, dtype=np.int32)
    np.cumsum(np.maximum(sizes, 0), out=offsets[1:])
    body = np.empty(int(offsets[-1]), dtype=np.uint8)
    columns.gather(data, np.ascontiguousarray(starts), sizes, offsets, body)
    buffers = [_validity(sizes >= 0), _buffer(offsets), _buffer(body)]
    return pa.Array.from_buffers(kind, len(sizes), buffers, null_count=-1)


def _validity(is_valid: Mask) -> pa.Buffer | None:
    return None if is_valid.all() else _buffer(np.packbits(is_valid, bitorder="little"))


def _buffer(array: Column) -> pa.Buffer:
    return pa.py_buffer(cast(Any, array))


def _numbers(values: Column, kind: Any, is_null: Mask | None = None) -> Array:
    numbers: Array = pa.array(np.ascontiguousarray(values).astype(kind.to_pandas_dtype()), type=kind, mask=is_null)
    return numbers


def moments(timestamp_ms: Longs, is_null: Mask | None, kind: Any) -> Array:
    out_of_range = (timestamp_ms > TIMESTAMP_MS_MAX) | (timestamp_ms < -TIMESTAMP_MS_MAX)  # abs(-2^63) is negative
    mask = out_of_range if is_null is None else out_of_range | is_null
    micros = np.where(mask, 0, timestamp_ms) * 1000
    moments: Array = pa.array(micros, type=pa.int64(), mask=mask).cast(kind)
    return moments


def _names(numbers: Column, texts: list[str]) -> Array:
    """Returns texts by number; null for negative numbers."""
    indices = pa.array(numbers.astype(np.int32), type=pa.int32(), mask=numbers < 0)
    return pa.array(texts, type=pa.string()).take(indices)
