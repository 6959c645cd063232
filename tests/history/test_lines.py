from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given

from sexton.errors import CorruptHistoryError, NotAHistoryError
from sexton.history import lines
from sexton.history.flat import to_ops
from sexton.history.flatten import read_lines
from sexton.history.lines import Writer, from_line, to_line
from sexton.history.op import NEMESIS, UNKNOWN, F, Op, Poll, Record, Send, Type
from sexton.history.order import Notes, Order
from tests.history.histories import EXAMPLE, SOME, histories, op

Read = Callable[[bytes], tuple[list[Op], Notes]]


def one_by_one(data: bytes) -> tuple[list[Op], Notes]:
    order = Order("history.jsonl")
    return list(lines.read(io.BytesIO(data), order)), order.notes


def compiled(data: bytes) -> tuple[list[Op], Notes]:
    order = Order("history.jsonl")
    return list(to_ops(read_lines(io.BytesIO(data), order))), order.notes


both = pytest.mark.parametrize("read", [one_by_one, compiled])


def written(ops: list[Op]) -> bytes:
    return b"".join(map(to_line, ops))


@both
@SOME
@given(histories())
def test_any_history_survives(read: Read, ops: list[Op]) -> None:
    assert read(written(ops))[0] == ops
    assert written(read(written(ops))[0]) == written(ops)


def test_the_spelling_is_the_one_that_the_design_shows() -> None:
    assert to_line(EXAMPLE[5]) == (
        b'{"index":5,"time":50,"process":23,"type":"ok","f":"txn",'
        b'"value":[["poll",{"5":[[272,140],[273,142,7,1]]}],["send",6,[7,8]]],"node":2,'
        b'"client":"confluent-kafka 2.6.1","rebalance-log":[{"keys":[5,6]}],"spans":{"5":[270,274]},"ext":{"pid":4}}\n'
    )
    assert to_line(EXAMPLE[0]) == (
        b'{"index":0,"time":0,"process":"nemesis","type":"info","f":"kill","value":{"n1":"killed"}}\n'
    )


def test_one_operation_has_one_spelling() -> None:
    polled = op(0, 0, Type.OK, F.POLL, Poll({10: (Record(0, 1),), 9: (Record(0, 2),), 3: ()}), offsets={})
    assert b'{"9":[[0,2]],"10":[[0,1]]}' in to_line(polled)
    other = b'{ "f":"poll", "type" : "ok", "value":[["poll",{"10":[[0,1]],"3":[],"9":[[0,2,null,0]]}]], "error":null,'
    other += b'"time":0,"process":0,"index":0}'
    assert to_line(from_line(other)) == to_line(polled)


@both
def test_a_last_line_that_is_cut_short_is_told_and_left_out(read: Read) -> None:
    whole = written(EXAMPLE[:5])
    for size in range(len(to_line(EXAMPLE[5])) - 1):
        ops, notes = read(whole + to_line(EXAMPLE[5])[:size])
        assert (ops, notes.cut_off_bytes) == (EXAMPLE[:5], size)


@both
def test_a_last_line_that_lacks_its_newline_alone_is_whole(read: Read) -> None:
    ops, notes = read(written(EXAMPLE)[:-1])
    assert (ops, notes.cut_off_bytes) == (EXAMPLE, 0)


@both
def test_a_line_that_is_cut_short_in_the_middle_is_an_error(read: Read) -> None:
    damaged = written(EXAMPLE[:3]) + to_line(EXAMPLE[3])[:40] + b"\n" + written(EXAMPLE[4:])
    with pytest.raises(CorruptHistoryError, match=r"history.jsonl, line 4: not an operation: .*\. Judge an undamaged"):
        read(damaged)


@both
def test_a_flipped_bit_is_another_operation_or_an_error_but_never_a_crash(read: Read) -> None:
    line = to_line(EXAMPLE[5])
    for position in range(len(line) - 1):
        for bit in range(8):
            flipped = bytearray(line)
            flipped[position] ^= 1 << bit
            with suppress(CorruptHistoryError):
                read(written(EXAMPLE[:5]) + flipped)


@both
@pytest.mark.parametrize("data", [b"", b"\n\n", b'{"index":0,"ty'])
def test_a_file_without_an_operation_is_no_history(read: Read, data: bytes) -> None:
    with pytest.raises(NotAHistoryError, match="there is no operation in it"):
        read(data)


@both
def test_an_unknown_f_is_kept_and_counted_and_what_a_nemesis_does_is_not_unknown(read: Read) -> None:
    ops = [op(0, 1, f="frob", ext={"value": [1.5]}), op(1, NEMESIS, Type.INFO, "kill"), op(2, 2, f="frob")]
    found, notes = read(written(ops))
    assert found == ops
    assert notes.unknown_f == {"frob": 2}


def test_an_unknown_field_is_kept() -> None:
    assert from_line(b'{"index":0,"type":"info","f":"kill","new":[1],"ext":{"a":2}}').ext == {"new": [1], "a": 2}


@both
@pytest.mark.parametrize(
    ("ops", "reason"),
    [
        ([op(0), op(0, 1)], r"line 2: index 0 is there twice"),
        ([op(0), op(1, 1), op(0, 2)], r"line 3: index 0 comes after 1"),
        ([op(0), op(2, 1)], r"line 2: index 2 follows 0: operations are missing"),
        ([op(0, time_ns=5), op(1, 1, time_ns=4)], r"line 2: time goes back, from 5 to 4 ns"),
        ([op(0), op(1, 1, Type.OK)], r"line 2: process 1 completes an operation that it has not begun"),
        ([op(0), op(1, 0, Type.INVOKE)], r"line 2: process 0 begins an operation before its operation 0 has completed"),
    ],
)
def test_operations_that_contradict_each_other_are_an_error(read: Read, ops: list[Op], reason: str) -> None:
    with pytest.raises(CorruptHistoryError, match=reason):
        read(written(ops))


def test_an_imported_history_is_let_off_where_jepsen_does_so() -> None:
    ops = [op(3, 0, Type.OK, time_ns=9), op(7, 0, Type.OK, time_ns=8)]
    order = Order("x", is_imported=True)
    assert list(lines.read(io.BytesIO(written(ops)), order)) == ops
    assert (order.notes.times_that_went_back, order.notes.completions_without_invocation) == (1, 2)
    with pytest.raises(CorruptHistoryError, match="line 1: process 0 completes an operation that it has not begun"):
        list(lines.read(io.BytesIO(written([*ops, op(8)])), Order("x", is_imported=True)))


@both
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"value": [["send", 5, "a"]]}, 'value is no integer: "a"'),
        ({"value": [["send", 5, 1.0]]}, "value is no integer: 1.0"),
        ({"value": [["send", 5, True]]}, "value is no integer: true"),
        ({"value": [["send", 5, 1 << 63]]}, "value does not fit into 64 bits"),
        ({"value": [["send", 1 << 31, 1]]}, "log does not fit into 32 bits"),
        ({"value": [["send", "5", 1]]}, 'log is no integer: "5"'),
        ({"value": [["send", 5, [-2, 1]]]}, "offset is negative: -2"),
        ({"value": [["send", 5, [1, 2, 3]]]}, "value is no integer"),
        ({"value": [["send", 5, [1, 2, 3, 4]]]}, "flags is neither 0 nor 1: 4"),
        ({"value": [["send", 5]]}, "not a send or poll"),
        ({"value": [["append", 5, 1]]}, 'not a send or poll: \\["append", 5, 1\\]'),
        ({"value": [["poll", [[1, 2]]]]}, "poll is no object by log"),
        ({"value": [["poll", {"x": []}]]}, 'log is no integer: "x"'),
        ({"value": [["poll", {"+5": []}]]}, "log is no integer"),
        ({"value": [["poll", {"5": [7]}]]}, "neither offset and value nor"),
        ({"value": {}}, "value is no list"),
        ({"index": None}, "index is no integer: null"),
        ({"index": -1}, "index is negative"),
        ({"time": "now"}, "time is no integer"),
        ({"process": "nemesis2"}, "process is no integer"),
        ({"type": "okay"}, "type is none of invoke, ok, fail, info"),
        ({"type": []}, "type is none of"),
        ({"f": None}, "f is no string"),
        ({"spans": {"5": [1]}}, "span is no pair"),
        ({"rebalance-log": [{"keys": 5}]}, "keys of a rebalance is no list"),
        ({"error": [1]}, "error is no string"),
        ({"ext": [1]}, "ext is no object"),
        ({"f": "assign", "value": ["t0"]}, "log is no integer"),
        ({"f": "commit", "value": [5]}, "value is no object by log"),
    ],
)
def test_a_field_that_is_not_what_it_must_be_is_an_error(read: Read, changes: dict[str, object], reason: str) -> None:
    document = {"index": 0, "time": 0, "process": 0, "type": "invoke", "f": "txn"} | changes
    with pytest.raises(CorruptHistoryError, match=reason):
        read(json.dumps(document).encode() + b"\n")


@both
@pytest.mark.parametrize("line", [b"[]\n", b"5\n", b"null\n", b"\x00\x00\x00\x00\n", b"[" * 100_000 + b"\n", b"\xff\n"])
def test_a_line_that_is_no_operation_is_an_error(read: Read, line: bytes) -> None:
    with pytest.raises(CorruptHistoryError, match="line 1"):
        read(line)


class Endless(io.RawIOBase):
    """A file of one line, of which more is asked for than memory should hold."""

    def __init__(self) -> None:
        self.given_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        buffer[:] = b"x" * len(buffer)
        self.given_bytes += len(buffer)
        return len(buffer)


def test_a_line_without_end_is_an_error_before_memory_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1 << 20)
    endless = Endless()
    with pytest.raises(CorruptHistoryError, match="line 1: the line is longer than 1048576 bytes"):
        list(lines.read(io.BufferedReader(endless), Order("x")))  # type: ignore[type-var]
    assert endless.given_bytes < 2 << 20


def test_what_an_imported_history_does_not_tell_is_unknown() -> None:
    found = from_line(b'{"index":0,"type":"ok","f":"send","value":[["send",1,[null,2]]]}')
    assert (found.time_ns, found.process, found.node) == (UNKNOWN,) * 3
    assert found.micro_ops == (Send(1, 2),)


def test_a_writer_flushes_each_second_of_the_callers_clock() -> None:
    file = io.BytesIO()
    writer = Writer(file)
    second = 1_000_000_000
    writer.write(EXAMPLE[0], 5 * second)  # the first is flushed at once: nobody knows how long it has waited
    assert file.getvalue() == written(EXAMPLE[:1])
    writer.write(EXAMPLE[1], 6 * second - 1)
    writer.write(EXAMPLE[2], 6 * second - 1)
    assert file.getvalue() == written(EXAMPLE[:1])
    writer.tick(6 * second)
    assert file.getvalue() == written(EXAMPLE[:3])
    writer.write(EXAMPLE[3], 6 * second + 1)
    writer.flush()
    assert file.getvalue() == written(EXAMPLE[:4])
