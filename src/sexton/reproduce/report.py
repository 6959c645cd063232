"""What was seen, as one page without any outside file: a table, and a picture of every run."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final

from sexton.harness.systems import COMMON_SETTINGS
from sexton.reproduce import shell, timeline
from sexton.reproduce.pace import HURRIED, Pace
from sexton.reproduce.run import ScenarioRun
from sexton.reproduce.scenarios import Scenario
from sexton.reproduce.script import Kind
from sexton.reproduce.systems import TOPIC_SETTINGS

LEGEND: Final = {
    Kind.PRODUCE: "a record",
    Kind.DELETE: "a tombstone",
    Kind.COMMIT: "COMMIT marker",
    Kind.ABORT: "ABORT marker",
    Kind.KILL: "killed",
    Kind.COMPACTED: "compacted: nothing of it is left",
    Kind.KEPT: "compacted again and again: it is kept",
    Kind.RETURN: "back",
    Kind.LEAD: "leads",
    Kind.READ: "a consumer reads everything",
}


def page(outcomes: Sequence[ScenarioRun], pace: Pace = HURRIED) -> str:
    scenarios = list({each.scenario.name: each.scenario for each in outcomes}.values())
    systems = list(dict.fromkeys(each.system for each in outcomes))
    by_place = {(each.scenario.name, each.system): each for each in outcomes}
    paced = {
        "delete.retention.ms": pace.delete_retention_ms,
        "producer.id.expiration.ms": pace.producer_expiration_ms,
    }
    settings = ", ".join(f"{name}={value}" for name, value in {**TOPIC_SETTINGS, **COMMON_SETTINGS, **paced}.items())
    sections = "".join(
        _section(
            scenario, [by_place[(scenario.name, system)] for system in systems if (scenario.name, system) in by_place]
        )
        for scenario in scenarios
    )
    body = f"""<h1>What compaction does to a replica that was away</h1>
<p>Scripts, each run unchanged on every system: three real brokers on one machine, of which broker 3 is killed, and
comes back after the others have compacted. Then it is made the leader, and a consumer with <code>read_committed</code>
reads everything. A script keeps its own book of what was committed; that is what is called true here.
Each section begins with what happens without coordination.</p>
{_matrix(scenarios, systems, by_place)}
{_unexpected(outcomes)}
<p class="legend">{_legend()}</p>
{sections}
<footer>Made by <code>sexton reproduce</code>. Every line is what that run saw; nothing is filled in. What turns a day
into seconds: {settings}, and one filler record a second.</footer>"""
    return shell.document("sexton reproduce", body)


def _legend() -> str:
    return "".join(
        f'<span><svg width="22" height="22"><circle cx="11" cy="11" r="10" class="mark {kind.value}"/>'
        f'<text x="11" y="15" class="symbol">{timeline.SYMBOLS[kind]}</text></svg> {text}</span>'
        for kind, text in LEGEND.items()
    )


def _matrix(scenarios: Sequence[Scenario], systems: Sequence[str], by_place: dict[tuple[str, str], ScenarioRun]) -> str:
    head = "".join(f"<th>{escape(system)}</th>" for system in systems)
    rows = ""
    for scenario in scenarios:
        found = [by_place.get((scenario.name, system)) for system in systems]
        cells = "".join("<td></td>" if each is None else f"<td>{_chip(each)}</td>" for each in found)
        rows += f'<tr><th><a href="#{scenario.name}">{escape(scenario.title)}</a></th>{cells}</tr>'
    return f'<table class="matrix"><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table>'


def _chip(outcome: ScenarioRun) -> str:
    verdict = outcome.judgement.verdict.value
    doubt = "" if outcome.is_as_expected else ' <span class="surprise">not as expected</span>'
    return f'<span class="chip {_class(verdict)}">{verdict}</span>{doubt}'


def _class(verdict: str) -> str:
    return verdict.replace(" ", "-")


def _unexpected(outcomes: Sequence[ScenarioRun]) -> str:
    surprises = [each for each in outcomes if not each.is_as_expected]
    if not surprises:
        return f"<p>All {len(outcomes)} runs came out as expected.</p>"
    items = "".join(
        f"<li>{escape(each.scenario.name)} on {escape(each.system)}: expected {each.expected.value}, seen "
        f"{each.judgement.verdict.value}. {escape(each.failure)}</li>"
        for each in surprises
    )
    return f"<p>{len(surprises)} of {len(outcomes)} runs did not come out as expected:</p><ul>{items}</ul>"


def _section(scenario: Scenario, outcomes: Sequence[ScenarioRun]) -> str:
    rows = "".join(
        f"<tr><th>{escape(each.system)}</th><td>{escape(each.judgement.read)}</td>"
        f"<td>{escape(each.judgement.second_read)}</td>"
        f"<td>{escape(each.judgement.claims)}</td><td>{escape(each.judgement.true)}</td><td>{_chip(each)}</td></tr>"
        for each in outcomes
    )
    return (
        f'<section id="{scenario.name}"><h2>{escape(scenario.title)}</h2><p>{escape(scenario.story)}</p>'
        "<table><thead><tr><th></th><th>a consumer read</th><th>librdkafka read</th><th>broker 3 claims</th>"
        "<th>true</th><th></th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
        f"{''.join(_figure(each) for each in outcomes)}</section>"
    )


def _figure(outcome: ScenarioRun) -> str:
    judgement = outcome.judgement
    picture = timeline.svg(
        outcome.events, _class(judgement.verdict.value), f"{outcome.scenario.title}, on {outcome.system}"
    )
    wrong = "".join(f"<li>{escape(each)}</li>" for each in judgement.wrong)
    steps = "".join(f"<li><b>{each.at_s:.1f} s</b> {escape(each.text)}</li>" for each in outcome.events)
    before = f"<li>before it came back, through broker 1: {escape(judgement.others_read)}</li>" if wrong else ""
    failure = f"<p>It did not come to its end: {escape(outcome.failure)}</p>" if outcome.failure else ""
    return (
        f"<figure><figcaption>{escape(outcome.system)} {_chip(outcome)}</figcaption>"
        f'<div class="scroll">{picture}</div>{failure}{f"<ul>{wrong}{before}</ul>" if wrong else ""}'
        f"<details><summary>Step by step</summary><ol>{steps}</ol></details></figure>"
    )
