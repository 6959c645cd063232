"""Transactions of Sexton beside Apache Kafka 4.3.0: the same clients, the same machine, in turns, in one run.

    python -m benchmarks.transactions [--runs N] [--seconds S] [--nodes 1 3] [--producers 1 50]

A transaction is ten records of 100 bytes over six partitions, written and committed by librdkafka as fast as it can,
by one producer and by fifty. The rate counts commits. The latency is what a `read_committed` consumer sees: from the
moment at which a record is handed to its producer until the consumer returns it; it waits for the commit, so the time
of the transaction is in it. With three brokers everything has three replicas, the coordinator's state included.

Kafka does not flush before it acknowledges, so Sexton does not either (`log.flush.before.ack=false`). Every figure is
the median of the runs; each starts with a warm-up that does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from tests.project import PROJECT_DIR

from benchmarks.broker_systems import KAFKA, SEXTON, Cluster, Results, System, create_topic, measured, pair, ratio
from benchmarks.transactions_load import RECORDS_PER_TRANSACTION

PARTITIONS: Final = 6
WARM_UP_S: Final = 30
"""A JVM compiles what it runs often: Kafka is several times slower before."""

LOAD_TIMEOUT_S: Final = 600
CPU_PER_TRANSACTIONS: Final = 10_000


@dataclass(frozen=True)
class Line:
    nodes: int
    producers: int

    @property
    def name(self) -> str:
        brokers = "one broker" if self.nodes == 1 else f"{self.nodes} brokers, {self.nodes} replicas"
        return f"{brokers}, {self.producers} producer{'s' if self.producers > 1 else ''}"

    @property
    def goal(self) -> str:
        """Of the rate and of the 99th percentile."""
        return ">= 1x, p99 <= 1.5x" if self.producers > 1 else ""


Measured = dict[tuple[Line, str], Results]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=15, help="how long each load goes on")
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--producers", type=int, nargs="+", default=[1, 50])
    parser.add_argument("--directory", type=Path, help="where the brokers keep their data: the disk under test")
    given = parser.parse_args()
    console = Console(width=170)
    where = given.directory or Path(tempfile.gettempdir())
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, data in {where}",
        highlight=False,
    )
    lines = [Line(nodes, producers) for nodes in given.nodes for producers in given.producers]
    results: Measured = {(line, system.name): Results() for line in lines for system in (KAFKA, SEXTON)}
    for run in range(given.runs):
        for nodes in given.nodes:
            same = [line for line in lines if line.nodes == nodes]
            for system in (KAFKA, SEXTON) if run % 2 == 0 else (SEXTON, KAFKA):
                _measure(console, system, same, given.seconds, given.directory, results)
        console.print(_table(lines, results, f"after run {run + 1} of {given.runs}"))


def _measure(
    console: Console, system: System, lines: list[Line], seconds: float, directory: Path | None, results: Measured
) -> None:
    """These lines on a fresh cluster. One that fails is told and has no figures; the others go on."""
    scratch = Path(tempfile.mkdtemp(prefix="bench-", dir=directory))
    cluster = system.start(lines[0].nodes, False, scratch / system.name)
    try:
        for line in lines:
            try:
                _load(cluster, line, f"warm-{line.producers}", WARM_UP_S)
                with measured(cluster) as cost:
                    produced, read = _load(cluster, line, f"timed-{line.producers}", seconds)
            except Exception as error:
                console.print(f"[red]{system.name}, {line.name}: {error!r}[/red]", highlight=False)
                continue
            transactions = produced["transactions"]
            cpu_s = cost.cpu_s / transactions * CPU_PER_TRANSACTIONS
            rate = transactions / produced["seconds"]
            results[line, system.name].add(rate, read["p50_ms"], read["p99_ms"], cpu_s, cost.memory_bytes)
            console.print(f"  {system.name}, {line.name}: {rate:,.1f} transactions/s", highlight=False)
    finally:
        cluster.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _load(cluster: Cluster, line: Line, topic: str, seconds: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the producers did, and what the reader saw of it: all of it, or the figures mean nothing."""
    create_topic(cluster, topic, PARTITIONS, line.nodes, {})
    reader = _start("read", cluster.bootstrap, topic, PARTITIONS)
    producers = None
    try:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n", "the reader did not start"
        producers = _start("produce", cluster.bootstrap, topic, PARTITIONS, line.producers, seconds)
        produced = json.loads(producers.communicate(timeout=LOAD_TIMEOUT_S)[0])
        expected = produced["transactions"] * RECORDS_PER_TRANSACTION
        read = json.loads(reader.communicate(f"{expected}\n", timeout=LOAD_TIMEOUT_S)[0])
    finally:
        for process in (reader, producers):
            if process is not None:
                process.kill()
    if read["records"] != expected:
        raise RuntimeError(f"{expected:,} records were committed, {read['records']:,} were read")
    return produced, read


def _start(*words: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.transactions_load", *map(str, words)],
        cwd=PROJECT_DIR,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _table(lines: list[Line], results: Measured, title: str) -> Table:
    table = Table(title=f"Transactions: Sexton beside Kafka 4.3.0, {title}")
    table.add_column("line")
    names = ("Kafka tx/s", "Sexton tx/s", "ratio", "p50 ms", "p99 ms", "p99 ratio", "goal", "CPU s", "CPU ratio", "MB")
    for name in names:
        table.add_column(name, justify="right")
    for line in lines:
        kafka, sexton = results[line, KAFKA.name], results[line, SEXTON.name]
        table.add_row(
            line.name,
            *(f"{each.median('rates'):,.1f}" if each.rates else "-" for each in (kafka, sexton)),
            ratio(kafka, sexton, "rates"),
            pair(kafka, sexton, "p50_ms", ".1f"),
            pair(kafka, sexton, "p99_ms", ".1f"),
            ratio(kafka, sexton, "p99_ms"),
            line.goal,
            pair(kafka, sexton, "cpu_s", ".1f"),
            ratio(kafka, sexton, "cpu_s"),
            pair(kafka, sexton, "memory_bytes", ",.0f", 1e6),
        )
    table.caption = "pairs are Kafka / Sexton; latency is read_committed, end to end; CPU s per 10,000 transactions"
    return table


if __name__ == "__main__":
    main()
