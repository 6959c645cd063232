"""What a long-running process says, line by line: when, how serious, what.

2025-01-31T12:00:00.123Z INFO    broker 1 is active
"""

from __future__ import annotations

import logging
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path

FILE_BYTES_MAX = 10 << 20
FILES_COUNT = 5
"""A log takes at most fifty megabytes, the newest lines."""


class _Lines(logging.Formatter):
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")
        self.converter = time.gmtime


def log_to(file: Path | None, level: int = logging.INFO) -> None:
    """Sets logging up: to a file that is rotated, or to stderr."""
    if file is None:
        handler: logging.Handler = logging.StreamHandler(sys.stderr)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(file, maxBytes=FILE_BYTES_MAX, backupCount=FILES_COUNT - 1)
    handler.setFormatter(_Lines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
