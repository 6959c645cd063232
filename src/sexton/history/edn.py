"""Jepsen's `history.edn`: imported, so that what Jepsen found can be judged here, and exported for Jepsen's checkers.

Jepsen prints one operation a line, as a map or as a record `#jepsen.history.Op{…}`, with its keys in any order:

    {:index 12, :time 13620301650, :type :ok, :process 23, :f :txn, :value [[:poll {5 [[272 140]]}] [:send 6 [7 8]]]}

The fields are those of `history.lines`. What is not known to us is kept in `ext` (unknown keys, and the values of
operations that we do not judge), as far as JSON can say it: keywords with their colon, sets as lists, and a tagged
element as `{"#tag": …}`. What is missing is UNKNOWN; an operation without `:index` is numbered by its place.

Logs and values can be anything in Jepsen. A number that is not negative stands for itself; all else (`:x`, `"a"`,
`nil`, -1) gets a number below -1, in order of appearance, and `Names` keep how it was spelled.

Of the Python libraries for EDN none is kept up (`edn_format`, a parser made with PLY, had its last release in 2020),
and none tells where in the text a form stood, which is how a value's spelling is kept. What is needed of EDN fits on a
page.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from sexton.errors import EnvironmentFailure, NotAHistoryError
from sexton.history.lines import TYPE_NAMES, TYPES, empty, is_tombstone, numbered, unreadable
from sexton.history.op import (
    NAMES_LOGS,
    NAMES_OFFSETS,
    NEMESIS,
    READS_AND_WRITES,
    UNKNOWN,
    MicroOp,
    Op,
    Poll,
    Record,
    Run,
    Send,
    Span,
    Type,
    has_value_of_ours,
)
from sexton.history.order import Order

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1

FIRST_NAMED: Final = -2
"""The number of the first name; the next is one lower. -1 is UNKNOWN."""

JEPSEN_MAGIC: Final = b"JEPSEN"
"""How Jepsen's own binary format, `test.jepsen`, begins."""


# -- forms


class Form(NamedTuple):
    """A part of the text that was read: what it is, and where it stands."""

    kind: str
    """One of `nil bool int float string keyword symbol list map tagged`; vectors, lists and sets are lists."""
    value: Any
    """Of a list its forms, of a map pairs of forms, of a tagged element its tag and form; otherwise a plain value."""
    text: str


_SKIPPED: Final = re.compile(r"(?:[\s,]+|;[^\n]*)*")
_TOKEN: Final = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")
    |(?P<open>\#?\{|\[|\()
    |(?P<close>[\]})])
    |(?P<discard>\#_)
    |(?P<special>\#\#-?\w+)
    |(?P<tag>\#[^\s,()\[\]{}";\\]*)
    |(?P<character>\\(?:\w+|.))
    |(?P<atom>[^\s,()\[\]{}";\\]+)""",
    re.VERBOSE | re.DOTALL,
)
_INTEGER: Final = re.compile(r"([+-]?(?:0|[1-9]\d*))N?")
_FLOAT: Final = re.compile(r"([+-]?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)M?")
_CLOSES: Final = {"{": "}", "#{": "}", "[": "]", "(": ")"}
_CONSTANTS: Final = {"nil": ("nil", None), "true": ("bool", True), "false": ("bool", False)}
_SPECIAL: Final = {"##NaN": math.nan, "##Inf": math.inf, "##-Inf": -math.inf}


@dataclass(slots=True)
class _Reader:
    text: str
    position: int = 0

    def only_form(self) -> Form | None:
        """None if there is nothing but space and comments."""
        if self._is_at_end():
            return None
        form = self._form("")
        if form is None or not self._is_at_end():
            raise ValueError("not an operation: there is more than one form on the line")
        return form

    def _is_at_end(self) -> bool:
        match = _SKIPPED.match(self.text, self.position)
        self.position = match.end() if match else self.position
        return self.position == len(self.text)

    def _form(self, closing: str) -> Form | None:
        """Returns None at the closing bracket that is asked for."""
        while not self._is_at_end():
            token = _TOKEN.match(self.text, self.position)
            if token is None:
                break
            start, self.position = token.span()
            kind, text = str(token.lastgroup), token.group()
            if kind == "close":
                if text != closing:
                    raise ValueError(f"not an operation: {text} closes nothing")
                return None
            if kind == "discard":
                self._inner_form()
                continue
            kind, value = self._read(kind, text)
            return Form(kind, value, self.text[start : self.position])
        raise ValueError("not an operation: it ends too early")

    def _inner_form(self) -> Form:
        form = self._form("")
        assert form is not None  # no closing bracket was asked for
        return form

    def _read(self, kind: str, text: str) -> tuple[str, Any]:
        if kind == "string":
            return "string", json.loads(text, strict=False)
        if kind == "open":
            forms = list(iter(lambda: self._form(_CLOSES[text]), None))
            return ("map", _pairs(forms)) if text == "{" else ("list", forms)
        if kind == "tag":
            return "tagged", (text[1:], self._inner_form())
        if kind == "special" and text in _SPECIAL:
            return "float", _SPECIAL[text]
        return _atom(text)


def _pairs(forms: list[Form]) -> list[tuple[Form, Form]]:
    if len(forms) % 2:
        raise ValueError("not an operation: a map has a key without a value")
    return list(zip(forms[::2], forms[1::2], strict=True))


def _atom(text: str) -> tuple[str, Any]:
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text.startswith(":"):
        return "keyword", text[1:]
    if match := _INTEGER.fullmatch(text):
        return "int", int(match.group(1))
    if match := _FLOAT.fullmatch(text):
        return "float", float(match.group(1))
    return "symbol", text


def _plain(form: Form) -> Any:
    """What JSON can say of it."""
    match form.kind:
        case "list":
            return [_plain(it) for it in form.value]
        case "map":
            return {_key(key): _plain(value) for key, value in form.value}
        case "tagged":
            return {f"#{form.value[0]}": _plain(form.value[1])}
        case "keyword" | "symbol":
            return form.text
    return form.value


def _key(form: Form) -> str:
    return str(form.value) if form.kind == "string" else form.text


# -- names


@dataclass(slots=True)
class Names:
    """The numbers of logs and values that are spelled otherwise than as numbers."""

    logs: dict[str, int] = field(default_factory=dict)
    values: dict[str, int] = field(default_factory=dict)

    def log(self, form: Form) -> int:
        return _number(form, INT32_MAX, self.logs)

    def value(self, form: Form) -> int:
        return _number(form, INT64_MAX, self.values)

    def log_names(self) -> dict[int, str]:
        return {number: text for text, number in self.logs.items()}

    def value_names(self) -> dict[int, str]:
        return {number: text for text, number in self.values.items()}


def _number(form: Form, number_max: int, names: dict[str, int]) -> int:
    if form.kind == "int" and 0 <= form.value <= number_max:
        return int(form.value)
    return names.setdefault(form.text, FIRST_NAMED - len(names))


# -- import


def read(file: BinaryIO, order: Order, names: Names) -> Iterator[Op]:
    """As `lines.read`. `names` has the names of all logs and values, once all are read."""
    for number, line in numbered(file, order.name):
        if number == 1 and line.startswith(JEPSEN_MAGIC):
            raise binary(order.name)
        try:
            op = from_line(line, names, order.notes.op_count)
        except ValueError as error:
            if not line.endswith(b"\n"):
                order.notes.cut_off_bytes = len(line)
                break
            raise unreadable(order.name, number, error) from None
        if op is not None:
            order.check(op, number)
            yield op
    if not order.notes.op_count:
        raise empty(order.name)


def binary(name: str) -> NotAHistoryError:
    what = "this is Jepsen's own binary format, which is not read here"
    return NotAHistoryError(what, name, "Name the history.edn that Jepsen writes beside it")


def from_line(line: bytes, names: Names, index: int) -> Op | None:
    """Returns None for a comment, and for a bracket alone: some print a history as one vector of maps.

    `index` is that of an operation that has none. Raises ValueError with the reason.
    """
    if line.strip() in _BRACKETS:
        return None
    try:
        form = _Reader(line.decode()).only_form()
    except RecursionError:
        raise ValueError("not an operation: nested too deeply") from None
    if form is None:
        return None
    if form.kind == "tagged":
        form = form.value[1]
    if form.kind != "map":
        raise ValueError(f"not an operation: {_shown(form)}")
    return _op({key.text: value for key, value in form.value}, names, index)


_BRACKETS: Final = frozenset({b"[", b"]", b"(", b")"})
_NIL: Final = Form("nil", None, "nil")


def _op(fields: Mapping[str, Form], names: Names, index: int) -> Op:
    def get(name: str) -> Form:
        return fields.get(name, _NIL)

    f = _name(get(":f"))
    process = _process(get(":process"))
    is_ours = has_value_of_ours(process, f)
    ours = get(":value") if is_ours else _NIL
    return Op(
        index=index if get(":index").kind == "nil" else _natural(get(":index"), "index"),
        time_ns=_or_unknown(get(":time"), "time"),
        process=process,
        type=_type(get(":type")),
        f=f,
        micro_ops=tuple(_micro_op(it, names) for it in _forms(ours)) if f in READS_AND_WRITES else (),
        logs=tuple(names.log(it) for it in _forms(ours)) if f in NAMES_LOGS else (),
        offsets=_offsets(ours, names) if f in NAMES_OFFSETS else {},
        spans={names.log(log): _span(span) for log, span in _entries(get(":spans"))},
        rebalanced=_rebalanced(get(":rebalance-log"), names),
        error=_text(get(":error")),
        node=get(":node").value if _is_node(get(":node")) else UNKNOWN,
        client=get(":client").value if get(":client").kind == "string" else "",
        ext=_ext(fields, has_value=not is_ours),
    )


_READ: Final = frozenset(
    {":index", ":time", ":process", ":type", ":f", ":value", ":error", ":rebalance-log", ":spans", ":ext"}
)


def _ext(fields: Mapping[str, Form], has_value: bool) -> dict[str, Any]:
    ext = {}
    for text, form in fields.items():
        is_read = text in _READ or (text == ":node" and _is_node(form)) or (text, form.kind) == (":client", "string")
        if (not is_read or (text == ":value" and has_value)) and form.kind != "nil":
            ext[text.removeprefix(":")] = _plain(form)
    return {**ext, **{_key(key): _plain(value) for key, value in _entries(fields.get(":ext", _NIL))}}


def _name(form: Form) -> str:
    return "" if form.kind == "nil" else str(form.value) if form.kind in ("keyword", "string") else form.text


def _process(form: Form) -> int:
    """Whoever has no number is no client: in Jepsen that is the nemesis."""
    return _or_unknown(form, "process") if form.kind in ("int", "nil") else NEMESIS


def _type(form: Form) -> Type:
    if form.kind != "keyword" or form.value not in TYPES:
        raise ValueError(f"type is none of {', '.join(TYPES)}: {_shown(form)}")
    return TYPES[form.value]


def _text(form: Form) -> str:
    return "" if form.kind == "nil" else str(form.value) if form.kind == "string" else form.text


def _micro_op(form: Form, names: Names) -> MicroOp:
    match form.value:
        case [Form("keyword", "send"), log, value]:
            return _send(names.log(log), value, names)
        case [Form("keyword", "poll")]:
            return Poll()
        case [Form("keyword", "poll"), polled]:
            records = ((names.log(log), _records(them, names)) for log, them in _entries(polled))
            return Poll({log: them for log, them in records if them})
    raise ValueError(f"not a send or poll, as in Jepsen's kafka workload: {_shown(form)}")


def _send(log: int, form: Form, names: Names) -> Send:
    """As in Jepsen, a vector is an offset and a value, and all else a value."""
    if form.kind != "list":
        return Send(log, names.value(form))
    record = _record(form, names)
    return Send(log, record.value, record.offset, record.key, record.is_tombstone)


def _records(form: Form, names: Names) -> tuple[Record, ...]:
    return tuple(_record(it, names) for it in _forms(form))


def _record(form: Form, names: Names) -> Record:
    match form:
        case Form("list", [offset, value]):
            return Record(_or_unknown(offset, "offset"), names.value(value))
        case Form("list", [offset, value, key, flags]):
            integers = _or_unknown(offset, "offset"), names.value(value), _or_unknown(key, "key")
            return Record(*integers, is_tombstone(flags.value))
        case Form("list"):
            raise ValueError(f"neither offset and value nor offset, value, key and flags: {_shown(form)}")
    return Record(UNKNOWN, names.value(form))


def _span(form: Form) -> Span:
    match form.value:
        case [Form("int", start), Form("int", end)]:
            return Span(start, end)
    raise ValueError(f"span is no pair of offsets: {_shown(form)}")


def _offsets(form: Form, names: Names) -> dict[int, int]:
    return {names.log(log): _or_unknown(offset, "offset") for log, offset in _entries(form)}


def _rebalanced(form: Form, names: Names) -> frozenset[int]:
    keys = (it for event in _forms(form) for key, it in _entries(event) if key.text == ":keys")
    return frozenset(names.log(log) for them in keys for log in _forms(them))


def _forms(form: Form) -> list[Form]:
    if form.kind not in ("list", "nil"):
        raise ValueError(f"not a vector, list or set: {_shown(form)}")
    return form.value or []


def _entries(form: Form) -> list[tuple[Form, Form]]:
    if form.kind not in ("map", "nil"):
        raise ValueError(f"not a map: {_shown(form)}")
    return form.value or []


def _is_natural(form: Form) -> bool:
    return form.kind == "int" and 0 <= form.value <= INT64_MAX


def _is_node(form: Form) -> bool:
    return _is_natural(form) and form.value <= INT32_MAX


def _natural(form: Form, what: str) -> int:
    if not _is_natural(form):
        raise ValueError(f"{what} is no number from 0 to 2^63 - 1: {_shown(form)}")
    return int(form.value)


def _or_unknown(form: Form, what: str) -> int:
    return UNKNOWN if form.kind == "nil" or form.text == "-1" else _natural(form, what)


def _shown(form: Form) -> str:
    return form.text if len(form.text) <= 60 else form.text[:60] + "…"


# -- export

_NAME: Final = re.compile(r"[A-Za-z*!_?$%&=<>][\w.*+!?$%&=<>#-]*")


def write(path: Path, ops: Iterable[Op], run: Run) -> int:
    """A `history.edn` that Jepsen's checkers read, and how many operations it has. Raises EnvironmentFailure."""
    count = 0
    try:
        with path.open("xb") as file:
            for op in ops:
                file.write(to_line(op, run))
                count += 1
    except OSError as error:
        raise EnvironmentFailure(f"it cannot be written: {error.strerror}", str(path)) from error
    return count


def to_line(op: Op, run: Run) -> bytes:
    """Spelled as Jepsen does. Names of logs and values are those of `run`."""
    fields = {"index": str(op.index)}
    if op.time_ns != UNKNOWN:
        fields["time"] = str(op.time_ns)
    fields["type"] = f":{TYPE_NAMES[op.type]}"
    if op.process != UNKNOWN:
        fields["process"] = ":nemesis" if op.process == NEMESIS else str(op.process)
    fields["f"] = f":{op.f}" if _NAME.fullmatch(op.f) else _spelled(str(op.f))
    fields["value"] = _spelled_value(op, run)
    if op.error:
        fields["error"] = _spelled(op.error)
    if op.node != UNKNOWN:
        fields["node"] = str(op.node)
    if op.client:
        fields["client"] = _spelled(op.client)
    if op.rebalanced:
        fields["rebalance-log"] = f"[{{:keys {_spelled_logs(sorted(op.rebalanced), run)}}}]"
    if op.spans:
        fields["spans"] = _spelled_by_log({log: f"[{it[0]} {it[1]}]" for log, it in op.spans.items()}, run)
    is_ours = has_value_of_ours(op.process, op.f)
    ext = {name: value for name, value in op.ext.items() if is_ours or name != "value"}
    if ext:
        fields["ext"] = _spelled(ext)
    return f"{{{', '.join(f':{name} {text}' for name, text in fields.items())}}}\n".encode()


def _spelled_value(op: Op, run: Run) -> str:
    if not has_value_of_ours(op.process, op.f):
        return _spelled(op.ext.get("value"))
    if op.f in READS_AND_WRITES:
        return f"[{' '.join(_spelled_micro_op(it, run) for it in op.micro_ops)}]"
    if op.f in NAMES_LOGS:
        return _spelled_logs(op.logs, run)
    return _spelled_by_log({log: _known(offset) for log, offset in op.offsets.items()}, run)


def _spelled_micro_op(micro_op: MicroOp, run: Run) -> str:
    if isinstance(micro_op, Poll):
        by_log = {
            log: f"[{' '.join(_spelled_record(it, run) for it in records)}]"
            for log, records in micro_op.records.items()
            if records
        }
        return f"[:poll {_spelled_by_log(by_log, run)}]" if by_log else "[:poll]"
    has_more = micro_op.offset != UNKNOWN or micro_op.key != UNKNOWN or micro_op.is_tombstone
    record = Record(micro_op.offset, micro_op.value, micro_op.key, micro_op.is_tombstone)
    value = _spelled_record(record, run) if has_more else run.value_names.get(record.value, str(record.value))
    return f"[:send {run.log_names.get(micro_op.log, str(micro_op.log))} {value}]"


def _spelled_record(record: Record, run: Run) -> str:
    pair = f"{_known(record.offset)} {run.value_names.get(record.value, str(record.value))}"
    if record.key == UNKNOWN and not record.is_tombstone:
        return f"[{pair}]"
    return f"[{pair} {_known(record.key)} {int(record.is_tombstone)}]"


def _known(number: int) -> str:
    return "nil" if number == UNKNOWN else str(number)


def _spelled_logs(logs: Any, run: Run) -> str:
    return f"[{' '.join(run.log_names.get(log, str(log)) for log in logs)}]"


def _spelled_by_log(texts: Mapping[int, str], run: Run) -> str:
    return f"{{{', '.join(f'{run.log_names.get(log, str(log))} {texts[log]}' for log in sorted(texts))}}}"


def _spelled(value: Any) -> str:
    """JSON's values as EDN. EDN's strings know the escapes of JSON's."""
    match value:
        case None:
            return "nil"
        case dict():
            return f"{{{', '.join(f'{_spelled(str(key))} {_spelled(it)}' for key, it in value.items())}}}"
        case list() | tuple():
            return f"[{' '.join(map(_spelled, value))}]"
        case float() if not math.isfinite(value):
            return "##NaN" if math.isnan(value) else "##Inf" if value > 0 else "##-Inf"
    return json.dumps(value)
