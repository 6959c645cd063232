"""How many tasks a compactor may run at once on this machine, so that all its processes stay within a budget. Pure.

| what                 | bytes                                                                                    |
|----------------------|------------------------------------------------------------------------------------------|
| the program          | 300 MB: Python, PySpark, the metastore's driver                                          |
| Spark's JVM          | its heap (`--memory`), and 300 MB besides                                                |
| each task, in Python | 450 MB: a chunk of two million records (150 MB), a run as it is read and as it is        |
|                      | written (64 MiB each, however large objects are), parts on their way, the interpreter    |

No other number grows with a log, with the keys in it, or with objects. Spark's own clusters bound their executors.
"""

from __future__ import annotations

import re
from typing import Final

from sexton.errors import SextonError

MB: Final = 1_000_000
PROGRAM_BYTES: Final = 300 * MB
JVM_BYTES: Final = 300 * MB
TASK_BYTES: Final = 450 * MB

_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE: Final = re.compile(r"(\d+)([kmgt])b?", re.IGNORECASE)
_LOCAL: Final = re.compile(r"local(?:\[(\*|\d+)\])?")


class BadMemoryError(SextonError):
    """What was asked for makes no sense, or is less than one task needs."""

    exit_code = 64


def parse_size(text: str) -> int:
    """As Spark and the JVM read sizes: 512m, 2g."""
    found = _SIZE.fullmatch(text.strip())
    if found is None or not int(found[1]):
        raise BadMemoryError(f"{text!r} is no size", "", "Say it as in 512m or 4g")
    return int(found[1]) * _UNITS[found[2].lower()]


def tasks_within(budget_bytes: int, heap_bytes: int) -> int:
    """Raises BadMemoryError if that is not even one."""
    left_bytes = budget_bytes - PROGRAM_BYTES - JVM_BYTES - heap_bytes
    if left_bytes < TASK_BYTES:
        least_bytes = budget_bytes - left_bytes + TASK_BYTES
        raise BadMemoryError(
            f"{budget_bytes // MB} MB are less than a compactor needs", "", f"Give it {least_bytes // MB} MB at least"
        )
    return left_bytes // TASK_BYTES


def master_within(master: str, budget_bytes: int, heap_bytes: int, cores_count: int) -> str:
    """A local master with as many tasks at once as fit. Raises BadMemoryError."""
    found = _LOCAL.fullmatch(master)
    if found is None:
        raise BadMemoryError(
            f"tasks of {master} do not run in this process", "", "Bound its executors by that cluster's own settings"
        )
    wanted = cores_count if found[1] == "*" else int(found[1] or 1)
    return f"local[{max(1, min(wanted, tasks_within(budget_bytes, heap_bytes)))}]"
