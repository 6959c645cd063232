"""Histories in few words, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sexton.checker.evidence import Finding
from sexton.checker.reference import findings, judge
from sexton.checker.verdict import Judgement
from sexton.checker.view import Options, prepare
from sexton.history.op import NEMESIS, UNKNOWN, F, Log, MicroOp, Op, Poll, Record, Run, Send, Span, Type

SECOND_NS = 1_000_000_000

PLAIN = Log("plain", 0)
TABLE = Log("table", 0, is_compacted=True, delete_retention_ms=60_000)


def send(log: int, value: int, offset: int = UNKNOWN, key: int = UNKNOWN) -> Send:
    return Send(log, value, offset, key)


def delete(log: int, value: int, offset: int, key: int) -> Send:
    return Send(log, value, offset, key, is_tombstone=True)


def poll(log: int, *records: Sequence[Any]) -> Poll:
    """Records as (offset, value[, key[, is_tombstone]])."""
    return Poll({log: [Record(*record) for record in records]})


@dataclass
class Story:
    """Each operation takes a second, unless it is begun and ended by hand."""

    run: Run = field(default_factory=Run)
    options: Options = field(default_factory=Options)
    ops: list[Op] = field(default_factory=list)
    now_ns: int = 0

    def begin(self, process: int, f: str, *micro_ops: MicroOp, **more: Any) -> None:
        asked = tuple(
            Poll() if isinstance(micro_op, Poll) else micro_op._replace(offset=UNKNOWN) for micro_op in micro_ops
        )
        self._add(process, Type.INVOKE, f, asked, {"logs": more.get("logs", ())})

    def end(self, process: int, f: str, *micro_ops: MicroOp, type: Type = Type.OK, **more: Any) -> int:
        return self._add(process, type, f, micro_ops, more)

    def call(self, process: int, f: str, *micro_ops: MicroOp, type: Type = Type.OK, **more: Any) -> int:
        self.begin(process, f, *micro_ops, **more)
        return self.end(process, f, *micro_ops, type=type, **more)

    def sent(self, process: int, *sends: Send, type: Type = Type.OK) -> int:
        return self.call(process, F.SEND if len(sends) == 1 else F.TXN, *sends, type=type)

    def polled(self, process: int, *polls: Poll, type: Type = Type.OK, **more: Any) -> int:
        return self.call(process, F.POLL, *polls, type=type, **more)

    def read(self, process: int, span: tuple[int, int], *records: Sequence[Any], log: int = 0, **more: Any) -> int:
        """A poll that tells its positions."""
        return self.call(process, F.POLL, poll(log, *records), spans={log: Span(*span)}, **more)

    def table(self, process: int, end: int, *records: Sequence[Any], f: str = F.TABLE, **more: Any) -> int:
        return self.call(process, f, poll(0, *records), spans={0: Span(0, end)}, **more)

    def nemesis(self, f: str, **ext: Any) -> None:
        self._add(NEMESIS, Type.INFO, f, (), {"ext": ext})

    def wait(self, seconds: int) -> None:
        self.now_ns += seconds * SECOND_NS

    def findings(self) -> Mapping[str, Finding]:
        return {found.name: found for found in findings(prepare(self.ops, self.run, self.options))}

    def judge(self, **more: Any) -> Judgement:
        return judge(self.ops, self.run, options=self.options, **more)

    def count(self, name: str) -> int:
        found = self.findings()
        return found[name].count if name in found else 0

    def wrong(self) -> set[str]:
        """What the model called kafka does not allow."""
        return set(self.judge().wrong())

    def _add(self, process: int, type: Type, f: str, micro_ops: Sequence[MicroOp], more: Mapping[str, Any]) -> int:
        self.now_ns += SECOND_NS // 2
        self.ops.append(Op(len(self.ops), self.now_ns, process, type, f, tuple(micro_ops), **more))
        return len(self.ops) - 1


def table_story(**more: Any) -> Story:
    """Log 0 is compacted; tombstones are kept for a minute."""
    return Story(Run(workload="table", logs={0: Log("table", 0, is_compacted=True, **more)}))
