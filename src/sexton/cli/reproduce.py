"""`sexton reproduce`: four corruptions on real clusters, told while they happen, judged in a table, kept in a page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton.cli.broker import UsageError
from sexton.errors import SextonError

if TYPE_CHECKING:
    from sexton.reproduce.run import Outcome
    from sexton.reproduce.scenarios import Scenario
    from sexton.reproduce.script import Event

DEFAULT_REPORT: Final = Path("sexton-reproduce.html")

PIPED_WIDTH: Final = 160
"""Of the table, where nobody can tell how wide the reader's screen is."""

SCENARIOS_HELP: Final = "tombstone, aborted-to-committed, committed-to-aborted or stuck-partition. All by default."
SYSTEMS_HELP: Final = (
    "kafka-4.3.0, kafka-3.9.2 (or any other), sexton-independent or sexton-coordinated. All by default."
)

_STYLES: Final = {"clean": "bold green", "corrupt": "bold red", "wrong claim": "bold yellow", "unknown": "bold magenta"}
_EVENT_STYLES: Final = {"kill": "red", "return": "green", "compacted": "yellow", "kept": "cyan", "read": "bold"}


class ExpectationFailedError(SextonError):
    """Something came out otherwise than we say it does. The table says what."""

    exit_code = 1


def reproduce(
    everything: Annotated[bool, typer.Option("--all", help="All scenarios on all systems: a few minutes.")] = False,
    scenario: Annotated[list[str] | None, typer.Option(metavar="NAME", help=SCENARIOS_HELP)] = None,
    system: Annotated[list[str] | None, typer.Option(metavar="NAME", help=SYSTEMS_HELP)] = None,
    report: Annotated[
        Path, typer.Option(metavar="FILE", help="The page with what happened, and its pictures.")
    ] = DEFAULT_REPORT,
    keep: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Keep the brokers' files and logs there, to look into.")
    ] = None,
) -> None:
    """Show on real clusters how compaction corrupts data, and that coordinated compaction does not.

    Real Apache Kafka is fetched with Maven and runs on this machine, as Sexton does; three brokers each, on loopback,
    in temporary folders. Every scenario is one script that runs unchanged on every system. It ends with 0 only if
    everything came out as expected: corrupt without coordination, clean with it.
    """
    from sexton.reproduce import systems
    from sexton.reproduce.scenarios import SCENARIOS

    if not (everything or scenario or system):
        raise UsageError("nothing to run", "", "Say --all, or choose with --scenario and --system")
    unknown = [name for name in scenario or () if name not in SCENARIOS]
    if unknown:
        raise UsageError(f"there is no scenario {unknown[0]}", "", f"Known are {', '.join(SCENARIOS)}")
    chosen = [SCENARIOS[name] for name in dict.fromkeys(scenario or SCENARIOS)]
    names = [systems.check_name(name) for name in dict.fromkeys(system or systems.ALL_SYSTEMS)]
    report.parent.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    _run(names, chosen, report, keep, console)


def _run(
    names: Sequence[str], scenarios: Sequence[Scenario], report: Path, keep: Path | None, console: Console
) -> None:
    from sexton.reproduce import systems
    from sexton.reproduce.report import page

    started_s = time.monotonic()
    for name in names:
        with console.status(f"{name}: fetching what is missing"):
            systems.prepare(name)
    outcomes: list[Outcome] = []
    for group in systems.together(names):
        outcomes += asyncio.run(_run_on(group, scenarios, keep, console))
        report.write_text(page(outcomes), encoding="utf-8")
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
    names: Sequence[str], scenarios: Sequence[Scenario], keep: Path | None, console: Console
) -> list[Outcome]:
    """Of systems that share their brokers."""
    from sexton.reproduce import systems
    from sexton.reproduce.run import run
    from sexton.reproduce.verdict import Verdict

    expected = {name: Verdict.CLEAN if systems.is_safe(name) else Verdict.CORRUPT for name in names}
    width = max(len(each.name) for each in scenarios)
    system_width = max(map(len, names))
    all_names = " and ".join(names)

    def tell(system: str, scenario: Scenario, event: Event) -> None:
        style = _EVENT_STYLES.get(event.kind.value, "")
        text = f"[{style}]{escape(event.text)}[/]" if style else escape(event.text)
        console.print(f"{event.at_s:6.1f} s  [dim]{system:{system_width}}  {scenario.name:{width}}[/]  {text}")

    console.rule(f"[bold]{all_names}[/]")
    with console.status(f"{all_names}: starting three brokers, and waiting for a first compaction") as status:
        async with systems.running(names, keep) as worlds:
            status.update(f"{all_names}: the scripts run")
            outcomes = await run(worlds, expected, scenarios, tell)
            status.update(f"{all_names}: stopping")
    for outcome in outcomes:
        if outcome.failure:
            console.print(f"[magenta]{outcome.scenario.name} did not come to its end:[/] {escape(outcome.failure)}")
    return outcomes


def _table(outcomes: Sequence[Outcome]) -> Table:
    table = Table(title="What a read_committed consumer sees through the broker that was away", show_lines=True)
    for header in ("scenario", "system", "it read", "the broker claims", "true", ""):
        table.add_column(header, overflow="fold")
    order = list(dict.fromkeys(each.scenario.name for each in outcomes))
    for outcome in sorted(outcomes, key=lambda each: order.index(each.scenario.name)):
        judgement = outcome.judgement
        verdict = judgement.verdict.value
        told = f"[{_STYLES[verdict]}]{verdict}[/]" + ("" if outcome.is_as_expected else "\n[bold]not as expected[/]")
        cells = (outcome.scenario.name, outcome.system, judgement.read, judgement.claims, judgement.true)
        table.add_row(*map(escape, cells), told)
    return table
