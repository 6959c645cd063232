"""What Jepsen found in Bufstream 0.1.0 and in Kafka (seed 5): each has a run or a test by name, here or elsewhere.

The table is in docs/verification.md.
"""

from __future__ import annotations

import json
import os
import random
import re
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sexton.history.op import Type
from sexton.verify import runner
from sexton.verify.generator import NS
from sexton.verify.plan import Plan
from sexton.verify.runner import Runner
from sexton.verify.selftest import Silent
from sexton.verify.session import Completion
from sexton.verify.systems import System
from sexton.verify.workloads.queue import Queue, QueueOptions
from tests.project import PROJECT_DIR
from tests.transactions.test_docs import functions_of
from tests.verify.commands import ONE, ended, started

PAGE = PROJECT_DIR / "docs" / "verification.md"
FINDINGS = ("#1", "#2", "#3", "#4", "#5", "KIP-588", "KAFKA-17734", "KAFKA-17582", "KAFKA-17754")
REFERENCE = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)(?:\[[\w.-]+\])?`")


def rows() -> dict[str, str]:
    section = PAGE.read_text().partition("## What Jepsen found")[2].partition("\n## ")[0]
    cells = [line.split("|") for line in section.splitlines() if line.startswith("|")][2:]
    return {finding.strip(): shown_by for _, finding, _, shown_by, _ in cells}


def test_every_finding_is_in_the_table_with_a_test_that_exists() -> None:
    assert tuple(rows()) == FINDINGS
    for finding, shown_by in rows().items():
        named = REFERENCE.findall(shown_by)
        assert named, finding
        for path, name in named:
            assert name in functions_of(PROJECT_DIR / path), f"{path}::{name}"


class Hangs:
    """A client that never answers, in the place of a process."""

    made: ClassVar[list[Hangs]] = []
    client = "one that hangs"

    def __init__(self, *_: Any) -> None:
        self._pipe = os.pipe()
        self.is_ended = False
        self.made.append(self)

    def fileno(self) -> int:
        return self._pipe[0]

    def ask(self, *_: Any) -> None: ...

    def answer(self) -> Completion | None:
        raise AssertionError("it never answers")

    def end(self) -> None:
        self.is_ended = True


def test_a_client_that_never_answers_is_killed_and_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-17734: Java's Consumer.close() may block for ever."""
    monkeypatch.setattr(runner, "ClientProcess", Hangs)
    monkeypatch.setattr(runner, "HANG_NS", NS // 5)
    monkeypatch.setattr(runner, "HEALED_HANG_NS", NS // 5)
    monkeypatch.setattr(runner, "WHOLE_S", 0)
    monkeypatch.setattr(Hangs, "made", [])
    nowhere = System("nowhere", "127.0.0.1:1", 1)
    plan = Plan(seed=1, concurrency=2, calm_ns=0, main_ns=NS, final_ns=NS)
    ops = Runner(Queue(QueueOptions(), random.Random(1)), nowhere, plan, tmp_path, Silent()).run()
    killed = [op for op in ops if "has not answered" in op.error]
    assert len(killed) > plan.concurrency, "those that took their places hung as well"
    assert {op.type for op in killed} == {Type.INFO}
    assert len({op.process for op in killed}) == len(killed), "nobody is asked again"
    assert len(Hangs.made) >= len(killed)
    assert all(each.is_ended for each in Hangs.made)


def false_or_true(directory: Path) -> str:
    return str(json.loads((directory / "results.json").read_text())["verdict"])


@pytest.mark.cluster
@pytest.mark.soak
def test_after_the_metastore_was_away_and_brokers_were_paused_everybody_goes_on(tmp_path: Path) -> None:
    """Bufstream #2: its agents did not hear that their leases had expired, and stayed stuck until they were killed."""
    run = tmp_path / "run"
    asked = ("--txn", "--nemesis", "metastore,pause", "--time", 60, "--interval", 5, "--seed", 1, "--final-time", 60)
    code, said = ended(started("run", "--system", "sexton", *asked, *ONE, "--dir", run))
    assert code == 0, said
    assert false_or_true(run) == "true"


@pytest.mark.cluster
@pytest.mark.soak
def test_transactions_that_time_out_while_clients_and_brokers_pause_lose_nothing(tmp_path: Path) -> None:
    """Bufstream #4 and #5: commits that were ignored across epochs, with a timeout of one second; fetches that left
    records out for consumers that lagged behind. Clients fetch 500 bytes at a time, 5,000 or a megabyte."""
    run = tmp_path / "run"
    asked = ("--txn", "--nemesis", "pause,pause-clients", "--time", 60, "--interval", 5, "--seed", 1)
    code, said = ended(started("run", "--system", "sexton", *asked, *ONE, "--dir", run))
    assert code == 0, said


@pytest.mark.cluster
@pytest.mark.soak
def test_who_relies_on_a_rewind_after_an_abort_is_told_that_there_is_none(tmp_path: Path) -> None:
    """KAFKA-17582: a consumer goes on, unless its group is rebalanced."""
    run = tmp_path / "run"
    asked = ("--workload", "abort", "--expect", "rewind", "--time", 10, "--seed", 1)
    code, said = ended(started("run", "--system", "sexton", *asked, *ONE, "--dir", run))
    assert code == 1, said
    seen = json.loads((run / "test.json").read_text())["seen"]
    assert [where for where in seen if where.endswith("not rebalanced")] == ["advance, not rebalanced"]
