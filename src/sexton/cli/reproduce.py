"""`sexton reproduce`: corruptions on real clusters, told while they happen, judged in a table, kept in a page."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton.cli.broker import UsageError
from sexton.errors import SextonError

if TYPE_CHECKING:
    from sexton.reproduce.pace import Pace
    from sexton.reproduce.run import ScenarioRun
    from sexton.reproduce.scenarios import Scenario
    from sexton.reproduce.script import Event, Kind
    from sexton.reproduce.steps import Place

DEFAULT_REPORT: Final = Path("sexton-reproduce.html")

PIPED_WIDTH: Final = 160
"""Of the table, where nobody can tell how wide the reader's screen is."""

SCENARIOS_HELP: Final = (
    "tombstone, aborted-to-committed, committed-to-aborted, stuck-partition or committed-value. All by default."
)
SYSTEMS_HELP: Final = (
    "kafka-4.3.0, kafka-4.2.1, kafka-4.1.2, kafka-4.0.2, kafka-3.9.2 (or any other), sexton-independent or "
    "sexton-coordinated. All by default."
)

_STYLES: Final = {"clean": "bold green", "corrupt": "bold red", "wrong claim": "bold yellow", "unknown": "bold magenta"}
_EVENT_STYLES: Final = {"kill": "red", "return": "green", "compacted": "yellow", "kept": "cyan", "read": "bold"}


class ExpectationFailedError(SextonError):
    """Something came out otherwise than we say it does. The table says what."""

    exit_code = 1


def reproduce(
    everything: Annotated[bool, typer.Option("--all", help="All scenarios on all systems: a quarter hour.")] = False,
    scenario: Annotated[list[str] | None, typer.Option(metavar="NAME", help=SCENARIOS_HELP)] = None,
    system: Annotated[list[str] | None, typer.Option(metavar="NAME", help=SYSTEMS_HELP)] = None,
    report: Annotated[
        Path, typer.Option(metavar="FILE", help="The page with what happened, and its pictures.")
    ] = DEFAULT_REPORT,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the brokers' files and logs there, to look into.")
    ] = None,
    pace: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Take about so long (90s, 10m, 2d): delete.retention.ms and producer.id.expiration.ms are a third "
            "of it each, instead of next to nothing.",
        ),
    ] = None,
    step: Annotated[
        bool,
        typer.Option(
            "--step", help="Stop before each act, and say what to look at and how. One scenario on one system."
        ),
    ] = False,
) -> None:
    """Show on real clusters how compaction corrupts data, and that coordinated compaction does not.

    Real Apache Kafka is fetched with Maven and runs on this machine, as Sexton does; three brokers each, on loopback,
    in temporary folders. Every scenario is one script that runs unchanged on every system. It ends with 0 only if
    everything came out as expected: four of the five corrupt without coordination, all clean with it.
    """
    from sexton.reproduce import systems
    from sexton.reproduce.pace import HURRIED, Pace
    from sexton.reproduce.scenarios import SCENARIOS

    if not (everything or scenario or system):
        raise UsageError("nothing to run", "", "Say --all, or choose with --scenario and --system")
    unknown = [name for name in scenario or () if name not in SCENARIOS]
    if unknown:
        raise UsageError(f"there is no scenario {unknown[0]}", "", f"Known are {', '.join(SCENARIOS)}")
    chosen = [SCENARIOS[name] for name in dict.fromkeys(scenario or SCENARIOS)]
    names = [systems.check_name(name) for name in dict.fromkeys(system or systems.ALL_SYSTEMS)]
    if step and (len(chosen), len(names)) != (1, 1):
        remedy = "Choose them with --scenario and --system: scripts share their outage, and would wait for each other"
        raise UsageError("--step goes through one scenario on one system", "", remedy)
    asked = HURRIED if pace is None else Pace.of(pace)
    report.parent.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    _run(names, chosen, report, keep, asked, console, step=step)


def _run(
    names: Sequence[str],
    scenarios: Sequence[Scenario],
    report: Path,
    keep: Path | None,
    pace: Pace,
    console: Console,
    *,
    step: bool,
) -> None:
    from sexton.reproduce import systems
    from sexton.reproduce.report import page

    started_s = time.monotonic()
    for name in names:
        with console.status(f"{name}: fetching what is missing"):
            systems.prepare(name)
    outcomes: list[ScenarioRun] = []
    for group in systems.together(names):
        outcomes += asyncio.run(_run_on(group, scenarios, keep, pace, console, step=step))
        report.write_text(page(outcomes, pace), encoding="utf-8")
    for outcome in outcomes:
        for difference in outcome.judgement.wrong:
            console.print(f"  {outcome.system} {outcome.scenario.name}: {escape(difference)}")
    console.print(_table(outcomes))
    console.print(f"{len(outcomes)} runs in {time.monotonic() - started_s:.0f} s. The page: {report}")
    surprises = [each for each in outcomes if not each.is_as_expected]
    if surprises:
        told = ", ".join(f"{each.scenario.name} on {each.system}" for each in surprises)
        raise ExpectationFailedError(f"{len(surprises)} of {len(outcomes)} came out otherwise than expected: {told}")


async def _run_on(
    names: Sequence[str], scenarios: Sequence[Scenario], keep: Path | None, pace: Pace, console: Console, *, step: bool
) -> list[ScenarioRun]:
    """Runs the scenarios on systems that share their brokers."""
    from sexton.reproduce import systems
    from sexton.reproduce.run import run, topic_of
    from sexton.reproduce.script import at_once

    width = max(len(each.name) for each in scenarios)
    system_width = max(map(len, names))
    all_names = " and ".join(names)

    def tell(system: str, scenario: Scenario, event: Event) -> None:
        style = _EVENT_STYLES.get(event.kind.value, "")
        text = f"[{style}]{escape(event.text)}[/]" if style else escape(event.text)
        console.print(f"{event.at_s:6.1f} s  [dim]{system:{system_width}}  {scenario.name:{width}}[/]  {text}")

    console.rule(f"[bold]{all_names}[/]")
    with console.status(f"{all_names}: starting three brokers, and waiting for a first compaction") as status:
        async with systems.running(names, keep, pace) as worlds:
            status.update(f"{all_names}: the scripts run")
            before = at_once
            if step:
                status.stop()
                topic = topic_of(names[0], scenarios[0])
                before = partial(_before_an_act, console, topic, worlds[names[0]].place(topic))
            outcomes = await run(worlds, systems.is_safe, scenarios, tell, pace, before)
            status.update(f"{all_names}: stopping")
    for outcome in outcomes:
        if outcome.failure:
            console.print(f"[magenta]{outcome.scenario.name} did not come to its end:[/] {escape(outcome.failure)}")
    return outcomes


async def _before_an_act(console: Console, topic: str, place: Place, kind: Kind, what: str) -> None:
    """Waits for Enter. The brokers go on meanwhile, and one filler record a second is written."""
    from sexton.reproduce.steps import LOOK_AT, commands

    console.print(f"\n[bold]Next:[/] {escape(what)}")
    if kind in LOOK_AT:
        console.print(f"  Look at: {escape(LOOK_AT[kind])}")
    for command in commands(kind, topic, place):
        console.print(f"    {escape(command)}", soft_wrap=True)
    console.print("  [dim]Enter goes on[/]")
    if not await asyncio.to_thread(sys.stdin.readline):
        raise UsageError("--step waits for Enter before each step, and there is no input", "", "Run it in a terminal")


def _table(outcomes: Sequence[ScenarioRun]) -> Table:
    table = Table(title="What a read_committed consumer sees through the broker that was away", show_lines=True)
    for header in ("scenario", "system", "it read", "librdkafka read", "the broker claims", "true", ""):
        table.add_column(header, overflow="fold")
    order = list(dict.fromkeys(each.scenario.name for each in outcomes))
    for outcome in sorted(outcomes, key=lambda each: order.index(each.scenario.name)):
        judgement = outcome.judgement
        verdict = judgement.verdict.value
        told = f"[{_STYLES[verdict]}]{verdict}[/]" + ("" if outcome.is_as_expected else "\n[bold]not as expected[/]")
        same = "the same" if judgement.second_read == judgement.read else judgement.second_read or "not installed"
        cells = (outcome.scenario.name, outcome.system, judgement.read, same, judgement.claims, judgement.true)
        table.add_row(*map(escape, cells), told)
    return table
