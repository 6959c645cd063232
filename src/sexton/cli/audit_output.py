"""What `sexton audit` prints and writes."""

from __future__ import annotations

import os
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton.audit.classes import Class
from sexton.audit.judge import Case, PartitionReport, Verdict
from sexton.audit.keys import OnReplica
from sexton.audit.report import Report, as_dict, why_unread
from sexton.cli import show
from sexton.cli.broker import UsageError

SHOWN_BYTES_MAX = 60
"""Of a key or value in a table; --json has all of them."""

STYLES = {
    Verdict.AGREE: "green",
    Verdict.LAGGING: "green",
    Verdict.PARTIAL: "yellow",
    Verdict.UNKNOWN: "yellow",
    Verdict.DIVERGED: "bold red",
    Verdict.WILL_DIVERGE: "bold magenta",
}

BECAUSE_WIDTH_MAX = 80

AGREEING_SHOWN_MAX = 50
"""Partitions without anything to tell, in a table."""


def print_json(report: Report, limit: int, *, shows_values: bool) -> None:
    show.print_json(as_dict(report, limit, shows_values=shows_values))


def print_tables(report: Report, limit: int, *, shows_values: bool) -> None:
    console = show.results(highlight=False)
    console.print(_overview(report))
    for each in report.partitions:
        _print_troubles(console, each)
    cases = [(each, case) for each in report.partitions for case in each.cases]
    if cases[:limit]:
        console.print(_differences(cases[:limit], shows_values=shows_values))
    left_out = sum(each.counts.differing_count for each in report.partitions) - len(cases[:limit])
    if left_out > 0:
        console.print(f"{left_out:,} more differ (see --limit, --json and --export)")
    for skipped in report.skipped:
        console.print(f"[dim]skipped {escape(skipped.place)}: {escape(skipped.reason)}[/]")
    console.print(_sum(report))


def _overview(report: Report) -> Table:
    table = Table()
    for name in ("partition", "replicas", "keys", "differing", "lag", "verdict"):
        table.add_column(name, justify="right" if name in ("keys", "lag") else "left")
    quiet = [each for each in report.partitions if each.verdict is Verdict.AGREE]
    left_out = set(map(id, quiet[AGREEING_SHOWN_MAX:]))
    for each in report.partitions:
        if id(each) in left_out:
            continue
        style = STYLES[each.verdict]
        table.add_row(
            escape(each.name),
            escape(", ".join(str(one.replica.id.broker) for one in each.standings.values())),
            f"{each.counts.key_count:,}",
            escape(found_text(each)),
            escape(_lag(each)),
            f"[{style}]{each.verdict.value}[/]",
        )
    if left_out:
        table.caption = f"{len(left_out):,} more agree"
    return table


def found_text(each: PartitionReport) -> str:
    """Keys by class; a class without any concerns a replica as a whole."""
    parts = [
        f"{Class(number).label}: {count:,}" if count else Class(number).label for number, count in each.by_class.items()
    ]
    if each.unexplained_count:
        parts.append(f"not looked at: {each.unexplained_count:,}")
    return ", ".join(parts)


def _lag(each: PartitionReport) -> str:
    """Offsets, of the replica that is furthest behind."""
    ends = [one.end_offset for one in each.standings.values()]
    lagging = [one.end_offset for one in each.standings.values() if one.lags]
    return f"{max(ends) - min(lagging):,}" if lagging else ""


def _print_troubles(console: Console, each: PartitionReport) -> None:
    for finding in each.findings:
        console.print(
            f"[bold]{escape(each.name)}[/] [red]{Class(finding.is_class).label}[/]: {escape(finding.because)}",
            soft_wrap=True,
        )
    for label, error in each.failures:
        console.print(f"[bold]{escape(each.name)}[/] {escape(label)}: [yellow]{escape(str(error))}[/]", soft_wrap=True)
    for replica in each.unread:
        if replica.failure is None:
            console.print(f"[bold]{escape(each.name)}[/] {escape(replica.label)}: {escape(why_unread(replica))}")
    for note in each.notes:
        console.print(f"[dim]{escape(each.name)} {escape(note)}[/]", soft_wrap=True)


def _differences(cases: list[tuple[PartitionReport, Case]], *, shows_values: bool) -> Table:
    table = Table("partition", "key", "is", "a consumer reads", show_lines=True)
    table.add_column("because", max_width=BECAUSE_WIDTH_MAX)
    for each, case in cases:
        explained = case.explained
        told = Class(explained.is_class).label
        if not explained.is_sure:
            told = " or ".join([told, *(Class(other).label for other in explained.alternatives)])
        shown = "\n".join(
            f"{each.label(number)}: {_shown(one, shows_values=shows_values)}"
            for number, one in case.key.replicas.items()
        )
        right = ", ".join(map(each.label, explained.right))
        because = f"{explained.because}. Right: {right} ({explained.why_right})"
        cells = (each.name, key_text(case, shows_values=shows_values), told, shown, because)
        table.add_row(*map(escape, cells))
    return table


def key_text(case: Case, *, shows_values: bool) -> str:
    if shows_values and case.key.key is not None:
        return show.quoted(case.key.key, SHOWN_BYTES_MAX)
    return f"#{case.key.name[:12]}"


def _shown(one: OnReplica, *, shows_values: bool) -> str:
    if one.shown is None:
        return "nothing"
    if shows_values and one.shown.was_looked_up:
        return f"{one.shown.offset}: {show.quoted(one.shown.value, SHOWN_BYTES_MAX)}"
    return f"the record at {one.shown.offset}"


def _sum(report: Report) -> str:
    counts: dict[Verdict, int] = {}
    for each in report.partitions:
        counts[each.verdict] = counts.get(each.verdict, 0) + 1
    parts = [f"[{STYLES[verdict]}]{count:,} {verdict.value}[/]" for verdict, count in sorted(counts.items())]
    speed = report.size_bytes / report.took_s if report.took_s else 0.0
    return (
        f"{len(report.partitions):,} partitions: {', '.join(parts) or 'none'}; read "
        f"{show.bytes_text(report.size_bytes)} in {report.took_s:.1f} s ({show.bytes_text(int(speed))}/s)"
    )


def check_places(*paths: Path | None) -> None:
    """Before anything is read, for that may take an hour. Raises if a file cannot be written there."""
    for path in paths:
        if path is None:
            continue
        directory = path.absolute().parent
        if not directory.is_dir():
            raise UsageError("there is no such directory", str(directory), "Make it, or name another file")
        if path.is_dir() or not os.access(path if path.exists() else directory, os.W_OK):
            raise UsageError("it cannot be written", str(path), "Name another file")


def write_page(report: Report, path: Path, limit: int, *, shows_values: bool) -> None:
    from sexton.audit.page import page

    path.write_text(page(report, limit, shows_values=shows_values), encoding="utf-8")


def write_parquet(report: Report, path: Path, *, shows_values: bool) -> None:
    from sexton.audit.export import write

    write(report, path, shows_values=shows_values)


def write_plan(report: Report, path: Path, bootstrap: str | None) -> None:
    from sexton.audit.plan import plan

    path.write_text(plan(report, bootstrap), encoding="utf-8")
