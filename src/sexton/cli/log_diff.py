"""`sexton log diff`: whether two replicas of a partition tell their consumers the same, and if not, why."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from sexton.cli import show
from sexton.log.stopped import identical
from sexton.log.stopped.partition import find_partitions, open_partition
from sexton.records.batch import Record
from sexton.spark import session
from sexton.spark.diff import Diff, Difference, Side
from sexton.spark.diff import diff as compare

DIFFERENT = 1
"""The exit code when they differ, as diff's."""

SHOWN_BYTES_MAX = 60
"""Of a key or value in a table; --json has all of them."""


def diff(
    directory_a: Annotated[Path, typer.Argument(metavar="A", help="A replica's partition directory.")],
    directory_b: Annotated[Path, typer.Argument(metavar="B", help="The same partition on another broker.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
    limit: Annotated[int, typer.Option(min=0, help="Show so many differing keys; all of them are counted.")] = 20,
    master: Annotated[str, typer.Option(help="The Spark cluster: local[*], spark://host:7077, yarn, ...")] = "local[*]",
    by_checksum: Annotated[
        bool, typer.Option("--checksum", help="Compare bytes instead, as far as both are compacted.")
    ] = False,
    below: Annotated[int | None, typer.Option(min=0, help="With --checksum: bytes below this offset.")] = None,
) -> None:
    """Compare what read_committed consumers of two replicas end up with, key by key.

    Exit code 0: the same. 1: they differ. Anything else: they could not be compared.
    """
    if by_checksum:
        _compare_bytes(directory_a, directory_b, below, as_json)
        return
    spark = session.start("sexton log diff", master)
    with show.spark_progress(spark.sparkContext, Console(stderr=True)) as progress:
        result = compare(spark.sparkContext, directory_a, directory_b, limit, progress=progress)
    if as_json:
        show.print_json(as_dict(result))
    else:
        _print(result)
    if result.differing_count:
        raise typer.Exit(DIFFERENT)


def _compare_bytes(directory_a: Path, directory_b: Path, below: int | None, as_json: bool) -> None:
    logs = [open_partition(find_partitions([directory])[0]) for directory in (directory_a, directory_b)]
    if below is None:
        below = min(log.cleaner_offset or 0 for log in logs)
    found = identical.compare(logs[0], logs[1], below)
    if as_json:
        show.print_json({"equal": found.is_same, **dataclasses.asdict(found)})
    else:
        console = Console(highlight=False)
        sides = ((found.sha256_a, found.size_a_bytes, directory_a), (found.sha256_b, found.size_b_bytes, directory_b))
        for checksum, size_bytes, directory in sides:
            console.print(f"{checksum}  {size_bytes:,} bytes below {below:,}  {escape(str(directory))}")
        if found.is_same:
            console.print(f"[green]The same[/green], byte for byte, below offset {below:,}")
        else:
            console.print(f"[red]They differ[/red], first in the batch at offset {found.first_difference:,}")
    if not found.is_same:
        raise typer.Exit(DIFFERENT)


def as_dict(result: Diff) -> dict[str, Any]:
    return {
        "equal": result.differing_count == 0,
        "a": _side_dict(result.side_a),
        "b": _side_dict(result.side_b),
        "keys_equal": result.equal_count,
        "keys_only_in_a": result.only_a_count,
        "keys_only_in_b": result.only_b_count,
        "keys_different": result.changed_count,
        "differences": [_difference_dict(difference) for difference in result.differences],
    }


def _side_dict(side: Side) -> dict[str, Any]:
    return {
        "directory": str(side.log.directory),
        "log_start_offset": side.log_start_offset,
        "log_end_offset": side.log_end_offset,
        "high_watermark": side.high_watermark,
        "last_stable_offset": side.last_stable_offset,
        "clean_to_offset": side.clean_offset,
    }


def _difference_dict(difference: Difference) -> dict[str, Any]:
    return {
        "key": show.bytes_json(difference.key),
        "a": _record_dict(difference.record_a),
        "b": _record_dict(difference.record_b),
        "reason": difference.reason,
    }


def _record_dict(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    return {"offset": record.offset, "timestamp_ms": record.timestamp_ms, "value": show.bytes_json(record.value)}


def _print(result: Diff) -> None:
    console = Console(highlight=False)
    for side in (result.side_a, result.side_b):
        watermark = "unknown" if side.high_watermark is None else f"{side.high_watermark:,}"
        console.print(
            f"[bold]{side.label}[/bold] {escape(str(side.log.directory))}: offsets {side.log_start_offset:,} to "
            f"{side.log_end_offset:,}, high watermark {watermark}, seen up to {side.last_stable_offset:,}"
        )
    if result.differences:
        table = Table("key", "A", "B", "because", show_lines=True)
        for each in result.differences:
            cells = (show.quoted(each.key, SHOWN_BYTES_MAX), _cell(each.record_a), _cell(each.record_b), each.reason)
            table.add_row(*map(escape, cells))
        console.print(table)
    if not result.differing_count:
        console.print(f"[green]The same:[/green] {result.equal_count:,} keys, and every one agrees")
        return
    left_out = result.differing_count - len(result.differences)
    console.print(
        f"[red]They differ[/red] in {result.differing_count:,} keys: {result.only_a_count:,} only in A, "
        f"{result.only_b_count:,} only in B, {result.changed_count:,} with different records; "
        f"{result.equal_count:,} agree" + (f" ({left_out:,} not shown: see --limit)" if left_out else "")
    )


def _cell(record: Record | None) -> str:
    if record is None:
        return "nothing"
    body = "tombstone" if record.is_tombstone else show.quoted(record.value, SHOWN_BYTES_MAX)
    return f"{record.offset}: {body}"
