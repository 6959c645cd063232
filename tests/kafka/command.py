"""`sexton`, run as people run it: a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

COMMAND: Final = (sys.executable, "-m", "sexton.cli.main")
COMMAND_TIMEOUT_S: Final = 180
"""Ten seconds on two quiet cores, most of it Spark's start."""

ENVIRONMENT: Final = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}


def run_sexton(*args: object) -> subprocess.CompletedProcess[str]:
    """Whatever its exit code is."""
    return subprocess.run(
        [*COMMAND, *map(str, args)],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )


def sexton_json(*args: object) -> dict[str, Any]:
    """What it prints with --json; it must succeed."""
    done = run_sexton(*args, "--json")
    assert done.returncode == 0, done.stderr
    printed: dict[str, Any] = json.loads(done.stdout)
    return printed
