"""Transactions of sends and polls, as in Jepsen's queue.

Ten logs are in use at a time; one is left after a thousand sends for a new one. At the end one consumer reads all.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from sexton.history.op import Log

PROCESSES: Final = 10
ACTIVE_LOGS: Final = 10
LOGS_PER_PROCESS: Final = 2
SENDS_PER_LOG: Final = 1_000
RECORDS_PER_POLL: Final = 8


def lines(rng: random.Random, op_count: int, logs: dict[int, Log]) -> Iterator[tuple[str, int]]:
    return _World(rng).live(op_count)


class _World:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._index = 0
        self._logs: list[list[tuple[int, int]]] = [[] for _ in range(ACTIVE_LOGS)]
        """By log, offsets and values: each transaction leaves a marker behind."""
        self._ends = [0] * ACTIVE_LOGS
        self._active = list(range(ACTIVE_LOGS))
        self._assigned: list[list[int]] = [[] for _ in range(PROCESSES)]
        self._places: list[dict[int, int]] = [{} for _ in range(PROCESSES)]
        self._value = 0

    def live(self, op_count: int) -> Iterator[tuple[str, int]]:
        """Each process does one operation after the other; whose turn it is to complete, and to begin, is drawn."""
        asked: dict[int, str] = {}
        for _ in range(op_count):
            process = self._rng.randrange(PROCESSES)
            lines, records = "", 0
            if process in asked:
                lines, records = self._complete(process, asked.pop(process))
            asked[process] = self._ask(process)
            yield lines + self._line(process, "invoke", asked[process], "[]"), records
        for process, f in asked.items():
            yield self._complete(process, f)
        yield from self._final_reads()

    def _ask(self, process: int) -> str:
        return "txn" if self._assigned[process] == self._logs_of(process) else "assign"

    def _logs_of(self, process: int) -> list[int]:
        return [self._active[(process + place) % ACTIVE_LOGS] for place in range(LOGS_PER_PROCESS)]

    def _complete(self, process: int, f: str) -> tuple[str, int]:
        if f == "assign":
            logs = self._assigned[process] = self._logs_of(process)
            places = self._places[process]
            self._places[process] = {log: places.get(log, 0) for log in logs}
            return self._line(process, "ok", f, str(logs)), 0
        done, records = [], 0
        spans: dict[int, tuple[int, int]] = {}
        sent: list[tuple[int, int, int]] = []
        fails = self._rng.random() < 0.05
        for _ in range(self._rng.randrange(1, 3)):
            if self._rng.random() < 0.75:
                log = self._rng.choice(self._active)
                self._value += 1
                sent.append((log, self._ends[log], self._value))
                done.append(f'["send",{log},[{self._ends[log]},{self._value}]]')
                self._ends[log] += 1
                records += 1
            elif not spans and not fails:
                text, spans, count = self._poll(self._places[process], self._assigned[process])
                done.append(text)
                records += count
        for log, offset, value in [] if fails else sent:
            self._logs[log].append((offset, value))
        for log in {log for log, _, _ in sent}:
            self._ends[log] += 1
            if len(self._logs[log]) >= SENDS_PER_LOG and log in self._active:
                self._active[self._active.index(log)] = len(self._logs)
                self._logs.append([])
                self._ends.append(0)
        moved = ",".join(f'"{log}":[{start},{end}]' for log, (start, end) in spans.items())
        more = f',"spans":{{{moved}}}' if spans else ""
        return self._line(process, "fail" if fails else "ok", f, f"[{','.join(done)}]", more), records

    def _poll(self, places: dict[int, int], logs: list[int]) -> tuple[str, dict[int, tuple[int, int]], int]:
        """Of each log at most some; `places` are numbers of records."""
        found, spans, count = [], {}, 0
        for log in logs:
            log_records, place = self._logs[log], places[log]
            some = log_records[place : place + RECORDS_PER_POLL]
            if some:
                found.append(f'"{log}":{[list(record) for record in some]}'.replace(" ", ""))
                spans[log] = (some[0][0], some[-1][0] + 1)
                places[log] = place + len(some)
                count += len(some)
        return f'["poll",{{{",".join(found)}}}]', spans, count

    def _final_reads(self) -> Iterator[tuple[str, int]]:
        process = PROCESSES
        for first in range(0, len(self._logs), ACTIVE_LOGS):
            logs = list(range(first, min(first + ACTIVE_LOGS, len(self._logs))))
            begun = self._line(process, "invoke", "assign", str(logs))
            yield begun + self._line(process, "ok", "assign", str(logs)), 0
            places = dict.fromkeys(logs, 0)
            while any(places[log] < len(self._logs[log]) for log in logs):
                begun = self._line(process, "invoke", "poll", '[["poll"]]')
                text, spans, count = self._poll(places, logs)
                moved = ",".join(f'"{log}":[{start},{end}]' for log, (start, end) in spans.items())
                yield begun + self._line(process, "ok", "poll", f"[{text}]", f',"spans":{{{moved}}}'), count

    def _line(self, process: int, type_: str, f: str, value: str, more: str = "") -> str:
        self._index += 1
        return line(self._index - 1, process, type_, f, value, more)


def line(index: int, process: int, type_: str, f: str, value: str, more: str = "") -> str:
    when = f'"index":{index},"time":{index * 1000},"process":{process}'
    return f'{{{when},"type":"{type_}","f":"{f}","value":{value}{more}}}\n'
