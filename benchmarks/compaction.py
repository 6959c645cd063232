"""Compaction: Sexton beside Apache Kafka's own log cleaner, on copies of the same segments, in the same run.

    python -m benchmarks.compaction [--runs N] [--scenario NAME ...] [--scale FACTOR]

Kafka cleans in a real broker that starts on the copy; its time is what its cleaner logs for its passes, start-up not
counted. Sexton works through `compact_directories` in a Spark session that is already warm; its time is the call's,
survey, flush and commit included. The two take turns. Both read from the page cache.

MB/s are bytes of log handled (before compaction) per second. Memory is the peak of all processes of a system, shared
pages counted once.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from pyspark import SparkContext
from rich.console import Console
from rich.table import Table

from benchmarks.logs import LogShape, write_partition
from benchmarks.memory import PeakMemory
from sexton.harness.kafka import BROKER_JVM_OPTIONS, KafkaCluster
from sexton.records import checkpoints
from sexton.records.codecs import Codec
from sexton.spark import session
from sexton.spark.offline import OfflineCoordination, Options, compact_directories

TOPIC = "bench"
KAFKA_PASS = re.compile(
    r"Log cleaner (?:thread )?(\d+) cleaned log (\S+) .*?([\d,.]+) MB of log processed in ([\d,.]+) seconds", re.DOTALL
)
CLEANING_TIMEOUT_S = 1800
CLEANER_SETTINGS = {
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.min.cleanable.ratio": "0.0",
    "log.retention.ms": "-1",
    "log.segment.delete.delay.ms": "1000",
}


@dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    shape: LogShape
    partitions: int = 1
    goal: str = ""
    kafka: bool = True
    """Whether Kafka takes part; a run at ten times the size is about Sexton alone."""
    dirty_share: float = 1.0
    """How much of the log is dirty; below 1 the rest was compacted before the clock starts."""


@dataclass(slots=True)
class Measured:
    seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    passes: int = 0

    def rate(self, size_bytes: int) -> float:
        return size_bytes / 1e6 / statistics.median(self.seconds) if self.seconds else 0.0


def scenarios(scale: float) -> list[Scenario]:
    def shape(megabytes: float, record_bytes: int, codec: Codec = Codec.NONE, distinct: int = 0) -> LogShape:
        count = distinct or int(megabytes * 1e6 * scale / (record_bytes + 10))
        return LogShape(count, record_bytes, distinct or max(1, count // 10), codec)

    return [
        Scenario("100 B", shape(1000, 100), goal="5x"),
        Scenario("100 B, two partitions", shape(500, 100), partitions=2, goal="5x"),
        Scenario("100 B lz4", shape(1000, 100, Codec.LZ4), goal="5x"),
        Scenario("100 B zstd", shape(1000, 100, Codec.ZSTD), goal="5x"),
        Scenario("100 B snappy", shape(1000, 100, Codec.SNAPPY), goal="5x"),
        Scenario("100 B gzip", shape(1000, 100, Codec.GZIP), goal="5x"),
        Scenario("1 KB", shape(4000, 1000), goal="3x"),
        Scenario("20 M distinct keys", shape(0, 100, distinct=int(20e6 * scale)), goal="10x"),
        Scenario("50 M distinct keys", shape(0, 100, distinct=int(50e6 * scale)), kafka=False, goal="under 4 GB"),
        Scenario("100 B, ten times", shape(10000, 100), kafka=False, goal="11x the time of 100 B"),
        Scenario("100 B, 1 % dirty", shape(1000, 100), kafka=False, dirty_share=0.01, goal="20 % of 100 B"),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scenario", action="append", help="part of a scenario's name; may be repeated")
    parser.add_argument("--scale", type=float, default=1.0, help="size of the logs (1.0: as in the goals)")
    parser.add_argument("--no-kafka", action="store_true", help="Sexton alone: for profiling, not for claims")
    arguments = parser.parse_args()
    console = Console(width=160)
    chosen = [
        scenario
        for scenario in scenarios(arguments.scale)
        if not arguments.scenario or any(part in scenario.name for part in arguments.scenario)
    ]
    spark = session.start("benchmark")
    _print_machine(console)
    table = _results_table()
    with tempfile.TemporaryDirectory(prefix="sexton-bench-") as scratch:
        _warm_up(spark.sparkContext, Path(scratch))
        for scenario in chosen:
            with_kafka = scenario.kafka and not arguments.no_kafka
            _run(console, table, spark.sparkContext, scenario, arguments.runs, with_kafka, Path(scratch))
    console.print(table)
    spark.stop()


def _run(
    console: Console,
    table: Table,
    context: SparkContext,
    scenario: Scenario,
    runs: int,
    with_kafka: bool,
    scratch: Path,
) -> None:
    """All runs of one scenario, the systems taking turns."""
    console.print(f"[bold]{scenario.name}[/bold]: making the log", highlight=False)
    source = scratch / "source"
    log_end = _make_source(context, source, scenario)
    size_bytes = sum(path.stat().st_size for path in source.glob(f"{TOPIC}-*/*.log"))
    template = _kafka_template(scratch, scenario, source, log_end) if with_kafka else None
    cores = os.cpu_count() or 1
    kafka, kafka_threads, sexton = Measured(), Measured(), Measured()
    for run in range(runs):
        if template is not None:
            _kafka_run(scratch, template, scenario, log_end, 1, kafka)
            if scenario.partitions > 1:
                _kafka_run(scratch, template, scenario, log_end, cores, kafka_threads)
        _sexton_run(context, scratch, source, sexton)
        console.print(
            f"  run {run + 1}: kafka {_last(kafka)}, kafka with {cores} threads {_last(kafka_threads)}, "
            f"sexton {_last(sexton)}",
            highlight=False,
        )
    _add_rows(table, scenario, size_bytes, kafka, kafka_threads, sexton)
    for path in (source, template):
        if path is not None:
            shutil.rmtree(path)


def _make_source(context: SparkContext, source: Path, scenario: Scenario) -> int:
    log_end = 0
    offsets = {}
    for partition in range(scenario.partitions):
        directory = source / f"{TOPIC}-{partition}"
        log_end = write_partition(directory, scenario.shape)
        offsets[(TOPIC, partition)] = log_end
    checkpoints.write_offset_checkpoint(source / checkpoints.REPLICATION_OFFSET_CHECKPOINT, offsets)
    if scenario.dirty_share < 1.0:
        log_end = _soil(context, source, scenario, log_end)
    return log_end


def _soil(context: SparkContext, source: Path, scenario: Scenario, log_end: int) -> int:
    """Make the log clean with every key in it once, then append the dirty share: updates of random keys."""
    directory = source / f"{TOPIC}-0"
    shutil.rmtree(directory)
    count = scenario.shape.record_count
    clean_end = write_partition(directory, LogShape(count, scenario.shape.record_bytes, count))
    for path in directory.glob(f"{clean_end:020d}.*"):
        path.unlink()
    dirty_count = int(count * scenario.dirty_share)
    log_end = write_partition(directory, LogShape(dirty_count, scenario.shape.record_bytes, count, seed=2), clean_end)
    checkpoints.write_offset_checkpoint(source / checkpoints.REPLICATION_OFFSET_CHECKPOINT, {(TOPIC, 0): log_end})
    checkpoints.write_offset_checkpoint(source / checkpoints.CLEANER_OFFSET_CHECKPOINT, {(TOPIC, 0): clean_end})
    return log_end


def _sexton_run(context: SparkContext, scratch: Path, source: Path, measured: Measured) -> None:
    work = scratch / "sexton"
    _copy(source, work)
    options = Options(
        time.time_ns() // 1_000_000,
        OfflineCoordination.INDEPENDENT,
        {"cleanup.policy": "compact", "retention.ms": "-1"},
    )
    with PeakMemory(os.getpid()) as memory:
        started = time.monotonic()
        reports = compact_directories(context, [work], options)
        measured.seconds.append(time.monotonic() - started)
    failure = next((report.failure for report in reports if report.failure), None)
    if failure is not None:
        raise failure
    measured.peak_bytes = max(measured.peak_bytes, memory.peak_bytes)
    measured.passes = 1
    shutil.rmtree(work)


def _kafka_template(scratch: Path, scenario: Scenario, source: Path, log_end: int) -> Path:
    """A stopped broker's directory whose topic has our segments."""
    template = scratch / "kafka-template"
    with KafkaCluster(
        base_dir=template,
        settings={**CLEANER_SETTINGS, "log.cleaner.enable": "false"},
        jvm_options=BROKER_JVM_OPTIONS,
        keep=True,
    ) as node:
        node.create_topic(TOPIC, scenario.partitions, config={"cleanup.policy": "compact"})
        node.stop_node(1)
        log_dir = node.log_dir(1)
        for partition in range(scenario.partitions):
            directory = node.partition_dir(1, TOPIC, partition)
            for path in directory.glob("0*"):
                path.unlink()
            _link_files(source / directory.name, directory)
        for name in (checkpoints.RECOVERY_POINT_CHECKPOINT, checkpoints.REPLICATION_OFFSET_CHECKPOINT):
            offsets = dict(checkpoints.read_offset_checkpoint(log_dir / name))
            offsets.update({(TOPIC, partition): log_end for partition in range(scenario.partitions)})
            checkpoints.write_offset_checkpoint(log_dir / name, offsets)
    return template


def _kafka_run(
    scratch: Path, template: Path, scenario: Scenario, log_end: int, threads: int, measured: Measured
) -> None:
    work = scratch / "kafka"
    _copy(template, work)
    settings = {**CLEANER_SETTINGS, "log.cleaner.threads": str(threads)}
    adopted = KafkaCluster.adopt(work, settings=settings, heap="2g", jvm_options=BROKER_JVM_OPTIONS, keep=False)
    with adopted as node, PeakMemory(node.pid(1)) as memory:
        _wait_until_clean(node, scenario.partitions, log_end)
        passes = KAFKA_PASS.findall(node.cleaner_log(1))
    by_thread: dict[str, float] = {}
    mine = [row for row in passes if row[1].startswith(TOPIC)]
    for thread, _, _, seconds in mine:
        by_thread[thread] = by_thread.get(thread, 0.0) + float(seconds.replace(",", ""))
    measured.seconds.append(max(by_thread.values()))
    measured.passes = len(mine)
    measured.peak_bytes = max(measured.peak_bytes, memory.peak_bytes)


def _wait_until_clean(node: KafkaCluster, partitions: int, log_end: int) -> None:
    path = node.log_dir(1) / checkpoints.CLEANER_OFFSET_CHECKPOINT
    deadline = time.monotonic() + CLEANING_TIMEOUT_S
    while time.monotonic() < deadline:
        offsets = checkpoints.read_offset_checkpoint(path) if path.exists() else {}
        if all(offsets.get((TOPIC, partition), 0) >= log_end for partition in range(partitions)):
            time.sleep(1)  # the statistics are logged right after the checkpoint is written
            return
        time.sleep(0.5)
    raise TimeoutError(f"Kafka's cleaner did not finish within {CLEANING_TIMEOUT_S} s")


def _copy(source: Path, target: Path) -> None:
    """Segments are linked: neither system writes to a closed one. Everything else is copied."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target, copy_function=_link_or_copy)


def _link_or_copy(source: str, target: str) -> None:
    if source.endswith(".log") and os.path.getsize(source) > 0 and TOPIC in source:
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def _link_files(source: Path, target: Path) -> None:
    for path in source.iterdir():
        _link_or_copy(str(path), str(target / path.name))


def _warm_up(context: SparkContext, scratch: Path) -> None:
    """Start the workers and load the kernels, with every codec."""
    for codec in Codec:
        source = scratch / "warm"
        shutil.rmtree(source, ignore_errors=True)
        end = write_partition(source / f"{TOPIC}-0", LogShape(200_000, 100, 20_000, codec))
        checkpoints.write_offset_checkpoint(source / checkpoints.REPLICATION_OFFSET_CHECKPOINT, {(TOPIC, 0): end})
        _sexton_run(context, scratch, source, Measured())


def _results_table() -> Table:
    table = Table(title="Compaction")
    for column in ("scenario", "log", "system", "MB/s (median)", "seconds", "passes", "peak memory", "ratio", "goal"):
        table.add_column(column, justify="left" if column in ("scenario", "system") else "right")
    return table


def _add_rows(
    table: Table, scenario: Scenario, size_bytes: int, kafka: Measured, kafka_threads: Measured, sexton: Measured
) -> None:
    for system, measured in (
        ("Kafka's cleaner", kafka),
        (f"Kafka's cleaner, {os.cpu_count()} threads", kafka_threads),
        ("Sexton", sexton),
    ):
        if not measured.seconds:
            continue
        ratio = sexton.rate(size_bytes) / measured.rate(size_bytes)
        table.add_row(
            scenario.name,
            f"{size_bytes / 1e6:,.0f} MB",
            system,
            f"{measured.rate(size_bytes):,.0f}",
            " ".join(f"{seconds:.2f}" for seconds in measured.seconds),
            str(measured.passes),
            f"{measured.peak_bytes / 1e6:,.0f} MB",
            "" if measured is sexton else f"{ratio:.1f}x",
            scenario.goal if measured is sexton else "",
        )
    table.add_section()


def _last(measured: Measured) -> str:
    return f"{measured.seconds[-1]:.2f} s" if measured.seconds else "-"


def _print_machine(console: Console) -> None:
    memory = psutil.virtual_memory().total / 2**30
    console.print(
        f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {memory:.0f} GiB", highlight=False
    )


if __name__ == "__main__":
    main()
