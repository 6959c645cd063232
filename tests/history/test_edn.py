from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given

from sexton.errors import CorruptHistoryError, NotAHistoryError
from sexton.history import edn
from sexton.history.edn import Names, to_line
from sexton.history.flat import to_ops
from sexton.history.flatten import read_edn
from sexton.history.op import NEMESIS, UNKNOWN, F, Op, Poll, Record, Run, Send, Type
from sexton.history.order import Notes, Order
from tests.history.histories import EXAMPLE, SOME, histories

Read = Callable[[bytes | str], tuple[list[Op], Notes, Names]]


def one_by_one(data: bytes | str) -> tuple[list[Op], Notes, Names]:
    order, names = Order("history.edn", is_imported=True), Names()
    data = data.encode() if isinstance(data, str) else data
    return list(edn.read(io.BytesIO(data), order, names)), order.notes, names


def compiled(data: bytes | str) -> tuple[list[Op], Notes, Names]:
    order = Order("history.edn", is_imported=True)
    flat = read_edn(io.BytesIO(data.encode() if isinstance(data, str) else data), order)
    logs = {name: edn.FIRST_NAMED - row for row, name in enumerate(flat.log_names)}
    values = {name: edn.FIRST_NAMED - row for row, name in enumerate(flat.value_names)}
    return list(to_ops(flat)), order.notes, Names(logs, values)


both = pytest.mark.parametrize("read", [one_by_one, compiled])


def written(ops: list[Op], run: Run | None = None) -> bytes:
    return b"".join(to_line(op, run or Run()) for op in ops)


@both
@SOME
@given(histories())
def test_any_history_survives(read: Read, ops: list[Op]) -> None:
    assert read(written(ops))[0] == ops


def test_export_is_spelled_as_jepsen_does() -> None:
    assert to_line(EXAMPLE[5], Run()) == (
        b"{:index 5, :time 50, :type :ok, :process 23, :f :txn, "
        b":value [[:poll {5 [[272 140] [273 142 7 1]]}] [:send 6 [7 8]]], :node 2, "
        b':client "confluent-kafka 2.6.1", :rebalance-log [{:keys [5 6]}], :spans {5 [270 274]}, :ext {"pid" 4}}\n'
    )
    assert to_line(EXAMPLE[0], Run()) == (
        b'{:index 0, :time 0, :type :info, :process :nemesis, :f :kill, :value {"n1" "killed"}}\n'
    )


@both
def test_a_run_as_jepsen_prints_it(read: Read) -> None:
    ops, notes, names = read(
        """{:process :nemesis, :type :info, :f :start-partition, :value [:isolated {"n1" #{"n2"}}], :index 0, :time 3}
{:process 0, :type :invoke, :f :subscribe, :value (5 6), :index 1, :time 4}
{:process 0, :type :ok, :f :subscribe, :value (5 6), :index 2, :time 5}
#jepsen.history.Op{:index 3, :time 13, :type :invoke, :process 0, :f :txn, :value [[:poll] [:send 6 8]]}
{:index 4, :time 14, :type :ok, :process 0, :f :txn, :value [[:poll {5 [[272 140] [273 142]], 6 []}] [:send 6 [7 8]]], \
:rebalance-log ({:type :revoked, :keys [5]} {:type :assigned, :keys [6 7]})}
{:index 5, :time 15, :type :invoke, :process 1, :f :send, :value [[:send 5 9]]}
{:index 6, :time 16, :type :info, :process 1, :f :send, :value [[:send 5 [nil 9]]], :error [:timeout "no \\"answer\\""]}
{:index 7, :time 17, :type :invoke, :process 2, :f :assign, :value [5], :seek-to-beginning? true}
{:index 8, :time 18, :type :invoke, :process 3, :f :crash, :value nil}
{:index 9, :time 19, :type :info, :process 3, :f :crash, :value nil, :error :crash}
"""
    )
    assert names == Names()
    assert notes.unknown_f == {}
    assert ops[0].process == NEMESIS
    assert ops[0].ext == {"value": [":isolated", {"n1": ["n2"]}]}
    assert ops[1].logs == (5, 6)
    assert ops[3].micro_ops == (Poll(), Send(6, 8))
    assert ops[4].micro_ops == (Poll({5: (Record(272, 140), Record(273, 142))}), Send(6, 8, 7))
    assert ops[4].rebalanced == {5, 6, 7}
    assert ops[6].micro_ops == (Send(5, 9),)
    assert ops[6].error == '[:timeout "no \\"answer\\""]'
    assert ops[7].ext == {"seek-to-beginning?": True}
    assert (ops[9].f, ops[9].error, ops[9].ext) == (F.CRASH, ":crash", {})


@both
def test_logs_and_values_that_are_no_numbers_get_some_and_keep_their_spelling(read: Read) -> None:
    text = """{:type :ok, :f :txn, :value [[:send :x :a] [:send 3 [7 "b c"]] [:poll {:x [[0 :a] [1 nil] [2 -1]], \
:y [[0 5]]}]]}
{:type :ok, :f :poll, :value [[:poll {:y [[0 9223372036854775808] :a]}]]}
"""
    ops, _, names = read(text)
    assert ops[0].micro_ops == (
        Send(-2, -2),
        Send(3, -3, 7),
        Poll({-2: (Record(0, -2), Record(1, -4), Record(2, -5)), -3: (Record(0, 5),)}),
    )
    assert ops[1].micro_ops == (Poll({-3: (Record(0, -6), Record(UNKNOWN, -2))}),)
    assert names.log_names() == {-2: ":x", -3: ":y"}
    assert names.value_names() == {-2: ":a", -3: '"b c"', -4: "nil", -5: "-1", -6: "9223372036854775808"}
    run = Run(log_names=names.log_names(), value_names=names.value_names())
    assert read(written(ops, run))[0] == ops


@both
def test_a_sketch_without_index_time_and_process_is_numbered_by_place(read: Read) -> None:
    ops, notes, _ = read("{:type :ok, :f :poll, :value nil}\n\n; then\n{:type :info, :f :send, :value []}\n")
    assert [(op.index, op.time_ns, op.process) for op in ops] == [(0, UNKNOWN, UNKNOWN), (1, UNKNOWN, UNKNOWN)]
    assert notes.completions_without_invocation == 0


@both
def test_a_history_may_be_printed_as_one_vector(read: Read) -> None:
    assert len(read("[\n {:type :ok, :f :poll :value nil}\n {:type :ok :f :poll}\n]\n")[0]) == 2


@both
@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("nil", None),
        ("true", True),
        ("-5", -5),
        ("5N", 5),
        ("1.5e3", 1500.0),
        ("1.5M", 1.5),
        ("1/2", "1/2"),
        (":k/w", ":k/w"),
        ("sym", "sym"),
        ("\\newline", "\\newline"),
        ("\\{", "\\{"),
        ('"a\\n\\u00e9 }"', "a\né }"),
        ("#{1}", [1]),
        ("(1 [2])", [1, [2]]),
        ('#inst "2024-01-01"', {"#inst": "2024-01-01"}),
        ('#object[java.lang.Thread 0x1f "Thread {"]', {"#object": ["java.lang.Thread", "0x1f", "Thread {"]}),
        ('#error {:cause "no", :via []}', {"#error": {":cause": "no", ":via": []}}),
        ("#:ns{:a 1}", {"#:ns": {":a": 1}}),
        ('#"a.*"', {"#": "a.*"}),
        ("[#_ignored 1 #_#_ 2 3]", [1]),
        ("{[1 2] 3, :a 4}", {"[1 2]": 3, ":a": 4}),
        ("##Inf", float("inf")),
    ],
)
def test_unknown_keys_keep_what_json_can_say_of_them(read: Read, text: str, kept: object) -> None:
    (op,) = read(f"{{:type :info, :f :frob, :more {text}, :value {text}}}\n")[0]
    assert op.ext == ({} if kept is None else {"more": kept, "value": kept})


@both
def test_an_operation_of_another_workload_is_kept_and_counted(read: Read) -> None:
    ops, notes, _ = read("{:type :ok, :f :read, :process 0, :value [:x nil]}\n{:type :ok, :f nil, :value 5}\n")
    assert [op.ext for op in ops] == [{"value": [":x", None]}, {"value": 5}]
    assert notes.unknown_f == {"read": 1, "": 1}


@both
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "{:type :ok, :f :txn, :value [[:append 5 1]]}",
            r"not a send or poll, as in Jepsen's kafka workload: \[:append 5 1\]",
        ),
        ("{:type :ok, :f :txn, :value [[:send 5]]}", "not a send or poll"),
        ("{:type :ok, :f :txn, :value [:send]}", "not a send or poll"),
        ("{:type :ok, :f :txn, :value 5}", "not a vector, list or set: 5"),
        ("{:type :ok, :f :txn, :value [[:poll [1]]]}", r"not a map: \[1\]"),
        ("{:type :ok, :f :send, :value [[:send 5 [:x 1]]]}", "offset is no number from 0 to 2.63 - 1: :x"),
        ("{:type :ok, :f :send, :value [[:send 5 [1 2 3]]]}", "neither offset and value nor"),
        ("{:type :okay, :f :send}", "type is none of invoke, ok, fail, info: :okay"),
        ("{:f :send}", "type is none of"),
        ("{:type :ok, :f :send, :index :x}", "index is no number"),
        ("{:type :ok, :f :send, :time -5}", "time is no number"),
        ("{:type :ok, :f}", "a key without a value"),
        ("{:type :ok, :f :send", "ends too early"),
        ('{:type :ok, :f :send, :error "x}', "ends too early"),
        ("{:type :ok, :f :send]", "] closes nothing"),
        ("{:type :ok} {:type :ok}", "more than one form"),
        ("[{:type :ok, :f :send}]", "not an operation"),
        ("#foo", "ends too early"),
        ("[" * 100_000, "nested too deeply|ends too early"),
        ("{:type :ok, :f :poll, :spans {5 [1]}}", "span is no pair"),
    ],
)
def test_what_cannot_be_read_is_an_error_with_its_line(read: Read, text: str, reason: str) -> None:
    with pytest.raises(CorruptHistoryError, match=rf"history.edn, line 2: (.|\n)*({reason})"):
        read("{:type :ok, :f :poll, :value nil}\n" + text + "\n")


@both
def test_a_last_line_that_is_cut_short_is_told_and_left_out(read: Read) -> None:
    whole, last = written(EXAMPLE[:5]), to_line(EXAMPLE[5], Run())
    for size in range(1, len(last) - 1):
        ops, notes, _ = read(whole + last[:size])
        assert (ops, notes.cut_off_bytes) == (EXAMPLE[:5], size)
    assert read(whole + last[:-1])[0] == EXAMPLE[:6]


@both
def test_a_flipped_bit_is_another_operation_or_an_error_but_never_a_crash(read: Read) -> None:
    line = to_line(EXAMPLE[5], Run())
    for position in range(len(line) - 1):
        for bit in range(8):
            flipped = bytearray(line)
            flipped[position] ^= 1 << bit
            with suppress(CorruptHistoryError):
                read(written(EXAMPLE[:5]) + flipped)


@both
def test_jepsens_binary_format_is_told_apart(read: Read) -> None:
    with pytest.raises(NotAHistoryError, match=r"Name the history\.edn that Jepsen writes beside it"):
        read(b"JEPSEN\x00\x00\x00\x01")


@both
def test_a_file_without_an_operation_is_no_history(read: Read) -> None:
    with pytest.raises(NotAHistoryError, match="there is no operation in it"):
        read("; nothing\n")


@both
def test_type_is_read_from_every_spelling_that_jepsen_has(read: Read) -> None:
    names = (":invoke", ":ok", ":fail", ":info")
    assert [op.type for op in read("".join(f"{{:type {name}, :f :poll}}\n" for name in names))[0]] == [*Type]
