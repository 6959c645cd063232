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
from sexton.history.op import HEAL, NEMESIS, UNKNOWN, Ext, F, Log, Op, Poll, Record, Run, Span, Type
from sexton.history.run import Description
from sexton.verify import run as verifying
from sexton.verify.report import page, plots
from sexton.verify.report.bars import Bar, bars
from sexton.verify.report.broker_logs import BrokerLogs
from sexton.verify.report.evidence import Evidence
from sexton.verify.samples import Sample
from tests.checker.story import Story, poll, send
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
    assert bars(nemesis, 9 * SECOND_NS) == [Bar("kill", SECOND_NS, 6 * SECOND_NS, "brokers 1, 3")]


def test_healing_ends_every_fault_and_the_end_of_the_history_what_was_never_healed() -> None:
    begun = [act(1, Type.INFO, "kill", "start", [1]), act(2, Type.INFO, "pause", "start", [2])]
    assert [bar.end_ns for bar in bars(begun, 9 * SECOND_NS)] == [9 * SECOND_NS] * 2
    healed = [*begun, act(4, Type.INFO, HEAL)]
    assert [bar.end_ns for bar in bars(healed, 9 * SECOND_NS)] == [4 * SECOND_NS] * 2


def test_a_bar_says_whom_it_hit_and_how() -> None:
    def begun(value: object, **ext: object) -> Op:
        return Op(1, 1, NEMESIS, Type.INFO, "some", ext={Ext.PHASE: "start", "target": "one", "value": value, **ext})

    for op, told in (
        (begun([2], shape="deaf", cuts="1>2 3>2"), "some broker 2: shape deaf, cuts 1>2 3>2"),
        (
            begun([1, 3], wrong_ms={"1": -5, "3": 9}),
            "some brokers 1, 3: wrong_ms 1: -5 3: 9",
        ),
        (begun([2], damaged={"t0-1/00.log": "cut to 5 of 9 bytes"}), "some broker 2: damaged t0-1/00.log"),
        (begun(["3 clients"]), "some 3 clients"),
    ):
        assert list(map(str, bars([op], 9))) == [told]


def test_a_fault_that_was_asked_for_and_never_came_is_told() -> None:
    history = correct(3)
    came = next(op.f for op in history.ops if op.process == NEMESIS and op.f != HEAL)
    results = judge(history.ops, history.run).to_json()
    view = prepare(history.ops, history.run)
    for faults, told in (((came, "slow-disk"), "asked for, and never came</th><td>slow-disk<"), ((came,), "")):
        found = page.page(view, Description(history.run, {"options": {"faults": faults}}), results)
        assert told in found
        assert bool(told) is ("never came" in found)


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
        ("controller-101", "server.log", ["2026-11-19T01:00:10.900Z INFO    [q] is elected"]),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("\n".join(["no time yet", *lines, "  at a place"]))
    logs = BrokerLogs.of(tmp_path, began_ms)
    told = logs.html(10 * SECOND_NS, 11 * SECOND_NS, [])
    assert "node-1  2026-11-19T01:00:09.700Z INFO    &lt;then&gt;" in told
    assert "WARN [k] as well\nnode-2    at a place" in told
    assert "controller-101  2026-11-19T01:00:10.900Z INFO    [q] is elected" in told
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


def test_what_was_counted_and_what_was_not_judged_are_on_the_page_and_on_the_terminal(tmp_path: Path) -> None:
    story = Story()
    story.call(0, F.SUBSCRIBE, logs=(0,))
    story.sent(1, send(0, 7, 0))
    for _ in range(3):
        story.polled(0, poll(0, (0, 7)))
    run = Run(name="run", workload="abort", uses_subscribe=True)
    directory = written(tmp_path / "run", story.ops, run)
    description.write(directory, Description(run, {"seen": {"advance, not rebalanced": 1_234}}))
    with (directory / "history.jsonl").open("ab") as file:
        file.write(b'{"index":')
    told = CliRunner().invoke(verify.app, ["check", str(directory)]).output
    counted = "where a consumer went on after an abort: advance, not rebalanced: 1,234"
    assert counted in " ".join(told.split())
    verifying.report(directory)
    told = (directory / page.NAME).read_text()
    assert counted in told
    assert "of 1 records that a subscribed process was given, 1 were given to it more than once, at most 3" in told
    assert "not judged: bytes of a last line that was cut off: 9" in told


def test_a_page_says_whose_rules_are_broken_and_who_lied() -> None:
    planted = sabotage("lost-write", 1).history
    view, results = prepare(planted.ops, planted.run), judge(planted.ops, planted.run).to_json()
    for more, rules, lied in (
        ({"system": "sexton", "lie": "drops"}, True, True),
        ({"system": "sexton", "lie": ""}, True, False),
        ({"system": "kafka-4.3.0"}, False, False),
    ):
        told = page.page(view, Description(planted.run, more), results)
        assert ("breaks Sexton's rule 1 (docs/rules.md)" in told) is rules
        assert ("a proxy that lies to clients on purpose: drops" in told) is lied


def test_a_log_has_a_band_for_each_leader_until_another_was_seen() -> None:
    leaders = (1, 1, 2, 2, 1)
    ops = [
        Op(index, index * SECOND_NS, 9, Type.OK, F.DEBUG, ext={str(Ext.LEADERS): {"0": broker}})
        for index, broker in enumerate(leaders)
    ]
    view = prepare(ops, Run())
    assert plots.leaders_of(view, 0) == [(0.0, 2.0, 1), (2.0, 4.0, 2), (4.0, 4.0, 1)]
    assert plots.leaders_of(view, 1) == []


def test_whole_reads_show_how_much_compaction_has_left() -> None:
    story = Story()
    records = (Record(0, 1, 5), Record(9, 2, 6, True))
    story.call(0, F.TABLE, Poll({0: records}), spans={0: Span(0, 10)})
    story.call(0, F.POLL, Poll({0: records}), spans={0: Span(0, 10)})
    logs = {0: Log("t", 0, is_compacted=True)}
    [left] = plots.whole_reads(prepare(story.ops, Run(logs=logs)))
    assert (left.records, left.tombstones) == (20.0, 10.0)
    assert plots.whole_reads(prepare(story.ops, Run(logs={0: Log("t", 0)}))) == [], "nothing goes from a plain log"


def test_what_removal_waits_for_is_drawn_by_the_replica_that_is_farthest_behind() -> None:
    looks = [
        Sample(time_ns=at_ns, broker=broker, log=0, high_watermark=100, mtro=mtro, mxro=mxro)
        for at_ns, broker, mtro, mxro in ((SECOND_NS, 1, 90, 100), (SECOND_NS, 2, 95, 60), (2 * SECOND_NS, 1, 100, 99))
    ]
    others = [Sample(time_ns=SECOND_NS, log=0, high_watermark=100), Sample(time_ns=SECOND_NS, broker=1, cpu_ms=5)]
    assert plots.held_back([*others, *looks]) == [(1.0, 10.0, 40.0), (2.0, 0.0, 1.0)]
    assert plots.held_back(others) == [], "nobody has such watermarks"
    story = Story()
    story.sent(0, send(0, 7, 5))
    view = prepare(story.ops, Run())
    assert "(MTRO)" in plots.svg(view, [], UNKNOWN, [], looks)
    assert "(MTRO)" not in plots.svg(view, [], UNKNOWN, [], others)


def test_brokers_have_the_last_word_on_where_a_log_ends() -> None:
    told = {str(Ext.HIGH_WATERMARKS): {"0": 321}, str(Ext.LAST_STABLE_OFFSETS): {"0": 3}}
    story = Story()
    story.sent(0, send(0, 7, 5))
    story.call(1, F.DEBUG, ext=told)
    case = {"log": 0, "values": [7], "ops": [], "detail": {}}
    shown = Evidence.of(prepare(story.ops, Run()), []).html(case)
    assert "its high watermark was 321, its last stable offset 3" in shown


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
    with pytest.raises(SextonError, match="it has not been judged"):
        verifying.report(directory)


def test_who_judges_again_gets_the_page_again(tmp_path: Path) -> None:
    planted = sabotage("int-send-skip", 1).history
    directory = written(tmp_path / "run", planted.ops, planted.run)
    CliRunner().invoke(verify.app, ["check", str(directory)])
    verifying.report(directory)
    assert "the model <i>kafka</i>" in (directory / page.NAME).read_text()
    CliRunner().invoke(verify.app, ["check", str(directory), "--model", "strict"])
    assert "the model <i>strict</i>" in (directory / page.NAME).read_text()
