"""A history as JSON Lines: `history.jsonl`, one operation a line, written while the run goes on.

The names of fields are Jepsen's, so that this format and `history.edn` differ in spelling only:

    {"index":12,"time":13620301650,"process":23,"type":"ok","f":"txn",
     "value":[["poll",{"5":[[272,140],[273,142]]}],["send",6,[7,8]]],"spans":{"5":[270,274]}}

There is one spelling for one operation: fields in the order of `FIELDS`, those that say nothing left out, logs in
rising order, no spaces, ASCII. (A reader takes any JSON that means the same.) A field that is not known is kept in
`ext`. What a micro-operation looks like:

    ["send", log, value]                               before it is acknowledged, or if it never was
    ["send", log, [offset, value]]
    ["send", log, [offset | null, value, key | null, flags]]     with a key, or a tombstone (flags 1)
    ["poll"]                                           of nothing
    ["poll", {"log": [[offset, value] | [offset, value, key | null, flags], …], …}]

A process that is killed while it writes leaves its last line cut short. That line is not judged; a reader says so.
"""

from __future__ import annotations

import json
import json.encoder
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final

from sexton.errors import CorruptHistoryError, NotAHistoryError
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
    Send,
    Span,
    Type,
    has_value_of_ours,
)
from sexton.history.order import REMEDY, Order, at_line

FIELDS: Final = (
    *("index", "time", "process", "type", "f", "value", "error", "node", "client"),
    *("rebalance-log", "spans", "ext"),
)

TYPES: Final = {type_.name.lower(): type_ for type_ in Type}
TYPE_NAMES: Final = {type_: name for name, type_ in TYPES.items()}

TOMBSTONE: Final = 1
"""The only flag of a record yet."""

LINE_BYTES_MAX: Final = 64 << 20
"""A line is read whole into memory. One of a fresh consumer that read four million records still fits."""

FOREIGN: Final = "Of other tools only the history.edn of Jepsen's kafka workload is read"
"""What a line that means nothing often is: a history of something else."""

FLUSH_INTERVAL_NS: Final = 1_000_000_000
"""What a killed run loses of its history, at most."""


# -- writing


def to_line(op: Op) -> bytes:
    """Put together by hand, but for what has no form of its own: whoever leads a run writes each operation twice."""
    ext = dict(op.ext)
    parts = [f'{{"index":{op.index:d}']
    if op.time_ns != UNKNOWN:
        parts.append(f'"time":{op.time_ns:d}')
    if op.process != UNKNOWN:
        parts.append('"process":"nemesis"' if op.process == NEMESIS else f'"process":{op.process:d}')
    parts.append(f'"type":"{TYPE_NAMES[op.type]}"')
    parts.append(f'"f":{_text(op.f)}')
    value = _value(op, ext)
    if value:
        parts.append(f'"value":{value}')
    if op.error:
        parts.append(f'"error":{_text(op.error)}')
    if op.node != UNKNOWN:
        parts.append(f'"node":{op.node:d}')
    if op.client:
        parts.append(f'"client":{_text(op.client)}')
    if op.rebalanced:
        parts.append(f'"rebalance-log":[{{"keys":{_text_of(sorted(op.rebalanced))}}}]')
    if op.spans:
        parts.append(f'"spans":{_text_by_log({log: _text_of(span) for log, span in op.spans.items()})}')
    if ext:
        parts.append(f'"ext":{_any(ext)}')
    return (",".join(parts) + "}\n").encode()


_any: Final = json.JSONEncoder(separators=(",", ":")).encode
_text: Final = json.encoder.encode_basestring_ascii


def _text_of(numbers: Iterable[int]) -> str:
    return f"[{','.join(map(str, numbers))}]"


def _text_by_log(texts: Mapping[int, str]) -> str:
    return "{" + ",".join([f'"{log:d}":{texts[log]}' for log in sorted(texts)]) + "}"


def _value(op: Op, ext: dict[str, Any]) -> str:
    """Nothing if it has none."""
    if not has_value_of_ours(op.process, op.f):
        value = ext.pop("value", None)
        return "" if value is None else _any(value)
    if op.f in READS_AND_WRITES:
        return f"[{','.join([_micro_op(micro_op) for micro_op in op.micro_ops])}]"
    if op.f in NAMES_LOGS:
        return _text_of(op.logs)
    return _text_by_log({log: str(offset) for log, offset in op.offsets.items()})


def _micro_op(micro_op: MicroOp) -> str:
    if isinstance(micro_op, Send):
        log, value, *more = micro_op
        return f'["send",{log:d},{value:d}]' if more == _NO_MORE else f'["send",{log:d},{_text_of_record(micro_op)}]'
    polled = {
        log: f"[{','.join([_text_of_record(each) for each in records])}]"
        for log, records in micro_op.records.items()
        if records
    }
    return f'["poll",{_text_by_log(polled)}]' if polled else '["poll"]'


_NO_MORE: Final = [UNKNOWN, UNKNOWN, False]
"""Of a send, its offset, key, and whether it is a tombstone."""


def _text_of_record(record: Record | Send) -> str:
    offset = "null" if record.offset == UNKNOWN else f"{record.offset:d}"
    if record.key == UNKNOWN and not record.is_tombstone:
        return f"[{offset},{record.value:d}]"
    key = "null" if record.key == UNKNOWN else f"{record.key:d}"
    return f"[{offset},{record.value:d},{key},{int(record.is_tombstone)}]"


@dataclass(slots=True)
class Writer:
    """Appends operations to a file while the run goes on. What it was given is in the file a second later, provided
    that `write` or `tick` is called."""

    file: BinaryIO
    _lines: list[bytes] = field(default_factory=list)
    _flushed_ns: int = 0

    def write(self, op: Op, now_ns: int) -> None:
        self._lines.append(to_line(op))
        self.tick(now_ns)

    def tick(self, now_ns: int) -> None:
        if now_ns - self._flushed_ns >= FLUSH_INTERVAL_NS:
            self._flushed_ns = now_ns
            self.flush()

    def flush(self) -> None:
        self.file.write(b"".join(self._lines))
        self._lines.clear()
        self.file.flush()


# -- reading


def read(file: BinaryIO, order: Order) -> Iterator[Op]:
    """Yields one operation after the other. `order` has the notes of what was let pass, once all are read.

    Raises CorruptHistoryError with the line and the reason, and NotAHistoryError if there is no operation.
    """
    for number, line in numbered(file, order.name):
        try:
            op = from_line(line)
        except ValueError as error:
            if not line.endswith(b"\n"):
                order.notes.cut_off_bytes = len(line)
                break
            raise unreadable(order.name, number, error) from None
        order.check(op, number)
        yield op
    if not order.notes.op_count:
        raise empty(order.name)


def numbered(file: BinaryIO, name: str) -> Iterator[tuple[int, bytes]]:
    """Yields the lines that are not blank, with their numbers, from 1. Never holds more than one."""
    number = 0
    while line := file.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise too_long(name, number)
        if not line.isspace():
            yield number, line


def too_long(name: str, line: int) -> CorruptHistoryError:
    return CorruptHistoryError(f"the line is longer than {LINE_BYTES_MAX} bytes", at_line(name, line), REMEDY)


def empty(name: str) -> NotAHistoryError:
    return NotAHistoryError("there is no operation in it", name, "Name the history of a run that has begun")


def unreadable(name: str, line: int, reason: ValueError) -> CorruptHistoryError:
    what = f"not an operation: {reason.msg}" if isinstance(reason, json.JSONDecodeError) else str(reason)
    return CorruptHistoryError(what, at_line(name, line), f"{REMEDY}. {FOREIGN}")


def from_line(line: bytes) -> Op:
    """Raises ValueError with the reason."""
    try:
        document = json.loads(line)
    except RecursionError:
        raise ValueError("not an operation: nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError(f"not an operation: {shown(document)}")
    f = _string(document.get("f"), "f")
    process = NEMESIS if document.get("process") == "nemesis" else _or_unknown(document.get("process"), "process")
    value = document.get("value")
    ext = _ext(document)
    if not has_value_of_ours(process, f):
        if value is not None:
            ext["value"] = value
        value = None
    return Op(
        index=_natural(document.get("index"), "index"),
        time_ns=_or_unknown(document.get("time"), "time"),
        process=process,
        type=_type(document.get("type")),
        f=f,
        micro_ops=tuple(map(_read_micro_op, _list(value, "value"))) if f in READS_AND_WRITES else (),
        logs=tuple(_log(log) for log in _list(value, "value")) if f in NAMES_LOGS else (),
        offsets=_offsets(value) if f in NAMES_OFFSETS else {},
        spans={log: _span(span) for log, span in _by_log(document.get("spans"), "spans")},
        rebalanced=_rebalanced(document.get("rebalance-log")),
        error=_string(document.get("error") or "", "error"),
        node=_or_unknown(document.get("node"), "node", 31),
        client=_string(document.get("client") or "", "client"),
        ext=ext,
    )


def _ext(document: Mapping[str, Any]) -> dict[str, Any]:
    ext = document.get("ext") or {}
    if not isinstance(ext, dict):
        raise ValueError(f"ext is no object: {shown(ext)}")
    unknown = document.keys() - set(FIELDS)
    return {**{name: document[name] for name in document if name in unknown}, **ext} if unknown else dict(ext)


def _type(name: Any) -> Type:
    if not isinstance(name, str) or name not in TYPES:
        raise ValueError(f"type is none of {', '.join(TYPES)}: {shown(name)}")
    return TYPES[name]


def _read_micro_op(micro_op: Any) -> MicroOp:
    match micro_op:
        case ["send", log, [offset, value]]:
            return Send(_log(log), _integer(value, "value"), _or_unknown(offset, "offset"))
        case ["send", log, [offset, value, key, flags]]:
            known = _or_unknown(offset, "offset"), _or_unknown(key, "key"), is_tombstone(flags)
            return Send(_log(log), _integer(value, "value"), *known)
        case ["send", log, value]:
            return Send(_log(log), _integer(value, "value"))
        case ["poll"]:
            return Poll()
        case ["poll", polled]:
            records = ((log, tuple(map(_read_record, _list(it, "poll")))) for log, it in _by_log(polled, "poll"))
            return Poll({log: them for log, them in records if them})
    raise ValueError(f"not a send or poll: {shown(micro_op)}")


def _read_record(record: Any) -> Record:
    match record:
        case [offset, value]:
            return Record(_or_unknown(offset, "offset"), _integer(value, "value"))
        case [offset, value, key, flags]:
            integers = _or_unknown(offset, "offset"), _integer(value, "value"), _or_unknown(key, "key")
            return Record(*integers, is_tombstone(flags))
    raise ValueError(f"neither offset and value nor offset, value, key and flags: {shown(record)}")


def is_tombstone(flags: Any) -> bool:
    if type(flags) is not int or flags not in (0, TOMBSTONE):
        raise ValueError(f"flags is neither 0 nor {TOMBSTONE}: {shown(flags)}")
    return flags == TOMBSTONE


def _span(span: Any) -> Span:
    match span:
        case [start, end]:
            return Span(_integer(start, "span"), _integer(end, "span"))
    raise ValueError(f"span is no pair of offsets: {shown(span)}")


def _offsets(value: Any) -> dict[int, int]:
    return {log: _integer(offset, "offset") for log, offset in _by_log(value, "value")}


def _rebalanced(events: Any) -> frozenset[int]:
    keys = (event.get("keys") if isinstance(event, dict) else None for event in _list(events, "rebalance-log"))
    return frozenset(_log(log) for them in keys for log in _list(them, "keys of a rebalance"))


def _by_log(value: Any, what: str) -> Iterator[tuple[int, Any]]:
    if value is None:
        return
    if not isinstance(value, dict):
        raise ValueError(f"{what} is no object by log: {shown(value)}")
    for log, item in value.items():
        number: int | None = None
        with suppress(ValueError):
            number = int(log)
        if str(number) != log:  # "+5" and "0_5" are numbers to Python
            raise ValueError(f"log is no integer: {shown(log)}")
        yield _log(number), item


def _list(value: Any, what: str) -> list[Any]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{what} is no list: {shown(value)}")
    return value


def _string(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{what} is no string: {shown(value)}")
    return value


def _log(value: Any) -> int:
    return _integer(value, "log", 31)


def _natural(value: Any, what: str) -> int:
    if _integer(value, what) < 0:
        raise ValueError(f"{what} is negative: {value}")
    return int(value)


def _or_unknown(value: Any, what: str, bits: int = 63) -> int:
    """A time, process, node, offset or key: -1 means that it is not known, as null does."""
    if value is None:
        return UNKNOWN
    if _integer(value, what, bits) < UNKNOWN:
        raise ValueError(f"{what} is negative: {value}")
    return int(value)


def _integer(value: Any, what: str, bits: int = 63) -> int:
    if type(value) is not int:
        raise ValueError(f"{what} is no integer: {shown(value)}")
    if not -1 << bits <= value < 1 << bits:
        raise ValueError(f"{what} does not fit into {bits + 1} bits: {shown(value)}")
    return value


def shown(value: Any) -> str:
    """As much of it as an error message has room for."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:60] + "…"
