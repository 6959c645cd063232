"""What is told of runs, beyond what was written down; and why something is still in the store."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from sexton.broker.compaction import answers
from sexton.broker.compaction.answers import with_figures
from sexton.client.client import Client
from sexton.compaction.cloud_due import STORE
from sexton.records.batch import ControlType, Record, make_batch, make_marker
from sexton.records.header import DELETE_HORIZON

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000


async def why_in_store(monkeypatch: pytest.MonkeyPatch, batch: Any, **status: Any) -> dict[str, Any]:
    """Of a partition that is leveled up to 10 and compacted up to 5."""
    row = {"broker": STORE, "role": "leader", "mxfo": 10, "mcco": 5, "last_stable_offset": 20, "why": ""}
    row |= {"bound": 10, "bound_because": "it is leveled up to there", "uncleanable": None, **status}

    async def told(*_: Any) -> list[dict[str, Any]]:
        return [row]

    async def batches(*_: Any) -> AsyncIterator[Any]:
        yield batch

    monkeypatch.setattr(answers, "status", told)
    monkeypatch.setattr(answers, "raw_batches", batches)
    return await answers.why(cast(Client, None), "t", 0, None, batch.base_offset, NOW_MS)


def record(offset: int, value: bytes | None = b"v", horizon_ms: int | None = None) -> Any:
    marks: dict[str, int] = {}
    if horizon_ms is not None:
        marks = {"attributes": DELETE_HORIZON, "base_timestamp_ms": horizon_ms}
    return make_batch([Record(offset, NOW_MS, b"k", value)], **marks)


async def test_what_is_in_l0_waits_for_leveling_which_stops_at_open_transactions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await why_in_store(monkeypatch, record(12), why="5 bytes wait to be leveled")
    assert (found["what"], found["offset"]) == ("record", 12)
    assert found["because"] == "it is in L0: the partition is leveled up to 10"
    assert found["waits_for"] == ["the next leveling: 5 bytes wait to be leveled"]
    found = await why_in_store(monkeypatch, record(12), last_stable_offset=11)
    assert found["waits_for"] == ["a transaction is open at 11, and leveling stops there"]
    marker = make_marker(13, ControlType.COMMIT, 1, 0, NOW_MS)
    found = await why_in_store(monkeypatch, marker)
    assert found["what"] == "COMMIT marker"
    assert found["waits_for"] == ["the next leveling"]


async def test_what_is_leveled_waits_for_compaction_and_tombstones_for_their_horizon_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = await why_in_store(monkeypatch, record(7))
    assert found["because"] == "it is leveled, and has not been compacted yet: L1 is compacted up to 5"
    assert found["waits_for"] == ["the next pass reaches 10: it is leveled up to there"]
    found = await why_in_store(monkeypatch, record(3))
    assert (found["because"], found["waits_for"]) == (answers.NEWEST, [])
    found = await why_in_store(monkeypatch, record(3, None))
    assert (found["what"], found["because"]) == ("tombstone", "delete.retention.ms starts with the next pass")
    found = await why_in_store(monkeypatch, record(3, None, NOW_MS + HOUR_MS))
    assert (found["because"], found["delete_horizon_ms"]) == (answers.HORIZON, NOW_MS + HOUR_MS)
    found = await why_in_store(monkeypatch, record(3, None, NOW_MS - 1))
    assert (found["because"], found["delete_horizon_ms"]) == ("nothing keeps it: the next pass takes it", None)


def test_records_before_and_after_a_run_and_its_speed_are_told() -> None:
    fates = {"newest": "3", "tombstone_waits_for_replicas": "1", "superseded": "5", "marker_expired": "1"}
    told = with_figures({"fates": fates, "duration_ms": 2000, "bytes_before": 10_000})
    assert (told["records_before"], told["records_after"], told["bytes_per_second"]) == (10, 4, 5000)
    adopted = with_figures({"fates": {}, "duration_ms": 0, "bytes_before": 10_000})
    assert (adopted["records_before"], adopted["records_after"], adopted["bytes_per_second"]) == (None, None, None)
