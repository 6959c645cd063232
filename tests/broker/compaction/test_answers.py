"""What is told of runs, beyond what was written down."""

from __future__ import annotations

from sexton.broker.compaction.answers import with_figures


def test_records_before_and_after_a_run_and_its_speed_are_told() -> None:
    fates = {"newest": "3", "tombstone_waits_for_replicas": "1", "superseded": "5", "marker_expired": "1"}
    told = with_figures({"fates": fates, "duration_ms": 2000, "bytes_before": 10_000})
    assert (told["records_before"], told["records_after"], told["bytes_per_second"]) == (10, 4, 5000)
    adopted = with_figures({"fates": {}, "duration_ms": 0, "bytes_before": 10_000})
    assert (adopted["records_before"], adopted["records_after"], adopted["bytes_per_second"]) == (None, None, None)
