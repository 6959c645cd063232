"""Replays: a run again, from its own description."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.checker.allowed import Model
from sexton.checker.reference import judge
from sexton.checker.sabotage import sabotage
from sexton.checker.verdict import Judgement
from sexton.cli import verify, verify_telling
from sexton.errors import SextonError
from sexton.history import run as description
from sexton.history.op import HEAL, Run
from sexton.history.run import Description
from sexton.verify import again
from sexton.verify import run as verifying
from sexton.verify.faults.known import FAULTS
from sexton.verify.faults.schedule import Kind, schedule
from sexton.verify.generator import NS
from sexton.verify.plan import Plan
from sexton.verify.selftest import Silent
from sexton.verify.workloads.known import Asked

PLAN = Plan(
    seed=5,
    concurrency=3,
    rate=100.0,
    calm_ns=NS,
    main_ns=3 * NS,
    period_ns=2 * NS,
    interval_ns=NS,
    faults=("pause",),
    clients=("confluent-kafka",),
    topic_prefix="sexton-verify-5-",
)


def described(directory: Path) -> verifying.Wanted:
    """As a run leaves it that was killed at once."""
    wanted = verifying.Wanted(
        system="sexton",
        nodes=5,
        metastore="postgres",
        asked=Asked(is_transactional=True),
        directory=directory,
        judges_corruption=True,
        model=Model.STRICT,
    )
    directory.mkdir()
    verifying.describe_run(wanted, PLAN, verifying.workload_of(wanted, PLAN), skew_ms=0)
    return wanted


def test_a_run_is_described_so_that_it_can_be_run_again(tmp_path: Path) -> None:
    first = described(tmp_path / "run")
    wanted, plan = again.read(tmp_path / "run", tmp_path / "next")
    assert plan == PLAN
    assert wanted == replace(first, directory=tmp_path / "next")


def test_a_run_says_with_which_settings_brokers_and_clients_were_started(tmp_path: Path) -> None:
    wanted = described(tmp_path / "run")
    plan = replace(PLAN, faults=("grave",), acks="1", is_idempotent=False, client_settings={"max.poll.records": "7"})
    verifying.describe_run(wanted, plan, verifying.workload_of(wanted, plan), skew_ms=0)
    more = description.read(tmp_path / "run").more
    assert more["broker-settings"]["producer.id.expiration.ms"] == 15_000
    assert more["broker-settings"]["auto.create.topics.enable"] is False
    clients = more["client-settings"]["confluent-kafka"]
    assert clients["producer"]["acks"] == 1
    assert clients["consumer"]["max.poll.records"] == 7


def test_replays_stand_beside_the_run(tmp_path: Path) -> None:
    assert again.places(tmp_path / "run") == tmp_path / "run-replay-1"
    (tmp_path / "run-replay-1").mkdir()
    assert again.places(tmp_path / "run") == tmp_path / "run-replay-2"


def test_a_history_that_nobody_here_ran_cannot_be_run_again(tmp_path: Path) -> None:
    description.write(tmp_path, Description(Run(workload="queue"), {}))
    with pytest.raises(SextonError, match="does not say how it was run"):
        again.read(tmp_path, tmp_path / "next")


def test_replays_end_with_the_first_that_finds_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described(tmp_path / "run")
    ran: list[str] = []

    def run(wanted: verifying.Wanted, plan: Plan, listener: object) -> Judgement:
        ran.append(wanted.directory.name)
        wanted.directory.mkdir()
        history = sabotage("lost-write", 1).history
        return judge(history.ops if len(ran) == 2 else [], history.run)

    monkeypatch.setattr(verifying, "run", run)
    done = CliRunner().invoke(verify.app, ["replay", str(tmp_path / "run"), "--times", "5"])
    assert ran == ["run-replay-1", "run-replay-2"]
    assert isinstance(done.exception, verify_telling.VerdictFalseError)


@pytest.mark.cluster
def test_a_replay_breaks_what_the_seed_says(tmp_path: Path) -> None:
    described(tmp_path / "run")
    wanted, plan = again.read(tmp_path / "run", tmp_path / "next")
    verifying.run(replace(wanted, nodes=3, metastore="sqlite"), plan, Silent())  # others than these take longer
    ops = map(json.loads, (tmp_path / "next" / "history.jsonl").read_text().splitlines())
    asked = [op for op in ops if op["process"] == "nemesis" and op["type"] == "invoke" and op["f"] != HEAL]
    scheduled = schedule(
        [Kind("pause", FAULTS["pause"].targets)],
        random.Random(PLAN.seed + 1),
        begin_ns=PLAN.calm_ns,
        end_ns=PLAN.calm_ns + PLAN.main_ns,
        period_ns=PLAN.period_ns,
        interval_ns=PLAN.interval_ns,
    )
    told = [("start" if act.begins else "stop", str(act.target)) for act in scheduled]
    found = [(op["ext"]["phase"], op["ext"]["target"]) for op in asked]
    assert found
    assert found == told[: len(found)], "a machine that is slow does not get to the last"
