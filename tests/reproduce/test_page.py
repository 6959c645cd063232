"""The page, its pictures, and what the command says to mistakes."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.cli.broker import UsageError
from sexton.cli.main import app
from sexton.harness.errors import HarnessError
from sexton.reproduce import report, timeline
from sexton.reproduce.run import ScenarioRun
from sexton.reproduce.scenarios import SCENARIOS
from sexton.reproduce.script import Event, Kind
from sexton.reproduce.verdict import Judgement, Verdict

EVENTS = (
    Event(0.0, Kind.START, "start", "topic t"),
    Event(1.0, Kind.PRODUCE, "k=<v>", "k=<v> (offset 0)"),
    Event(2.0, Kind.KILL, "kill -9", "broker 3 is killed"),
    Event(3.0, Kind.DELETE, "k deleted", "k deleted (offset 1)"),
    Event(9.0, Kind.COMPACTED, "compacted,\nforgotten", "compacted"),
    Event(20.0, Kind.RETURN, "back\nin sync", "broker 3 is back"),
    Event(21.0, Kind.LEAD, "leads", "broker 3 leads"),
    Event(22.0, Kind.READ, "read", "a consumer reads k=<v>"),
)


def outcome(verdict: Verdict = Verdict.CORRUPT, expected: Verdict = Verdict.CORRUPT) -> ScenarioRun:
    judgement = Judgement(verdict, "k=<v>", "nothing open", "no k", ("k=<v> was read",), "nothing")
    return ScenarioRun("kafka-4.3.0", SCENARIOS["tombstone"], judgement, expected, EVENTS)


def marks(picture: ElementTree.Element, kind: str) -> list[float]:
    """Heights at which marks of a kind stand: one a broker."""
    circles = picture.iter("circle")
    return [float(each.attrib["cy"]) for each in circles if each.attrib["class"] == f"mark {kind}"]


def test_a_picture_shows_what_each_broker_came_to_know() -> None:
    picture = ElementTree.fromstring(timeline.svg(EVENTS, "corrupt", "a & b"))
    assert len(marks(picture, "produce")) == 3
    assert len(marks(picture, "delete")) == 2, "broker 3 is away"
    assert len(marks(picture, "compacted")) == 1, "only the leader's log was looked into"
    assert marks(picture, "kill") == marks(picture, "return") == marks(picture, "lead")
    assert marks(picture, "read corrupt") == marks(picture, "kill"), "it is read through the broker that was away"
    assert marks(picture, "kill")[0] not in marks(picture, "delete")
    assert [each.attrib["class"] for each in picture.iter("rect")].count("down") == 1


def test_a_picture_of_a_run_that_failed_early_shows_what_there_was() -> None:
    for count in range(len(EVENTS)):
        ElementTree.fromstring(timeline.svg(EVENTS[:count], "unknown", "t"))


def test_the_page_says_what_was_read_claimed_and_true_and_escapes_it() -> None:
    page = report.page([outcome()])
    for text in ("k=&lt;v&gt;", "nothing open", "no k", "kafka-4.3.0", "All 1 runs came out as expected"):
        assert text in page
    assert "<v>" not in page


def test_the_page_does_not_hide_what_came_out_otherwise() -> None:
    page = report.page([outcome(Verdict.CLEAN)])
    assert "1 of 1 runs did not come out as expected" in page
    assert "expected corrupt, seen clean" in page


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ([], "nothing to run"),
        (["--scenario", "unheard-of"], "there is no scenario unheard-of"),
        (["--system", "postgres"], "there is no system postgres"),
        (["--system", "kafka-0.8.2"], "there is no system kafka-0.8.2"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(arguments: list[str], what: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["reproduce", *arguments, "--report", str(tmp_path / "page.html")])
    assert isinstance(result.exception, (UsageError, HarnessError))
    assert what in str(result.exception)
    assert result.exception.exit_code == 64


def test_without_maven_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEXTON_KAFKA_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    arguments = ["--system", "kafka-4.3.0", "--report", str(tmp_path / "page.html")]
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert isinstance(result.exception, HarnessError)
    assert "apt-get install" in str(result.exception)
