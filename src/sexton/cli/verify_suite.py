"""`sexton verify suite` and `selftest`: many runs, one after the other."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton import extras
from sexton.cli.broker import UsageError
from sexton.cli.verify_names import (
    CLIENTS,
    METASTORES,
    STORAGES,
    SYSTEMS,
    WORKLOADS,
    among,
    clients_in,
    names_in,
)
from sexton.cli.verify_run import SECOND_NS
from sexton.cli.verify_telling import SelfTestError, Told, VerdictFalseError, VerdictUnknownError, console_of_run

if TYPE_CHECKING:
    from sexton.verify.selftest import Result
    from sexton.verify.suite import Cell, Done


def suite(
    system: Annotated[str, typer.Option(metavar="NAME", help="As for run.", autocompletion=among(SYSTEMS))] = "sexton",
    metastore: Annotated[
        str, typer.Option(metavar="NAME", help="As for run.", autocompletion=among(METASTORES))
    ] = "sqlite",
    storage: Annotated[str, typer.Option(metavar="NAME", help="As for run.", autocompletion=among(STORAGES))] = "local",
    quick: Annotated[bool, typer.Option("--quick", help="Each workload once, with kill and pause.")] = False,
    time_s: Annotated[float, typer.Option("--time", metavar="SECONDS", help="For faults, in each run.", min=1)] = 60.0,
    client: Annotated[
        str, typer.Option(metavar="NAMES", help="As for run.", autocompletion=among(CLIENTS, has_list=True))
    ] = "",
    only: Annotated[str, typer.Option(metavar="WORKLOADS", help="These workloads, with commas.")] = "",
    seed: Annotated[int, typer.Option(help="Of the first run; each has the next.", min=0)] = 1,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", metavar="DIR", help="Where runs are, by default by system. Those that are done stay."),
    ] = None,
) -> None:
    """Run every workload under every fault, and show the verdicts as a table.

    Ctrl-C ends it after the run that is under way was judged; the same command goes on with that one.
    """
    if not client:
        extras.need("verify", "sexton verify suite", ", or name what you have with --client")
    from sexton.verify import suite as testing
    from sexton.verify import systems
    from sexton.verify.runner import INTERRUPTED

    systems.check_name(system)
    names_in(metastore, METASTORES, "metastore")
    systems.check_metastore(system, metastore)
    names_in(storage, STORAGES, "storage")
    systems.check_storage(system, storage, ())
    workloads = names_in(only, WORKLOADS, "workload") or WORKLOADS
    given = clients_in(client)
    wanted = [
        (place, cell)
        for place, cell in enumerate(testing.cells(system, storage, is_quick=quick))
        if cell.workload in workloads
    ]
    kinds = [each for each in (metastore, storage) if each not in (METASTORES[0], STORAGES[0])]
    of = "-".join([system, *kinds])
    directory = directory or Path("sexton-verify") / f"suite-{of}"
    console = console_of_run()
    done: list[testing.Done] = []
    for place, cell in wanted:
        found = testing.results_of(cell, directory)
        if found is None:
            console.print(f"[bold]{cell.name}[/], {len(done) + 1} of {len(wanted)}")
            testing.put_aside(directory / cell.name)
            with console.status("") as status:
                told = Told(console, status)
                found = _run_cell(
                    cell, system, metastore, storage, given, seed + place, time_s, directory / cell.name, told
                )
            if INTERRUPTED in told.phases:
                testing.put_aside(directory / cell.name)
                break
        done.append(found)
        testing.write_index(directory, system, done)
        testing.write_table(directory, of, done, time_s)
    table = Table(title="Runs", title_justify="left")
    for header in ("run", "verdict", ""):
        table.add_column(header, overflow="fold")
    for each in done:
        table.add_row(each.cell.name, each.verdict or "did not end", escape(each.told))
    console.print(table)
    console.print(
        f"{len(done)} of {len(wanted)} runs. The page: {directory / testing.INDEX}, for documents: {testing.TABLE_PAGE}"
    )
    bad = list(testing.ways_out(done))
    if any(each.verdict == "false" for each in done):
        raise VerdictFalseError(f"not true: {', '.join(bad)}")
    if bad or len(done) < len(wanted):
        raise VerdictUnknownError(f"not true: {', '.join(bad)}" if bad else "it was stopped before the last run")


def _run_cell(
    cell: Cell,
    system: str,
    metastore: str,
    storage: str,
    clients: tuple[str, ...],
    seed: int,
    time_s: float,
    target: Path,
    told: Told,
) -> Done:
    """A run that does not come to its end is told, and the suite goes on."""
    from sexton.verify import run as verifying
    from sexton.verify import suite as testing
    from sexton.verify import systems
    from sexton.verify.plan import Plan
    from sexton.verify.workloads import known as workloads

    plan = Plan(
        seed=seed,
        main_ns=round(time_s * SECOND_NS),
        faults=cell.faults,
        clients=clients or tuple(workloads.able_clients(cell.workload, cell.asked)),
        topic_prefix=f"{systems.TOPIC_PREFIX}{seed}-",
    )
    wanted = verifying.Wanted(
        system=system,
        metastore=metastore,
        storage=storage,
        workload=cell.workload,
        asked=cell.asked,
        directory=target,
    )
    try:
        verifying.run(wanted, plan, told)
    except verifying.NOT_RUN as error:
        return testing.Done(cell, "", str(error).partition("\n")[0])
    found = testing.results_of(cell, target.parent)
    assert found is not None
    return found


def selftest(
    seeds: Annotated[int, typer.Option(help="Histories with each anomaly.", min=1)] = 3,
    time_s: Annotated[float, typer.Option("--time", metavar="SECONDS", help="For each lie.", min=1)] = 5.0,
    has_lies: Annotated[bool, typer.Option("--lies/--no-lies", help="Lie to clients of a real broker, too.")] = True,
    has_systems: Annotated[
        bool,
        typer.Option(
            "--systems", help="Run systems that are known to be bad, or good, and what else takes minutes, too."
        ),
    ] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Where runs are kept. Must not exist.")
    ] = None,
) -> None:
    """Plant every anomaly, tell clients every lie, run what is known to be bad, and see whether the judge finds it.

    It ends with 0 if all that was planted was found, and nothing else. Ctrl-C ends it with what it has found so far.
    """
    if has_lies or has_systems:
        extras.need("verify", "sexton verify selftest", ", or leave lies out with --no-lies")
    from sexton.verify import selftest as testing

    if directory is not None and directory.exists():
        raise UsageError("it exists already", str(directory), "Name another directory")
    console = console_of_run()
    target = directory or Path(tempfile.mkdtemp(prefix="sexton-selftest-"))
    found: list[testing.Result] = []
    is_whole = False
    try:
        with console.status("") as status:
            parts = [testing.histories(seeds)]
            parts += [testing.lies(target, time_s, has_long=has_systems)] if has_lies else []
            parts += [testing.systems(target, Told(console, status))] if has_systems else []
            for result in chain.from_iterable(parts):
                found.append(result)
                status.update(result.name)
                console.print(f"{result.name}: {result.found} of {result.tried}", escape(result.wrong or result.told))
        is_whole = True
    except KeyboardInterrupt:
        console.print("Stopped.")
    _tell_selftest(found, target, console, is_kept=directory is not None, is_whole=is_whole)


def _tell_selftest(found: Sequence[Result], target: Path, console: Console, *, is_kept: bool, is_whole: bool) -> None:
    """Runs in which something was wrong are kept, so that somebody can look at them."""
    from sexton.verify import selftest as testing

    table = Table(title="What was planted", title_justify="left")
    for header in ("", "planted", "found", ""):
        table.add_column(header, overflow="fold")
    for each in found:
        table.add_row(each.name, str(each.tried), str(each.found), escape(each.wrong or each.told))
    console.print(table)
    bad = [each.name for each in found if not each.is_good]
    if bad or is_kept:
        testing.write(found, target)
        console.print(f"In {target}: {testing.RESULTS}, and the runs.")
    else:
        shutil.rmtree(target, ignore_errors=True)
    if bad:
        raise SelfTestError(f"wrong about: {', '.join(bad)}")
    if not is_whole:
        raise VerdictUnknownError("it was stopped before the last")
