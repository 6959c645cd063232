"""Exactly-once copies: producers send to input logs, and members of a group copy them to output logs, each transaction
with the offsets that it has got to; some are aborted.

Two inputs are in use at a time, each with an output; a pair is left after a thousand sends for a new one, and copied to
its end. At the end one consumer reads all outputs.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Final

from benchmarks.queue_history import line
from sexton.history.op import Log

PROCESSES: Final = 10
ACTIVE_PAIRS: Final = 2
SENDS_PER_LOG: Final = 1_000
RECORDS_PER_COPY: Final = 4
RECORDS_PER_POLL: Final = 8


def lines(rng: random.Random, op_count: int, logs: dict[int, Log]) -> Iterator[tuple[str, int]]:
    return _World(rng, logs).live(op_count)


class _World:
    def __init__(self, rng: random.Random, logs: dict[int, Log]) -> None:
        self._rng = rng
        self._facts = logs
        self._index = 0
        self._value = 0
        self._inputs: list[list[int]] = []
        """By pair, values: there are no markers, so offsets are places."""
        self._outputs: list[list[tuple[int, int, int]]] = []
        """By pair: offset, value, input's value. Each transaction leaves a marker behind."""
        self._ends: list[int] = []
        self._copied: list[int] = []
        self._active: list[int] = []
        for place in range(ACTIVE_PAIRS):
            self._begin_pair(place)

    def _begin_pair(self, place: int) -> None:
        pair = len(self._inputs)
        self._facts[2 * pair] = Log("input", pair)
        self._facts[2 * pair + 1] = Log("output", pair, eos_input=(2 * pair,))
        self._inputs.append([])
        self._outputs.append([])
        self._ends.append(0)
        self._copied.append(0)
        self._active[place : place + 1] = [pair]

    def live(self, op_count: int) -> Iterator[tuple[str, int]]:
        asked: dict[int, tuple[str, int]] = {}
        for _ in range(op_count):
            process = self._rng.randrange(PROCESSES)
            text, records = "", 0
            if process in asked:
                text, records = self._complete(process, *asked.pop(process))
            asked[process] = self._ask(process)
            f = asked[process][0]
            yield text + self._line(process, "invoke", f, "{}" if f == "committed" else "[]"), records
        for process, (f, pair) in asked.items():
            yield self._complete(process, f, pair)
        yield from self._final_reads()

    def _ask(self, process: int) -> tuple[str, int]:
        """A pair has one copier at a time, as a group's member has its partitions."""
        if process >= ACTIVE_PAIRS:
            return "send", 0
        return ("committed" if self._rng.random() < 0.05 else "eos"), self._active[process]

    def _complete(self, process: int, f: str, pair: int) -> tuple[str, int]:
        if f == "send":
            return self._send(process)
        if f == "committed":
            ext = ',"ext":{"group":"copiers"}'
            return self._line(process, "ok", f, f'{{"{2 * pair}":{self._copied[pair]}}}', ext), 0
        return self._copy(process, pair, self._rng.random() < 0.05)

    def _send(self, process: int) -> tuple[str, int]:
        place = self._rng.randrange(ACTIVE_PAIRS)
        pair = self._active[place]
        self._value += 1
        self._inputs[pair].append(self._value)
        return self._line(
            process, "ok", "send", f'[["send",{2 * pair},[{len(self._inputs[pair]) - 1},{self._value}]]]'
        ), 1

    def _copy(self, process: int, pair: int, fails: bool) -> tuple[str, int]:
        start = self._copied[pair]
        some = self._inputs[pair][start : start + RECORDS_PER_COPY]
        end = start + len(some)
        polled = [[start + place, value] for place, value in enumerate(some)]
        text = f'["poll",{{"{2 * pair}":{polled}}}]'.replace(" ", "") if some else '["poll"]'
        sent = [(self._ends[pair] + place, self._value + place + 1, value) for place, value in enumerate(some)]
        self._value += len(some)
        self._ends[pair] += len(some) + 1
        for offset, value, key in sent:
            text += f',["send",{2 * pair + 1},[{offset},{value},{key},0]]'
        spans = f',"spans":{{"{2 * pair}":[{start},{end}]}}'
        if fails:
            return self._line(process, "fail", "eos", f"[{text}]", spans + ',"ext":{"group":"copiers"}'), 2 * len(some)
        self._copied[pair] = end
        self._outputs[pair] += sent
        if end >= SENDS_PER_LOG and pair in self._active:
            self._begin_pair(self._active.index(pair))
        ext = f',"ext":{{"group":"copiers","generation":1,"offsets":{{"{2 * pair}":{end}}}}}'
        return self._line(process, "ok", "eos", f"[{text}]", spans + ext), 2 * len(some)

    def _final_reads(self) -> Iterator[tuple[str, int]]:
        for pair in range(len(self._inputs)):
            while self._copied[pair] < len(self._inputs[pair]):
                begun = self._line(0, "invoke", "eos", "[]")
                text, records = self._copy(0, pair, fails=False)
                yield begun + text, records
        process = PROCESSES
        for pair, made in enumerate(self._outputs):
            position = 0
            log = 2 * pair + 1
            begun = self._line(process, "invoke", "assign", f"[{log}]")
            yield begun + self._line(process, "ok", "assign", f"[{log}]"), 0
            for first in range(0, len(made), RECORDS_PER_POLL):
                some = [[*record, 0] for record in made[first : first + RECORDS_PER_POLL]]
                begun = self._line(process, "invoke", "poll", '[["poll"]]')
                text = f'[["poll",{{"{log}":{some}}}]]'.replace(" ", "")
                moved = f',"spans":{{"{log}":[{position},{some[-1][0] + 1}]}}'
                position = some[-1][0] + 1
                yield begun + self._line(process, "ok", "poll", text, moved), len(some)

    def _line(self, process: int, type_: str, f: str, value: str, more: str = "") -> str:
        self._index += 1
        return line(self._index - 1, process, type_, f, value, more)
