"""What a case shows a reader: the log where it happened, the operations around it, and the faults in force.

A case names operations and values; that alone convinces nobody. So whoever else sent or was given one of the values is
shown as well, and what each process did just before and after.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from sexton.checker.view import Call, View
from sexton.history.op import UNKNOWN, Ext, Poll, Send
from sexton.verify.report.bars import Bar
from sexton.verify.report.broker_logs import NO_LOGS, BrokerLogs

NS: Final = 1e9
CALLS_MAX: Final = 24
LOGS_MAX: Final = 4
NEIGHBOURS: Final = 4
"""Offsets on each side of a value that a strip shows."""
RECORDS_MAX: Final = 6
"""Records that are shown of a poll if the case concerns none of them."""
VALUES_MAX: Final = 12

Concerned = Mapping[int, Sequence[int]]
"""By log: the values that a case is about."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Of a whole run. `calls` is by the completion's index."""

    view: View
    bars: Sequence[Bar]
    calls: Mapping[int, Call]
    places: Mapping[int, int]
    """By index of a call: which it is of its process."""
    leaders: Mapping[int, Sequence[tuple[int, int]]]
    """By log: when brokers were asked, and who led it then."""
    logs: BrokerLogs

    @classmethod
    def of(cls, view: View, bars: Sequence[Bar], logs: BrokerLogs = NO_LOGS) -> Evidence:
        places = {call.index: place for calls in view.by_process.values() for place, call in enumerate(calls)}
        leaders: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for look in view.probes:
            for log, broker in view.by_log(look, Ext.LEADERS).items():
                leaders[log].append((look.end_ns, broker))
        return cls(
            view=view,
            bars=bars,
            calls={call.index: call for call in view.calls},
            places=places,
            leaders=leaders,
            logs=logs,
        )

    def html(self, case: Mapping[str, Any]) -> str:
        concerned = concerns(case)
        named = [self.calls[index] for index in case["ops"] if index in self.calls]
        around = self._around(named, concerned)
        strips = "".join(self._strip(log, values) for log, values in list(concerned.items())[:LOGS_MAX])
        rows = "".join(self._row(call, call.index in case["ops"], concerned) for call in around)
        table = (
            '<div class="scroll"><table class="ops"><thead><tr><th>operation</th><th>from, to</th><th>process</th>'
            f"<th></th><th>what it did</th></tr></thead><tbody>{rows}</tbody></table></div>"
        )
        return f"{self._detail(case)}{strips}{table if rows else ''}{self._faults(named, concerned)}"

    def _around(self, named: Sequence[Call], concerned: Concerned) -> list[Call]:
        found = {call.index: call for call in named}
        for log, values in concerned.items():
            for value in values[:VALUES_MAX]:
                sender = self.view.sender_of.get((log, value))
                others = [*([sender] if sender else []), *self.view.readers_of.get((log, value), ())[:3]]
                found.update({call.index: call for call in others if len(found) < CALLS_MAX})
        for call in named:
            of_process = self.view.by_process.get(call.op.process, ())
            place = self.places.get(call.index)
            if place is not None and len(found) < CALLS_MAX:
                found.update({near.index: near for near in of_process[max(place - 1, 0) : place + 2]})
        return [found[index] for index in sorted(found)]

    def _row(self, call: Call, is_named: bool, concerned: Concerned) -> str:
        begin = "?" if call.begin_ns == UNKNOWN else f"{call.begin_ns / NS:.3f}"
        client = f"<br><small>{escape(call.op.client)}</small>" if call.op.client else ""
        error = f"<br><small>{escape(call.op.error.partition(chr(10))[0])}</small>" if call.op.error else ""
        type_ = call.op.type.name.lower()
        kind = "named" if is_named else "near"
        return (
            f'<tr class="{kind}"><td>{call.index}</td><td>{begin}, {call.end_ns / NS:.3f} s</td>'
            f'<td>{call.op.process}{client}</td><td class="{type_}">{escape(call.op.f)} {type_}</td>'
            f"<td>{'; '.join(_did(call, concerned)) or '-'}{error}{self._served(call, concerned)}</td></tr>"
        )

    def _served(self, call: Call, concerned: Concerned) -> str:
        """By whom, as far as that is known: who led each log from the look before the call to the look after it."""
        if (replica := call.op.ext.get(Ext.REPLICA, UNKNOWN)) != UNKNOWN:
            return f"<br><small>through broker {escape(str(replica))}</small>"
        begin_ns = call.begin_ns if call.begin_ns != UNKNOWN else call.end_ns
        told = []
        for log in sorted(concerned.keys() & (call.sends.keys() | call.polled.keys() | call.op.spans.keys())):
            looks = self.leaders.get(log, ())
            first = max(bisect_left(looks, (begin_ns, 0)) - 1, 0)
            last = bisect_left(looks, (call.end_ns, 0)) + 1
            brokers = list(dict.fromkeys(broker for _, broker in looks[first:last]))
            if brokers:
                told.append(f"log {log} was led by broker {', then '.join(map(str, brokers))}")
        return f"<br><small>{'; '.join(told)}</small>" if told else ""

    def _strip(self, log: int, values: Sequence[int]) -> str:
        """The log's offsets near the values, and what was seen at each."""
        order = self.view.order(log)
        near: set[int] = set()
        for value in values[:VALUES_MAX]:
            for index in {order.first.get(value), order.last.get(value)} - {None}:
                assert index is not None
                near.update(range(max(index - NEIGHBOURS, 0), min(index + NEIGHBOURS + 1, len(order.offsets))))
        if not near:
            return ""
        offsets, shown, read = "", "", ""
        for index in sorted(near):
            is_gap = index - 1 not in near and index > 0
            gap = '<td class="gap">…</td>' if is_gap else ""
            kind = "conflict" if len(order.values[index]) > 1 else ""
            at = " ".join(
                f"<b>{self._value(value)}</b>" if value in values else self._value(value)
                for value in order.values[index]
            )
            readers = {
                call.index for value in order.values[index] for call in self.view.readers_of.get((log, value), ())
            }
            offsets += f"{gap}<th>{order.offsets[index]}</th>"
            shown += f'{gap}<td class="{kind}">{at}</td>'
            read += f"{gap}<td>{len(readers) or '-'}</td>"
        caption = f"{escape(self.log_name(log))}{self._last_word(log)}"
        return (
            f'<div class="scroll"><table class="strip"><caption>{caption}</caption>'
            f"<tr><th>offset</th>{offsets}</tr><tr><th>value</th>{shown}</tr><tr><th>polls that saw it</th>{read}</tr>"
            "</table></div>"
        )

    def _last_word(self, log: int) -> str:
        """Of brokers, about where the log ends: who was stuck was stuck below these."""
        for look in reversed(self.view.probes):
            high = self.view.by_log(look, Ext.HIGH_WATERMARKS)
            if log in high:
                stable = self.view.by_log(look, Ext.LAST_STABLE_OFFSETS).get(log, UNKNOWN)
                at = f"; at {look.end_ns / NS:.1f} s its high watermark was {high[log]}"
                return at + (f", its last stable offset {stable}" if stable != UNKNOWN else "")
        return ""

    def _faults(self, named: Sequence[Call], concerned: Concerned) -> str:
        """And what brokers said meanwhile."""
        if not named:
            return ""
        start_ns = min(call.begin_ns if call.begin_ns != UNKNOWN else call.end_ns for call in named)
        end_ns = max(call.end_ns for call in named)
        told = "; ".join(
            f"{escape(str(bar))} ({bar.start_ns / NS:.1f} to {bar.end_ns / NS:.1f} s)"
            for bar in self.bars
            if bar.is_in_force(start_ns, end_ns)
        )
        span = f"From {start_ns / NS:.1f} to {end_ns / NS:.1f} s, in force: "
        topics = [self.view.run.logs[log].topic for log in concerned if log in self.view.run.logs]
        return f'<p class="faults">{span}{told or "no fault"}.</p>{self.logs.html(start_ns, end_ns, topics)}'

    def _detail(self, case: Mapping[str, Any]) -> str:
        detail = dict(case["detail"])
        steps = "".join(f"<li>{escape(_step(step))}</li>" for step in detail.pop("steps", ()))
        rest = ", ".join(f"{name} {value}" for name, value in detail.items())
        where = self.log_name(case["log"]) if case["log"] != UNKNOWN else "several logs" if steps else ""
        values = ", ".join(map(self._value, case["values"][:VALUES_MAX]))
        told = ". ".join(filter(None, (escape(where), f"Values {values}" if values else "", escape(rest))))
        return f"<p>{told}</p>{f'<ol>{steps}</ol>' if steps else ''}"

    def log_name(self, log: int) -> str:
        named = self.view.run.logs.get(log)
        place = f" ({named.topic}, partition {named.partition})" if named else ""
        return f"Log {self.view.run.log_names.get(log, log)}{place}"

    def _value(self, value: int) -> str:
        return escape(self.view.run.value_names.get(value, str(value)))


def concerns(case: Mapping[str, Any]) -> Concerned:
    """A cycle names its values in its steps, everything else in the case itself."""
    found: dict[int, list[int]] = {}
    if case["log"] != UNKNOWN:
        found[case["log"]] = list(case["values"])
    for step in case["detail"].get("steps", ()):
        if "log" in step:
            of_log = found.setdefault(step["log"], [])
            of_log += [step[name] for name in ("value", "next-value") if name in step and step[name] not in of_log]
    return found


def _step(step: Mapping[str, Any]) -> str:
    log, value, following = step.get("log"), step.get("value"), step.get("next-value")
    match step.get("type"):
        case "ww":
            return f"then: in log {log} its value {value} lies before the next one's {following}"
        case "wr":
            return f"then: the next one read its value {value} of log {log}"
        case "rt":
            return "then: it had ended before the next one began"
        case _:
            return ", ".join(f"{name} {each}" for name, each in step.items())


def _did(call: Call, concerned: Concerned) -> Iterator[str]:
    for micro_op in call.op.micro_ops:
        if isinstance(micro_op, Send):
            yield _sent(micro_op, concerned)
        elif isinstance(micro_op, Poll):
            yield _polled(micro_op, concerned)
    if call.op.logs:
        yield f"logs {', '.join(map(str, call.op.logs))}"
    if call.op.offsets:
        yield ", ".join(f"log {log} at {offset}" for log, offset in sorted(call.op.offsets.items()))


def _sent(send: Send, concerned: Concerned) -> str:
    what = f"{'tombstone ' if send.is_tombstone else ''}{send.value}"
    keyed = f" of key {send.key}" if send.key != UNKNOWN else ""
    at = f" at {send.offset}" if send.offset != UNKNOWN else ""
    told = f"send {what}{keyed} to {send.log}{at}"
    return f"<b>{told}</b>" if send.value in concerned.get(send.log, ()) else told


def _polled(poll: Poll, concerned: Concerned) -> str:
    told = []
    for log, records in sorted(poll.records.items()):
        values = concerned.get(log, ())
        wanted = {place for place, record in enumerate(records) if record.value in values}
        near = {place + step for place in wanted for step in (-1, 0, 1)} & set(range(len(records)))
        places = sorted(near or range(min(RECORDS_MAX, len(records))))
        shown = " ".join(
            f"<b>{records[place].value}@{records[place].offset}</b>"
            if place in wanted
            else f"{records[place].value}@{records[place].offset}"
            for place in places
        )
        more = f" and {len(records) - len(places)} more" if len(records) > len(places) else ""
        if records:
            told.append(f"{log}: {shown}{more}")
    return f"poll {', '.join(told) or 'nothing'}"
