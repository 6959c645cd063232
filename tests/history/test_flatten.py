"""What a kernel takes, it takes as the plain reader does. (`test_lines` and `test_edn` run over both, too.)"""

from __future__ import annotations

import io
import itertools
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace

import pytest
from hypothesis import given

from sexton.errors import SextonError
from sexton.history import edn, flatten, lines
from sexton.history.edn import Names
from sexton.history.flat import Kind, to_ops
from sexton.history.flatten import Piece, flatten_lines, read_edn, read_lines
from sexton.history.kernels import tables
from sexton.history.lines import to_line
from sexton.history.op import NEMESIS, F, Op, Poll, Record, Run, Send, Type
from sexton.history.order import Notes, Order
from tests.history.histories import EXAMPLE, SOME, histories, op

Outcome = tuple[list[Op], Notes | None, str]


def outcome(read: Callable[[], Iterable[Op]], order: Order) -> Outcome:
    try:
        return list(read()), order.notes, ""
    except SextonError as error:
        return [], None, str(error)


def plain(data: bytes) -> Outcome:
    order = Order("x")
    return outcome(lambda: lines.read(io.BytesIO(data), order), order)


def compiled(data: bytes) -> Outcome:
    order = Order("x")
    return outcome(lambda: to_ops(read_lines(io.BytesIO(data), order)), order)


def plain_edn(data: bytes) -> Outcome:
    """With the names of logs and values put into the operations."""
    order, names = Order("x", is_imported=True), Names()
    return outcome(lambda: spelled(list(edn.read(io.BytesIO(data), order, names)), names), order)


def compiled_edn(data: bytes) -> Outcome:
    def read() -> list[Op]:
        flat = read_edn(io.BytesIO(data), order)
        numbers = itertools.count(edn.FIRST_NAMED, -1)
        names = Names(dict(zip(flat.log_names, numbers)), {})  # noqa: B905 - the numbers are endless
        numbers = itertools.count(edn.FIRST_NAMED, -1)
        names.values.update(zip(flat.value_names, numbers))  # noqa: B905
        return spelled(list(to_ops(flat)), names)

    order = Order("x", is_imported=True)
    return outcome(read, order)


def spelled(ops: list[Op], names: Names) -> list[Op]:
    """Each operation with its spelling: numbers of names may differ, what they mean may not."""
    run = Run(log_names=names.log_names(), value_names=names.value_names())
    forms = (sorted(re.findall(rb"[^ ,{}\[\]]+", edn.to_line(op, run))) for op in ops)
    return [replace(op, micro_ops=(), logs=(), ext={"tokens": found}) for op, found in zip(ops, forms, strict=True)]


def written(ops: list[Op]) -> bytes:
    return b"".join(map(to_line, ops))


def test_kinds_are_those_of_the_flat_format() -> None:
    names = ("SEND", "POLL", "NOTHING", "LOG", "OFFSET", "REBALANCED")
    assert [getattr(tables, name) for name in names] == [Kind[name] for name in names]


def test_what_we_write_is_not_left_to_the_plain_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bytes] = []
    from_line = lines.from_line

    def noting(line: bytes) -> Op:
        left.append(line)
        return from_line(line)

    monkeypatch.setattr(lines, "from_line", noting)
    assert compiled(written(EXAMPLE))[0] == EXAMPLE
    assert left == [to_line(EXAMPLE[0])]  # the nemesis


@SOME
@given(histories())
def test_any_spelling_is_taken_as_the_plain_reader_does(ops: list[Op]) -> None:
    loose = b"".join(json.dumps(json.loads(to_line(op)), ensure_ascii=False).encode() + b"\n" for op in ops)
    mixed = b"\n".join(loose.splitlines()[::2] + written(ops).splitlines()[1::2])
    for data in (loose, mixed, loose + b" \n\n"):
        assert compiled(data) == plain(data)


@pytest.mark.parametrize("line", [to_line(it) for it in EXAMPLE[1:7:2]] + [to_line(EXAMPLE[9])])
def test_any_damage_is_taken_as_the_plain_reader_does(line: bytes) -> None:
    for position in range(len(line)):
        damaged = [line[:position] + line[position + 1 :], line[:position]]
        damaged += [line[:position] + bytes([line[position] ^ bit]) + line[position + 1 :] for bit in (1, 16, 128)]
        for data in damaged:
            assert compiled(data) == plain(data), data


@pytest.mark.parametrize(
    "text",
    [
        '"value":[["send",1,0]]',
        '"value":[["send",-5,-7]]',
        '"value":[["send",-0,1]]',
        '"value":[["send",01,1]]',
        '"value":[["send",2147483647,9223372036854775807],["send",-2147483648,-9223372036854775808]]',
        '"value":[["send",2147483648,1]]',
        '"value":[["send",1,999999999999999999],["send",1,1000000000000000000]]',
        '"value":[["send",1,9223372036854775808]]',
        '"value":[["send",1,[null,1]],["send",1,[-1,1]],["send",1,[0,1,null,1]],["send",1,[0,1,2,0]]]',
        '"value":[["send",1,[0,1,2,2]]]',
        '"value":[["poll",{}],["poll"],["poll",null]]',
        '"value":[["poll",{"5":[],"6":[[0,1]]}]]',
        '"value":[["poll",{"6":[[0,1]],"5":[[0,1]]}]]',
        '"value":[["poll",{"5":[[0,1]],"5":[[0,2]]}]]',
        '"value":[]',
        '"value":null',
        '"value":[["send",1,1],]',
        '"value":[["send",1,1]],"error":"","client":""',
        '"error":"a\\u00e9"',
        '"error":"é"',
        '"error":"\\ud800"',
        '"node":2147483648',
        '"node":-1',
        '"rebalance-log":[{"keys":[]}]',
        '"rebalance-log":[{"keys":[2,1]}]',
        '"spans":{}',
        '"spans":{"2":[0,1],"1":[0,1]}',
        '"spans":{"1":[-5,1]}',
        '"ext":{}',
        '"ext":{"a":[1,-2.5e+3,{"b":[]},[],true,false,null,"\\"\\\\\\u00e9"],"c":{}}',
        '"ext":{"a":[1,]}',
        '"ext":{"a":01}',
        '"ext":{"a":1.}',
        '"ext":{"a":NaN}',
        '"ext":{"a":"\\x"}',
        '"ext":{"a" :1}',
        '"ext":{"a":1,"a":2}',
        '"ext":[1]',
        f'"ext":{{"a":{"[" * 70}{"]" * 70}}}',
        f'"ext":{{"a":{"9" * 5000}}}',
        '"ext":{"value":5}',
        '"more":1',
        '"value":[["append",1,1]]',
    ],
)
def test_odd_fields_are_taken_as_the_plain_reader_does(text: str) -> None:
    data = f'{{"index":0,"time":5,"process":1,"type":"invoke","f":"txn",{text}}}\n'.encode()
    assert compiled(data) == plain(data)


def test_arrays_and_tables_of_texts_grow_in_the_middle_of_a_line() -> None:
    polled = Poll({log: tuple(Record(offset, offset) for offset in range(100)) for log in range(3)})
    many = [
        op(index, index, Type.INVOKE, F.TXN, polled, Send(5, index), error=f"error {index}", ext={"a": index})
        for index in range(600)
    ]
    assert compiled(written(many))[0] == many


def test_pieces_of_a_file_are_cut_at_ends_of_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    data = written(EXAMPLE)
    for size in (1, 50, 200, 1000, len(data)):
        monkeypatch.setattr(flatten, "PIECE_BYTES", size)
        assert compiled(data) == plain(data)
        assert compiled(data[:-5]) == plain(data[:-5])
        assert compiled(data + b"{\n" + data) == plain(data + b"{\n" + data)
        assert compiled(data + to_line(op(3, 77))) == plain(data + to_line(op(3, 77)))


def test_a_line_that_is_too_long_is_an_error_in_pieces_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flatten, "PIECE_BYTES", 100)
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1000)
    data = written(EXAMPLE[:2]) + b"x" * 2000
    assert compiled(data) == plain(data)


def test_a_piece_tells_where_its_lines_begin() -> None:
    data = written(EXAMPLE)
    starts = [data.index(to_line(it)) for it in EXAMPLE]
    found = flatten_lines(Piece(data, line_offset=1000), Order("x"))
    assert found.ops["line_offset"].tolist() == [1000 + start for start in starts]
    assert found.ops["process"][0] == NEMESIS


def exported(ops: list[Op]) -> bytes:
    return b"".join(edn.to_line(it, Run()) for it in ops)


JEPSEN = b"""\
{:process 0, :type :invoke, :f :subscribe, :value (5 :six), :index 1, :time 4}
#jepsen.history.Op{:index 3, :time 13, :type :invoke, :process 1, :f :txn, :value [[:poll] [:send 6 8] [:send :x :a]]}
{:index 4, :time 14, :type :ok, :process 1, :f :txn, :value [[:poll {5 [[2 140], [3 "b c"]], 6 []}] [:send 6 [7 8]]]}
{:index 6, :time 16, :type :info, :process 0, :f :subscribe, :value nil, :error [:timeout "no answer" (1 :x)]}
{:index 7, :time 17, :type :invoke, :process 2, :f :send, :value [[:send 5 [nil nil]]], :error "text"}
"""


def test_what_jepsen_writes_is_not_left_to_the_plain_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = plain_edn(JEPSEN)
    monkeypatch.setattr(edn, "from_line", None)
    assert compiled_edn(JEPSEN) == expected
    assert len(expected[0]) == 5


@SOME
@given(histories())
def test_any_exported_history_is_taken_as_the_plain_reader_does(ops: list[Op]) -> None:
    assert compiled_edn(exported(ops)) == plain_edn(exported(ops))


@pytest.mark.parametrize("line", JEPSEN.splitlines(keepends=True))
def test_any_damage_to_edn_is_taken_as_the_plain_reader_does(line: bytes) -> None:
    for position in range(len(line)):
        damaged = [line[:position] + line[position + 1 :], line[:position]]
        damaged += [line[:position] + bytes([line[position] ^ bit]) + line[position + 1 :] for bit in (1, 16, 128)]
        for data in damaged:
            assert compiled_edn(data) == plain_edn(data), data


@pytest.mark.parametrize(
    "text",
    [
        ":value [[:send 1 0] [:send -1 -1] [:send +1 5N] [:send 05 1.5]]",
        ":value [[:send 2147483647 9223372036854775807] [:send 2147483648 9223372036854775808]]",
        ':value [[:send :x [1 :a]] [:send nil true] [:send [1 2] #{:a}] [:send "x" [0 [1 2]]]]',
        ":value [[:send 1 [0 1 2 0]] [:send 1 [0 1 nil 1]]]",
        ":value [[:send 1 [0 1 2]]]",
        ":value [[:send 1]]",
        ":value ([:poll] (:poll {}) [:poll nil])",
        ":value [[:poll {1 [] :x []}]]",
        ":value [[:poll {1 [[0 1]] 1 [[1 2]]}]]",
        ":value [[:poll {1 [5 :a]}]]",
        ":value [[:poll {1}]]",
        ':value [[:poll{1[[0 1][1,2]]}][:send 1"a"]]',
        ":value {}",
        ":value 5",
        ":value [#_[:poll] [:poll]]",
        ":value nil, :value []",
        ":value [[:send 1 ;comment",
        ":error {:a 1}",
        ":error {:a}",
        ':error #inst "2024"',
        ":error :x/y",
        ':error "a\\n"',
        ':error "\u00e9"',
        ":error []",
        ":error [(])",
        ":error \\newline",
        ':error ""',
        ":time nil, :process nil",
        ":time -1",
        ":time 5N",
        ":process :nemesis, :value :anything",
        ":more 1",
        ":f :assign, :value #{1 2}",
        ":spans {:x [0 1]}, :rebalance-log ({:keys [:x 2]})",
        ":value\t[[:poll]]\r",
    ],
)
def test_odd_edn_is_taken_as_the_plain_reader_does(text: str) -> None:
    more = "" if ":f " in text else ":f :txn, "
    data = f"{{:type :invoke, {more}{text}}}\n".encode()
    before, after = b"{:type :ok, :f :txn, :value [[:send :y :z]]}\n", b"{:type :ok, :f :txn, :value [[:send :x :a]]}\n"
    assert compiled_edn(before + data + after) == plain_edn(before + data + after)


def test_names_grow_and_agree_between_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{{:type :ok, :f :send, :value [[:send :log{row % 700} :value{row}]]}}" for row in range(1500)]
    odd = ["{:type :ok, :f :send, :value [[:send [1 2] #{3}] [:send :y :value7]]}"]
    data = "\n".join(odd + names + odd).encode()
    assert compiled_edn(data) == plain_edn(data)
    monkeypatch.setattr(flatten, "PIECE_BYTES", 10_000)
    assert compiled_edn(data) == plain_edn(data)


def test_jepsens_binary_format_is_told_apart() -> None:
    assert compiled_edn(b"JEPSEN\x00") == plain_edn(b"JEPSEN\x00")
