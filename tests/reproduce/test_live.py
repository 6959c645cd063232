"""`sexton reproduce` on real Sexton brokers and a real compactor. On real Kafka: `make reproduce`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sexton.harness.brokers import ENVIRONMENT

TIMEOUT_S = 800


@pytest.mark.cluster
@pytest.mark.spark
def test_a_deleted_key_comes_back_only_without_coordination(tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    systems = ["--system", "sexton-independent", "--system", "sexton-coordinated"]
    command = [sys.executable, "-m", "sexton.cli.main", "reproduce", "--scenario", "tombstone", *systems]
    done = subprocess.run(
        [*command, "--report", str(report)],
        env={**os.environ, **ENVIRONMENT, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sexton-independent tombstone: user=alice was read, but user was deleted" in done.stdout
    page = report.read_text()
    figures = page.split("<figure>")[1:]
    assert len(figures) == 2
    for figure, verdict in zip(figures, ("corrupt", "clean"), strict=True):
        assert f'<span class="chip {verdict}">' in figure
        assert "<svg" in figure
    assert "All 2 runs came out as expected" in page
