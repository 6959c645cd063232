"""What `sexton verify` tells a person: how far a run is, what it has shown, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from sexton.cli.verify_run import SECOND_NS
from sexton.errors import SextonError

if TYPE_CHECKING:
    from sexton.checker.verdict import Judgement
    from sexton.history.op import Type

PIPED_WIDTH: Final = 160
"""Of tables, where nobody can tell how wide the reader's screen is."""


class VerdictFalseError(SextonError):
    """Something happened that may not. The table says what, `results.json` where."""

    exit_code = 1


class SelfTestError(SextonError):
    """The judge missed something, or saw what is not there: no verdict of this build counts."""

    exit_code = 1


class VerdictUnknownError(SextonError):
    """Nothing wrong was found, and not everything was tested."""

    exit_code = 3


class Told:
    """Tells a person how a run goes: faults as lines, everything else on the last one."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console = console
        self._status = status
        self._phase = ""
        self._now_ns = 0
        self.phases: list[str] = []

    def phase(self, name: str) -> None:
        self._phase = name
        self.phases.append(name)
        self._status.update(name)
        self._console.print(f"{self._now_ns / SECOND_NS:6.1f} s  [bold]{escape(name)}[/]")

    def progress(self, now_ns: int, counts: Mapping[Type, int]) -> None:
        self._now_ns = now_ns
        told = ", ".join(f"{count:,} {type_.name.lower()}" for type_, count in sorted(counts.items()) if type_)
        self._status.update(f"{self._phase}: {now_ns // SECOND_NS} s, {told}")

    def fault(self, what: str) -> None:
        self._console.print(f"{self._now_ns / SECOND_NS:6.1f} s  [red]{escape(what)}[/]")


def console_of_run() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPED_WIDTH
    return console


def tell(judgement: Judgement, console: Console, directory: Path | None = None) -> None:
    """`directory`: of a run that has a page. Raises unless the verdict is true."""
    from sexton.checker.anomalies import ANOMALIES
    from sexton.checker.verdict import Verdict

    wrong = judgement.wrong()
    table = Table(title="Findings", title_justify="left")
    for header in ("anomaly", "count", "", "what it means"):
        table.add_column(header, overflow="fold")
    for finding in judgement.findings:
        reason = judgement.allowed.get(finding.name, "")
        told = "[bold red]wrong[/]" if finding.name in wrong else f"allowed: {reason}" if reason else "told only"
        table.add_row(finding.name, str(finding.count), told, escape(ANOMALIES[finding.name].meaning))
    if judgement.findings:
        console.print(table)
    for what, times in judgement.counted.items():
        console.print(f"Counted: {escape(what)}: {times:,}")
    for what, count in judgement.notes.items():
        console.print(f"Not judged: {what}: {escape(str(count))}")
    missing = [duty.name for duty in judgement.obligations if not duty.is_met]
    console.print(f"The verdict is [bold]{judgement.verdict}[/].")
    if judgement.verdict is Verdict.FALSE:
        found = f"found: {', '.join(wrong)}" if wrong else f"not so: {'; '.join(missing)}"
        remedy = f"Its page shows why. See whether it shows again: sexton verify replay {directory} --times 5"
        raise VerdictFalseError(found, "", remedy if directory is not None else "")
    if judgement.verdict is Verdict.UNKNOWN:
        told = "; ".join(missing) or "the search was not finished, or not all was read"
        raise VerdictUnknownError(f"not tested: {told}", "", ". ".join(remedies(missing)))


_REMEDIES: Final = {
    "compaction removed": "Give compaction longer (--time), or have tombstones that go sooner (another --seed)",
    "a leader moved": "Leaders move with --nemesis kill or leadership",
    "a fault was in force": "Give faults longer (--time), or have them come sooner (--interval)",
    "grave:": "Give it longer (--time): compaction must have gone over what was missed",
    "somebody read to the end": "Give the final reads longer (--final-time); clients.log has what clients say",
    "every replica was read": "Give the final reads longer (--final-time)",
    "a transaction was": "Give it longer (--time)",
    "a group was rebalanced": "Give it longer (--time), or --crash-clients",
    "what a system makes of damaged files": "Hold it to something: --judge-corruption",
    "": "Did the brokers serve? clients.log and cluster/node-*/ say more",
}
"""By how the name of a duty begins that was not met; the last for all others."""


def remedies(missing: Sequence[str]) -> list[str]:
    """Each once."""
    starts = [next(start for start in _REMEDIES if name.startswith(start)) for name in missing]
    return [_REMEDIES[start] for start in dict.fromkeys(starts)]
