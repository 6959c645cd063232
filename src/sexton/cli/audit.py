"""`sexton audit`: whether the replicas of a cluster agree, key by key; if not, why, and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup

from sexton.cli.audit_watch import watch
from sexton.cli.broker import UsageError
from sexton.cli.connect import CommandConfig, parse_bootstrap

if TYPE_CHECKING:
    from pyspark import SparkContext

    from sexton.audit.folders import FolderSource
    from sexton.audit.live.opening import Opening
    from sexton.audit.replica import Source
    from sexton.audit.report import Report

DIVERGED: Final = 1
NOT_ALL_JUDGED: Final = 3
"""Exit codes. 0: the replicas agree."""

DIRS_EXAMPLE: Final = "--dirs 1=/mnt/b1 2=/mnt/b2"

DEFAULT_LIMIT: Final = 20
DEFAULT_RATE_MB: Final = 50


class AuditGroup(TyperGroup):
    """`--dirs` takes all values that follow it: `--dirs 1=/mnt/b1 2=/mnt/b2`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return list(super().parse_args(ctx, spread(args)))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and self.get_command(ctx, args[0]) is None and ("=" in args[0] or "/" in args[0]):
            raise UsageError(f"{args[0]} belongs to no option", "", f"Say which directories to read: {DIRS_EXAMPLE}")
        return super().resolve_command(ctx, args)


def spread(arguments: Sequence[str]) -> list[str]:
    """An option for each value, as the parser wants it. Raises UsageError if there is none."""
    found: list[str] = []
    is_inside = is_missing = False
    for argument in arguments:
        if is_inside and not argument.startswith("-"):
            found += ["--dirs", argument]
            is_missing = False
            continue
        if is_missing:
            break
        is_missing = argument == "--dirs"
        is_inside = is_missing or argument.startswith("--dirs=")
        if not is_missing:
            found.append(argument)
    if is_missing:
        raise UsageError("no directory was named", "--dirs", f"Write {DIRS_EXAMPLE}")
    return found


app = typer.Typer(
    cls=AuditGroup,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    help="Whether the replicas of a cluster agree, key by key; if not, why, and what to do.",
)


app.command("watch")(watch)


@app.callback()
def audit(
    context: typer.Context,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", "-b", metavar="HOST:PORT,...", help="Read the replicas from running brokers."),
    ] = None,
    dirs: Annotated[
        list[str] | None,
        typer.Option(
            "--dirs",
            metavar="[BROKER=]DIR[,DIR]...",
            help="Read them from the log directories of brokers, all of each broker's. Without BROKER=, its "
            "meta.properties says which it is. With --bootstrap: of brokers that are down.",
        ),
    ] = None,
    topic: Annotated[str, typer.Option(metavar="REGEX", help="Topics, by their whole names.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also topics that are not compacted.")] = False,
    command_config: CommandConfig = None,
    rate: Annotated[
        float, typer.Option(min=0, metavar="MB/S", help="Read no faster from a broker; 0 for no limit.")
    ] = DEFAULT_RATE_MB,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page to read and pass on.")] = None,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every differing key to a Parquet file.")
    ] = None,
    plan: Annotated[Path | None, typer.Option(metavar="FILE", help="Write down how to repair what is wrong.")] = None,
    only: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Look at the keys of an earlier --json report, or a key a line.")
    ] = None,
    limit: Annotated[int, typer.Option(min=0, help="Show so many differing keys; all are counted.")] = DEFAULT_LIMIT,
    confirm: Annotated[
        int, typer.Option(min=1, help="Look at so many differing keys of a partition again, and explain them.")
    ] = 10_000,
    show_values: Annotated[
        bool, typer.Option("--show-values", help="Show keys and values, not only offsets and hashes.")
    ] = False,
    master: Annotated[str, typer.Option(help="The Spark cluster: local[*], spark://host:7077, yarn, ...")] = "local[*]",
) -> None:
    """Whether the replicas of a cluster agree, key by key; if not, why, and what to do.

    Reads only, also from brokers that run. Exit code 0: they agree. 1: they do not. 3: not all could be judged.
    """
    if context.invoked_subcommand is not None:
        return
    if not bootstrap and not dirs:
        raise UsageError("there is nothing to read", "", f"Say --bootstrap host:9092, or {DIRS_EXAMPLE}")
    from sexton.audit import only as only_keys
    from sexton.audit import run
    from sexton.cli import audit_output as output
    from sexton.cli import show
    from sexton.spark import session

    output.check_places(html, export, plan)
    if export is not None:
        from sexton.audit.export import KEYS_MAX

        confirm = max(confirm, KEYS_MAX)
    wanted = None if only is None else only_keys.read(only)
    asked = _Asked.of(bootstrap, dirs or [], topic, everything, command_config, rate)
    spark = session.start("sexton audit", master)
    sources = asked.sources(spark.sparkContext)
    try:
        with show.spark_progress(spark.sparkContext, Console(stderr=True)) as progress:
            report = run.audit(spark.sparkContext, sources, confirm=confirm, only=wanted, progress=progress)
    finally:
        for source in sources:
            source.close()
    if html is not None:
        output.write_page(report, html, limit, shows_values=show_values)
    if export is not None:
        output.write_parquet(report, export, shows_values=show_values)
    if plan is not None:
        output.write_plan(report, plan, bootstrap)
    if as_json:
        output.print_json(report, limit, shows_values=show_values)
    else:
        output.print_tables(report, limit, shows_values=show_values)
    leave(report)


@app.command("index")
def index(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="All log directories of one broker, of this machine.")
    ],
    plan: Annotated[
        Path,
        typer.Option(metavar="FILE", help="What all machines of an audit share. Made if it is not there: copy it on."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="The fold: 32 bytes a key.")],
    broker: Annotated[
        int | None, typer.Option(min=0, help="The broker's id, where its meta.properties does not say.")
    ] = None,
    topic: Annotated[str, typer.Option(metavar="REGEX", help="Topics, by their whole names.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also topics that are not compacted.")] = False,
    master: Annotated[str, typer.Option(help="The Spark cluster: local[*], spark://host:7077, yarn, ...")] = "local[*]",
) -> None:
    """Fold this machine's replicas into a file for `compare`, so that no data has to travel.

    Exit code 3: some of them could not be read; the file says which.
    """
    from sexton.audit import travelling
    from sexton.audit.folders import FolderSource, broker_of
    from sexton.audit.folds import Plan
    from sexton.cli import audit_output, show
    from sexton.spark import session

    number = broker_of(directories) if broker is None else broker
    if number is None:
        raise UsageError("nothing here says which broker this is", str(directories[0]), "Say it: --broker 1")
    source = FolderSource({number: directories}, topic, everything=everything)
    source.check()
    audit_output.check_places(output, plan)
    shared = Plan.shared(plan)
    spark = session.start("sexton audit index", master)
    with show.spark_progress(spark.sparkContext, Console(stderr=True)) as progress:
        standings = travelling.index(spark.sparkContext, source, shared, output, progress=progress)
    failed = [each for each in standings.values() if each.failure is not None]
    console = show.results(highlight=False)
    for each in failed:
        console.print(f"{escape(each.replica.name)}: [yellow]{escape(str(each.failure))}[/]", soft_wrap=True)
    logs_text = show.bytes_text(sum(each.size_bytes for each in standings.values()))
    fold_text = f"{show.bytes_text(output.stat().st_size)} in {escape(str(output))}"
    console.print(f"{len(standings):,} replicas of broker {number}, {logs_text} of logs: {fold_text}", soft_wrap=True)
    if failed:
        raise typer.Exit(NOT_ALL_JUDGED)


@app.command("compare")
def compare(
    folds: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Folds made by `index`, one a broker.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page to read and pass on.")] = None,
    plan: Annotated[Path | None, typer.Option(metavar="FILE", help="Write down how to repair what is wrong.")] = None,
    limit: Annotated[int, typer.Option(min=0, help="Show so many differing keys; all are counted.")] = DEFAULT_LIMIT,
    confirm: Annotated[int, typer.Option(min=1, help="Explain so many differing keys of a partition.")] = 10_000,
) -> None:
    """Compare folds that `index` has made of brokers' log directories.

    They have no records, only hashes: `--json` and then `sexton audit --only` on the machines names the keys. Exit code
    0: they agree. 1: they do not. 3: not all could be judged.
    """
    if len(folds) < 2:
        raise UsageError("one fold has nothing to be compared with", str(folds[0]), "Name those of several brokers")
    from sexton.audit import travelling
    from sexton.cli import audit_output as output

    output.check_places(html, plan)
    with Console(stderr=True).status("comparing") as status:
        report = travelling.compare(folds, limit=confirm, progress=lambda name: status.update(f"comparing {name}"))
    if html is not None:
        output.write_page(report, html, limit, shows_values=False)
    if plan is not None:
        output.write_plan(report, plan, None)
    if as_json:
        output.print_json(report, limit, shows_values=False)
    else:
        output.print_tables(report, limit, shows_values=False)
    leave(report)


def leave(report: Report) -> None:
    if report.is_diverged:
        raise typer.Exit(DIVERGED)
    if not report.is_judged:
        raise typer.Exit(NOT_ALL_JUDGED)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What is to be read, checked before Spark starts."""

    live: Opening | None = None
    folders: FolderSource | None = None

    @classmethod
    def of(
        cls,
        bootstrap: str | None,
        dirs: Sequence[str],
        topic: str,
        everything: bool,
        command_config: Path | None,
        rate_mb: float,
    ) -> _Asked:
        from sexton.audit.folders import Dirs, FolderSource

        live = folders = None
        if dirs:
            of_broker = Dirs.parse(dirs).of_broker
            if len(of_broker) < 2 and not bootstrap:
                what = "one broker's directories have nothing to be compared with"
                raise UsageError(what, "--dirs", "Name those of several brokers")
            suffix = " (files)" if bootstrap else ""
            folders = FolderSource(of_broker, topic, everything=everything, suffix=suffix)
            folders.check(must_match=not bootstrap)
        if bootstrap:
            from sexton.audit.live.opening import Opening

            live = Opening.of(
                parse_bootstrap(bootstrap, "--bootstrap"),
                topic,
                everything=everything,
                command_config=command_config,
                rate_bytes_per_s=rate_mb * 1_000_000 if rate_mb else math.inf,
            )
            live.check()
        return cls(live, folders)

    def sources(self, context: SparkContext) -> list[Source]:
        """Brokers that answer go before their directories."""
        sources: list[Source] = []
        if self.live is not None:
            sources.append(self.live.source(tasks_count=context.defaultParallelism, master=str(context.master)))
        if self.folders is not None:
            sources.append(self.folders)
        return sources
