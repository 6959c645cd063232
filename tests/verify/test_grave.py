"""A broker that is away until the others have forgotten what it missed, in whole runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.project import PROJECT_DIR

RUN_TIMEOUT_S = 1_500
ASKED = ("--workload", "table", "--txn", "--nemesis", "grave", "--time", "5", "--interval", "5", "--seed", "5")


def ran(system: str, directory: Path) -> tuple[int, str, dict[str, Any], list[dict[str, Any]]]:
    """Exit code, what it said, what it found, and what grave told."""
    run = directory / "run"
    command = [sys.executable, "-m", "sexton.cli.main", "verify", "run", "--system", system, *ASKED]
    command += ["--client", "confluent-kafka", "--dir", str(run)]
    done = subprocess.run(command, cwd=PROJECT_DIR, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    ops = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    graves = [op["ext"] for op in ops if op["f"] == "grave" and op["type"] == "info"]
    return done.returncode, done.stdout + done.stderr, json.loads((run / "results.json").read_text()), graves


@pytest.mark.cluster
@pytest.mark.soak
def test_kafka_serves_what_was_deleted(tmp_path: Path) -> None:
    code, said, results, graves = ran("kafka-4.3.0", tmp_path)
    assert code == 1, said
    assert "resurrected-key" in {anomaly["name"] for anomaly in results["anomalies"]}
    assert any(told.get("forgotten-keys") for told in graves)


@pytest.mark.cluster
@pytest.mark.soak
def test_sexton_waits_for_who_is_away(tmp_path: Path) -> None:
    code, said, results, graves = ran("sexton", tmp_path)
    assert code == 0, said
    assert results["verdict"] == "true"
    assert any(told.get("missed") for told in graves), "compaction went over what it had missed"
    assert not any(told.get("forgotten-keys") for told in graves)
