"""`sexton log stats`: the questions that people ask about a compacted topic, answered from its files."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from sexton.cli import show
from sexton.cli.compact import read_properties
from sexton.compaction.fates import Fate
from sexton.log.stopped.partition import find_partitions
from sexton.settings.properties import parse_settings
from sexton.spark import session
from sexton.spark.stats import Options, PartitionStats, Transactions, collect
from sexton.spark.stats_pass import ABOVE_BOUND, Span

OPEN_SHOWN_MAX = 5
"""Open transactions that a table names; --json names all."""

WAITING = {
    ABOVE_BOUND: "not reached",
    Fate.TOMBSTONE_WAITS_FOR_REPLICAS: "other replicas",
    Fate.TOMBSTONE_STARTS_HORIZON: "first cleaning",
    Fate.TOMBSTONE_WAITS_FOR_HORIZON: "delete horizon",
    Fate.TOMBSTONE_EXPIRED: "next cleaning",
}
"""What a tombstone waits for, in a word."""

EXPLAINED = {
    ABOVE_BOUND: "lie where cleaning may not look yet",
    Fate.TOMBSTONE_WAITS_FOR_REPLICAS: "wait until every replica is known to be past them (MTRO)",
    Fate.TOMBSTONE_STARTS_HORIZON: "were never cleaned: delete.retention.ms starts with the next cleaning",
    Fate.TOMBSTONE_WAITS_FOR_HORIZON: "wait for their delete horizon",
    Fate.TOMBSTONE_EXPIRED: "may go with the next cleaning that knows every replica is past them",
}


def stats(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Partition directories (orders-0), or whole log directories.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
    config: Annotated[
        list[str] | None,
        typer.Option("--config", metavar="NAME=VALUE", help="A topic setting, over what the cluster's metadata says."),
    ] = None,
    metadata: Annotated[
        Path | None, typer.Option(help="The log directory with __cluster_metadata-0, if it is another one.")
    ] = None,
    server_properties: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The broker's settings file: defaults of topic settings.")
    ] = None,
    master: Annotated[str, typer.Option(help="The Spark cluster: local[*], spark://host:7077, yarn, ...")] = "local[*]",
    now_ms: Annotated[
        int | None, typer.Option(help="The time to judge at, in ms since 1970 (default: now). For tests.")
    ] = None,
) -> None:
    """What is in a log, how clean it is, what compaction would save, and what keeps it from being cleaned."""
    now = now_ms if now_ms is not None else time.time_ns() // 1_000_000
    options = Options(now, parse_settings(config or []), metadata, read_properties(server_properties))
    found = find_partitions(directories)
    spark = session.start("sexton log stats", master)
    with show.spark_progress(spark.sparkContext, Console(stderr=True)) as progress:
        results = collect(spark.sparkContext, found, options, progress)
    if as_json:
        show.print_json({"now_ms": now, "partitions": [as_dict(result) for result in results]})
    else:
        _print(results, now)
    failure = next((result.failure for result in results if result.failure is not None), None)
    if failure is not None:
        raise typer.Exit(failure.exit_code)


def as_dict(stats: PartitionStats) -> dict[str, Any]:
    """Statistics for programs. Times are in ms since 1970; null is "unknown" or "none"."""
    start = {"partition": stats.name, "directory": stats.directory}
    if stats.failure is not None:
        return start | {"error": show.error_dict(stats.failure)}
    eligibility, savings = stats.eligibility, stats.savings
    assert eligibility is not None, "without a failure everything was eligibility"
    assert savings is not None, "without a failure there was a dry run"
    return start | {
        "error": None,
        "assumed": stats.assumptions,
        "records": stats.record_count,
        "markers": stats.measured.control_count,
        "batches": stats.batch_count,
        "segments": stats.segment_count,
        "bytes": stats.size_bytes,
        "log_start_offset": stats.log_start_offset,
        "log_end_offset": stats.log_end_offset,
        "high_watermark": stats.high_watermark,
        "last_stable_offset": stats.last_stable_offset,
        "watermarks": _watermarks_dict(stats),
        "distinct_keys": stats.distinct_key_count,
        "records_without_key": stats.measured.keyless_count,
        "tombstones": _tombstones_dict(stats),
        "transactions": _transactions_dict(stats.transactions),
        "first_dirty_offset": eligibility.first_dirty_offset,
        "clean_bytes": eligibility.clean_bytes,
        "dirty_bytes": eligibility.dirty_bytes,
        "dirty_ratio": eligibility.dirty_ratio,
        "cleanable_to_offset": eligibility.bound.offset,
        "held_by": eligibility.bound.because,
        "eligible": eligibility.is_eligible,
        "because": eligibility.because,
        "overdue_ms": eligibility.overdue_ms,
        "last_cleaned": None if stats.last_cleaned is None else asdict(stats.last_cleaned),
        "would_save": {
            "records": savings.record_count,
            "bytes": savings.size_bytes,
            "fates": {Fate(fate).label: count for fate, count in sorted(savings.tally.counts.items())},
        },
    }


def _watermarks_dict(stats: PartitionStats) -> dict[str, int] | None:
    """None unless it is a Sexton broker's replica: only those have watermarks."""
    known = stats.watermarks
    if known is None:
        return None
    return {
        "mcco": known.compacted.keys,
        "mxfo": known.compacted.transactions,
        "mtro": known.removable.keys,
        "mxro": known.removable.transactions,
        "fence_below": known.fence_below,
    }


def _tombstones_dict(stats: PartitionStats) -> dict[str, Any]:
    spans = stats.measured.tombstones
    oldest = min((span.oldest_ms for span in spans.values()), default=None)
    newest = max((span.newest_ms for span in spans.values()), default=None)
    waiting = {WAITING[fate].replace(" ", "_"): asdict(spans[fate]) for fate in WAITING if fate in spans}
    has_horizon = Fate.TOMBSTONE_WAITS_FOR_HORIZON in spans
    return {
        "count": stats.tombstone_count,
        "oldest_ms": oldest,
        "newest_ms": newest,
        "waiting_for": waiting,
        "next_horizon_ms": stats.measured.horizon_next_ms if has_horizon else None,
    }


def _transactions_dict(transactions: Transactions | None) -> dict[str, Any]:
    assert transactions is not None, "without a failure everything was counted"
    return {
        "committed": transactions.committed_count,
        "committed_with_records": transactions.committed_with_data_count,
        "aborted": transactions.aborted_count,
        "aborted_with_records": transactions.aborted_with_data_count,
        "aborted_records": transactions.aborted_record_count,
        "open": [asdict(each) for each in transactions.open],
    }


def _print(results: list[PartitionStats], now_ms: int) -> None:
    console = Console()
    for result in results:
        if result.failure is None:
            facts = dict(_facts(result, now_ms))
            console.print(show.facts_table(f"{result.name}  ({result.directory})", facts))
    if len(results) > 1:
        console.print(_overview(results))
    for result in results:
        if result.failure is not None:
            console.print(f"[red]{result.name}:[/red] {result.failure}", highlight=False, markup=True)


def _facts(stats: PartitionStats, now_ms: int) -> Iterator[tuple[str, str]]:
    """Questions and answers, in the order in which people ask."""
    eligibility, savings = stats.eligibility, stats.savings
    assert eligibility is not None, "without a failure everything was eligibility"
    assert savings is not None, "without a failure there was a dry run"
    yield (
        "size",
        f"{show.bytes_text(stats.size_bytes)}: {_plural(stats.record_count, 'record')} and "
        f"{_plural(stats.measured.control_count, 'marker')} in {stats.batch_count:,} batches "
        f"in {_plural(stats.segment_count, 'segment')}",
    )
    watermark = "unknown" if stats.high_watermark is None else f"{stats.high_watermark:,}"
    yield (
        "offsets",
        f"{stats.log_start_offset:,} to {stats.log_end_offset:,}; high watermark {watermark}, "
        f"last stable offset {stats.last_stable_offset:,}",
    )
    if (known := stats.watermarks) is not None:
        yield (
            "watermarks",
            f"MCCO {known.compacted.keys:,}, MXFO {known.compacted.transactions:,}; "
            f"MTRO {known.removable.keys:,}, MXRO {known.removable.transactions:,}",
        )
    yield "distinct keys", _keys(stats)
    yield "tombstones", _tombstones(stats, now_ms)
    yield "transactions", _transactions(stats, now_ms)
    yield "last cleaned", _last_cleaned(stats, now_ms)
    yield (
        "dirty",
        f"from offset {eligibility.first_dirty_offset:,}: {show.bytes_text(eligibility.dirty_bytes)} dirty, "
        f"{show.bytes_text(eligibility.clean_bytes)} clean, ratio {eligibility.dirty_ratio:.2f}",
    )
    yield "cleanable", f"up to offset {eligibility.bound.offset:,}: {eligibility.bound.because}"
    yield "due", ("yes: " if eligibility.is_eligible else "no: ") + eligibility.because
    yield "compaction would save", _savings(stats)
    if stats.assumptions:
        yield "assumed", "; ".join(stats.assumptions)


def _keys(stats: PartitionStats) -> str:
    text = f"{stats.distinct_key_count:,}"
    if stats.distinct_key_count:
        committed = stats.record_count - stats.measured.keyless_count - stats.measured.aborted_count
        text += f" ({committed / stats.distinct_key_count:.1f} records a key)"
    if stats.measured.keyless_count:
        text += f"; without a key, so that nothing can replace them: {stats.measured.keyless_count:,} records"
    return text


def _tombstones(stats: PartitionStats, now_ms: int) -> str:
    spans = stats.measured.tombstones
    if not spans:
        return "none"
    lines = [f"{stats.tombstone_count:,}, {_ages(_joined(spans), now_ms)}"]
    for fate in WAITING:
        if fate in spans:
            line = f"{spans[fate].count:,} {EXPLAINED[fate]}"
            if fate == Fate.TOMBSTONE_WAITS_FOR_HORIZON:
                line += f"; the next passes in {show.duration_text(stats.measured.horizon_next_ms - now_ms)}"
            lines.append(line)
    return "\n".join(lines)


def _joined(spans: dict[int, Span]) -> Span:
    total = Span()
    for span in spans.values():
        total.add(span.count, span.oldest_ms, span.newest_ms)
    return total


def _ages(span: Span, now_ms: int) -> str:
    oldest, newest = (show.duration_text(max(0, now_ms - time_ms)) for time_ms in (span.oldest_ms, span.newest_ms))
    return f"{newest} old" if oldest == newest else f"{newest} to {oldest} old"


def _transactions(stats: PartitionStats, now_ms: int) -> str:
    counted = stats.transactions
    assert counted is not None, "without a failure everything was counted"
    if not (counted.committed_count or counted.aborted_count or counted.open):
        return "none"
    lines = [
        f"{counted.committed_count:,} committed, {counted.aborted_count:,} aborted "
        f"({_plural(counted.aborted_record_count, 'record')} of them still here), {len(counted.open):,} open"
    ]
    for each in counted.open[:OPEN_SHOWN_MAX]:
        since = "" if each.since_ms is None else f", for {show.duration_text(max(0, now_ms - each.since_ms))}"
        lines.append(f"open since offset {each.first_offset:,}{since}, by producer {each.producer_id}")
    if len(counted.open) > OPEN_SHOWN_MAX:
        lines.append(f"and {len(counted.open) - OPEN_SHOWN_MAX:,} more")
    return "\n".join(lines)


def _last_cleaned(stats: PartitionStats, now_ms: int) -> str:
    cleaned = stats.last_cleaned
    if cleaned is None:
        return "never, as far as its files tell"
    when = "at an unknown time"
    if cleaned.not_before_ms is not None:
        ago = show.duration_text(max(0, now_ms - cleaned.not_before_ms))
        when = f"not before {show.time_text(cleaned.not_before_ms)} ({ago} ago)"
    return f"up to offset {cleaned.up_to_offset:,}, {when}; by {cleaned.evidence}"


def _savings(stats: PartitionStats) -> str:
    savings = stats.savings
    assert savings is not None, "without a failure there was a dry run"
    if savings.record_count == 0 and savings.size_bytes == 0:
        return "nothing"
    share = savings.size_bytes / stats.size_bytes if stats.size_bytes else 0.0
    lines = [f"about {show.bytes_text(savings.size_bytes)} ({share:.0%}) and {_plural(savings.record_count, 'record')}"]
    gone = sorted(Fate(fate) for fate in savings.tally.counts if not Fate(fate).stays)
    lines += [f"{savings.tally.of(fate):,} because {fate.why}" for fate in gone]
    return "\n".join(lines)


def _overview(results: list[PartitionStats]) -> Table:
    table = Table(title="Overview", title_justify="left")
    for name in ("partition", "bytes", "records", "keys", "tombstones", "dirty", "would save", "due"):
        table.add_column(name, justify="left" if name in ("partition", "due") else "right")
    for stats in results:
        if stats.failure is None and stats.eligibility is not None and stats.savings is not None:
            table.add_row(
                stats.name,
                show.bytes_text(stats.size_bytes),
                f"{stats.record_count:,}",
                f"{stats.distinct_key_count:,}",
                f"{stats.tombstone_count:,}",
                f"{stats.eligibility.dirty_ratio:.2f}",
                show.bytes_text(stats.savings.size_bytes),
                "yes" if stats.eligibility.is_eligible else "no",
            )
    return table


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
