"""Large correct histories for `check.py`, made from a seed: one for each kind of workload that is judged in its own
way. Logs are left for new ones after some sends, so that a history ten times as long has ten times the logs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from benchmarks import copies_history, queue_history, table_history
from sexton.history import run
from sexton.history.op import Log, Run

Lines = Iterator[tuple[str, int]]
"""Lines, and how many records they send and poll."""

KINDS: Final[Mapping[str, Callable[[random.Random, int, dict[int, Log]], Lines]]] = {
    "queue": queue_history.lines,
    "table": table_history.lines,
    "eos": copies_history.lines,
}


def write(directory: Path, kind: str, op_count: int, seed: int = 1) -> int:
    """A `history.jsonl` and what the judge must know of its run. Returns how many records were sent and polled."""
    directory.mkdir(parents=True, exist_ok=True)
    logs: dict[int, Log] = {}
    counted = 0
    with (directory / "history.jsonl").open("w") as file:
        for text, records in KINDS[kind](random.Random(seed), op_count, logs):
            file.write(text)
            counted += records
    run.write(directory, run.Description(Run(name=kind, workload=kind, logs=logs)))
    return counted
