"""`sexton compact`: compaction of a stopped broker's directories."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sexton.cli import show
from sexton.compaction.fates import Fate
from sexton.errors import SextonError
from sexton.records.codecs import MAX_UNCOMPRESSED_BATCH_BYTES
from sexton.settings.properties import parse_properties, parse_settings
from sexton.settings.schema import BadSettingError
from sexton.spark import session
from sexton.spark.compact import Report
from sexton.spark.offline import OfflineCoordination, Options, check_free, compact_directories
from sexton.types import OFFSET_MAX


def compact(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Partition directories (orders-0), or whole log directories.")
    ],
    replicas: Annotated[
        bool,
        typer.Option(
            "--replicas",
            help="The directories are all replicas of the partitions: tombstones and markers may go once every "
            "replica is past them.",
        ),
    ] = False,
    independent: Annotated[
        bool,
        typer.Option(
            "--independent", help="Do what Kafka does: time alone decides. A replica that lags may then disagree."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would go, and why. Change nothing.")] = False,
    master: Annotated[str, typer.Option(help="The Spark cluster: local[*], spark://host:7077, yarn, ...")] = "local[*]",
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="A topic setting, over what the cluster's metadata says."),
    ] = None,
    metadata: Annotated[
        Path | None, typer.Option(help="The log directory with __cluster_metadata-0, if it is another one.")
    ] = None,
    server_properties: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The broker's settings file: its log.dirs, and defaults of topic settings."),
    ] = None,
    replica_count: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="With --replicas, how many there are, where no metadata says it."),
    ] = None,
    high_watermark: Annotated[
        str | None, typer.Option(metavar="OFFSET|end", help="For a copy that has no checkpoint files beside it.")
    ] = None,
    now_ms: Annotated[
        int | None, typer.Option(help="The time to work at, in ms since 1970 (default: now). For tests and rehearsals.")
    ] = None,
    max_batch_bytes: Annotated[
        int, typer.Option(help="What one compressed batch may unfold to.")
    ] = MAX_UNCOMPRESSED_BATCH_BYTES,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    """Compact the partitions of a broker that is stopped.

    Keeps each key's newest committed record, drops aborted ones, and says why whatever stays, stays. Tombstones and
    transaction markers stay, too, because other replicas may lag: see --replicas.
    """
    if replicas and independent:
        raise BadSettingError("--replicas and --independent contradict each other", "", "Choose one")
    options = Options(
        now_ms=now_ms if now_ms is not None else time.time_ns() // 1_000_000,
        coordination=_coordination(replicas, independent),
        settings=parse_settings(config or []),
        metadata_dir=metadata,
        server_properties=read_properties(server_properties),
        replica_count=replica_count,
        high_watermark=_offset(high_watermark),
        trust_log_end=high_watermark == "end",
        dry_run=dry_run,
        max_batch_bytes=max_batch_bytes,
    )
    check_free(directories)
    console = Console(stderr=True)
    spark = session.start("sexton compact", master)
    started = time.monotonic()
    with show.spark_progress(spark.sparkContext, console) as progress:
        reports = compact_directories(spark.sparkContext, directories, options, progress)
    seconds = time.monotonic() - started
    if as_json:
        show.print_json({"dry_run": dry_run, "seconds": seconds, "partitions": [as_dict(r) for r in reports]})
    else:
        _print(reports, dry_run, seconds)
    failure = next((report.failure for report in reports if report.failure is not None), None)
    if failure is not None:
        raise typer.Exit(failure.exit_code)


def read_properties(path: Path | None) -> dict[str, str] | None:
    """The texts of a broker's settings file."""
    if path is None:
        return None
    try:
        return parse_properties(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or str(error)
        raise BadSettingError(f"cannot be read: {what}", str(path), "Name the broker's server.properties") from error


def as_dict(report: Report) -> dict[str, Any]:
    """A report for programs. Offsets at infinity (no replica was asked) are null."""
    return {
        "partition": report.name,
        "directory": report.directory,
        "changed": report.is_changed,
        "nothing_to_do": report.nothing_to_do or None,
        "error": None if report.failure is None else _error_dict(report.failure),
        "assumed": list(report.assumptions),
        "first_dirty_offset": report.first_dirty_offset,
        "cleaned_to_offset": report.bound,
        "mtro": None if report.mtro == OFFSET_MAX else report.mtro,
        "mxro": None if report.mxro == OFFSET_MAX else report.mxro,
        "bytes_before": report.bytes_before,
        "bytes_after": report.bytes_after,
        "segments_before": report.segments_before,
        "segments_after": report.segments_after,
        "fates": {Fate(fate).label: count for fate, count in sorted(report.tally.counts.items())},
    }


def _error_dict(error: SextonError) -> dict[str, str]:
    return {"kind": type(error).__name__, "what": error.what, "place": error.place, "remedy": error.remedy}


def _print(reports: list[Report], dry_run: bool, seconds: float) -> None:
    console = Console()
    table = Table(title="What would change" if dry_run else None)
    for column in ("partition", "cleaned to", "segments", "before", "after", "saved"):
        table.add_column(column, justify="left" if column == "partition" else "right")
    for report in reports:
        if report.failure is not None or report.nothing_to_do:
            continue
        saved = 1 - report.bytes_after / report.bytes_before if report.bytes_before else 0.0
        table.add_row(
            report.name,
            f"{report.bound:,}",
            f"{report.segments_before} → {report.segments_after}",
            show.bytes_text(report.bytes_before),
            ("~" if dry_run else "") + show.bytes_text(report.bytes_after),
            f"{saved:.1%}",
        )
    if table.row_count:
        console.print(table)
        console.print(_why(reports, dry_run))
    for report in reports:
        if report.nothing_to_do:
            console.print(f"[dim]{report.name}: left as it is: {report.nothing_to_do}[/dim]", highlight=False)
    for report in reports:
        if report.failure is not None:
            console.print(f"[red]{report.name}: not compacted:[/red] {report.failure}", highlight=False)
    for text in sorted({text for report in reports if report.is_changed for text in report.assumptions}):
        console.print(f"[dim]Assumed: {text}[/dim]", highlight=False)
    total = sum(report.bytes_before for report in reports if report.failure is None)
    rate = total / seconds if seconds else 0.0
    speed = f"{show.bytes_text(total)} in {seconds:.1f} s ({show.bytes_text(int(rate))}/s)"
    console.print(f"[dim]{speed}[/dim]", highlight=False)


def _why(reports: list[Report], dry_run: bool) -> Table:
    """Every reason that occurred, with its count over all partitions: what went first, then what stayed."""
    counts: dict[int, int] = {}
    for report in reports:
        if report.failure is None:
            for fate, count in report.tally.counts.items():
                counts[fate] = counts.get(fate, 0) + count
    table = Table(title="Why")
    table.add_column("")
    table.add_column("records", justify="right")
    table.add_column("because")
    goes = "would go" if dry_run else "gone"
    for fate in sorted((Fate(fate) for fate in counts), key=lambda fate: (fate.stays, int(fate))):
        table.add_row("stays" if fate.stays else goes, f"{counts[fate]:,}", fate.why)
    return table


def _coordination(replicas: bool, independent: bool) -> OfflineCoordination:
    if replicas:
        return OfflineCoordination.REPLICAS
    return OfflineCoordination.INDEPENDENT if independent else OfflineCoordination.ALONE


def _offset(text: str | None) -> int | None:
    if text is None or text == "end":
        return None
    if not text.isdecimal():
        raise BadSettingError(f"--high-watermark {text!r} is not an offset", "", "Give a number, or the word end")
    return int(text)
