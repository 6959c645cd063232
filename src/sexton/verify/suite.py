"""Every workload under every fault, one run after the other: what Jepsen calls test-all.

Each run has a directory below the suite's. One that has its results is not run again, so a suite that was stopped goes
on where it was; what a stopped run has left is put aside.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from pathlib import Path
from typing import Final

from sexton.errors import SextonError
from sexton.reproduce import shell
from sexton.verify.faults.grave import Grave
from sexton.verify.faults.known import FAULTS, pointless
from sexton.verify.faults.services import Store
from sexton.verify.report import page
from sexton.verify.run import RESULTS
from sexton.verify.systems import LOCAL
from sexton.verify.workloads.known import QUEUE, TABLE, WORKLOADS, Asked

INDEX: Final = "index.html"
TABLE_PAGE: Final = "table.md"
QUICK: Final = ("kill", "pause")
WITH_OR_WITHOUT: Final = frozenset({QUEUE, TABLE, "append"})
"""Workloads that do their work in transactions or not."""


@dataclass(frozen=True, slots=True)
class Cell:
    workload: str
    is_transactional: bool
    faults: tuple[str, ...]

    @property
    def row(self) -> str:
        is_choice = self.workload in WITH_OR_WITHOUT
        return f"{self.workload}-txn" if self.is_transactional and is_choice else self.workload

    @property
    def column(self) -> str:
        return "+".join(self.faults) or "no fault"

    @property
    def name(self) -> str:
        return "-".join((self.row, *(self.faults or ("calm",))))

    @property
    def asked(self) -> Asked:
        return Asked(self.is_transactional)


@dataclass(frozen=True, slots=True)
class Done:
    cell: Cell
    verdict: str
    """Of the judge; empty if the run did not come to its end."""
    told: str
    """What was found that is wrong, what was not tested, or why it did not come to its end."""


def cells(system: str, storage: str = LOCAL, *, is_quick: bool = False) -> list[Cell]:
    """By workload. A fault that this machine or system cannot have is left out, and one that would hit nothing."""
    unstored = (Store.name,) if storage == LOCAL else (Grave.name,)
    able = [name for name in FAULTS if name not in unstored and is_able(name, system)]
    found = []
    for workload, known in WORKLOADS.items():
        for way in (False, True) if workload in WITH_OR_WITHOUT else (known.always_in_transactions,):
            hitting = [name for name in able if not pointless(name, compacts=known.compacts, is_transactional=way)]
            together = tuple(name for name in hitting if name != Grave.name)
            alone = [(name,) for name in hitting]
            columns: Sequence[tuple[str, ...]] = [QUICK] if is_quick else [(), *alone, together]
            found += [Cell(workload, way, faults) for faults in columns]
    return found


def is_able(name: str, system: str) -> bool:
    try:
        FAULTS[name].check(system)
    except SextonError:
        return False
    return True


def results_of(cell: Cell, directory: Path) -> Done | None:
    """None: it is still to be run."""
    path = directory / cell.name / RESULTS
    if not path.exists():
        return None
    results = json.loads(path.read_bytes())
    missing = [each["name"] for each in results["obligations"] if not each["met"]]
    told = page.wrong(results) if results["verdict"] == "false" else missing if results["verdict"] == "unknown" else []
    return Done(cell, results["verdict"], ", ".join(told))


def put_aside(path: Path) -> None:
    """What a stopped run has left stays, under another name."""
    if path.exists():
        names = (path.with_name(f"{path.name}.stopped-{number}") for number in count(1))
        path.rename(next(name for name in names if not name.exists()))


def write_index(directory: Path, system: str, done: Sequence[Done]) -> Path:
    """The table of runs, each with a link to its page."""
    columns = list(dict.fromkeys(each.cell.column for each in done))
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    rows = "".join(
        f"<tr><th>{escape(row)}</th>{''.join(_entry(row, column, done) for column in columns)}</tr>"
        for row in dict.fromkeys(each.cell.row for each in done)
    )
    told = "".join(f"<li>{escape(each.cell.name)}: {escape(each.told)}</li>" for each in done if each.told)
    body = (
        f"<h1>{escape(system)}: every workload under every fault</h1>"
        f'<div class="scroll"><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"<ul>{told}</ul><footer>Made by <code>sexton verify suite</code>.</footer>"
    )
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / INDEX
    path.write_text(shell.document(f"sexton verify suite: {system}", body, page.style()), encoding="utf-8")
    return path


def write_table(directory: Path, system: str, done: Sequence[Done], seconds: float) -> Path:
    """The same for documents: a row for each workload, how many of its runs ended how, and what was not *true*."""
    lines = [
        f"{len(done)} runs of {system}, {seconds:g} s of faults each.",
        "",
        "| workload | runs | true | unknown | false | did not end | not true, and why |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in dict.fromkeys(each.cell.row for each in done):
        runs = [each for each in done if each.cell.row == row]
        counts = [sum(each.verdict == verdict for each in runs) for verdict in ("true", "unknown", "false", "")]
        told = "; ".join(f"{each.cell.column}: {each.told}" for each in runs if each.verdict != "true")
        cells = (row, str(len(runs)), *map(str, counts), told.replace("|", "\\|"))
        lines.append(f"| {' | '.join(cells)} |")
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / TABLE_PAGE
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _entry(row: str, column: str, done: Sequence[Done]) -> str:
    found = next((each for each in done if (each.cell.row, each.cell.column) == (row, column)), None)
    if found is None:
        return "<td></td>"
    verdict = found.verdict or "error"
    chip = f'<span class="chip {verdict}">{verdict}</span>'
    return f'<td><a href="{found.cell.name}/{page.NAME}">{chip}</a></td>' if found.verdict else f"<td>{chip}</td>"


def ways_out(done: Sequence[Done]) -> Iterator[str]:
    """The names of runs that do not let the suite be true."""
    return (each.cell.name for each in done if each.verdict != "true")
