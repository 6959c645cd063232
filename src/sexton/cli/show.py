"""How commands speak: numbers a person can read, JSON a program can, and a bar while people wait.

Results go to stdout, everything else (bars, errors) to stderr, so that a command can always stand in a pipe.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from sexton.errors import SextonError

if TYPE_CHECKING:
    from pyspark import SparkContext

POLL_SECONDS = 0.2
"""Between two looks at Spark's progress: often enough to look alive, seldom enough to cost nothing."""

FREE_COLUMNS = 1_000

Announce = Callable[[str, int], None]
"""Called with a step's name and its task count, before the step runs."""

_BYTE_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_TIME_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000), ("ms", 1))


def results(*, highlight: bool = True) -> Console:
    """For stdout. What is no terminal takes a table as wide as it is: cut off, it would tell less to whoever reads it
    later."""
    is_free = not sys.stdout.isatty() and "COLUMNS" not in os.environ
    return Console(width=FREE_COLUMNS if is_free else None, highlight=highlight)


def bytes_text(size_bytes: int) -> str:
    """Three digits or so, in powers of 1024: 512 B, 1.5 KiB, 12.0 MiB."""
    value, unit = float(size_bytes), 0
    while abs(value) >= 1024 and unit < len(_BYTE_UNITS) - 1:
        value /= 1024
        unit += 1
    return f"{size_bytes:,} B" if unit == 0 else f"{value:.1f} {_BYTE_UNITS[unit]}"


def duration_text(duration_ms: int) -> str:
    """The two largest units, for nobody reads on: 3 d 4 h, 5 min 2 s, 40 ms."""
    if duration_ms < 0:
        return "-" + duration_text(-duration_ms)
    parts: list[str] = []
    for unit, unit_ms in _TIME_UNITS:
        count, duration_ms = divmod(duration_ms, unit_ms)
        if count or parts:
            parts.append(f"{count} {unit}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part) or "0 ms"


def time_text(timestamp_ms: int | None) -> str:
    """ISO 8601 in UTC, to the millisecond; a dash where there is no timestamp."""
    if timestamp_ms is None or timestamp_ms < 0:
        return "-"
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp_ms} ms"  # past the year 9999: a producer's clock, or its unit, is wrong
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"


def json_text(value: object) -> str:
    """One line."""
    return json.dumps(value, ensure_ascii=False)


def bytes_json(data: bytes | None) -> dict[str, str] | None:
    """Bytes for programs, without loss: as text where they are text, as hex digits where not."""
    if data is None:
        return None
    try:
        return {"utf8": data.decode()}
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def quoted(data: bytes | None, size_max: int | None = None) -> str:
    """Bytes for people: "text", 0x00ff or null. A terminal gets no control characters from somebody's records."""
    if data is None:
        return "null"
    left_out = 0 if size_max is None else max(0, len(data) - size_max)
    more = f"… ({left_out:,} more bytes)" if left_out else ""
    shown = data[: len(data) - left_out]
    try:
        text = shown.decode()
    except UnicodeDecodeError:
        return f"0x{shown.hex()}{more}"
    return json.dumps(text, ensure_ascii=not text.isprintable()) + more


def print_json(value: object) -> None:
    """One document, indented, on stdout."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def error_dict(error: SextonError) -> dict[str, str]:
    return {"kind": type(error).__name__, "what": error.what, "place": error.place, "remedy": error.remedy}


def print_error(error: SextonError) -> None:
    """Where, what, and what to do next."""
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    place = f"{escape(error.place)}: " if error.place else ""
    console.print(f"[bold red]error:[/] {place}{escape(error.what)}")
    if error.remedy:
        console.print(f"[dim]what to do:[/] {escape(error.remedy)}")


def facts_table(title: str, facts: Mapping[str, str]) -> Table:
    """A two-column table: what is asked, and the answer."""
    table = Table(title=escape(title), show_header=False, title_justify="left")
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        table.add_row(escape(name), escape(fact))
    return table


@contextmanager
def spark_progress(context: SparkContext, console: Console) -> Iterator[Announce]:
    """A bar for each step of a Spark job, fed by Spark's own status tracker. Nothing at all outside a terminal.

    Yields the function to announce steps with. Transformations are lazy, so several steps may be announced before the
    first task runs; those share a bar.
    """
    if not console.is_terminal:
        yield lambda step, task_count: None
        return
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bars = _Bars(context, progress)
        ended = threading.Event()

        def poll() -> None:
            while not ended.wait(POLL_SECONDS):
                bars.update()

        thread = threading.Thread(target=poll, name="spark progress", daemon=True)
        thread.start()
        try:
            yield bars.announce
        finally:
            ended.set()
            thread.join()


class _Bars:
    """Which tasks have run for which announced step. A job belongs to the bar that was current when it appeared."""

    def __init__(self, context: SparkContext, progress: Progress) -> None:
        self._tracker = context.statusTracker()
        self._progress = progress
        self._guard = threading.Lock()
        self._earlier_jobs = set(self._tracker.getJobIdsForGroup())
        self._jobs: list[int] = []
        self._names: list[str] = []
        self._announced_count = 0
        self._bar: Any = None

    def announce(self, step: str, task_count: int) -> None:
        with self._guard:
            self._update()
            if self._bar is None or self._jobs:
                self._finish()
                self._bar = self._progress.add_task(step, total=None)
            self._names.append(step)
            self._announced_count += task_count
            self._progress.update(self._bar, description=", ".join(self._names), total=self._announced_count)

    def update(self) -> None:
        with self._guard:
            self._update()

    def _update(self) -> None:
        if self._bar is None:
            return
        known = {*self._earlier_jobs, *self._jobs}
        self._jobs += [job for job in self._tracker.getJobIdsForGroup() if job not in known]
        total = completed = 0
        for job in self._jobs:
            info = self._tracker.getJobInfo(job)
            for stage in info.stageIds if info is not None else ():
                details = self._tracker.getStageInfo(stage)
                if details is not None:
                    total += details.numTasks
                    completed += details.numCompletedTasks
        self._progress.update(self._bar, completed=completed, total=max(total, self._announced_count))

    def _finish(self) -> None:
        """Stages that Spark could skip never complete; their bar must."""
        if self._bar is not None:
            total = next(task.total for task in self._progress.tasks if task.id == self._bar)
            self._progress.update(self._bar, completed=total)
        self._earlier_jobs.update(self._jobs)
        self._jobs, self._names, self._announced_count = [], [], 0
