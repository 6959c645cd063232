"""`sexton reproduce` on real brokers: every scenario on Sexton, one on Apache Kafka. All on all: `make reproduce`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sexton.harness.brokers import ENVIRONMENT
from sexton.reproduce.scenarios import SCENARIOS

TIMEOUT_S = 800


def reproduce(report: Path, *arguments: str) -> str:
    """What it prints. It exits with 0 only if everything came out as expected."""
    done = subprocess.run(
        [sys.executable, "-m", "sexton.cli.main", "reproduce", *arguments, "--report", str(report)],
        env={**os.environ, **ENVIRONMENT, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.cluster
@pytest.mark.spark
def test_sexton_corrupts_only_without_coordination(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    told = reproduce(report, "--system", "sexton-independent", "--system", "sexton-coordinated")
    assert "sexton-independent tombstone: user=alice was read, but user was deleted" in told
    page = report.read_text()
    captions = re.findall(r'<figcaption>(\S+) <span class="chip (\w+)">', page)
    expected = [("sexton-independent", one.without_coordination.value) for one in SCENARIOS.values()]
    expected += [("sexton-coordinated", "clean")] * len(SCENARIOS)
    assert sorted(captions) == sorted(expected)
    assert all("<svg" in figure for figure in page.split("<figure>")[1:])
    assert f"All {2 * len(SCENARIOS)} runs came out as expected" in page


@pytest.mark.kafka
def test_a_deleted_key_comes_back_on_kafka(tmp_path: Path) -> None:
    told = reproduce(tmp_path / "report.html", "--scenario", "tombstone", "--system", "kafka-4.3.0")
    assert "kafka-4.3.0 tombstone: user=alice was read, but user was deleted" in told
