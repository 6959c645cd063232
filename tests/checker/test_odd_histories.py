"""Histories that make no sense: whatever is in them, the judge comes to an end, and to the same one in any order."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sexton.checker.allowed import Model
from sexton.checker.reference import judge
from sexton.history.op import (
    NAMES_OFFSETS,
    NEMESIS,
    UNKNOWN,
    Ext,
    F,
    Log,
    MicroOp,
    Op,
    Poll,
    Record,
    Run,
    Send,
    Span,
    Type,
)


def _micro_ops(rng: random.Random) -> tuple[MicroOp, ...]:
    found: list[MicroOp] = []
    for _ in range(rng.randrange(4)):
        if rng.random() < 0.5:
            found.append(
                Send(rng.randrange(-3, 4), _value(rng), _offset(rng), rng.randrange(-1, 3), rng.random() < 0.3)
            )
        else:
            count = rng.randrange(4)
            records = [
                Record(_offset(rng), _value(rng), rng.randrange(-1, 3), rng.random() < 0.3) for _ in range(count)
            ]
            found.append(Poll({rng.randrange(-3, 4): records}))
    return tuple(found)


def _value(rng: random.Random) -> int:
    return rng.choice((rng.randrange(12), rng.randrange(-9, -1)))


def _offset(rng: random.Random) -> int:
    return rng.randrange(-1, 8)


def nonsense(seed: int) -> list[Op]:
    rng = random.Random(seed)
    ops = []
    for index in range(rng.randrange(60)):
        span = Span(rng.randrange(6), rng.randrange(9))
        ext: dict[str, Any] = {
            Ext.GROUP: "g",
            Ext.GENERATION: rng.randrange(3),
            Ext.REPLICA: rng.randrange(3),
            Ext.HIGH_WATERMARKS: {"0": rng.randrange(9)},
            Ext.LOG_STARTS: {"3": rng.randrange(9)},
            Ext.SEEK_TO_BEGINNING: rng.random() < 0.5,
        }
        ops.append(
            Op(
                index,
                rng.choice((index, UNKNOWN)) if seed % 3 == 0 else index,
                rng.choice((0, 1, 2, 3, UNKNOWN, NEMESIS)),
                rng.choice(list(Type)),
                rng.choice([*F, "something-else"]),
                _micro_ops(rng),
                logs=tuple(rng.sample(range(4), 2)),
                offsets={0: _offset(rng)} if rng.random() < 0.5 else {},
                spans={rng.randrange(4): span},
                rebalanced=frozenset(rng.sample(range(4), rng.randrange(2))),
                ext=ext if rng.random() < 0.5 else {},
            )
        )
    return ops


def about_tables(seed: int) -> list[Op]:
    """As `nonsense`, but with what tables and groups are judged by, again and again: two logs, three keys, passes that
    go on, back and over gaps, commits that go up and down."""
    rng = random.Random(seed)
    open_: dict[int, F] = {}
    positions: dict[tuple[int, int], int] = {}
    fs = (F.TABLE, F.SCAN, F.POLL, F.POLL, F.POLL, F.TXN, F.EOS, F.SEND, F.SEND, F.COMMIT, F.COMMITTED, F.ASSIGN)
    ops = []
    for index in range(rng.randrange(150)):
        process = rng.randrange(4)
        f = open_.pop(process, None)
        if f is None:
            open_[process] = f = rng.choice((*fs, F.SUBSCRIBE, F.DELETE_RECORDS) if seed % 7 == 0 else fs)
            ops.append(Op(index, index * 10, process, Type.INVOKE, f))
            continue
        log = rng.randrange(2)
        ops.append(
            Op(
                index,
                index * 10,
                process if rng.random() < 0.99 else UNKNOWN,
                rng.choice((Type.OK,) * 8 + (Type.INFO, Type.FAIL)),
                f,
                _moved(rng, f, log),
                logs=tuple(rng.sample(range(2), rng.randrange(3))),
                offsets={log: rng.randrange(-1, 12)} if f in NAMES_OFFSETS else {},
                spans={log: _next_span(rng, f, positions, process, log)} if f in _POLLS and rng.random() < 0.9 else {},
                rebalanced=frozenset({log}) if rng.random() < 0.03 else frozenset(),
                ext=_grouped(rng, f),
            )
        )
    return ops


_POLLS = (F.TABLE, F.SCAN, F.POLL, F.TXN, F.EOS)


def _moved(rng: random.Random, f: F, log: int) -> tuple[MicroOp, ...]:
    """Mostly the same value at the same offset, of the same key."""
    found: list[MicroOp] = []
    if f in (F.SEND, F.TXN, F.EOS):
        for _ in range(rng.randrange(3)):
            offset = rng.randrange(-1, 12)
            value = offset if offset >= 0 and rng.random() < 0.9 else rng.randrange(12)
            found.append(Send(rng.choice((log, log, 2)), value, offset, value % 3, value % 4 == 3))
    if f in _POLLS:
        values = sorted(rng.sample(range(12), rng.randrange(8)))
        if rng.random() < 0.1:
            rng.shuffle(values)
        offsets = [value if rng.random() < 0.97 else rng.randrange(-1, 12) for value in values]
        records = [Record(at, value, value % 3, value % 4 == 3) for at, value in zip(offsets, values, strict=True)]
        found.append(Poll({log: records} if records else {}))
    return tuple(found)


def _next_span(rng: random.Random, f: F, positions: dict[tuple[int, int], int], process: int, log: int) -> Span:
    if f in (F.TABLE, F.SCAN):
        return Span(0, rng.randrange(13))
    start = positions.get((process, log), 0) + rng.choice((0, 0, 0, 0, -2, 2))
    start = max(0, start) if start < 12 else 0
    end = start + rng.randrange(5)
    positions[process, log] = end
    return Span(start, end)


def _grouped(rng: random.Random, f: F) -> dict[str, Any]:
    ext: dict[str, Any] = {}
    if rng.random() < 0.8:
        ext[Ext.GROUP] = rng.choice(("g", "g", "h\u00e9", "\\"))
    if rng.random() < 0.5:
        ext[Ext.GENERATION] = rng.randrange(-1, 4)
    if rng.random() < 0.01:
        ext[Ext.RESET] = rng.choice((True, False, 1, None))
    if f in (F.TXN, F.EOS) and rng.random() < 0.7:
        ext[Ext.OFFSETS] = {str(log): rng.randrange(-1, 12) for log in rng.sample(range(4), rng.randrange(3))}
    if f is F.SCAN or rng.random() < 0.1:
        ext[Ext.REPLICA] = rng.randrange(3)
    if f is F.ASSIGN and rng.random() < 0.5:
        ext[Ext.SEEK_TO_BEGINNING] = rng.random() < 0.7
    if rng.random() < 0.3:
        ext["more"] = rng.choice(([1, {"a": []}], {}, "text", -1.5e3, None, True))
    return ext


@pytest.mark.parametrize("seed", range(150))
def test_nonsense_is_judged(seed: int) -> None:
    logs = {
        0: Log("plain", 0),
        1: Log("table", 0, is_compacted=True, delete_retention_ms=0),
        2: Log("out", 0, eos_input=(0,)),
        3: Log("both", 0, is_compacted=True, is_retained=True),
    }
    ops = nonsense(seed)
    judgement = judge(ops, Run(workload="table", logs=logs), Model.STRICT)
    json.loads(judgement.canonical())
    shuffled = random.Random(seed).sample(ops, len(ops))
    assert judge(shuffled, Run(workload="table", logs=logs), Model.STRICT).canonical() == judgement.canonical()
