"""Puts and tombstones to compacted logs, standing consumers, fresh tables, and scans through each replica.

Four logs are in use at a time; one is left after some thousand sends for a new one. Compaction keeps of each key the
newest record below where it has got to, and removes a tombstone at the next time. At the end each log is read.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from benchmarks.queue_history import line
from sexton.history.op import Log

PROCESSES: Final = 10
ACTIVE_LOGS: Final = 4
SENDS_PER_LOG: Final = 2_000
KEYS: Final = 50
SENDS_PER_COMPACTION: Final = 150
RECORDS_PER_POLL: Final = 8
REPLICAS: Final = 3
FACTS: Final = Log("table", 0, is_compacted=True, delete_retention_ms=0)


class _Record(NamedTuple):
    offset: int
    value: int
    key: int
    flags: int


@dataclass(slots=True)
class _Table:
    """One log, as it is read now."""

    records: list[_Record] = field(default_factory=list)
    end_offset: int = 0
    compacted_offset: int = 0

    def put(self, value: int, key: int, is_tombstone: bool) -> _Record:
        record = _Record(self.end_offset, value, key, int(is_tombstone))
        self.records.append(record)
        self.end_offset += 1
        if self.end_offset % SENDS_PER_COMPACTION == 0:
            self._compact()
        return record

    def _compact(self) -> None:
        newest = {record.key: record.offset for record in self.records}
        before = self.compacted_offset
        self.records = [
            it for it in self.records if newest[it.key] == it.offset and not (it.flags and it.offset < before)
        ]
        self.compacted_offset = self.end_offset

    def read(self, position: int, count: int) -> tuple[list[_Record], int]:
        """What comes next, and the position then."""
        some = [it for it in self.records if it.offset >= position][:count]
        return some, some[-1].offset + 1 if len(some) == count else self.end_offset


def lines(rng: random.Random, op_count: int, logs: dict[int, Log]) -> Iterator[tuple[str, int]]:
    return _World(rng, logs).live(op_count)


class _World:
    def __init__(self, rng: random.Random, logs: dict[int, Log]) -> None:
        self._rng = rng
        self._facts = logs
        self._index = 0
        self._value = 0
        self._active: list[int] = []
        self._tables: dict[int, _Table] = {}
        for _ in range(ACTIVE_LOGS):
            self._begin_log(len(self._active))
        self._standing: dict[int, tuple[int, int]] = {}
        """By process, the log that it reads and its position."""

    def _begin_log(self, place: int) -> None:
        log = len(self._facts)
        self._facts[log] = FACTS
        self._tables[log] = _Table()
        self._active[place : place + 1] = [log]

    def live(self, op_count: int) -> Iterator[tuple[str, int]]:
        yield self._probe(1), 0
        asked: dict[int, str] = {}
        for _ in range(op_count):
            process = self._rng.randrange(PROCESSES)
            text, records = "", 0
            if process in asked:
                text, records = self._complete(process, asked.pop(process))
            asked[process] = self._ask(process)
            yield text + self._line(process, "invoke", asked[process], "[]"), records
        for process, f in asked.items():
            yield self._complete(process, f)
        for log in sorted(self._tables):
            begun = self._line(PROCESSES, "invoke", "table", "[]")
            text, records = self._table(PROCESSES, "table", log)
            yield begun + text, records
        yield self._probe(2), 0

    def _probe(self, epoch: int) -> str:
        ext = f',"ext":{{"leader-epochs":{{"0":{epoch}}}}}'
        name = "debug-topic-partitions"
        return self._line(PROCESSES, "invoke", name, "[]") + self._line(PROCESSES, "ok", name, "[]", ext)

    def _ask(self, process: int) -> str:
        if process < PROCESSES // 2:
            return "send"
        log, _ = self._standing.get(process, (-1, 0))
        if log not in self._active and self._is_at_end(process):
            return "assign"
        draw = self._rng.random()
        return "poll" if draw < 0.94 else "table" if draw < 0.97 else "scan"

    def _is_at_end(self, process: int) -> bool:
        log, position = self._standing.get(process, (-1, 0))
        return log < 0 or position >= self._tables[log].end_offset

    def _complete(self, process: int, f: str) -> tuple[str, int]:
        if f == "send":
            return self._send(process)
        if f == "assign":
            log = self._rng.choice(self._active)
            self._standing[process] = (log, 0)
            return self._line(process, "ok", f, f"[{log}]", ',"ext":{"seek-to-beginning":true}'), 0
        if f != "poll":
            return self._table(process, f, self._rng.choice(self._active))
        log, start = self._standing[process]
        some, end = self._tables[log].read(start, RECORDS_PER_POLL)
        self._standing[process] = (log, end)
        return self._polled(process, f, log, some, (start, end))

    def _send(self, process: int) -> tuple[str, int]:
        log = self._rng.choice(self._active)
        self._value += 1
        key = min(int(self._rng.expovariate(0.1)), KEYS - 1)
        record = self._tables[log].put(self._value, key, self._rng.random() < 0.2)
        if self._tables[log].end_offset >= SENDS_PER_LOG:
            self._begin_log(self._active.index(log))
        text = f'[["send",{log},{list(record)}]]'.replace(" ", "")
        return self._line(process, "ok", "send", text), 1

    def _table(self, process: int, f: str, log: int) -> tuple[str, int]:
        table = self._tables[log]
        more = f',"ext":{{"replica":{self._rng.randrange(REPLICAS)}}}' if f == "scan" else ""
        return self._polled(process, f, log, table.records, (0, table.end_offset), more)

    def _polled(
        self, process: int, f: str, log: int, some: list[_Record], span: tuple[int, int], more: str = ""
    ) -> tuple[str, int]:
        text = f'[["poll",{{"{log}":{[list(it) for it in some]}}}]]'.replace(" ", "") if some else '[["poll"]]'
        return self._line(process, "ok", f, text, f',"spans":{{"{log}":[{span[0]},{span[1]}]}}{more}'), len(some)

    def _line(self, process: int, type_: str, f: str, value: str, more: str = "") -> str:
        self._index += 1
        return line(self._index - 1, process, type_, f, value, more)
