"""Histories that are not what they should be, in both formats: a typed error with the line and the reason; or, where no
verdict can depend on it, skipped and counted."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from sexton.errors import CorruptHistoryError, NotAHistoryError, SextonError
from sexton.history.lines import LINE_BYTES_MAX
from sexton.history.load import load
from sexton.history.order import Notes

HEADS = {
    "jsonl": '{{"index":{index},"time":{time},"process":{process},"type":"{type}","f":"{f}","value":{value}}}\n',
    "edn": "{{:index {index}, :time {time}, :process {process}, :type :{type}, :f :{f}, :value {value}}}\n",
}
SENDS = {"jsonl": '[["send",{log},{value}]]', "edn": "[[:send {log} {value}]]"}


def line(format_: str, index: int, type_: str, *, log: object = 1, sent: object = 7, **changes: object) -> str:
    value = SENDS[format_].format(log=log, value=sent)
    fields = {"index": index, "time": index * 10, "process": 0, "type": type_, "f": "send", "value": value}
    return HEADS[format_].format(**{**fields, **changes})


def whole(format_: str) -> list[str]:
    return [line(format_, index, ("invoke", "ok")[index % 2], sent=index // 2) for index in range(6)]


def written(directory: Path, format_: str, lines: list[str]) -> Path:
    path = directory / f"history.{format_}"
    path.write_text("".join(lines))
    return path


Spoil = Callable[[str], list[str]]


def cut_off(format_: str) -> list[str]:
    lines = whole(format_)
    return [*lines[:-1], lines[-1][:-9]]


def duplicate_index(format_: str) -> list[str]:
    return [*whole(format_)[:3], line(format_, 2, "ok")]


def lacks_invocation(format_: str) -> list[str]:
    return [*whole(format_)[:4], line(format_, 4, "ok", process=5)]


def time_goes_back(format_: str) -> list[str]:
    return [*whole(format_)[:4], line(format_, 4, "invoke", time=1), line(format_, 5, "ok", time=60)]


def unknown_f(format_: str) -> list[str]:
    return [*whole(format_)[:4], line(format_, 4, "invoke", f="dance"), line(format_, 5, "ok", f="dance")]


def no_integer(format_: str) -> list[str]:
    return [*whole(format_)[:4], line(format_, 4, "invoke", sent='"seven"'), line(format_, 5, "ok", sent='"seven"')]


ERRORS: list[tuple[Spoil, str, str]] = [
    (duplicate_index, "jsonl", "line 4: index 2 is there twice"),
    (duplicate_index, "edn", "line 4: index 2 is there twice"),
    (lacks_invocation, "jsonl", "line 5: process 5 completes an operation that it has not begun"),
    (lacks_invocation, "edn", "line 5: process 5 completes an operation that it has not begun"),
    (time_goes_back, "jsonl", "line 5: time goes back, from 30 to 1 ns"),
    (no_integer, "jsonl", 'line 5: value is no integer: "seven"'),
]
COUNTED: list[tuple[Spoil, str, dict[str, object]]] = [
    (cut_off, "jsonl", {"bytes of a last line that was cut off": len(whole("jsonl")[-1]) - 9}),
    (cut_off, "edn", {"bytes of a last line that was cut off": len(whole("edn")[-1]) - 9}),
    (time_goes_back, "edn", {"times that went back": 1}),
    (unknown_f, "jsonl", {"operations of unknown kinds": {"dance": 2}}),
    (unknown_f, "edn", {"operations of unknown kinds": {"dance": 2}}),
    (no_integer, "edn", {}),
]
"""Jepsen's histories may have values of any kind; and it orders by index, whatever the times say."""


@pytest.mark.parametrize(("spoil", "format_", "reason"), ERRORS)
def test_what_would_make_a_verdict_wrong_is_an_error(tmp_path: Path, spoil: Spoil, format_: str, reason: str) -> None:
    with pytest.raises(CorruptHistoryError) as raised:
        load(written(tmp_path, format_, spoil(format_)))
    assert str(raised.value).startswith(f"{tmp_path}/history.{format_}, {reason}")
    assert raised.value.remedy


@pytest.mark.parametrize(
    ("format_", "foreign"),
    [
        ("jsonl", '{"timestamp":1,"level":"info"}'),
        ("edn", "{:type :ok, :f :txn, :value [[:append 1 2] [:r 1 [2]]], :process 0, :time 1, :index 0}"),
    ],
)
def test_a_history_of_something_else_is_told_what_can_be_read(tmp_path: Path, format_: str, foreign: str) -> None:
    with pytest.raises(CorruptHistoryError) as raised:
        load(written(tmp_path, format_, [f"{foreign}\n"]))
    assert raised.value.place.endswith("line 1")
    assert "Of other tools only the history.edn of Jepsen's kafka workload is read" in raised.value.remedy


@pytest.mark.parametrize(("spoil", "format_", "notes"), COUNTED)
def test_what_cannot_is_let_pass_and_told(tmp_path: Path, spoil: Spoil, format_: str, notes: dict[str, object]) -> None:
    loaded = load(written(tmp_path, format_, spoil(format_)))
    assert loaded.notes.to_json() == notes
    assert len(loaded.history.ops) == 6 - (spoil is cut_off)


def test_a_whole_history_has_no_notes(tmp_path: Path) -> None:
    for format_ in HEADS:
        assert load(written(tmp_path, format_, whole(format_))).notes.to_json() == {}
    assert Notes().to_json() == {}


def test_tagged_elements_of_edn_are_read(tmp_path: Path) -> None:
    lines = whole("edn")
    lines[1] = lines[1].replace("{:index", "#jepsen.history.Op{:index")
    lines[2] = lines[2].replace("}\n", ', :at #inst "2026-01-01T00:00:00Z", :of #my/tag [1 #{2}]}\n')
    loaded = load(written(tmp_path, "edn", lines))
    assert len(loaded.history.ops) == 6
    assert loaded.notes.to_json() == {}


@pytest.mark.parametrize("format_", HEADS)
@pytest.mark.parametrize("text", ["", "\n\n"])
def test_a_file_without_operations_is_no_history(tmp_path: Path, format_: str, text: str) -> None:
    with pytest.raises(NotAHistoryError, match="there is no operation in it"):
        load(written(tmp_path, format_, [text]))


@pytest.mark.parametrize("format_", HEADS)
def test_two_hundred_megabytes_in_one_line_are_an_error_and_are_not_held(tmp_path: Path, format_: str) -> None:
    path = written(tmp_path, format_, whole(format_))
    load(path)  # what is compiled and imported does not count
    with path.open("r+b") as file:
        file.truncate(200 << 20)
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SextonError, match=f"line 7: the line is longer than {LINE_BYTES_MAX} bytes"):
        load(path)
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb) << 10
    assert grown_bytes < 4 * LINE_BYTES_MAX
