"""Histories that make no sense: whatever is in them, the judge comes to an end, and to the same one in any order."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from sexton.checker.allowed import Model
from sexton.checker.reference import judge
from sexton.history.op import NEMESIS, UNKNOWN, Ext, F, Log, MicroOp, Op, Poll, Record, Run, Send, Span, Type


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
