"""`sexton simulate`: whole clusters in one process under virtual time, each from a seed, with all that can go wrong.

A seed that fails prints the rule, the evidence, the end of its trace, and the command that repeats it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from sexton.errors import SextonError
from sexton.simulate import shrink as shrinking
from sexton.simulate.broken import BREAKS
from sexton.simulate.plan import Profile
from sexton.simulate.run import Options, Result, Workers, workers

TRACE_LINES = 60


class SimulationFailedError(SextonError):
    """The cluster broke one of its own rules. The seed repeats it."""

    exit_code = 1


def simulate(
    seeds: Annotated[int, typer.Option(help="How many seeds to run, from --first on.", min=1)] = 20,
    first: Annotated[int, typer.Option(help="The first seed.", min=0)] = 0,
    seed: Annotated[int | None, typer.Option(help="Run this one seed.", min=0)] = None,
    brokers: Annotated[int, typer.Option(help="Brokers of each cluster.", min=1)] = 3,
    minutes: Annotated[float, typer.Option(help="Virtual minutes of faults in each run.", min=0.1)] = 1.0,
    shrink: Annotated[bool, typer.Option("--shrink", help="Cut the first failure down to what it needs.")] = False,
    without: Annotated[str, typer.Option(help="Items of the plan to leave out, as --shrink prints them.")] = "",
    break_rule: Annotated[
        str | None, typer.Option("--break", help=f"Break a rule on purpose: {', '.join(BREAKS)}.")
    ] = None,
    profile: Annotated[
        Profile | None, typer.Option(help="What every run is about; each seed draws its own unless this is given.")
    ] = None,
    independent: Annotated[
        bool, typer.Option("--independent", help="Compact as Kafka does, without coordination: it must be found out.")
    ] = False,
    only_history: Annotated[
        bool, typer.Option("--only-history", help="Judge only by what clients were told, as `sexton verify` does.")
    ] = False,
    processes: Annotated[int, typer.Option(help="Seeds that run at the same time; 0: one per core.", min=0)] = 0,
    keep_going: Annotated[bool, typer.Option("--keep-going", help="Do not stop at the first failure.")] = False,
) -> None:
    """Run whole clusters under virtual time, with faults, and check every rule.

    The same seed is the same run.
    """
    if break_rule is not None and break_rule not in BREAKS:
        raise typer.BadParameter(f"there is no rule {break_rule!r} to break: {', '.join(BREAKS)}")
    options = Options(
        brokers=brokers,
        minutes=minutes,
        left_out=shrinking.from_ranges(without),
        broken=break_rule,
        profile=profile,
        is_independent=independent,
        is_only_history_judged=only_history,
    )
    chosen = range(first, first + seeds) if seed is None else [seed]
    console = Console(stderr=True)
    count = processes or os.cpu_count() or 1
    with workers(min(count, len(chosen)) if not shrink else count) as pool:
        failed = _run_all(pool, chosen, options, console, keep_going)
        if not failed:
            return
        worst = failed[0]
        if shrink:
            options, worst = _shrink(pool, worst, options, console)
    _tell(worst, options)
    raise SimulationFailedError(f"{len(failed)} of {len(chosen)} seeds failed", f"seed {worst.seed}", worst.rule or "")


def _run_all(pool: Workers, seeds: Iterable[int], options: Options, console: Console, keep_going: bool) -> list[Result]:
    """Runs them behind a bar, prints what was covered, and returns what failed, lowest seed first."""
    seeds = list(seeds)
    failed: list[Result] = []
    results: list[Result] = []
    started_s = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task("simulating", total=len(seeds))
        for result in pool.run_all(seeds, options):
            results.append(result)
            bar.advance(task)
            if not result.is_clean:
                failed.append(result)
                bar.console.print(f"seed {result.seed}: {result.rule}: {result.evidence}", markup=False)
                if not keep_going:
                    break
    _sum_up(results, time.monotonic() - started_s)
    return sorted(failed, key=lambda result: result.seed)


def _sum_up(results: list[Result], elapsed_s: float) -> None:
    virtual_s = sum(result.virtual_s for result in results)
    totals = {name: sum(result.counts[name] for result in results) for name in results[0].counts} if results else {}
    typer.echo(
        f"{len(results)} seeds, {virtual_s / 3600:.2f} simulated hours in {elapsed_s:.0f} s "
        f"({virtual_s / max(elapsed_s, 0.001):.0f} times as fast as real time): "
        f"{totals.get('faults', 0):,} faults, {totals.get('acknowledged', 0):,} acknowledged batches of "
        f"{totals.get('writes', 0):,}, {totals.get('reads', 0):,} records read, "
        f"{totals.get('transactions', 0):,} transactions, {totals.get('compactions', 0):,} compactions, "
        f"{sum(result.is_clean for result in results)} seeds clean"
    )
    if len(results) == 1:
        typer.echo(f"trace hash {results[0].digest}")


def _shrink(pool: Workers, failed: Result, options: Options, console: Console) -> tuple[Options, Result]:
    with console.status(f"shrinking seed {failed.seed}") as status:
        return shrinking.shrink(
            failed,
            options,
            pool,
            lambda items, runs: status.update(f"shrinking seed {failed.seed}: {items} items left after {runs} runs"),
        )


def _tell(failed: Result, options: Options) -> None:
    typer.echo("\n".join(failed.tail[-TRACE_LINES:]))
    typer.echo("")
    typer.echo("\n".join(failed.state))
    if failed.cause:
        typer.echo(f"\n{failed.cause}")
    typer.echo(f"\nseed {failed.seed} breaks {failed.rule}: {failed.evidence}")
    typer.echo(f"docs/rules.md has the rules; repeat it with: {command(failed.seed, options)}")


def command(seed: int, options: Options) -> str:
    words = [f"sexton simulate --seed {seed} --brokers {options.brokers} --minutes {options.minutes:g}"]
    if options.left_out:
        words.append(f"--without {shrinking.as_ranges(options.left_out)}")
    if options.broken:
        words.append(f"--break {options.broken}")
    if options.profile is not None:
        words.append(f"--profile {options.profile}")
    if options.is_independent:
        words.append("--independent")
    if options.is_only_history_judged:
        words.append("--only-history")
    return " ".join(words)
