"""A history as flat arrays: what the judge's kernels take, and what Spark reads, as Parquet.

Three tables, with a row for each operation, for each thing an operation did to a log, and for each span:

    ops    index, time_ns, process, type, f, pair, node, client, error, ext, line_offset
    mops   op, mop, seq, kind, log, offset, value, key, flags
    spans  op, log, start_offset, end_offset

Rows of `mops` and `spans` name their operation by its index, and stand in its order. Texts are numbers into `strings`
(in Parquet: dictionaries). Logs and values of imported histories that are no numbers have some below -1, and their
spellings beside them (`history.edn`).
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from sexton.errors import CorruptHistoryError, NotAHistoryError
from sexton.history.edn import FIRST_NAMED
from sexton.history.lines import TOMBSTONE, empty
from sexton.history.op import NEMESIS, UNKNOWN, MicroOp, Op, Poll, Record, Send, Span, Type
from sexton.history.order import KNOWN_F, Notes, Order

OPS: Final = np.dtype(
    [
        ("index", np.int64),
        ("time_ns", np.int64),
        ("process", np.int64),
        ("pair", np.int64),
        ("line_offset", np.int64),
        ("f", np.int32),
        ("client", np.int32),
        ("error", np.int32),
        ("ext", np.int32),
        ("node", np.int32),
        ("type", np.int8),
    ],
    align=True,
)
"""`pair` is the index of an invocation's completion and the other way round (-1: none), `line_offset` where its line
begins in the file (-1: it came from none), and `f`, `client`, `error`, `ext` (as JSON) are numbers of strings."""

MOPS: Final = np.dtype(
    [
        ("op", np.int64),
        ("offset", np.int64),
        ("value", np.int64),
        ("key", np.int64),
        ("log", np.int32),
        ("mop", np.int32),
        ("seq", np.int32),
        ("kind", np.int8),
        ("flags", np.int8),
    ],
    align=True,
)
"""`mop` is the place of a micro-operation in its operation, `seq` that of a record in a poll. What does not apply is
-1, and `flags` 0."""

SPANS: Final = np.dtype(
    [("op", np.int64), ("start_offset", np.int64), ("end_offset", np.int64), ("log", np.int32)], align=True
)


class Kind(IntEnum):
    """What a row of `mops` tells."""

    SEND = 0
    POLL = 1
    """A record that was polled."""
    NOTHING = 2
    """A poll without records: there is a row, so that the poll is not forgotten."""
    LOG = 3
    """A log that an assign, subscribe or create names; `seq` is its place."""
    OFFSET = 4
    """Of a commit, committed, delete-records."""
    REBALANCED = 5


TEXTS: Final = ("f", "client", "error", "ext")

Rows: TypeAlias = npt.NDArray[np.void]
Table: TypeAlias = pa.Table


@dataclass(frozen=True, slots=True)
class FlatHistory:
    ops: Rows
    mops: Rows
    spans: Rows
    strings: Sequence[str] = ("",)
    """The first is empty."""
    log_names: Sequence[str] = ()
    """The first is that of log -2, the next of -3."""
    value_names: Sequence[str] = ()


# -- from operations


@dataclass(slots=True)
class Builder:
    """Takes operations one by one. A kernel fills the same arrays."""

    ops: Rows = field(default_factory=lambda: np.zeros(64, OPS))
    mops: Rows = field(default_factory=lambda: np.zeros(256, MOPS))
    spans: Rows = field(default_factory=lambda: np.zeros(64, SPANS))
    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, np.int64))
    """Of rows in use: ops, mops, spans."""
    strings: dict[str, int] = field(default_factory=lambda: {"": 0})

    def put(self, op: Op, line_offset: int = UNKNOWN) -> None:
        mops = list(_mop_rows(op))
        spans = [(op.index, *op.spans[log], log) for log in sorted(op.spans)]
        self.reserve(1, len(mops), len(spans))
        first_op, first_mop, first_span = self.counts
        self.ops[first_op] = self._op_row(op, line_offset)
        self.mops[first_mop : first_mop + len(mops)] = mops
        self.spans[first_span : first_span + len(spans)] = spans
        self.counts += (1, len(mops), len(spans))

    def _op_row(self, op: Op, line_offset: int) -> tuple[int, ...]:
        texts = str(op.f), op.client, op.error, ext_text(op.ext)
        numbers = (self.strings.setdefault(text, len(self.strings)) for text in texts)
        return op.index, op.time_ns, op.process, UNKNOWN, line_offset, *numbers, op.node, op.type

    def reserve(self, op_count: int, mop_count: int, span_count: int) -> None:
        needed = self.counts + np.array((op_count, mop_count, span_count))
        self.ops = _with_room(self.ops, int(needed[0]))
        self.mops = _with_room(self.mops, int(needed[1]))
        self.spans = _with_room(self.spans, int(needed[2]))

    def build(self) -> FlatHistory:
        op_count, mop_count, span_count = self.counts
        rows = self.ops[:op_count], self.mops[:mop_count], self.spans[:span_count]
        return FlatHistory(*rows, strings=list(self.strings))


def _with_room(rows: Rows, count: int) -> Rows:
    if count <= len(rows):
        return rows
    larger = np.zeros(max(count, 2 * len(rows)), rows.dtype)
    larger[: len(rows)].view(np.uint8)[:] = rows.view(np.uint8)
    return larger


def _joined(tables: Sequence[Rows]) -> Rows:
    """As bytes: NumPy copies rows field by field, ten times slower."""
    joined: Rows = np.concatenate([rows.view(np.uint8) for rows in tables]).view(tables[0].dtype)
    return joined


def ext_text(ext: Mapping[str, Any]) -> str:
    return json.dumps(ext, separators=(",", ":")) if ext else ""


def _mop_rows(op: Op) -> Iterator[tuple[int, ...]]:
    """In the order of MOPS' fields."""
    for mop, micro_op in enumerate(op.micro_ops):
        yield from _rows_of(op.index, mop, micro_op)
    for seq, log in enumerate(op.logs):
        yield op.index, UNKNOWN, UNKNOWN, UNKNOWN, log, UNKNOWN, seq, Kind.LOG, 0
    for seq, log in enumerate(sorted(op.offsets)):
        yield op.index, op.offsets[log], UNKNOWN, UNKNOWN, log, UNKNOWN, seq, Kind.OFFSET, 0
    for seq, log in enumerate(sorted(op.rebalanced)):
        yield op.index, UNKNOWN, UNKNOWN, UNKNOWN, log, UNKNOWN, seq, Kind.REBALANCED, 0


def _rows_of(index: int, mop: int, micro_op: MicroOp) -> Iterator[tuple[int, ...]]:
    if isinstance(micro_op, Send):
        flags = TOMBSTONE if micro_op.is_tombstone else 0
        yield index, micro_op.offset, micro_op.value, micro_op.key, micro_op.log, mop, 0, Kind.SEND, flags
        return
    seq = 0
    for log in sorted(micro_op.records):
        for record in micro_op.records[log]:
            flags = TOMBSTONE if record.is_tombstone else 0
            yield index, record.offset, record.value, record.key, log, mop, seq, Kind.POLL, flags
            seq += 1
    if not seq:
        yield index, UNKNOWN, UNKNOWN, UNKNOWN, UNKNOWN, mop, 0, Kind.NOTHING, 0


def from_ops(ops: Iterable[Op], log_names: Sequence[str] = (), value_names: Sequence[str] = ()) -> FlatHistory:
    """Without pairs: see `with_pairs`."""
    builder = Builder()
    for op in ops:
        builder.put(op)
    flat = builder.build()
    return FlatHistory(
        ops=flat.ops,
        mops=flat.mops,
        spans=flat.spans,
        strings=flat.strings,
        log_names=log_names,
        value_names=value_names,
    )


# -- to operations


def to_ops(flat: FlatHistory, rows: slice = slice(None)) -> Iterator[Op]:
    """Of some rows of `ops`, or of all."""
    ops = flat.ops[rows]
    mop_ends = np.searchsorted(flat.mops["op"], ops["index"], "right")
    mop_starts = np.searchsorted(flat.mops["op"], ops["index"], "left")
    span_ends = np.searchsorted(flat.spans["op"], ops["index"], "right")
    span_starts = np.searchsorted(flat.spans["op"], ops["index"], "left")
    for row, op in enumerate(ops):
        mops = flat.mops[mop_starts[row] : mop_ends[row]].tolist()
        spans = flat.spans[span_starts[row] : span_ends[row]].tolist()
        yield _op(op, mops, spans, flat.strings)


def _op(op: np.void, mops: list[tuple[int, ...]], spans: list[tuple[int, ...]], strings: Sequence[str]) -> Op:
    ext = strings[op["ext"]]
    return Op(
        index=int(op["index"]),
        time_ns=int(op["time_ns"]),
        process=int(op["process"]),
        type=Type(op["type"]),
        f=strings[op["f"]],
        micro_ops=tuple(_micro_ops(mops)),
        logs=tuple(row[_LOG] for row in mops if row[_KIND] == Kind.LOG),
        offsets={row[_LOG]: row[_OFFSET] for row in mops if row[_KIND] == Kind.OFFSET},
        spans={log: Span(start_offset, end_offset) for _, start_offset, end_offset, log in spans},
        rebalanced=frozenset(row[_LOG] for row in mops if row[_KIND] == Kind.REBALANCED),
        error=strings[op["error"]],
        node=int(op["node"]),
        client=strings[op["client"]],
        ext=json.loads(ext) if ext else {},
    )


_OFFSET, _VALUE, _KEY, _LOG, _MOP, _KIND, _FLAGS = (
    (MOPS.names or ()).index(name) for name in ("offset", "value", "key", "log", "mop", "kind", "flags")
)


def _micro_ops(rows: list[tuple[int, ...]]) -> Iterator[MicroOp]:
    polled: dict[int, list[Record]] = {}
    for row, following in pairwise([*rows, ()]):
        record = Record(row[_OFFSET], row[_VALUE], row[_KEY], bool(row[_FLAGS] & TOMBSTONE))
        if row[_KIND] == Kind.SEND:
            yield Send(row[_LOG], record.value, record.offset, record.key, record.is_tombstone)
        elif row[_KIND] == Kind.NOTHING:
            yield Poll()
        elif row[_KIND] == Kind.POLL:
            polled.setdefault(row[_LOG], []).append(record)
            if not following or following[_KIND] != Kind.POLL or following[_MOP] != row[_MOP]:
                yield Poll({log: tuple(records) for log, records in polled.items()})
                polled = {}


# -- pieces


@dataclass(slots=True)
class Numbering:
    """Gives texts, and names of logs and values, the same numbers in all pieces of a history, taken in its order."""

    strings: dict[str, int] = field(default_factory=lambda: {"": 0})
    logs: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)

    def of(self, piece: FlatHistory) -> tuple[Rows, Rows, Rows]:
        """Returns ops, mops and spans."""
        ops, mops, spans = _joined([piece.ops]), piece.mops, piece.spans
        numbers = self.of_strings(piece.strings)
        for name in TEXTS:
            ops[name] = numbers[ops[name]]
        if piece.log_names or piece.value_names:
            mops, spans = _joined([mops]), _joined([spans])
            _rename(mops["log"], piece.log_names, self.logs)
            _rename(spans["log"], piece.log_names, self.logs)
            _rename(mops["value"], piece.value_names, self.values)
        return ops, mops, spans

    def of_strings(self, strings: Sequence[str]) -> npt.NDArray[np.int32]:
        """By the numbers that they have in a piece."""
        return np.array([self.strings.setdefault(text, len(self.strings)) for text in strings], np.int32)


def concat(pieces: Sequence[FlatHistory]) -> FlatHistory:
    """Pieces of one history, in its order."""
    if len(pieces) == 1:
        return pieces[0]
    numbering = Numbering()
    tables = [numbering.of(piece) for piece in pieces]
    ops, mops, spans = (_joined(table) for table in zip(*tables, strict=True))
    return FlatHistory(
        ops=ops,
        mops=mops,
        spans=spans,
        strings=list(numbering.strings),
        log_names=list(numbering.logs),
        value_names=list(numbering.values),
    )


def _rename(column: npt.NDArray[Any], names: Sequence[str], known: dict[str, int]) -> None:
    numbers = np.array([FIRST_NAMED - known.setdefault(name, len(known)) for name in names], np.int64)
    is_named = column <= FIRST_NAMED
    column[is_named] = numbers[FIRST_NAMED - column[is_named]]


# -- order


def with_pairs(flat: FlatHistory, order: Order, line_number: Callable[[int], int] | None = None) -> FlatHistory:
    """Checks what `Order` checks, a table at a time, and says which completion belongs to which invocation.

    `line_number` turns a position in the file into the number of its line, for errors; without it, rows are counted.
    """
    pair, has_two_at_once = _pairs(flat.ops)
    steps = np.diff(flat.ops["index"], prepend=-1)
    times_back = _times_back(flat.ops["time_ns"])
    is_client, is_invocation = flat.ops["process"] >= 0, flat.ops["type"] == Type.INVOKE
    lacking = int(np.count_nonzero(is_client & ~is_invocation & (pair == UNKNOWN)))
    if order.is_imported:
        is_odd = bool(np.any(steps < 1)) or (lacking > 0 and bool(np.any(is_client & is_invocation)))
    else:
        is_odd = bool(np.any(steps != 1)) or times_back > 0 or lacking > 0
    if is_odd or has_two_at_once:
        # One by one, until the error has been found.
        for row, op in enumerate(to_ops(FlatHistory(flat.ops, flat.mops[:0], flat.spans[:0], flat.strings))):
            order.check(op, line_number(int(flat.ops["line_offset"][row])) if line_number else row + 1)
    else:
        take_notes(flat, order.notes)
        order.notes.times_that_went_back += times_back
        order.notes.completions_without_invocation += lacking
    if not order.notes.op_count:
        raise empty(order.name)
    return paired(flat, pair)


def paired(flat: FlatHistory, pair: npt.NDArray[np.int64] | None = None) -> FlatHistory:
    """Unchecked."""
    ops = _joined([flat.ops])
    ops["pair"] = _pairs(flat.ops)[0] if pair is None else pair
    return FlatHistory(
        ops=ops,
        mops=flat.mops,
        spans=flat.spans,
        strings=flat.strings,
        log_names=flat.log_names,
        value_names=flat.value_names,
    )


def _times_back(time_ns: npt.NDArray[np.int64]) -> int:
    known = time_ns[time_ns != UNKNOWN]
    return int(np.count_nonzero(known < np.maximum.accumulate(known))) if len(known) else 0


def _pairs(ops: Rows) -> tuple[npt.NDArray[np.int64], bool]:
    """Also returns whether a client did two operations at once."""
    pair = np.full(len(ops), UNKNOWN, np.int64)
    rows = np.flatnonzero(ops["process"] >= 0)
    rows = rows[np.argsort(ops["process"][rows], kind="stable")]
    process, is_invocation = ops["process"][rows], ops["type"][rows] == Type.INVOKE
    is_same = process[1:] == process[:-1]
    is_pair = is_same & is_invocation[:-1] & ~is_invocation[1:]
    pair[rows[:-1][is_pair]] = ops["index"][rows[1:][is_pair]]
    pair[rows[1:][is_pair]] = ops["index"][rows[:-1][is_pair]]
    return pair, bool(np.any(is_same & is_invocation[:-1] & is_invocation[1:]))


def take_notes(flat: FlatHistory, notes: Notes) -> None:
    notes.op_count += len(flat.ops)
    counts = np.bincount(flat.ops["f"][flat.ops["process"] != NEMESIS], minlength=len(flat.strings))
    notes.unknown_f.update({f: int(n) for f, n in zip(flat.strings, counts, strict=True) if n and f not in KNOWN_F})


# -- Arrow and Parquet


def to_tables(flat: FlatHistory) -> dict[str, Table]:
    ops = {name: pa.array(np.ascontiguousarray(flat.ops[name])) for name in OPS.names or ()}
    # A client's error may have half a surrogate pair, which Arrow cannot hold.
    strings = pa.array([text.encode(errors="backslashreplace").decode() for text in flat.strings], pa.string())
    for name in TEXTS:
        ops[name] = pa.DictionaryArray.from_arrays(ops[name], strings)
    names = [*flat.log_names, *flat.value_names]
    numbers = [FIRST_NAMED - row for column in (flat.log_names, flat.value_names) for row in range(len(column))]
    is_log = [row < len(flat.log_names) for row in range(len(names))]
    return {
        "ops": pa.table(ops),
        "mops": _table(flat.mops),
        "spans": _table(flat.spans),
        "names": pa.table(
            {
                "is_log": pa.array(is_log, pa.bool_()),
                "number": pa.array(numbers, pa.int64()),
                "spelling": pa.array(names, pa.string()),
            }
        ),
    }


def _table(rows: Rows) -> Table:
    return pa.table({name: pa.array(np.ascontiguousarray(rows[name])) for name in rows.dtype.names or ()})


def from_tables(tables: Mapping[str, Table]) -> FlatHistory:
    strings: dict[str, int] = {"": 0}
    ops = tables["ops"].unify_dictionaries().combine_chunks()
    numbers = {name: _numbers(ops[name], strings) for name in TEXTS}
    rows = {name: _rows(tables[name], dtype) for name, dtype in (("mops", MOPS), ("spans", SPANS))}
    names = tables["names"].sort_by([("number", "descending")]).to_pylist()
    return FlatHistory(
        ops=_rows(ops, OPS, numbers),
        **rows,
        strings=list(strings),
        log_names=[row["spelling"] for row in names if row["is_log"]],
        value_names=[row["spelling"] for row in names if not row["is_log"]],
    )


def _numbers(column: Any, strings: dict[str, int]) -> npt.NDArray[np.int32]:
    if not len(column):
        return np.zeros(0, np.int32)
    array = column.combine_chunks().dictionary_encode()
    known = [strings.setdefault(text, len(strings)) for text in array.dictionary.to_pylist()]
    numbers: npt.NDArray[np.int32] = np.array(known, np.int32)[array.indices.to_numpy()]
    return numbers


def _rows(table: Table, dtype: np.dtype[Any], given: Mapping[str, npt.NDArray[Any]] | None = None) -> Rows:
    rows = np.zeros(table.num_rows, dtype)
    for name in dtype.names or ():
        if table[name].null_count:
            raise ValueError(f"{name} is missing in some rows")
        rows[name] = given[name] if given and name in given else table[name].to_numpy()
    return rows


TABLES: Final = ("ops", "mops", "spans", "names")


def write_parquet(
    pieces: Iterable[FlatHistory], directory: Path, order: Order, line_number: Callable[[int], int] | None = None
) -> None:
    """Writes `ops.parquet/`, `mops.parquet/` and so on: directories, as Spark's are. Checks and pairs operations, as
    `with_pairs` does.

    Of the pieces of a history, only `ops` are held in memory. What was there before is replaced when all is written.
    """
    numbering = Numbering()
    all_ops = [np.zeros(0, OPS)]
    with tempfile.TemporaryDirectory(dir=directory) as temporary:
        folders = {name: Path(temporary, name) for name in TABLES}
        for folder in folders.values():
            folder.mkdir()
        for part, piece in enumerate(pieces):
            ops, mops, spans = numbering.of(piece)
            all_ops.append(ops)
            for name, rows in (("mops", mops), ("spans", spans)):
                _write(_table(rows), folders[name], part)
        names = list(numbering.strings), list(numbering.logs), list(numbering.values)
        no_rows = np.zeros(0, MOPS), np.zeros(0, SPANS)
        tables = to_tables(with_pairs(FlatHistory(_joined(all_ops), *no_rows, *names), order, line_number))
        for name in ("ops", "names"):
            _write(tables[name], folders[name], 0)
        for name, folder in folders.items():
            shutil.rmtree(directory / f"{name}.parquet", ignore_errors=True)
            folder.rename(directory / f"{name}.parquet")


def _write(table: Table, folder: Path, part: int) -> None:
    pq.write_table(table, folder / f"part-{part:05}.parquet", compression="zstd", write_page_checksum=True)


def read_parquet(directory: Path) -> FlatHistory:
    """Of ours, or as Spark has written it. Raises NotAHistoryError and CorruptHistoryError."""
    tables: dict[str, Table] = {}
    for name in TABLES:
        path = directory / f"{name}.parquet"
        if not path.exists():
            raise NotAHistoryError("it is missing", str(path), "Name the directory of a run, or its history.jsonl")
        try:
            tables[name] = pq.read_table(path, page_checksum_verification=True)
            tables[name].validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise _unreadable(path, str(error)) from None
    try:
        return from_tables(tables)
    except (pa.ArrowException, LookupError, TypeError, ValueError) as error:
        raise _unreadable(directory, f"its Parquet files are not those of a history: {error}") from None


def _unreadable(path: Path, what: str) -> CorruptHistoryError:
    return CorruptHistoryError(what, str(path), "Make them anew from history.jsonl")
