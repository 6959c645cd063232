"""`sexton verify` as people call it: a process of its own."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from tests.project import PROJECT_DIR

RUN_TIMEOUT_S: Final = 240

ONE: Final = ("--client", "confluent-kafka", "--rate", "150", "--calm", "1")
"""The others take longer to come back from a broker that was killed: kafka-python until it is killed itself. What these
runs show takes few operations, and as many as a machine can do take all of it."""


def started(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sexton.cli.main", "verify", *map(str, arguments)],
        cwd=PROJECT_DIR,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    said, _ = process.communicate(timeout=RUN_TIMEOUT_S)
    return process.returncode, said
