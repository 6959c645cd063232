"""`sexton reproduce` on real Sexton brokers and a real compactor. On real Kafka: `make reproduce`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sexton_cluster import ENVIRONMENT

TIMEOUT_S = 800


@pytest.mark.cluster
@pytest.mark.spark
@pytest.mark.parametrize(("system", "verdict"), [("sexton-independent", "corrupt"), ("sexton-coordinated", "clean")])
def test_a_deleted_key_comes_back_only_without_coordination(system: str, verdict: str, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    command = [sys.executable, "-m", "sexton.cli.main", "reproduce", "--scenario", "tombstone"]
    done = subprocess.run(
        [*command, "--system", system, "--report", str(report)],
        env={**os.environ, **ENVIRONMENT, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdict in done.stdout
    page = report.read_text()
    assert f'<span class="chip {verdict}">' in page
    assert "<svg" in page
    assert "All 1 runs came out as expected" in page
