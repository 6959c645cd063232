"""What a cluster looked like from outside, once a second."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sexton.harness.asking import Door
from sexton.harness.errors import HarnessError
from sexton.verify import looking, probes, samples
from sexton.verify.probes import Seen, ext_of
from sexton.verify.samples import Sample
from sexton.verify.systems import System

SEEN = {
    7: Seen(high_watermark=9, last_stable_offset=8, log_start=1, leader_epoch=4, leader=2, isr=(2, 3)),
    5: Seen(high_watermark=3, last_stable_offset=3, log_start=0, leader_epoch=0, leader=1, isr=()),
}


class Brokers:
    """The first is this process, the second is down."""

    node_ids = (1, 2)

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def pid(self, node_id: int) -> int:
        if node_id == 2:
            raise HarnessError("node 2 is not running")
        return os.getpid()

    def log_dir(self, node_id: int) -> Path:
        return self._directory


def test_what_was_written_is_read(tmp_path: Path) -> None:
    rows = [Sample(time_ns=1, broker=3, resident_bytes=4, cpu_ms=5, disk_bytes=6), *samples.of_logs(SEEN, 2)]
    samples.write(tmp_path, rows)
    assert samples.read(tmp_path / samples.NAME) == rows
    assert [(row.log, row.leader, row.isr) for row in rows[1:]] == [(5, 1, ()), (7, 2, (2, 3))]


def test_a_run_without_a_look_has_an_empty_table(tmp_path: Path) -> None:
    samples.write(tmp_path, [])
    assert samples.read(tmp_path / samples.NAME) == []


def test_memory_processor_and_disk_are_those_of_the_brokers_that_run(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    (tmp_path / "t-0" / "0.log").write_bytes(bytes(range(256)) * 400)
    (tmp_path / "t-0" / "0.index").touch()
    os.truncate(tmp_path / "t-0" / "0.index", 1 << 30)
    brokers: Any = Brokers(tmp_path)
    before_ms = time.process_time() * 1_000
    (found,) = samples.of_brokers(brokers, 3)
    assert (found.time_ns, found.broker, found.log) == (3, 1, None)
    assert found.resident_bytes is not None
    assert 1 << 20 < found.resident_bytes < 1 << 36
    assert found.cpu_ms is not None
    assert before_ms - 50 <= found.cpu_ms <= time.process_time() * 1_000 + 50
    assert found.disk_bytes is not None
    assert 102_400 <= found.disk_bytes < 1 << 29, "a hole takes no room"


def test_a_history_is_told_what_the_judge_reads_and_who_leads_and_no_more() -> None:
    assert ext_of(SEEN) == {
        "high-watermarks": {"7": 9, "5": 3},
        "last-stable-offsets": {"7": 8, "5": 3},
        "log-starts": {"7": 1, "5": 0},
        "leader-epochs": {"7": 4, "5": 0},
        "leaders": {"7": 2, "5": 1},
    }


def replica(broker: int | str, mtro: int, mxro: int, topic: str = "t", partition: int = 1) -> dict[str, Any]:
    """As `sexton compaction status --json` has it, as far as this asks."""
    told = {"broker": broker, "topic": topic, "partition": partition, "role": "follower", "high_watermark": 100}
    return {**told, "mtro": mtro, "mxro": mxro, "mcco": 100, "mxfo": 100}


def test_of_the_replicas_of_a_compacted_log_how_far_removal_may_go_is_kept(tmp_path: Path) -> None:
    status = [replica(1, 90, 80), replica(2, 70, 95), replica(2, 1, 1, topic="other"), replica("store", 5, 5)]
    rows = looking.of_status(status, {7: ("t", 1)}, 3)
    assert [(row.broker, row.log, row.mtro, row.mxro) for row in rows] == [(1, 7, 90, 80), (2, 7, 70, 95)]
    samples.write(tmp_path, rows)
    assert samples.read(tmp_path / samples.NAME) == rows


def test_samples_of_a_run_that_knew_nothing_of_it_are_read(tmp_path: Path) -> None:
    samples.write(tmp_path, samples.of_logs(SEEN, 2))
    old = pq.read_table(tmp_path / samples.NAME).drop_columns(["mtro", "mxro"])
    pq.write_table(old, tmp_path / samples.NAME)
    assert samples.read(tmp_path / samples.NAME) == list(samples.of_logs(SEEN, 2))


def test_a_system_that_is_not_sexton_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def removable(door: Door, *_: object) -> list[Sample]:
        asked.append(door.bootstrap)
        return []

    monkeypatch.setattr(looking, "removable", removable)
    monkeypatch.setattr(probes, "watermarks", lambda *_: {})
    for name in ("kafka-4.3.0", "host:9092", "sexton", "sexton-independent"):
        looking.look_at(System(name, name, 1), {0: ("t", 0)}, {0: ("t", 0)}, 1)
    looking.look_at(System("sexton", "nothing is compacted", 1), {0: ("t", 0)}, {}, 1)
    assert asked == ["sexton", "sexton-independent"]
