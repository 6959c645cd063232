"""`sexton demo`: a first look. Makes a sample partition, queries it, compacts it, and shows before and after."""

from __future__ import annotations

import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession
from rich.console import Console
from rich.table import Table

from sexton.cli import show
from sexton.compaction.fates import Fate
from sexton.compaction.reference import fold_by_key
from sexton.records import batch, checkpoints, names
from sexton.records.batch import Batch, ControlType, Record
from sexton.records.header import TRANSACTIONAL
from sexton.spark import datasource, session
from sexton.spark.compact import Report
from sexton.spark.offline import Options, compact_directories

TOPIC = "orders"
CUSTOMERS = 500
SEGMENTS = 4
BATCHES_PER_SEGMENT = 120
RECORDS_PER_BATCH = 40
HOUR_MS = 60 * 60 * 1000

QUERY = """
    SELECT CAST(key AS STRING) AS customer, count(*) AS versions, max(offset) AS newest
    FROM orders GROUP BY key ORDER BY versions DESC, customer LIMIT 5
"""


def demo(
    directory: Annotated[Path, typer.Option(help="Where to put the sample; it is emptied first.")] = Path("build/demo"),
) -> None:
    """A first look: make a sample partition, query it with SQL, compact it, show before and after."""
    console = Console()
    console.print("[bold]1.[/bold] A partition of 4 segments: orders of 500 customers, some deleted, some aborted")
    partition = write_sample(directory)
    spark = session.start("sexton demo")
    datasource.register(spark)
    before = _figures(spark, partition)
    fold = _fold(partition)

    console.print("[bold]2.[/bold] SQL over its files, no broker needed:", f"[dim]{' '.join(QUERY.split())}[/dim]")
    spark.sql(QUERY).show()

    console.print(f"[bold]3.[/bold] sexton compact {partition}")
    options = Options(time.time_ns() // 1_000_000, settings={"cleanup.policy": "compact"})
    with show.spark_progress(spark.sparkContext, Console(stderr=True)) as progress:
        report = compact_directories(spark.sparkContext, [partition], options, progress)[0]
    if report.failure is not None:
        raise report.failure
    console.print(_before_and_after(before, _figures(spark, partition)))
    console.print(_reasons(report))
    assert _fold(partition) == fold, "rule 3: compaction never changes what a read_committed consumer ends up with"
    console.print(f"Every one of the {len(fold)} customers has the same latest order as before.")
    console.print(
        f"[dim]Look further: sexton log stats {partition} --config cleanup.policy=compact · "
        f"sexton log dump {partition} --limit 5 · sexton compact --help[/dim]",
        highlight=False,
    )


def write_sample(directory: Path, seed: int = 1) -> Path:
    """A log directory as a stopped broker leaves it, with one partition; returns the partition's directory."""
    shutil.rmtree(directory, ignore_errors=True)
    partition = directory / f"{TOPIC}-0"
    partition.mkdir(parents=True)
    end = base = 0
    batches = _batches(random.Random(seed), time.time_ns() // 1_000_000 - HOUR_MS)
    for _ in range(SEGMENTS):
        with open(partition / names.log_file_name(base), "wb") as file:
            for _ in range(BATCHES_PER_SEGMENT):
                made = next(batches)
                file.write(batch.encode(made))
                end = made.next_offset
        base = end
    (partition / names.log_file_name(end)).touch()  # the active segment, which is never cleaned
    checkpoint = directory / checkpoints.REPLICATION_OFFSET_CHECKPOINT
    checkpoints.write_offset_checkpoint(checkpoint, {(TOPIC, 0): end})
    return partition


def _batches(rng: random.Random, now_ms: int) -> Iterator[Batch]:
    """Endless orders: plain, transactional (one in ten aborted), and now and then a customer who leaves."""
    offset = 0
    while True:
        records = [
            Record(offset + index, now_ms + offset + index, f"customer-{rng.randrange(CUSTOMERS):03d}".encode(), value)
            for index in range(RECORDS_PER_BATCH)
            for value in [None if rng.random() < 0.02 else f'{{"amount": {rng.randrange(10_000)}}}'.encode()]
        ]
        offset += RECORDS_PER_BATCH
        if rng.random() < 0.5:
            yield batch.make_batch(records, attributes=rng.randrange(5))
            continue
        producer_id = rng.randrange(3)
        yield batch.make_batch(
            records, attributes=TRANSACTIONAL, producer_id=producer_id, producer_epoch=0, base_sequence=offset
        )
        end = ControlType.ABORT if rng.random() < 0.1 else ControlType.COMMIT
        yield batch.make_marker(offset, end, producer_id, 0, now_ms + offset, leader_epoch=0)
        offset += 1


def _figures(spark: SparkSession, partition: Path) -> dict[str, str]:
    frame = spark.read.format("kafkalog").option("isolation", "read_committed").load(str(partition))
    frame.createOrReplaceTempView("orders")
    row = spark.sql("""
        SELECT count(*) AS records, count(DISTINCT key) AS keys, count_if(value IS NULL) AS tombstones FROM orders
    """).first()
    assert row is not None, "an aggregate has a row"
    segments = list(partition.glob("*" + names.LOG_SUFFIX))
    return {
        "segments": str(len(segments)),
        "bytes": show.bytes_text(sum(path.stat().st_size for path in segments)),
        "committed records": f"{row['records']:,}",
        "customers (keys)": f"{row['keys']:,}",
        "tombstones": f"{row['tombstones']:,}",
    }


def _fold(partition: Path) -> dict[bytes, Record]:
    paths = sorted(partition.glob("*" + names.LOG_SUFFIX))
    return fold_by_key(found for path in paths for found in batch.decode_all(path.read_bytes(), str(path)))


def _before_and_after(before: dict[str, str], after: dict[str, str]) -> Table:
    table = Table()
    table.add_column("")
    table.add_column("before", justify="right")
    table.add_column("after", justify="right")
    for name, value in before.items():
        table.add_row(name, value, after[name])
    return table


def _reasons(report: Report) -> Table:
    table = Table(title="Why")
    table.add_column("records", justify="right")
    table.add_column("")
    table.add_column("because")
    for fate, count in sorted(report.tally.counts.items()):
        table.add_row(f"{count:,}", "stay" if Fate(fate).stays else "gone", Fate(fate).why)
    return table
