"""The judge of histories: seconds and peak memory by size, beside the plain reference.

    python -m benchmarks.check [--ops 100000 1000000] [--kinds queue table eos] [--judges spark arrays]
                               [--reference 20000] [--cores 2] [--keep DIR]

Each line judges a `history.jsonl` (`histories.py`) in a process of its own, all in: the start of Python, Spark and its
JVM, reading, flattening, judging. `arrays` is one process without Spark; `reference` is the named peer, plain Python
over the same history as far as it can: its seconds and memory are for its own size. The ratio of each line is that of
its seconds to those of the line before, of the same judge and kind: ten times the operations should take at most
eleven.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks import histories
from benchmarks.memory import PeakMemory

TIMEOUT_S: Final = 3_600


def _spark(path: Path, cores: int) -> str:
    from sexton.spark import session
    from sexton.spark.check import check

    running = session.start("benchmark", f"local[{cores}]")
    try:
        return check(running.sparkContext, path).verdict
    finally:
        running.stop()


def _arrays(path: Path, cores: int) -> str:
    from sexton.checker.kernels.judge import judge
    from sexton.history.load import load

    loaded = load(path)
    return judge(loaded.history, loaded.run).verdict


def _reference(path: Path, cores: int) -> str:
    from sexton.checker.reference import judge
    from sexton.history import run
    from sexton.history.lines import from_line

    with (path / "history.jsonl").open("rb") as file:
        return judge(map(from_line, file), run.read(path).run).verdict


JUDGES: Final[dict[str, Callable[[Path, int], str]]] = {
    "spark": _spark,
    "arrays": _arrays,
    "reference": _reference,
}


def measured(judge: str, path: Path, cores: int) -> tuple[float, int]:
    """Seconds and peak bytes. Raises if the verdict is not true."""
    command = [sys.executable, "-m", "benchmarks.check", "--judge", judge, "--path", str(path), "--cores", str(cores)]
    start = time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, PeakMemory(process.pid) as memory:
        out, _ = process.communicate(timeout=TIMEOUT_S)
    if process.returncode or "true" not in out.split():
        raise RuntimeError(f"{judge} ended with {process.returncode} and said {out!r}")
    return time.monotonic() - start, memory.peak_bytes


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ops", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--kinds", nargs="+", choices=histories.KINDS, default=list(histories.KINDS))
    parser.add_argument("--judges", nargs="+", choices=JUDGES, default=["spark", "arrays"])
    parser.add_argument("--reference", type=int, default=20_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--judge", choices=JUDGES)
    parser.add_argument("--path", type=Path)
    options = parser.parse_args()
    if options.judge:
        print(JUDGES[options.judge](options.path, options.cores))
        return
    plan = [(judge, kind, size) for kind in options.kinds for judge in options.judges for size in options.ops]
    plan += [("reference", kind, options.reference) for kind in options.kinds if options.reference]
    with tempfile.TemporaryDirectory() as temporary:
        _compare(options.keep or Path(temporary), plan, options.cores)


def _compare(directory: Path, plan: list[tuple[str, str, int]], cores: int) -> None:
    table = Table("history", "judge", "operations", "records", "seconds", "ratio", "peak MB", "operations/s")
    before: dict[tuple[str, str], float] = {}
    records: dict[tuple[str, int], int] = {}
    for judge, kind, size in plan:
        path = directory / f"{kind}-{size}"
        if (kind, size) not in records:
            records[kind, size] = histories.write(path, kind, size)
        seconds, peak_bytes = measured(judge, path, cores)
        ratio = f"{seconds / before[judge, kind]:.1f}" if (judge, kind) in before else ""
        before[judge, kind] = seconds
        numbers = f"{seconds:.1f}", ratio, f"{peak_bytes >> 20:,}", f"{size / seconds:,.0f}"
        table.add_row(kind, judge, f"{size:,}", f"{records[kind, size]:,}", *numbers)
    Console().print(table)


if __name__ == "__main__":
    main()
