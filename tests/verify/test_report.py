"""The page of a run, from planted histories, and as Chromium shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sexton.checker.planted import correct
from sexton.checker.reference import judge
from sexton.checker.sabotage import PLANS, sabotage
from sexton.checker.view import prepare
from sexton.cli import verify
from sexton.errors import SextonError
from sexton.history import run as description
from sexton.history.lines import to_line
from sexton.history.op import HEAL, NEMESIS, Ext, F, Op, Poll, Record, Run, Type
from sexton.history.run import Description
from sexton.verify import run as verifying
from sexton.verify.report import page, plots
from sexton.verify.report.bars import Bar, bars
from sexton.verify.report.broker_logs import BrokerLogs
from sexton.verify.report.evidence import Evidence
from tests.verify.browser import look

SECOND_NS = 1_000_000_000


def act(seconds: int, type_: Type, f: str, phase: str = "", hit: Sequence[int] = ()) -> Op:
    ext = {Ext.PHASE: phase, "value": list(hit)} if phase else {"value": list(hit)}
    return Op(seconds, seconds * SECOND_NS, NEMESIS, type_, f, ext=ext)


def written(directory: Path, ops: Sequence[Op], run: Run) -> Path:
    """As a run that was killed leaves it."""
    directory.mkdir()
    (directory / "history.jsonl").write_bytes(b"".join(to_line(op) for op in ops))
    description.write(directory, Description(run, {"seed": 7, "system": "planted"}))
    return directory


def test_a_fault_is_in_force_from_its_request_until_it_is_known_to_be_over() -> None:
    nemesis = [
        act(1, Type.INVOKE, "kill", "start"),
        act(2, Type.INFO, "kill", "start", [1, 3]),
        act(5, Type.INVOKE, "kill", "stop"),
        act(6, Type.INFO, "kill", "stop", [1, 3]),
    ]
    assert bars(nemesis, 9 * SECOND_NS) == [Bar("kill", SECOND_NS, 6 * SECOND_NS, "1 3")]


def test_healing_ends_every_fault_and_the_end_of_the_history_what_was_never_healed() -> None:
    begun = [act(1, Type.INFO, "kill", "start", [1]), act(2, Type.INFO, "pause", "start", [2])]
    assert [bar.end_ns for bar in bars(begun, 9 * SECOND_NS)] == [9 * SECOND_NS] * 2
    healed = [*begun, act(4, Type.INFO, HEAL)]
    assert [bar.end_ns for bar in bars(healed, 9 * SECOND_NS)] == [4 * SECOND_NS] * 2


def test_a_fault_that_hit_nobody_has_no_bar() -> None:
    assert bars([act(1, Type.INVOKE, "kill", "start"), act(2, Type.INFO, "kill")], 9 * SECOND_NS) == []


def test_thinning_keeps_the_lowest_and_the_highest_of_every_column() -> None:
    rng = np.random.default_rng(1)
    points = [(float(time), float(value)) for time, value in zip(range(10_000), rng.random(10_000), strict=True)]
    points[1234] = (1234.0, 99.0)
    points[5678] = (5678.0, -99.0)
    times, values = plots.thinned(points, 10_000.0, columns=100)
    assert len(times) == 200
    assert (1234.0, 99.0) in zip(times, values, strict=True)
    assert (5678.0, -99.0) in zip(times, values, strict=True)
    assert list(times) == sorted(times)


@pytest.mark.parametrize("name", PLANS)
def test_every_anomaly_shows_the_operations_that_prove_it(name: str) -> None:
    planted = sabotage(name, 1)
    view = prepare(planted.history.ops, planted.history.run, planted.options)
    judgement = judge(planted.history.ops, planted.history.run, options=planted.options)
    found = next(each for each in judgement.findings if each.name == name)
    evidence = Evidence.of(view, bars(view.nemesis, view.end_ns))
    for case in found.cases:
        shown = evidence.html(case.to_json())
        for index in case.ops:
            assert f'<tr class="named"><td>{index}</td>' in shown
        assert "in force: " in shown or not case.ops


def test_whoever_was_read_from_is_told_as_far_as_it_is_known() -> None:
    """Brokers are asked once a second, so an operation between two looks may have been served by either leader."""
    ops = [
        Op(0, 0, 9, Type.INVOKE, F.DEBUG),
        Op(1, 1, 9, Type.OK, F.DEBUG, ext={Ext.LEADERS: {"0": 2}}),
        Op(2, 2, 0, Type.INVOKE, F.POLL, (Poll(),)),
        Op(3, 3, 0, Type.OK, F.POLL, (Poll({0: [Record(0, 7)]}),)),
        Op(4, 4, 9, Type.INVOKE, F.DEBUG),
        Op(5, 5, 9, Type.OK, F.DEBUG, ext={Ext.LEADERS: {"0": 2}}),
        Op(6, 6, 0, Type.INVOKE, F.POLL, (Poll(),)),
        Op(7, 7, 0, Type.OK, F.POLL, (Poll({0: [Record(0, 7)]}),)),
        Op(8, 8, 9, Type.INVOKE, F.DEBUG),
        Op(9, 9, 9, Type.OK, F.DEBUG, ext={Ext.LEADERS: {"0": 3}}),
        Op(10, 10, 0, Type.INVOKE, F.SCAN, (Poll(),), ext={Ext.REPLICA: 1}),
        Op(11, 11, 0, Type.OK, F.SCAN, (Poll({0: [Record(0, 7)]}),), ext={Ext.REPLICA: 1}),
    ]
    evidence = Evidence.of(prepare(ops, Run()), [])
    case = {"log": 0, "values": [7], "detail": {}}
    assert "log 0 was led by broker 2<" in evidence.html({**case, "ops": [3]})
    assert "log 0 was led by broker 2, then 3<" in evidence.html({**case, "ops": [7]})
    assert "through broker 1<" in evidence.html({**case, "ops": [11]})


def test_what_brokers_logged_then_is_beside_the_evidence(tmp_path: Path) -> None:
    """In the words of both systems; of many lines those that warn or are about the log."""
    began_ms = round(datetime(2026, 11, 19, 1, 0, tzinfo=UTC).timestamp() * 1_000)
    for name, file, lines in (
        (
            "node-1",
            "broker.log",
            ["2026-11-19T01:00:03.000Z INFO    long before", "2026-11-19T01:00:09.700Z INFO    <then>"],
        ),
        (
            "node-2",
            "server.log",
            [f"[{datetime.fromtimestamp(began_ms / 1_000 + 11):%Y-%m-%d %H:%M:%S},000] WARN [k] as well"],
        ),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("\n".join(["no time yet", *lines, "  at a place"]))
    logs = BrokerLogs.of(tmp_path, began_ms)
    told = logs.html(10 * SECOND_NS, 11 * SECOND_NS, [])
    assert "node-1  2026-11-19T01:00:09.700Z INFO    &lt;then&gt;" in told
    assert "WARN [k] as well\nnode-2    at a place" in told
    assert "long before" not in told
    assert "no time yet" not in told
    assert logs.html(100 * SECOND_NS, 101 * SECOND_NS, []) == ""
    assert BrokerLogs.of(tmp_path, 0).html(0, 20 * SECOND_NS, []) == "", "of a run that does not say when it began"

    many = [f"2026-11-19T01:00:10.{number:03}Z INFO    about {('others', 't1')[number % 2]}" for number in range(200)]
    (tmp_path / "node-1" / "broker.log").write_text("\n".join(many))
    told = BrokerLogs.of(tmp_path, began_ms).html(10 * SECOND_NS, 10 * SECOND_NS, ["t1"])
    assert "40 of 200 lines" in told
    assert "others" not in told


def test_the_page_of_a_broken_run_in_a_browser(tmp_path: Path) -> None:
    planted = sabotage("lost-write", 1).history
    directory = written(tmp_path / "run", planted.ops, planted.run)
    assert CliRunner().invoke(verify.app, ["check", str(directory)]).exit_code == 1
    made = CliRunner().invoke(verify.app, ["report", str(directory)])
    assert made.exit_code == 0, made.output

    seen = look(directory / page.NAME, tmp_path)
    assert "Something happened that the model kafka does not allow" in seen["text"]
    assert seen["fetched"] == []
    assert seen["dead_links"] == []
    assert seen["named_rows"] >= 2, "the sender, and who read on beyond it"
    [(width_px, height_px)] = seen["pictures"]
    assert width_px > 500
    assert height_px > 500
    fault = next(op.f for op in planted.ops if op.process == NEMESIS and op.f != HEAL)
    assert fault in seen["picture_texts"]
    assert seen["ink"] == ["rgb(28, 37, 48)"], "the style sheet's colour, in the light theme"
    assert look(directory / page.NAME, tmp_path, width_px=700)["overflow_px"] <= 0, "wide things scroll by themselves"


def test_the_page_of_a_correct_run_says_true_and_an_untested_one_what_is_missing() -> None:
    history = correct(3)
    told = page.page(
        prepare(history.ops, history.run), Description(history.run), judge(history.ops, history.run).to_json()
    )
    assert "all was tested that should have been" in told

    nothing = Run(name="nothing", workload="table")
    told = page.page(prepare([], nothing), Description(nothing), judge([], nothing).to_json())
    assert "not seen: a record was sent" in told


@pytest.mark.parametrize(
    ("workload", "more", "profile"),
    [
        ("table", {}, "compaction"),
        ("queue", {"options": {"is_transactional": True}}, "transactions"),
        ("queue", {"options": {"is_transactional": False}}, "plain"),
        ("queue", {"storage": "cloud"}, "cloud"),
        ("table", {"storage": "cloud"}, "leveled"),
    ],
)
def test_the_page_of_a_run_of_sexton_names_the_simulation_that_is_nearest(
    workload: str, more: dict[str, object], profile: str
) -> None:
    run = Run(name="some", workload=workload)
    results = judge([], run).to_json()
    told = page.page(prepare([], run), Description(run, {"system": "sexton", **more}), results)
    assert f"sexton simulate --profile {profile}<" in told
    assert "simulate" not in page.page(prepare([], run), Description(run, {"system": "kafka-4.3.0"}), results)


def test_what_a_broker_or_client_says_is_shown_and_not_obeyed() -> None:
    planted = sabotage("G1a", 1).history
    judgement = judge(planted.ops, planted.run).to_json()
    evil = "<script>alert(1)</script>"
    ops = [op if op.process == NEMESIS else replace(op, error=evil, client=evil) for op in planted.ops]
    told = page.page(prepare(ops, planted.run), Description(planted.run, {"system": evil}), judgement)
    assert "<script" not in told
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in told


def test_a_run_that_nobody_judged_has_no_page(tmp_path: Path) -> None:
    history = correct(1)
    directory = written(tmp_path / "run", history.ops, history.run)
    with pytest.raises(SextonError, match="nobody has judged it"):
        verifying.report(directory)


def test_who_judges_again_gets_the_page_again(tmp_path: Path) -> None:
    planted = sabotage("int-send-skip", 1).history
    directory = written(tmp_path / "run", planted.ops, planted.run)
    CliRunner().invoke(verify.app, ["check", str(directory)])
    verifying.report(directory)
    assert "the model <i>kafka</i>" in (directory / page.NAME).read_text()
    CliRunner().invoke(verify.app, ["check", str(directory), "--model", "strict"])
    assert "the model <i>strict</i>" in (directory / page.NAME).read_text()
