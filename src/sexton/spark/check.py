"""Judges a history on Spark: what `checker.kernels.judge` does, with its logs spread over tasks.

    flatten   one task per range of lines   operations; what they did to records, by bundle of logs
    census    one task per bundle           which calls sent several records, and which were read
    judge     one task per bundle           what is wrong in one log, and each log's half of what takes several
    answer    one task per bundle           the other halves, if any log asked for them
    explain   one task per bundle           what relates calls that are in a cycle, if any are
    conclude  the driver                    the halves together, cycles, and what brokers say of themselves

Rows in the shuffle are few and large: one per range and bundle, with arrays as payload. The judgement does not depend
on how many ranges, bundles and tasks there are. Parquet and EDN are judged by the driver alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
from pyspark import RDD, Broadcast, SparkContext

from sexton.checker.allowed import Model
from sexton.checker.kernels import judge as judging
from sexton.checker.kernels.bundle import Bundle
from sexton.checker.kernels.exts import SENT, sent_of
from sexton.checker.kernels.whole import Whole, told_of, whole_of
from sexton.checker.verdict import Judgement
from sexton.checker.view import Options
from sexton.errors import CorruptHistoryError, EnvironmentFailure
from sexton.history import flatten
from sexton.history.flat import MOPS, OPS, SPANS, TEXTS, FlatHistory, Numbering, Rows, with_pairs
from sexton.history.flatten import LineNumbers, Piece
from sexton.history.lines import LINE_BYTES_MAX
from sexton.history.load import history_at, load, run_of
from sexton.history.order import Order

RANGE_BYTES: Final = 32 << 20
"""Of a history that a task flattens: as arrays it is about as large."""

_OPERATIONS: Final = -1
"""Used instead of a bundle for a range's operations."""

_Row = tuple[int, Any]
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Range:
    """Lines that begin in [start, end)."""

    number: int
    start: int
    end: int
    is_last: bool


@dataclass(frozen=True, slots=True)
class Operations:
    """Of a range. One that cannot be read has none: whoever reads the whole file will say why."""

    number: int
    op_count: int
    ops: bytes
    """See `_packed`."""
    strings: list[str]
    cut_off_bytes: int
    is_readable: bool = True
    not_seen: str = ""
    """Why the file cannot be read where the task ran."""


@dataclass(frozen=True, slots=True)
class Records:
    """Of a range and a bundle."""

    number: int
    mops: bytes
    spans: bytes
    sent: bytes
    """As `exts.SENT`."""


def check(
    context: SparkContext,
    path: Path,
    model: Model = Model.KAFKA,
    ignore: frozenset[str] = frozenset(),
    options: Options | None = None,
    bundle_count: int = 0,
    range_bytes: int = RANGE_BYTES,
) -> Judgement:
    """Whatever `history.load` can read. Raises what it raises. The tasks read the file by its path."""
    found = history_at(path)
    if found.suffix != ".jsonl":
        loaded = load(found)
        judgement = judging.judge(loaded.history, loaded.run, model, ignore, options)
        return replace(judgement, notes=loaded.notes.to_json())
    ranges = list(_ranges(found, range_bytes))
    # A task that judges a bundle has as much to hold as one that flattens a range.
    bundle_count = bundle_count or max(context.defaultParallelism, len(ranges))
    shuffled: RDD[_Row] = (
        context.parallelize(ranges, len(ranges))
        .flatMap(partial(flatten_range, str(found), bundle_count))
        .partitionBy(bundle_count, partial(_place, bundle_count))
    )
    operations = sorted(shuffled.filter(_is_operations).values().collect(), key=lambda some: some.number)
    order = Order(str(found))
    ops = checked(found, operations, order)
    del operations
    whole = whole_of(ops, run_of(found, ops), options or Options())
    told = told_of(ops, whole)
    del ops  # as large as all that is known of calls
    with _Job(context, shuffled, whole, is_counted=False) as job:
        whole = judging.counted(whole, job.each(Bundle.census))
    with _Job(context, shuffled, whole) as job:
        judgement = judging.conclude(whole, told, job.each, model, ignore)
    return replace(judgement, notes=order.notes.to_json())


def _ranges(path: Path, range_bytes: int) -> Iterator[Range]:
    size = path.stat().st_size
    for number, start in enumerate(range(0, max(size, 1), range_bytes)):
        yield Range(number, start, min(start + range_bytes, size), start + range_bytes >= size)


def _place(bundle_count: int, bundle: int) -> int:
    return bundle % bundle_count


def _is_operations(row: _Row) -> bool:
    return row[0] == _OPERATIONS


def flatten_range(path: str, bundle_count: int, some: Range) -> Iterator[_Row]:
    order = Order(path)
    try:
        flat = flatten.flatten_lines(_piece(path, some), order)
    except CorruptHistoryError:
        yield _OPERATIONS, Operations(some.number, 0, b"", [""], 0, is_readable=False)
        return
    except OSError as error:
        yield _OPERATIONS, Operations(some.number, 0, b"", [""], 0, is_readable=False, not_seen=str(error.strerror))
        return
    packed, strings = _packed(flat.ops), list(flat.strings)
    yield _OPERATIONS, Operations(some.number, len(flat.ops), packed, strings, order.notes.cut_off_bytes)
    tables = [(rows, rows["log"] % bundle_count) for rows in (flat.mops, flat.spans, sent_of(flat))]
    for bundle in range(bundle_count):
        found = [rows[place == bundle].tobytes() for rows, place in tables]
        if any(found):
            yield bundle, Records(some.number, *found)


def _piece(path: str, some: Range) -> Piece:
    """Raises CorruptHistoryError for a line that is too long."""
    with Path(path).open("rb") as file:
        start = some.start
        if start:
            file.seek(start - 1)
            start += len(file.readline(LINE_BYTES_MAX + 1)) - 1
        if start >= some.end and not some.is_last:
            return Piece(b"", start, is_last=False)
        data = file.read(max(some.end - start, 0))
        rest = b"" if data.endswith(b"\n") or not data else file.readline(LINE_BYTES_MAX + 1)
        if len(rest) > LINE_BYTES_MAX:
            raise CorruptHistoryError("a line is too long", path)
        is_last = not file.peek(1)
    return Piece(data + rest, start, is_last=is_last)


def checked(path: Path, operations: Iterable[Operations], order: Order) -> FlatHistory:
    """All operations, with pairs; `order` has the notes. Raises CorruptHistoryError and NotAHistoryError."""
    found = list(operations)
    for some in found:
        if some.not_seen:
            remedy = "Put it where all executors see it under the same path"
            raise EnvironmentFailure(f"an executor cannot read it: {some.not_seen}", str(path), remedy)
    if not all(some.is_readable for some in found):
        load(path)
        raise CorruptHistoryError("it changed while it was read", str(path))
    order.notes.cut_off_bytes = max(some.cut_off_bytes for some in found)
    ops = np.zeros(sum(some.op_count for some in found), OPS)
    numbering = Numbering()
    start = 0
    for some in found:
        _unpack(some, ops[start : start + some.op_count], numbering)
        start += some.op_count
    flat = FlatHistory(ops, np.zeros(0, MOPS), np.zeros(0, SPANS), list(numbering.strings))
    with path.open("rb") as file:
        return with_pairs(flat, order, LineNumbers(file))


_RISING: Final = ("index", "time_ns", "line_offset")
_PACKED: Final = (*_RISING, "process", "f", "ext", "type")
"""What a verdict depends on, and where lines begin, for errors. Other columns stay empty."""


def _packed(ops: Rows) -> bytes:
    """A column after the other, compressed: a tenth. All travel to the driver, which takes a gigabyte of results."""
    columns = (np.diff(ops[name], prepend=0) if name in _RISING else ops[name] for name in _PACKED)
    packed: bytes = pa.compress(b"".join(column.tobytes() for column in columns), "zstd", asbytes=True)
    return packed


def _unpack(some: Operations, ops: Rows, numbering: Numbering) -> None:
    size = sum(ops.dtype[name].itemsize for name in _PACKED) * len(ops)
    data = pa.decompress(some.ops, size, "zstd", asbytes=True)
    numbers = numbering.of_strings(some.strings)
    place = 0
    for name in _PACKED:
        column = np.frombuffer(data, ops.dtype[name], len(ops), place)
        place += column.nbytes
        ops[name] = np.cumsum(column) if name in _RISING else numbers[column] if name in TEXTS else column


class _Job:
    """Runs something over all bundles, each of which gets what must be known of the whole."""

    def __init__(self, context: SparkContext, shuffled: RDD[_Row], whole: Whole, *, is_counted: bool = True) -> None:
        self._shuffled = shuffled
        self._is_counted = is_counted
        self._whole: Broadcast[Whole] = context.broadcast(whole)

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *_: object) -> None:
        self._whole.destroy()

    def each(self, do: Callable[[Bundle], _Result]) -> list[_Result]:
        return self._shuffled.mapPartitions(partial(_run, self._whole, do, self._is_counted)).collect()


def _run(
    broadcast: Broadcast[Whole], do: Callable[[Bundle], _Result], is_counted: bool, rows: Iterable[_Row]
) -> Iterator[_Result]:
    whole = broadcast.value
    mops, spans, sent = _joined(rows)
    yield do(Bundle(whole, mops, spans, sent, is_counted=is_counted))


def _joined(rows: Iterable[_Row]) -> tuple[Rows, Rows, Rows]:
    """Mops, spans, sent: in the order of the history, whatever order they come in."""
    some: list[Records] = sorted((it for _, it in rows if isinstance(it, Records)), key=lambda it: it.number)
    mops = np.frombuffer(b"".join(it.mops for it in some), MOPS)
    spans = np.frombuffer(b"".join(it.spans for it in some), SPANS)
    return mops, spans, np.frombuffer(b"".join(it.sent for it in some), SENT)
