"""The table of all runs: what is in it, and how it goes on after it was stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.checker.planted import correct
from sexton.checker.reference import judge
from sexton.checker.sabotage import sabotage
from sexton.checker.verdict import Judgement
from sexton.cli import verify, verify_telling
from sexton.harness.errors import HarnessError
from sexton.harness.postgres import Postgres
from sexton.verify import run as verifying
from sexton.verify import suite
from sexton.verify.faults.known import FAULTS
from sexton.verify.plan import Plan
from sexton.verify.run_history import Listener
from sexton.verify.runner import INTERRUPTED
from sexton.verify.workloads.known import WORKLOADS

ASKED = ("--quick", "--only", "queue,groups")
CELLS = ["queue-kill-pause", "queue-txn-kill-pause", "groups-kill-pause"]


class Runs:
    """In the place of real ones: by name, what comes of each."""

    def __init__(self, **outcomes: str) -> None:
        self.outcomes = outcomes
        self.ran: list[str] = []
        self.metastores: set[str] = set()

    def __call__(self, wanted: verifying.Wanted, plan: Plan, listener: Listener) -> Judgement:
        name = wanted.directory.name
        self.ran.append(name)
        self.metastores.add(wanted.metastore)
        wanted.directory.mkdir(parents=True)
        outcome = self.outcomes.get(name.replace("-", "_"), "true")
        if outcome == "error":
            raise HarnessError("no broker came up")
        if outcome == "timeout":
            raise subprocess.TimeoutExpired("mkfs.ext4", 30)
        if outcome == "interrupted":
            listener.phase(INTERRUPTED)
        history = sabotage("lost-write", 1).history if outcome == "false" else correct(1)
        judgement = judge(history.ops, history.run)
        verifying.write_results(wanted.directory, judgement)
        return judgement


def test_every_workload_meets_every_fault() -> None:
    cells = suite.cells("sexton")
    assert len({cell.name for cell in cells}) == len(cells)
    assert {cell.workload for cell in cells} == set(WORKLOADS)
    for workload, known in WORKLOADS.items():
        faults = {fault for cell in cells if cell.workload == workload for fault in cell.faults}
        able = {name for name in FAULTS if suite.is_able(name, "sexton")}
        is_transactional = any(cell.is_transactional for cell in cells if cell.workload == workload)
        compaction = set() if known.compacts else {"grave", "compactor"}
        assert faults == able - {"store"} - compaction - (set() if is_transactional else {"late"})
    assert {cell.is_transactional for cell in cells if cell.workload == "queue"} == {False, True}
    plain = [cell for cell in cells if not cell.is_transactional]
    assert plain, "queue can be had without transactions"
    assert not any("late" in cell.faults for cell in plain), "nothing would be held"
    on_cloud = {fault for cell in suite.cells("sexton", "cloud") for fault in cell.faults}
    assert on_cloud == able - {"grave"}


def test_a_suite_of_true_runs_is_true_and_is_not_run_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(verifying, "run", runs)
    for _ in range(2):
        done = CliRunner().invoke(verify.app, ["suite", *ASKED, "--dir", str(tmp_path)])
        assert done.exit_code == 0, done.output
    assert runs.ran == CELLS
    index = (tmp_path / suite.INDEX).read_text()
    for name in CELLS:
        assert f'<a href="{name}/report.html"><span class="chip true">' in index


def test_a_suite_can_have_postgresql_for_all_its_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Runs()
    monkeypatch.setattr(verifying, "run", runs)
    monkeypatch.setattr(Postgres, "check", lambda: None)
    asked = ["suite", *ASKED, "--metastore", "postgres", "--dir", str(tmp_path)]
    assert CliRunner().invoke(verify.app, asked).exit_code == 0
    assert runs.metastores == {"postgres"}
    error = CliRunner().invoke(verify.app, [*asked, "--system", "kafka-4.3.0"]).exception
    assert isinstance(error, HarnessError)
    assert error.exit_code == 64


def test_a_false_run_and_one_that_did_not_end_are_told_and_the_suite_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(queue_kill_pause="error", queue_txn_kill_pause="false")
    monkeypatch.setattr(verifying, "run", runs)
    done = CliRunner().invoke(verify.app, ["suite", *ASKED, "--dir", str(tmp_path)])
    assert runs.ran == CELLS
    assert isinstance(done.exception, verify_telling.VerdictFalseError)
    assert "lost-write" in done.output
    assert "no broker came up" in done.output

    runs = Runs()
    monkeypatch.setattr(verifying, "run", runs)
    CliRunner().invoke(verify.app, ["suite", *ASKED, "--dir", str(tmp_path)])
    assert runs.ran == CELLS[:1], "what did not end is run again, what was judged is not"
    assert (tmp_path / f"{CELLS[0]}.stopped-1").exists()


def test_a_command_that_takes_too_long_ends_its_run_and_not_the_suite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(queue_kill_pause="timeout")
    monkeypatch.setattr(verifying, "run", runs)
    done = CliRunner().invoke(verify.app, ["suite", *ASKED, "--dir", str(tmp_path)])
    assert runs.ran == CELLS
    assert isinstance(done.exception, verify_telling.VerdictUnknownError)
    assert "mkfs.ext4" in done.output


def test_the_table_for_documents_counts_verdicts_and_says_what_was_not_true(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifying, "run", Runs(queue_kill_pause="error", queue_txn_kill_pause="false"))
    CliRunner().invoke(verify.app, ["suite", *ASKED, "--time", "30", "--dir", str(tmp_path)])
    assert (tmp_path / suite.TABLE_PAGE).read_text().splitlines() == [
        "3 runs of sexton, 30 s of faults each.",
        "",
        "| workload | runs | true | unknown | false | did not end | not true, and why |",
        "|---|---|---|---|---|---|---|",
        "| queue | 1 | 0 | 0 | 0 | 1 | kill+pause: no broker came up |",
        "| queue-txn | 1 | 0 | 0 | 1 | 0 | kill+pause: lost-write |",
        "| groups | 1 | 1 | 0 | 0 | 0 |  |",
    ]


def test_a_suite_that_was_stopped_goes_on_with_the_run_that_was_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Runs(queue_txn_kill_pause="interrupted")
    monkeypatch.setattr(verifying, "run", runs)
    done = CliRunner().invoke(verify.app, ["suite", *ASKED, "--dir", str(tmp_path)])
    assert runs.ran == CELLS[:2]
    assert isinstance(done.exception, verify_telling.VerdictUnknownError)

    runs = Runs()
    monkeypatch.setattr(verifying, "run", runs)
    done = CliRunner().invoke(verify.app, ["suite", *ASKED, "--dir", str(tmp_path)])
    assert runs.ran == CELLS[1:]
    assert done.exit_code == 0, done.output
