"""Reference and kernels judge alike, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sexton.checker import reference
from sexton.checker.allowed import Model
from sexton.checker.kernels import whole as whole_module
from sexton.checker.kernels.judge import judge
from sexton.checker.planted import correct
from sexton.checker.sabotage import PLANS, sabotage
from sexton.checker.view import Options
from sexton.history.flat import FlatHistory, from_ops, paired, to_ops
from sexton.history.op import NEMESIS, F, Log, Op, Run
from tests.checker.test_odd_histories import about_tables, nonsense

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
        assert judge(flat, run, model, options=options, bundle_count=count).canonical() == expected.canonical()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_module, "PART_MAX", 2)  # as in a long history: each bundle knows its own calls only
        assert judge(flat, run, model, options=options, bundle_count=3).canonical() == expected.canonical()


@pytest.mark.parametrize("seed", range(5))
def test_a_correct_history(seed: int) -> None:
    history = correct(seed)
    check(flattened(history.ops), history.run)


def test_a_long_correct_history() -> None:
    history = correct(8, 4_000)
    check(flattened(history.ops), history.run)


@pytest.mark.parametrize("name", PLANS)
def test_each_anomaly(name: str) -> None:
    planted = sabotage(name, 1)
    check(flattened(planted.history.ops), planted.history.run, planted.options)


@pytest.mark.soak
@pytest.mark.parametrize("name", PLANS)
def test_each_anomaly_in_many(name: str) -> None:
    for seed in range(50):
        planted = sabotage(name, seed)
        check(flattened(planted.history.ops), planted.history.run, planted.options)


@pytest.mark.parametrize("seed", range(40))
def test_nonsense(seed: int) -> None:
    check_nonsense(seed)


@pytest.mark.soak
def test_nonsense_in_many() -> None:
    for seed in range(40, 1_000):
        check_nonsense(seed)


def check_nonsense(seed: int) -> None:
    run = Run(workload=("table", "groups")[seed % 2], logs=LOGS if seed % 5 else {})
    check(flattened(nonsense(seed)), run, model=Model.STRICT)
    run = Run(is_read_committed=bool(seed % 2), logs={log: Log("plain", log) for log in range(3)})
    check(flattened(nonsense(seed)), run, Options(ww_deps=False, patience_ms=0, evidence_max=2))


@pytest.mark.parametrize("seed", range(30))
def test_nonsense_about_tables_and_groups(seed: int) -> None:
    check_about_tables(seed)


@pytest.mark.soak
def test_nonsense_about_tables_and_groups_in_many() -> None:
    for seed in range(30, 2_000):
        check_about_tables(seed)


def check_about_tables(seed: int) -> None:
    logs = {
        0: Log("table", 0, is_compacted=True, delete_retention_ms=0, is_retained=seed % 4 == 2),
        1: Log("table", 1, is_compacted=True),
        2: Log("out", 0, eos_input=(0, 1)),
    }
    if seed % 4 == 1:
        logs = {0: Log("in", 0), 1: Log("out", 0, eos_input=(0,)), 2: Log("out", 1, eos_input=(0, 1))}
    run = Run(workload="table", logs=logs, clock_skew_ms=0, is_read_committed=seed % 5 != 0)
    check(flattened(about_tables(seed)), run, Options(evidence_max=(2, 1_000)[seed % 2]), Model.STRICT)


@pytest.mark.parametrize("name", ["stale-value", "group-skip", "eos-loss"])
def test_no_operation_of_a_client_becomes_a_python_object(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """But for those that ask brokers what they say of themselves."""
    history = sabotage(name, 1).history
    made: list[Op] = []

    def counted_to_ops(flat: FlatHistory) -> list[Op]:
        made.extend(to_ops(flat))
        return made[-len(flat.ops) :] if len(flat.ops) else []

    monkeypatch.setattr(whole_module, "to_ops", counted_to_ops)
    judge(flattened(history.ops), history.run)
    assert {(op.process, op.f) for op in made if op.process != NEMESIS and op.f != F.DEBUG} == set()
