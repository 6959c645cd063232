"""Reference and kernels judge alike, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest

from sexton.checker import reference
from sexton.checker.allowed import Model
from sexton.checker.kernels.bundle import Bundle
from sexton.checker.kernels.judge import conclude, counted, judge, question_of
from sexton.checker.kernels.part import part
from sexton.checker.kernels.whole import group_logs, whole_of
from sexton.checker.planted import correct
from sexton.checker.sabotage import PLANS, sabotage
from sexton.checker.verdict import Judgement
from sexton.checker.view import Options
from sexton.history.flat import FlatHistory, from_ops, paired, to_ops
from sexton.history.op import Log, Op, Run
from tests.checker.test_odd_histories import nonsense

LOGS = {
    0: Log("plain", 0),
    1: Log("table", 0, is_compacted=True, delete_retention_ms=0),
    2: Log("out", 0, eos_input=(0,)),
    3: Log("both", 0, is_compacted=True, is_retained=True),
}


def flattened(ops: Iterable[Op]) -> FlatHistory:
    return paired(from_ops(ops))


def check(flat: FlatHistory, run: Run, options: Options | None = None, model: Model = Model.KAFKA) -> None:
    expected = reference.judge(to_ops(flat), run, model, options=options)
    found = judge(flat, run, model, options=options)
    for finding, other in zip(expected.findings, found.findings, strict=False):
        assert finding == other
    assert found.canonical() == expected.canonical()
    for count in (2, 5):
        assert in_bundles(flat, run, options, model, count).canonical() == expected.canonical()


def in_bundles(flat: FlatHistory, run: Run, options: Options | None, model: Model, count: int) -> Judgement:
    """By the same steps as on Spark."""
    whole = whole_of(flat, run, options or Options(), group_logs(flat))
    rows = [
        (flat.mops[flat.mops["log"] % count == bundle], flat.spans[flat.spans["log"] % count == bundle])
        for bundle in reversed(range(count))
    ]
    whole = counted(whole, [Bundle(whole, *some).census() for some in rows])
    bundles = [Bundle(whole, *some, whole.is_read) for some in rows]
    outcomes = [bundle.judge() for bundle in bundles]
    question = question_of(outcomes)
    answers = [bundle.answer(question) for bundle in bundles] if question is not None else []
    logs = sorted(whole.special)
    mops, spans = (rows[np.isin(rows["log"], logs)] for rows in (flat.mops, flat.spans))
    return conclude(flat, whole, outcomes, answers, part(flat, mops, spans, whole), model)


@pytest.mark.parametrize("seed", range(5))
def test_a_correct_history(seed: int) -> None:
    history = correct(seed)
    check(flattened(history.ops), history.run)


def test_a_long_correct_history() -> None:
    history = correct(8, 4_000)
    check(flattened(history.ops), history.run)


@pytest.mark.parametrize("name", PLANS)
def test_each_anomaly(name: str) -> None:
    for seed in range(2):
        planted = sabotage(name, seed)
        check(flattened(planted.history.ops), planted.history.run, planted.options)


@pytest.mark.soak
@pytest.mark.parametrize("name", PLANS)
def test_each_anomaly_in_many(name: str) -> None:
    for seed in range(50):
        planted = sabotage(name, seed)
        check(flattened(planted.history.ops), planted.history.run, planted.options)


@pytest.mark.parametrize("seed", range(150))
def test_nonsense(seed: int) -> None:
    run = Run(workload=("table", "groups")[seed % 2], logs=LOGS if seed % 5 else {})
    check(flattened(nonsense(seed)), run, model=Model.STRICT)
    run = Run(is_read_committed=bool(seed % 2), logs={log: Log("plain", log) for log in range(3)})
    check(flattened(nonsense(seed)), run, Options(ww_deps=False, patience_ms=0, evidence_max=2))
