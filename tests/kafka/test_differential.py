"""Kafka's cleaner and Sexton, each on a copy of the same random logs.

Copy A is cleaned by a real broker, copy B by `--independent` compaction, which claims to do what Kafka does. What
they leave must be the same, batch by batch; the differences that are meant are named here and in docs/compaction.md.
Then a broker serves what Sexton left, and more is written to it for the next round: tombstones need a second round to
go, markers a third.

Another seed: `pytest tests/kafka/test_differential.py --seed 7`.
"""

from __future__ import annotations

import re
import shutil
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from pyspark.sql import SparkSession

from sexton.compaction.fates import Fate
from sexton.harness.kafka import KafkaCluster
from sexton.harness.kafka_tools import dump_log
from sexton.records import checkpoints, indexes
from sexton.records.batch import Batch, ControlType, Header, decode_all
from sexton.spark.compact import Report
from sexton.spark.offline import OfflineCoordination, Options, compact_directories
from tests.kafka.directories import Fold, Name, fold, partition_dirs, partition_name, read_log
from tests.kafka.workload import (
    NO_CLEANING,
    Mix,
    consume_committed,
    create_topics,
    draw_mixes,
    fold_rows,
    write_all,
    write_with_java,
)

CLEAN_TIMEOUT_S: Final = 90
"""Kafka's cleaner takes two seconds for all logs here, when it has a core."""

CLEAN_AT_ONCE: Final = {"log.cleaner.min.cleanable.ratio": 0.0, "log.cleaner.backoff.ms": 100}

APPENDED_SHARE: Final = 0.4
"""How much a later round adds to what the first one wrote: enough to close segments."""


@dataclass(frozen=True)
class Plan:
    """One run: how many topics, how many rounds, and whose copy the next round continues from."""

    version: str
    topics: int
    rounds: int
    continues_from: str
    has_java: bool
    """Whether Kafka's own client writes a log, too."""


PLANS: Final = (
    pytest.param(Plan("4.3.0", 12, 3, "sexton", True), id="4.3.0"),
    pytest.param(Plan("3.9.2", 9, 2, "kafka", False), id="3.9.2", marks=pytest.mark.soak),
)


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.parametrize("plan", PLANS)
def test_kafka_and_sexton_leave_the_same_records(plan: Plan, seed: int, spark: SparkSession, tmp_path: Path) -> None:
    mixes = draw_mixes(seed, plan.topics)
    base = tmp_path / "round-0"
    with KafkaCluster(plan.version, 1, base, NO_CLEANING, keep=True) as kafka:
        create_topics(kafka, mixes)
        opened = write_all(kafka, mixes)
        if plan.has_java:
            write_with_java(kafka)
        kafka.stop()
    assert opened, "one transaction should have stayed open"
    for number in range(1, plan.rounds + 1):
        base = check_round(plan, mixes, base, tmp_path / f"round-{number}", number, spark)


def check_round(plan: Plan, mixes: Sequence[Mix], base: Path, target: Path, number: int, spark: SparkSession) -> Path:
    """Clean two copies, compare them, serve Sexton's, and append to the one that the next round starts from."""
    copies = {"kafka": target / "kafka", "sexton": target / "sexton"}
    for copy in copies.values():
        shutil.copytree(base, copy)
    before = read_logs(base)
    reports = clean_with_sexton(spark, copies["sexton"])
    check_work_was_done(reports, number)
    clean_with_kafka(copies["kafka"], plan.version, bounds(reports))

    by_kafka, by_sexton = read_logs(copies["kafka"]), read_logs(copies["sexton"])
    folds = {name: fold(log) for name, log in before.items()}
    for name in before:
        if name in idle(reports):
            assert by_kafka[name] == before[name]
        else:
            ends = segment_ends(partition_dirs(data_dir(base), "mix-")[name])
            compare(f"{name} in round {number}", by_kafka[name], by_sexton[name], ends)
            compare_aborted(copies["kafka"], copies["sexton"], name, by_sexton[name])
        assert fold(by_kafka[name]) == folds[name]
        assert fold(by_sexton[name]) == folds[name]
    assert cleaner_offsets(copies["sexton"], before) == cleaner_offsets(copies["kafka"], before)
    is_last = number == plan.rounds
    if is_last:
        check_dump_tool(copies["sexton"], plan.version)
    with KafkaCluster.adopt(copies["sexton"], plan.version, NO_CLEANING) as kafka:
        check_served(kafka, folds)
        if not is_last and plan.continues_from == "sexton":
            append(kafka, plan, mixes, number)
        kafka.stop()
    if not is_last and plan.continues_from == "kafka":
        with KafkaCluster.adopt(copies["kafka"], plan.version, NO_CLEANING) as kafka:
            append(kafka, plan, mixes, number)
            kafka.stop()
    return copies[plan.continues_from]


def append(kafka: KafkaCluster, plan: Plan, mixes: Sequence[Mix], number: int) -> None:
    write_all(kafka, mixes, number, APPENDED_SHARE)
    if plan.has_java:
        write_with_java(kafka, number)


# ---- The two cleaners.


def clean_with_sexton(spark: SparkSession, base_dir: Path) -> list[Report]:
    options = Options(time.time_ns() // 1_000_000, OfflineCoordination.INDEPENDENT)
    reports = compact_directories(spark.sparkContext, [data_dir(base_dir)], options)
    assert [report.failure for report in reports if report.failure is not None] == []
    return [report for report in reports if report.name.startswith("mix-")]


def bounds(reports: Sequence[Report]) -> dict[Name, int]:
    return {partition_name(report.name): report.bound for report in reports if not report.nothing_to_do}


def idle(reports: Sequence[Report]) -> set[Name]:
    """Partitions in which nothing is dirty. Kafka's cleaner does not look at these, however much of what they hold has
    expired; Sexton, which somebody has asked to, does."""
    return {partition_name(report.name) for report in reports if report.first_dirty_offset >= report.bound}


def clean_with_kafka(base_dir: Path, version: str, up_to: Mapping[Name, int]) -> None:
    with KafkaCluster.adopt(base_dir, version, CLEAN_AT_ONCE) as kafka:
        deadline_s = time.monotonic() + CLEAN_TIMEOUT_S
        while (missing := not_cleaned(base_dir, up_to)) and time.monotonic() < deadline_s:
            time.sleep(0.2)
        assert not missing, f"Kafka's cleaner did not reach {missing} in {CLEAN_TIMEOUT_S} s"
        kafka.stop()


def not_cleaned(base_dir: Path, up_to: Mapping[Name, int]) -> dict[Name, int]:
    reached = checkpoints.read_offset_checkpoint(data_dir(base_dir) / checkpoints.CLEANER_OFFSET_CHECKPOINT)
    return {name: offset for name, offset in up_to.items() if reached.get(name, 0) < offset}


def check_work_was_done(reports: Sequence[Report], number: int) -> None:
    """A test that compares logs nobody changed shows nothing."""
    assert len(bounds(reports).keys() - idle(reports)) >= len(reports) // 2
    happened = {Fate(fate) for report in reports for fate in report.tally.counts}
    expected = [
        {Fate.SUPERSEDED, Fate.ABORTED, Fate.KEYLESS_DROPPED, Fate.TOMBSTONE_STARTS_HORIZON, Fate.MARKER_HAS_DATA},
        {Fate.TOMBSTONE_EXPIRED, Fate.TOMBSTONE_WAITS_FOR_HORIZON, Fate.MARKER_STARTS_HORIZON},
        {Fate.MARKER_EXPIRED, Fate.MARKER_WAITS_FOR_HORIZON},
    ]
    assert expected[number - 1] <= happened, f"round {number} had only {sorted(happened)}"


# ---- What they left.


def compare(place: str, by_kafka: Sequence[Batch], by_sexton: Sequence[Batch], segment_ends: Collection[int]) -> None:
    """The same records, markers and batches; but Sexton keeps each old segment's last batch, emptied if need be."""
    assert data_rows(by_sexton) == data_rows(by_kafka), place
    assert markers(by_sexton) == markers(by_kafka), place
    kafka_frames = [frame(batch) for batch in by_kafka]
    known = set(kafka_frames)
    sexton_frames = [
        frame(batch)
        for batch in by_sexton
        if batch.record_count or batch.last_offset not in segment_ends or frame(batch) in known
    ]
    assert sexton_frames == kafka_frames, place


def compare_aborted(by_kafka: Path, by_sexton: Path, name: Name, log: Sequence[Batch]) -> None:
    """Sexton keeps an entry as long as its marker; Kafka only as long as the transaction has batches."""
    entries = {copy: aborted_transactions(data_dir(copy) / f"{name[0]}-{name[1]}") for copy in (by_kafka, by_sexton)}
    assert entries[by_kafka] <= entries[by_sexton]
    aborts = {batch.last_offset for batch in log if batch.control_type is ControlType.ABORT}
    assert {last for _, _, last in entries[by_sexton]} <= aborts


def aborted_transactions(directory: Path) -> set[tuple[int, int, int]]:
    """Producer, first and last offset of each entry in its transaction indexes."""
    return {
        (int(entry["producer_id"]), int(entry["first_offset"]), int(entry["last_offset"]))
        for path in directory.glob("*.txnindex")
        for entry in indexes.decode_transaction_index(path.read_bytes())
    }


def data_rows(log: Sequence[Batch]) -> list[tuple[int, int, bytes | None, bytes | None, tuple[Header, ...]]]:
    return [
        (record.offset, record.timestamp_ms, record.key, record.value, record.headers)
        for batch in log
        if not batch.is_control
        for record in batch.records
    ]


def markers(log: Sequence[Batch]) -> list[tuple[int, int, int, int]]:
    return [
        (batch.last_offset, int(batch.control_type), batch.producer_id, batch.producer_epoch)
        for batch in log
        if batch.is_control and batch.record_count
    ]


def segment_ends(directory: Path) -> set[int]:
    logs = (list(decode_all(path.read_bytes())) for path in directory.glob("*.log"))
    return {log[-1].last_offset for log in logs if log}


def frame(batch: Batch) -> tuple[int, ...]:
    """A batch's header without what is meant to differ.

    The base timestamp: Kafka takes the first surviving record's, Sexton keeps the batch's, so that surviving records
    can be copied byte for byte; no reader sees it, for each record's timestamp is the sum. Where it is a delete
    horizon, it is the time of the cleaning, and the two ran seconds apart.
    """
    return (
        batch.base_offset,
        batch.last_offset,
        batch.attributes,
        batch.max_timestamp_ms,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        batch.leader_epoch,
        batch.record_count,
    )


def check_served(kafka: KafkaCluster, folds: Mapping[Name, Fold]) -> None:
    """A broker takes the directory as it is, and its consumers see the same."""
    assert kafka.recoveries(1) == []
    served = consume_committed(kafka.bootstrap, folds)
    assert {name: fold_rows(rows) for name, rows in served.items()} == folds
    assert [warning for warning in kafka.warnings(1) if GROUP_TOPIC_RACE not in warning] == []


def check_dump_tool(base_dir: Path, version: str) -> None:
    """The tool reports what it does not like in its text, and goes on."""
    files = [
        path
        for directory in partition_dirs(data_dir(base_dir), "mix-").values()
        for kind in ("*.log", "*.index", "*.timeindex", "*.txnindex", "*.snapshot")
        for path in sorted(directory.glob(kind))
    ]
    text = EMPTIED_BATCH.sub("", dump_log(files, "--deep-iteration", version=version))
    complaints = [line for line in text.splitlines() if any(word in line.lower() for word in COMPLAINTS)]
    assert complaints == []


EMPTIED_BATCH: Final = re.compile(
    r"Found timestamp mismatch in :.*\n(?: *Index timestamp: \d+, log timestamp: -1\s*\n)+"
)
"""A batch that is kept without its records keeps its newest timestamp, and the time index points to it. Kafka's cleaner
does the same, and its dump tool, which asks the records, says the same about it."""

GROUP_TOPIC_RACE: Final = "Auto topic creation failed for __consumer_offsets with error 'TOPIC_ALREADY_EXISTS'"
"""A consumer asks for its coordinator, twice; it is no word about a log."""

COMPLAINTS: Final = ("mismatch", "out of order", "corrupt", "isvalid: false", "could not", "exception", "not indexed")


# ---- Directories.


def data_dir(base_dir: Path) -> Path:
    return base_dir / "node-1" / "data"


def read_logs(base_dir: Path) -> dict[Name, list[Batch]]:
    return {name: read_log(directory) for name, directory in partition_dirs(data_dir(base_dir), "mix-").items()}


def cleaner_offsets(base_dir: Path, names: Mapping[Name, object]) -> dict[Name, int]:
    offsets = checkpoints.read_offset_checkpoint(data_dir(base_dir) / checkpoints.CLEANER_OFFSET_CHECKPOINT)
    return {name: offset for name, offset in offsets.items() if name in names}
