"""What people read: that nobody compacts, what cannot be compacted, what waits, and what runs have done."""

from __future__ import annotations

from typing import Any

import pytest

from sexton.cli import cluster, compaction

SINCE_MS = 1_794_817_831_412
REPLICA: dict[str, Any] = {
    "topic": "orders",
    "partition": 0,
    "broker": 1,
    "role": "leader",
    "is_in_sync": True,
    "mcco": 1,
    "mxfo": 1,
    "mtro": 1,
    "mxro": 1,
    "log_end_offset": 9,
    "dirty_ratio": 0.5,
    "size_bytes": 1000,
    "last_run": None,
    "waits_for_leader": False,
    "is_due": True,
    "uncleanable": None,
    "compacted_ms": SINCE_MS,
    "tombstones_count": 3,
    "markers_count": 4,
    "held_back_bytes": 5000,
    "why": "its dirty ratio 0.50 is above 0.1",
    "holding_back": None,
    "held_back_since_ms": None,
}
RUN: dict[str, Any] = {
    "finished_ms": SINCE_MS,
    "topic": "orders",
    "partition": 0,
    "broker_id": 1,
    "bound": 100,
    "first_dirty_offset": 4,
    "bytes_before": 10**6,
    "bytes_after": 1000,
    "records_before": 100,
    "records_after": 3,
    "duration_ms": 1500,
    "bytes_per_second": 700_000,
    "outcome": "committed",
}


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "220")


def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], count: int | None, **more: Any) -> str:
    monkeypatch.setattr(compaction, "with_client", lambda bootstrap, work: ([{**REPLICA, **more}], count))
    compaction.status(None, as_json=False, bootstrap="")
    return capsys.readouterr().out


def test_status_says_what_waits_and_when_it_was_compacted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = shown(monkeypatch, capsys, 1)
    assert "7, 4.9 KiB for replicas" in text
    assert " ago" in text
    assert "No compactor is running" not in text
    assert "No compactor is running" not in shown(monkeypatch, capsys, None), "it is not known yet"
    assert " ago" not in shown(monkeypatch, capsys, 1, compacted_ms=None)


def test_status_says_that_nobody_compacts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert "No compactor is running" in shown(monkeypatch, capsys, 0)


def test_status_says_what_cannot_be_compacted_and_why(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"why": "the CRC does not match", "since_ms": SINCE_MS, "attempts_count": 1}
    text = shown(monkeypatch, capsys, 1, uncleanable=found)
    assert "cannot be compacted since 2026-11-16T08:30:31+00:00: the CRC does not match" in text
    assert "above 0.1" not in text, "that it is due helps nobody"


def test_cluster_status_says_that_nobody_compacts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = {
        "cluster_id": "c",
        "controller": 1,
        "brokers": [1],
        "missing_brokers": [],
        "topics": 1,
        "partitions": 1,
        "offline": [],
        "not_in_sync": [],
        "healthy": True,
        "due_for_compaction": 3,
    }
    for count, is_said in ((0, True), (1, False), (None, False)):
        told = {**figures, "compactors": count}
        monkeypatch.setattr(cluster, "with_client", lambda bootstrap, work, told=told: told)
        cluster.status(check=False, as_json=False, bootstrap="")
        assert ("No compactor is running" in capsys.readouterr().out) is is_said


def test_history_shows_the_dirty_section_the_records_and_the_speed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    adopted = {**RUN, "first_dirty_offset": -1, "records_before": None, "bytes_per_second": None, "outcome": "adopted"}
    found = {"runs": [RUN, adopted], "work": [], "compactors": []}
    monkeypatch.setattr(compaction, "with_client", lambda bootstrap, work: found)
    compaction.history("orders", limit=20, as_json=False, bootstrap="")
    lines = [line for line in capsys.readouterr().out.splitlines() if "orders-0" in line]
    assert all(what in lines[0] for what in ("4 to 100", "100 → 3", "683.6 KiB/s", "976.6 KiB → 1,000 B"))
    assert "KiB/s" not in lines[1]
