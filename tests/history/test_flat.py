from __future__ import annotations

import io
import tempfile
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.errors import CorruptHistoryError, NotAHistoryError
from sexton.history import edn, flat
from sexton.history.edn import Names
from sexton.history.flat import FlatHistory, Kind, from_ops, to_ops, with_pairs
from sexton.history.op import NEMESIS, UNKNOWN, F, Op, Poll, Record, Run, Send, Span, Type
from sexton.history.order import Order
from tests.history.histories import EXAMPLE, SOME, histories, op


@SOME
@given(histories())
def test_any_history_survives(ops: list[Op]) -> None:
    assert list(to_ops(from_ops(ops))) == ops


@SOME
@given(histories(), st.lists(st.integers(0, 12), max_size=3))
def test_any_history_survives_being_cut_into_pieces_and_parquet(ops: list[Op], cuts: list[int]) -> None:
    places = [0, *sorted(min(cut, len(ops)) for cut in cuts), len(ops)]
    pieces = [from_ops(ops[start:end]) for start, end in pairwise(places)]
    assert list(to_ops(flat.concat(pieces))) == ops
    with tempfile.TemporaryDirectory() as directory:
        flat.write_parquet(pieces, Path(directory), Order("x"))
        stored = flat.read_parquet(Path(directory))
    assert list(to_ops(stored)) == ops
    assert stored.ops["pair"].tolist() == with_pairs(from_ops(ops), Order("x")).ops["pair"].tolist()


def test_parquet_that_is_there_is_replaced_only_by_a_whole_history(tmp_path: Path) -> None:
    flat.write_parquet([from_ops(EXAMPLE[:6]), from_ops(EXAMPLE[6:])], tmp_path, Order("x"))
    with pytest.raises(CorruptHistoryError, match="index 0 is there twice"):
        flat.write_parquet([from_ops(EXAMPLE[:1]), from_ops(EXAMPLE)], tmp_path, Order("x"))
    assert list(to_ops(flat.read_parquet(tmp_path))) == EXAMPLE
    flat.write_parquet([from_ops(EXAMPLE[:3])], tmp_path, Order("x"))
    assert list(to_ops(flat.read_parquet(tmp_path))) == EXAMPLE[:3]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}.parquet" for name in flat.TABLES)


def test_some_rows_are_some_operations() -> None:
    assert list(to_ops(from_ops(EXAMPLE), slice(3, 6))) == EXAMPLE[3:6]


def test_a_row_for_each_thing_that_is_done_to_a_log() -> None:
    polled = Poll({6: (Record(1, 7),), 5: (Record(272, 140, 3, True), Record(273, 142))})
    done = op(0, 1, Type.OK, F.TXN, Send(5, 9), polled, Poll(), Send(6, 8, 7, 2, True))
    done = replace(done, rebalanced=frozenset({9}), spans={5: Span(270, 274)})
    ops = [done, op(1, 2, f=F.ASSIGN, logs=(5, 4)), op(2, 3, f=F.COMMIT, offsets={5: 10})]
    flattened = from_ops(ops)
    names = ("op", "mop", "seq", "kind", "log", "offset", "value", "key", "flags")
    assert [tuple(int(row[name]) for name in names) for row in flattened.mops] == [
        (0, 0, 0, Kind.SEND, 5, -1, 9, -1, 0),
        (0, 1, 0, Kind.POLL, 5, 272, 140, 3, 1),
        (0, 1, 1, Kind.POLL, 5, 273, 142, -1, 0),
        (0, 1, 2, Kind.POLL, 6, 1, 7, -1, 0),
        (0, 2, 0, Kind.NOTHING, -1, -1, -1, -1, 0),
        (0, 3, 0, Kind.SEND, 6, 7, 8, 2, 1),
        (0, -1, 0, Kind.REBALANCED, 9, -1, -1, -1, 0),
        (1, -1, 0, Kind.LOG, 5, -1, -1, -1, 0),
        (1, -1, 1, Kind.LOG, 4, -1, -1, -1, 0),
        (2, -1, 0, Kind.OFFSET, 5, 10, -1, -1, 0),
    ]
    assert flattened.spans.tolist() == [(0, 270, 274, 5)]


def test_pairs() -> None:
    paired = with_pairs(from_ops(EXAMPLE), Order("x")).ops["pair"].tolist()
    assert paired == [UNKNOWN, 2, 1, 5, 6, 3, 4, 8, 7, 10, 9, UNKNOWN]


@pytest.mark.parametrize("is_imported", [False, True])
@pytest.mark.parametrize(
    "ops",
    [
        EXAMPLE,
        [op(0), op(0, 1)],
        [op(0), op(1, 1), op(0, 2)],
        [op(0), op(2, 1), op(3, 1, Type.OK)],
        [op(0, time_ns=5), op(1, 1, time_ns=UNKNOWN), op(2, 1, Type.OK, time_ns=4), op(3, 2, time_ns=3)],
        [op(0), op(1, 1, Type.OK)],
        [op(0), op(1, 0, Type.INVOKE)],
        [op(0, 0, Type.OK), op(1, 0, Type.OK)],
        [op(0, 0, Type.OK), op(1, 1, Type.OK), op(2, 0)],
        [op(0, UNKNOWN, Type.OK), op(1, NEMESIS, Type.INFO, "kill"), op(2, 1, f="frob")],
        [],
    ],
)
def test_the_same_is_refused_let_pass_and_noted_as_one_by_one(ops: list[Op], is_imported: bool) -> None:
    one_by_one, table = Order("x", is_imported), Order("x", is_imported)
    refused = ""
    try:
        for line, one in enumerate(ops, 1):
            one_by_one.check(one, line)
        if not ops:
            raise NotAHistoryError("there is no operation in it", "x", "Name the history of a run that has begun")
    except (CorruptHistoryError, NotAHistoryError) as error:
        refused = str(error)
    if refused:
        with pytest.raises((CorruptHistoryError, NotAHistoryError)) as raised:
            with_pairs(from_ops(ops), table)
        assert str(raised.value) == refused
    else:
        with_pairs(from_ops(ops), table)
        assert table.notes == one_by_one.notes


def named(text: str) -> FlatHistory:
    names = Names()
    ops = list(edn.read(io.BytesIO(text.encode()), Order("x", is_imported=True), names))
    return from_ops(ops, list(names.logs), list(names.values))


def test_pieces_that_name_logs_and_values_otherwise_agree_afterwards(tmp_path: Path) -> None:
    first = "{:index 0, :type :ok, :f :txn, :value [[:send :x :a] [:send :y :b] [:send 3 4]]}\n"
    second = "{:index 1, :type :ok, :f :poll, :value [[:poll {:z [[0 :c]], :y [[0 :b] [1 7]]}]], :spans {:z [0 1]}}\n"
    both = flat.concat([named(first), named(second)])
    whole = named(first + second)
    assert (both.log_names, both.value_names) == ([":x", ":y", ":z"], [":a", ":b", ":c"])
    assert list(to_ops(both)) == list(to_ops(whole))
    flat.write_parquet([named(first), named(second)], tmp_path, Order("x"))
    stored = flat.read_parquet(tmp_path)
    assert (stored.log_names, stored.value_names) == (both.log_names, both.value_names)
    names = {-2 - row: name for row, name in enumerate(stored.log_names)}
    values = {-2 - row: name for row, name in enumerate(stored.value_names)}
    run = Run(log_names=names, value_names=values)
    exported = b"".join(edn.to_line(one, run) for one in to_ops(stored))
    assert exported.decode() == first + second


@pytest.mark.parametrize("name", ["ops", "mops"])
def test_parquet_that_is_damaged_is_an_error_or_the_same_history(tmp_path: Path, name: str) -> None:
    flat.write_parquet([from_ops(EXAMPLE)], tmp_path, Order("x"))
    path = tmp_path / f"{name}.parquet" / "part-00000.parquet"
    whole = path.read_bytes()
    for position in range(0, len(whole), 41):
        path.write_bytes(whole[:position])
        with pytest.raises(CorruptHistoryError, match=r"Make them anew from history\.jsonl"):
            flat.read_parquet(tmp_path)
    footer_bytes = int.from_bytes(whole[-8:-4], "little")
    for position in range(4, len(whole) - 8 - footer_bytes, 7):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 4]) + whole[position + 1 :])
        with suppress(CorruptHistoryError):
            assert list(to_ops(flat.read_parquet(tmp_path))) == EXAMPLE


def test_parquet_as_spark_writes_it_is_read(tmp_path: Path) -> None:
    """Spark knows no dictionaries, and writes as many parts as it likes, some of them empty."""
    for name, table in flat.to_tables(with_pairs(from_ops(EXAMPLE), Order("x"))).items():
        folder = tmp_path / f"{name}.parquet"
        folder.mkdir()
        columns = [(column, table[column]) for column in table.column_names]
        plain = pa.table({it: data.cast(pa.string()) if it in flat.TEXTS else data for it, data in columns})
        for part, rows in enumerate((plain[:2], plain[2:2], plain[2:])):
            pq.write_table(rows, folder / f"part-{part}.snappy.parquet")
        (folder / "_SUCCESS").touch()
    assert list(to_ops(flat.read_parquet(tmp_path))) == EXAMPLE


def test_parquet_of_something_else_is_told(tmp_path: Path) -> None:
    flat.write_parquet([from_ops(EXAMPLE)], tmp_path, Order("x"))
    pq.write_table(pa.table({"a": [1]}), tmp_path / "mops.parquet" / "part-00000.parquet")
    with pytest.raises(CorruptHistoryError, match="not those of a history"):
        flat.read_parquet(tmp_path)
    pq.write_table(
        pa.table({name: pa.array([None], pa.int64()) for name in flat.MOPS.names or ()}),
        tmp_path / "mops.parquet" / "part-00000.parquet",
    )
    with pytest.raises(CorruptHistoryError, match="op is missing in some rows"):
        flat.read_parquet(tmp_path)


def test_a_directory_that_has_no_history_is_told(tmp_path: Path) -> None:
    with pytest.raises(NotAHistoryError, match=r"ops\.parquet: it is missing"):
        flat.read_parquet(tmp_path)


def test_half_a_surrogate_pair_in_an_error_survives_as_its_escape(tmp_path: Path) -> None:
    flat.write_parquet([from_ops([op(error="caf\udce9")])], tmp_path, Order("x"))
    assert [one.error for one in to_ops(flat.read_parquet(tmp_path))] == ["caf\\udce9"]


def test_columns_have_the_widths_that_spark_is_told() -> None:
    tables = flat.to_tables(from_ops(EXAMPLE))
    assert {
        name: str(kind) for name, kind in zip(tables["mops"].schema.names, tables["mops"].schema.types, strict=True)
    } == {
        **dict.fromkeys(("op", "offset", "value", "key"), "int64"),
        **dict.fromkeys(("log", "mop", "seq"), "int32"),
        **dict.fromkeys(("kind", "flags"), "int8"),
    }
    assert str(tables["ops"].schema.field("f").type).startswith("dictionary<values=string")
    assert flat.MOPS.itemsize == 48
    assert np.dtype(flat.OPS).itemsize == 64
