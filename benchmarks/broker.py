"""Sexton beside Apache Kafka 4.3.0: the same clients, the same machine, in turns, in one run.

    python -m benchmarks.broker [--runs N] [--lines PART ...] [--scale FACTOR]

A rate is what the client saw. CPU is what the broker processes used (from /proc), per gigabyte of records or per 10,000
requests: the client shares the machine, so this is the fairer figure. Memory is what the brokers had resident at the
end. Kafka runs with its defaults and a heap of 1 GB. Every figure is the median of the runs. Each cluster works for
half a minute before anything counts, and each line for a quarter of its work.

Kafka does not flush before it acknowledges, so Sexton does not either, unless a line says "flushed": there it does
(its default), and Kafka's topics have flush.messages=1. Lines with three replicas have acks=all on both.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import tempfile
from itertools import groupby
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.broker_lines import Bench, Line, lines, warm_up
from benchmarks.broker_systems import KAFKA, SEXTON, Results, System, pair, ratio

WARM_UP_S: Final = 30

Measured = dict[tuple[str, str], Results]
"""By line and system."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2, help="default 2, which take 20 to 25 minutes on two cores")
    parser.add_argument("--lines", action="append", metavar="PART", help="part of a line's name; may be repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="amount of work (1.0: a few seconds a line)")
    parser.add_argument("--system", choices=("both", "kafka", "sexton"), default="both", help="one: not for claims")
    parser.add_argument("--directory", type=Path, help="where the brokers keep their data: the disk under test")
    parser.add_argument("--list", action="store_true", help="only name the lines")
    given = parser.parse_args()
    console = Console(width=170)
    chosen = [line for line in lines() if not given.lines or any(part in line.name for part in given.lines)]
    if not chosen:
        parser.error(f"no line has {' or '.join(given.lines)} in its name; --list names them")
    if given.list:
        for line in chosen:
            console.print(line.name, highlight=False)
        return
    systems = [system for system in (KAFKA, SEXTON) if given.system in ("both", system.name)]
    _print_machine(console, given.directory)
    results: Measured = {(line.name, system.name): Results() for line in chosen for system in (KAFKA, SEXTON)}
    for run in range(given.runs):
        for (nodes, flushes), group in groupby(chosen, key=lambda line: (line.nodes, line.flushes)):
            same_brokers = list(group)
            for system in systems if run % 2 == 0 else reversed(systems):
                _measure(console, system, nodes, flushes, same_brokers, given.scale, given.directory, results)
        console.print(_table(chosen, results, f"after run {run + 1} of {given.runs}"))


def _measure(
    console: Console,
    system: System,
    nodes: int,
    flushes: bool,
    chosen: list[Line],
    scale: float,
    directory: Path | None,
    results: Measured,
) -> None:
    """These lines on a fresh cluster. A line that fails is told and has no figures; the others go on."""
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=directory))
    cluster = system.start(nodes, flushes, scratch / system.name)
    bench = Bench(system, cluster, replicas=nodes, flushes=flushes, scale=scale)
    try:
        warm_up(bench, WARM_UP_S)
        for line in chosen:
            found = results[line.name, system.name]
            try:
                line.measure(bench, found)
            except Exception as error:
                console.print(f"[red]{system.name}, {line.name}: {error!r}[/red]", highlight=False)
                continue
            console.print(f"  {system.name}, {line.name}: {found.rates[-1]:,.1f} {line.unit}", highlight=False)
    finally:
        cluster.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _table(chosen: list[Line], results: Measured, title: str) -> Table:
    table = Table(title=f"Sexton beside Kafka 4.3.0, {title}")
    table.add_column("line")
    for name in ("Kafka", "Sexton", "ratio", "goal", "p50 ms", "p99 ms", "CPU s", "CPU ratio", "MB resident"):
        table.add_column(name, justify="right")
    for line in chosen:
        kafka, sexton = results[line.name, KAFKA.name], results[line.name, SEXTON.name]
        table.add_row(
            line.name,
            *(f"{each.median('rates'):,.1f} {line.unit}" if each.rates else "-" for each in (kafka, sexton)),
            ratio(kafka, sexton, "rates"),
            line.goal,
            pair(kafka, sexton, "p50_ms", ".2f"),
            pair(kafka, sexton, "p99_ms", ".2f"),
            pair(kafka, sexton, "cpu_s", ".2f"),
            ratio(kafka, sexton, "cpu_s"),
            pair(kafka, sexton, "memory_bytes", ",.0f", 1e6),
        )
    table.caption = "pairs are Kafka / Sexton; CPU s per GB, per 10,000 requests, or for the whole line"
    return table


def _print_machine(console: Console, directory: Path | None) -> None:
    where = directory or Path(tempfile.gettempdir())
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, data in {where}",
        highlight=False,
    )


if __name__ == "__main__":
    main()
