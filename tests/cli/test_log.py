"""`sexton log stats` and `sexton log diff` from the command line, through Spark; and the command itself."""

from __future__ import annotations

import json
import threading
import time
import uuid
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from rich.console import Console
from typer.testing import CliRunner, Result

from sexton.cli import show
from sexton.cli.main import app
from sexton.compaction.watermarks.checkpoint import WATERMARKS_FILE
from sexton.compaction.watermarks.checkpoint import encode as encode_watermarks
from sexton.compaction.watermarks.replica import Pair, ReplicaWatermarks
from sexton.errors import CorruptLogError
from sexton.records import checkpoints, names
from tests import logs

LOG = logs.Log(
    [0, 10],
    [
        [
            logs.data((b"a", b"1"), (b"a", b"2"), (b"b", b"1"), (b"c", None), (None, b"no key"), at=0),
            logs.in_transaction((b"a", b"never"), at=5, pid=7),
            logs.abort(6, pid=7),
        ],
        [logs.in_transaction((b"a", b"3"), at=10, pid=8)],
    ],
)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def write(directory: Path, log: logs.Log = LOG) -> Path:
    logs.write_partition(log, directory)
    path = directory.parent / checkpoints.REPLICATION_OFFSET_CHECKPOINT
    parsed = names.parse_partition_dir(directory.name)
    known = checkpoints.read_offset_checkpoint(path)
    checkpoints.write_offset_checkpoint(path, {**known, (parsed.topic, parsed.partition): log.end_offset})
    return directory


def test_the_command_lists_what_it_can_do_and_offers_completion() -> None:
    shown = run("--help").output
    assert all(word in shown for word in ("compact", "log", "--install-completion", "--version"))
    assert all(word in run("log", "--help").output for word in ("stats", "dump", "diff"))
    assert run("--version").output.startswith("sexton ")


@pytest.mark.spark
def test_stats_answer_the_questions_for_programs(spark: SparkSession, tmp_path: Path) -> None:
    directory = write(tmp_path / "orders-0")
    result = run("log", "stats", directory, "--json", "--now-ms", logs.NOW_MS)
    assert result.exit_code == 0, result.output
    (stats,) = json.loads(result.stdout)["partitions"]
    expected: dict[str, Any] = {
        "partition": "orders-0",
        "error": None,
        "records": 7,
        "markers": 1,
        "batches": 4,
        "segments": 2,
        "distinct_keys": 3,
        "records_without_key": 1,
        "log_end_offset": 11,
        "high_watermark": 11,
        "last_stable_offset": 10,
        "first_dirty_offset": 0,
        "dirty_ratio": 1.0,
        "cleanable_to_offset": 10,
        "held_by": "the active segment is never cleaned",
        "eligible": True,
        "last_cleaned": {
            "up_to_offset": 10,
            "not_before_ms": logs.NOW_MS - logs.HOUR_MS + 6,
            "evidence": "gaps in the offsets",
        },
    }
    assert {name: stats[name] for name in expected} == expected
    assert stats["tombstones"]["count"] == 1
    assert stats["tombstones"]["oldest_ms"] == logs.NOW_MS - logs.HOUR_MS + 3
    assert stats["tombstones"]["waiting_for"]["first_cleaning"]["count"] == 1
    assert stats["transactions"]["open"] == [
        {"producer_id": 8, "first_offset": 10, "since_ms": logs.NOW_MS - logs.HOUR_MS + 10}
    ]
    assert stats["transactions"]["aborted_records"] == 1
    assert stats["would_save"]["records"] == 2
    assert stats["would_save"]["fates"] == {
        "newest": 2,
        "keyless_kept": 1,
        "tombstone_waits_for_replicas": 1,
        "marker_has_data": 1,
        "superseded": 1,
        "aborted": 1,
    }


@pytest.mark.spark
def test_stats_answer_the_questions_for_people(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "orders-0")
    write(tmp_path / "orders-1")
    settings = ("--config", "cleanup.policy=compact", "--config", "min.cleanable.dirty.ratio=1.0")
    result = run("log", "stats", tmp_path, "--now-ms", logs.NOW_MS, *settings)
    assert result.exit_code == 0, result.output
    shown = " ".join(result.output.replace("│", " ").split())
    for said in (
        "7 records and 1 marker in 4 batches in 2 segments",
        "3 (1.7 records a key); without a key, so that nothing can replace them: 1 records",
        "open since offset 10, for 59 min 59 s, by producer 8",
        "never cleaned: delete.retention.ms starts with the next cleaning",
        "no: its dirty ratio 1.00 is not above min.cleanable.dirty.ratio=1.0",
        "1 because its transaction was aborted",
        "assumed no cluster metadata mentions the topic",
        "Overview",
    ):
        assert said in shown


@pytest.mark.spark
def test_stats_of_a_broken_partition_end_with_its_error_after_the_others(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "orders-0")
    path = write(tmp_path / "orders-1") / names.log_file_name(0)
    path.write_bytes(path.read_bytes()[:-2])
    result = run("log", "stats", tmp_path, "--json")
    assert result.exit_code == CorruptLogError.exit_code
    fine, broken = json.loads(result.stdout)["partitions"]
    assert fine["error"] is None
    assert broken["error"]["place"].startswith(str(path))


@pytest.mark.spark
def test_diff_says_the_same_with_0_and_different_with_1(spark: SparkSession, tmp_path: Path) -> None:
    side_a, same = write(tmp_path / "a" / "orders-0"), write(tmp_path / "same" / "orders-0")
    shorter = logs.Log([0], [[logs.data((b"a", b"1"), at=0)]])
    side_b = write(tmp_path / "b" / "orders-0", shorter)
    equal = run("log", "diff", side_a, same)
    assert equal.exit_code == 0
    assert "2 keys, and every one agrees" in equal.output
    different = run("log", "diff", side_a, side_b, "--json")
    assert different.exit_code == 1
    report = json.loads(different.stdout)
    assert (report["equal"], report["keys_only_in_a"], report["keys_different"]) == (False, 1, 1)
    assert report["differences"][0] == {
        "key": {"utf8": "a"},
        "a": {"offset": 1, "timestamp_ms": logs.NOW_MS - logs.HOUR_MS + 1, "value": {"utf8": "2"}},
        "b": {"offset": 0, "timestamp_ms": logs.NOW_MS - logs.HOUR_MS, "value": {"utf8": "1"}},
        "reason": "offset 1 lies beyond B's end at 1",
    }
    for_people = run("log", "diff", side_a, side_b, "--limit", 1)
    assert for_people.exit_code == 1
    assert "1 not shown" in " ".join(for_people.output.split())


@pytest.mark.spark
def test_the_bar_follows_the_tasks_of_a_spark_job(spark: SparkSession) -> None:
    shown = StringIO()
    console = Console(file=shown, force_terminal=True, width=100)
    context = spark.sparkContext
    with show.spark_progress(context, console) as announce:
        announce("first", 4)
        announce("second", 4)  # lazy: nothing ran yet, so both share a bar
        context.parallelize(range(4), 4).map(lambda number: time.sleep(0.3)).collect()
        announce("third", 1)
        context.parallelize(range(1), 1).count()
    assert "first, second" in shown.getvalue()
    assert "third" in shown.getvalue()
    assert "spark progress" not in [thread.name for thread in threading.enumerate()]


def test_no_bar_outside_a_terminal() -> None:
    with show.spark_progress(None, Console(file=StringIO())) as announce:  # type: ignore[arg-type]
        announce("step", 1)


def test_diff_by_checksum_compares_bytes_as_far_as_both_are_compacted(tmp_path: Path) -> None:
    """Without Spark."""
    other = logs.Log([0, 10], [LOG.segments[0], [logs.in_transaction((b"a", b"4"), at=10, pid=8)]])
    sides = [write(tmp_path / "1" / "orders-0"), write(tmp_path / "2" / "orders-0", other)]
    for directory, compacted in zip(sides, (20, 10), strict=True):
        known = ReplicaWatermarks(uuid.UUID(int=1), compacted=Pair(compacted, compacted))
        (directory / WATERMARKS_FILE).write_bytes(encode_watermarks(known))
    same = run("log", "diff", "--checksum", *sides)
    assert same.exit_code == 0, same.output
    assert "byte for byte, below offset 10" in same.output
    different = run("log", "diff", "--checksum", *sides, "--below", 11, "--json")
    assert different.exit_code == 1
    found = json.loads(different.stdout)
    assert (found["equal"], found["first_difference"], found["below_offset"]) == (False, 10, 11)
