"""Whole runs over real brokers, through the command that people use."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from inspect import signature
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.checker.allowed import Model
from sexton.checker.anomalies import ANOMALIES
from sexton.checker.reference import judge
from sexton.checker.view import Options
from sexton.cli import verify, verify_names, verify_telling
from sexton.cli.verify_run import RunOptions, asked_for
from sexton.errors import SextonError
from sexton.harness.brokers import SextonCluster
from sexton.history.flat import to_ops
from sexton.history.load import load
from sexton.history.op import Run
from sexton.verify import samples
from sexton.verify.clients.confluent import Admin
from sexton.verify.clients.known import CLIENTS
from sexton.verify.faults.known import FAULTS
from sexton.verify.faults.late import LATE
from sexton.verify.lies import LIES
from sexton.verify.run import NotReachedError, PointlessFaultError
from sexton.verify.systems import METASTORES, STORAGES, check_name
from sexton.verify.workloads.known import WAYS, WORKLOADS
from tests.verify.commands import ONE, RUN_TIMEOUT_S, ended, started

KILL_AFTER_BYTES = 20_000


def wait_for_history(directory: Path, process: subprocess.Popen[str]) -> None:
    deadline_s = time.monotonic() + RUN_TIMEOUT_S
    history = directory / "history.jsonl"
    while not history.exists() or history.stat().st_size < KILL_AFTER_BYTES:
        assert process.poll() is None
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.cluster
def test_transactions_are_whole_while_brokers_are_killed_and_paused(tmp_path: Path) -> None:
    run = tmp_path / "run"
    asked = ("--workload", "queue", "--txn", "--nemesis", "kill,pause", "--time", 6, "--interval", 2, "--seed", 1, *ONE)
    code, said = ended(started("run", "--system", "sexton", *asked, "--dir", run))
    assert code == 0, said
    assert json.loads((run / "results.json").read_text())["verdict"] == "true"
    assert not list(run.glob("cluster/node-*/data")), "only the logs stay"
    rows = samples.read(run / samples.NAME)
    assert {row.broker for row in rows if row.broker is not None} == {1, 2, 3}
    assert any(row.log is not None and row.isr for row in rows)
    as_lines, as_parquet = load(run), load(run / "ops.parquet")
    assert list(to_ops(as_parquet.history)) == list(to_ops(as_lines.history))
    assert as_parquet.run == as_lines.run

    code, said = ended(started("check", run))
    assert code == 0, said


@pytest.mark.soak
@pytest.mark.cluster
def test_requests_that_come_late_change_nothing_and_the_network_may_be_slow(tmp_path: Path) -> None:
    """Of a cluster that exists, of which only one address is given: clients alone suffer."""
    run = tmp_path / "run"
    with SextonCluster(nodes=2) as cluster:
        first, _ = cluster.bootstrap.split(",")
        asked = ("--txn", "--late", "end-txn", "--nemesis", "slow-network", "--time", 8, "--interval", 3, "--seed", 1)
        code, said = ended(started("run", "--bootstrap", first, "--yes", *asked, *ONE, "--dir", run))
    assert code == 0, said
    ops = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    told = {op["f"]: op["ext"] for op in ops if op["f"] in ("late", "slow-network") and op["type"] == "info"}
    assert told["late"]["let through in a later transaction"] > 0
    assert "slow-network" in told


@pytest.mark.kafka
@pytest.mark.soak
@pytest.mark.parametrize(("system", "code"), [("kafka-3.9.2", 1), ("sexton", 0)])
def test_an_end_that_comes_late_tears_transactions_of_kafka_3_and_none_of_sexton(
    system: str, code: int, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    asked = ("--workload", "queue", "--txn", "--late", "end-txn", "--client", "java-3.9.2", "--seed", 4)
    found, said = ended(started("run", "--system", system, *asked, "--concurrency", 3, "--time", 60, "--dir", run))
    assert found == code, said
    names = {anomaly["name"] for anomaly in json.loads((run / "results.json").read_text())["anomalies"]}
    assert bool(names & {"G1a", "torn-transaction"}) is (code == 1), said


@pytest.mark.cluster
def test_who_reads_what_was_aborted_is_found_out(tmp_path: Path) -> None:
    """Kafka promises them no better, so the strict model must be asked for."""
    run = tmp_path / "run"
    asked = ("--txn", "--time", 4, "--isolation", "read_uncommitted", "--model", "strict")
    code, said = ended(started("run", *asked, *ONE, "--dir", run))
    assert code == 1, said
    assert "G1a" in {anomaly["name"] for anomaly in json.loads((run / "results.json").read_text())["anomalies"]}

    code, said = ended(started("check", run))
    assert code == 0, said


@pytest.mark.cluster
def test_ctrl_c_heals_reads_everything_and_judges(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = started("run", "--nemesis", "kill", "--time", 600, "--interval", 1, *ONE, "--dir", run)
    wait_for_history(run, process)
    os.kill(process.pid, signal.SIGINT)
    code, said = ended(process)
    assert code in (0, 3), said
    assert "heal" in said
    ops = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    assert any(op.get("ext", {}).get("final") for op in ops), "everything is read once more"
    assert (run / "results.json").exists()


@pytest.mark.cluster
def test_a_run_that_was_killed_can_be_judged(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = started("run", "--time", 600, *ONE, "--dir", run)
    wait_for_history(run, process)
    process.kill()
    ended(process)
    code, said = ended(started("check", run))
    assert code in (0, 3), said
    assert "The verdict is" in said


@pytest.mark.cluster
def test_of_a_cluster_that_exists_nothing_else_is_touched_and_nothing_is_left(tmp_path: Path) -> None:
    with SextonCluster(nodes=1) as cluster:
        cluster.create_topic("theirs")
        asked = ("run", "--bootstrap", cluster.bootstrap, "--txn", "--time", 5, "--concurrency", 2, "--calm", 0)
        code, said = ended(started(*asked, "--yes", "--dir", tmp_path / "run"))
        assert code == 0, said
        theirs = [topic for topic in Admin(cluster.bootstrap).topics() if not topic.startswith("__")]
        assert theirs == ["theirs"]


def test_nothing_is_written_to_a_cluster_that_exists_before_somebody_said_yes(tmp_path: Path) -> None:
    asked = ["run", "--bootstrap", "localhost:1", "--dir", str(tmp_path / "run")]
    done = CliRunner().invoke(verify.app, asked, input="n\n")
    assert isinstance(done.exception, SextonError)
    assert done.exception.exit_code == 64, "1 would say that the verdict is false"
    assert "Make topics sexton-verify-" in done.output
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("address", ["localhost:1", "nowhere.invalid:9092"])
def test_a_cluster_that_does_not_answer_is_told_and_leaves_nothing_behind(tmp_path: Path, address: str) -> None:
    asked = ["run", "--bootstrap", address, "--yes", "--dir", str(tmp_path / "run"), "--client", "confluent-kafka"]
    error = CliRunner().invoke(verify.app, asked).exception
    assert isinstance(error, NotReachedError)
    assert error.place == address
    assert "--bootstrap " in error.remedy
    assert not (tmp_path / "run").exists(), "the same command would be refused the next time"


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (("--workload", "queue", "--nemesis", "grave"), "table, register, mixed"),
        (("--workload", "groups", "--nemesis", "compactor"), "table, register, mixed"),
        (("--workload", "queue", "--late", "produce"), "--txn"),
        (("--workload", "queue", "--txn", "--shards", "2", "--nemesis", "kill-clients"), "--shards"),
    ],
)
def test_a_fault_that_would_hit_nobody_is_refused_with_what_it_needs(
    tmp_path: Path, arguments: tuple[str, ...], remedy: str
) -> None:
    asked = ["run", *arguments, "--dir", str(tmp_path / "run"), "--client", "confluent-kafka"]
    error = CliRunner().invoke(verify.app, asked).exception
    assert isinstance(error, PointlessFaultError)
    assert remedy in error.remedy
    assert not (tmp_path / "run").exists()


def test_addresses_of_a_cluster_that_exists_may_leave_out_the_port(tmp_path: Path) -> None:
    options = {name: each.default for name, each in signature(verify.run).parameters.items()}
    asked = {**options, "bootstrap": "one, [::1]:2", "client": "confluent-kafka", "directory": tmp_path / "run"}
    wanted, _ = asked_for(RunOptions(**asked))
    assert wanted.system == "one:9092,[::1]:2"


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "--system", "nonsense"),
        ("run", "--nemesis", "kill,nonsense"),
        ("run", "--workload", "nonsense"),
        ("run", "--client", "nonsense"),
        ("run", "--sub-via", "nonsense"),
        ("run", "--isolation", "nonsense"),
        ("run", "--metastore", "nonsense"),
        ("run", "--ignore", "nonsense"),
        ("run", "--no-faults", "--nemesis", "kill"),
        ("check", "tests", "--ignore", "nonsense"),
        ("run", "--bootstrap", "localhost:nonsense"),
        ("run", "--bootstrap", "localhost:1", "--nemesis", "kill"),
        ("run", "--bootstrap", "localhost:1", "--nodes", "5"),
        ("run", "--bootstrap", "localhost:1", "--metastore", "postgres"),
        ("run", "--system", "kafka-4.3.0", "--metastore", "postgres", "--dir", "/nowhere/run"),
        ("run", "--nemesis", "clock,grave", "--dir", "/nowhere/run"),
        ("run", "--bootstrap", "localhost:1", "--nemesis", "late,kill"),
        ("run", "--late", "nonsense"),
        ("run", "--client", "java-nonsense"),
        ("run", "--client-setting", "nonsense"),
        ("run", "--acks", "2"),
        ("run", "--acks", "1", "--txn"),
        ("run", "--no-idempotence", "--workload", "eos"),
        ("run", "--workload", "abort", "--expect", "nonsense"),
        ("run", "--expect", "rewind"),
        ("run", "--bootstrap", "localhost:1", "--nemesis", "leadership"),
        ("run", "--bootstrap", "localhost:1", "--nemesis", "kill", "--fault-command", "p"),
        ("run", "--bootstrap", "localhost:1", "--topic-prefix", ""),
        ("run", "--allow-admin"),
        ("run", "--client", "confluent-kafka", "--client-setting", "consumer.sasl.jaas.config=secret"),
        ("run", "--client", "confluent-kafka", "--client-setting", "ssl.key.password=secret"),
        ("replay", "tests", "--tries", "2/1"),
        ("run", "--dir", "."),
    ],
)
def test_what_makes_no_sense_is_told_before_anything_starts(arguments: tuple[str, ...]) -> None:
    error = CliRunner().invoke(verify.app, arguments).exception
    assert isinstance(error, SextonError)
    assert error.exit_code == 64


def test_what_can_be_named_is_what_there_is() -> None:
    """The command names them itself, so that the shell's completion imports nothing."""
    assert tuple(FAULTS) == verify_names.FAULTS
    assert tuple(CLIENTS) == verify_names.CLIENTS
    assert tuple(WORKLOADS) == verify_names.WORKLOADS
    assert verify_names.WAYS == WAYS
    assert tuple(Model) == verify_names.MODELS
    assert verify_names.METASTORES == METASTORES
    assert verify_names.STORAGES == STORAGES
    assert tuple(LATE) == verify_names.LATE
    for system in verify_names.SYSTEMS:
        assert check_name(system) == system


def test_what_is_kept_and_waited_for_by_default_is_what_the_judge_has() -> None:
    """The command names the numbers itself, so that its help imports no judge."""
    assert Options().patience_ms == verify.PATIENCE_S * 1_000
    assert Options().evidence_max == verify.EVIDENCE_CASES


def test_who_did_not_test_all_is_told_how_to() -> None:
    """For each duty that the judge may find unmet."""
    ways = verify_telling.remedies
    assert ways(["compaction removed a record", "compaction removed a tombstone", "a leader moved"]) == [
        "Give compaction longer (--time), or have tombstones that go sooner (another --seed)",
        "Leaders move with --nemesis kill or leadership",
    ]
    names = {duty.name for duty in judge([], Run(workload="table")).obligations}
    names |= {duty.name for duty in judge([], Run(workload="groups")).obligations}
    for start in ("somebody read to the end", "a group was", "compaction removed a tombstone"):
        assert any(name.startswith(start) for name in names), "a duty has another name by now"
    assert ways(["poll was ok once"]) == ["Did the brokers serve? clients.log and cluster/node-*/ say more"]


def test_a_list_is_completed_at_its_last_name() -> None:
    complete = verify_names.among(verify_names.FAULTS, has_list=True)
    assert complete("kill,g") == ["kill,grave"]
    assert complete("sto") == ["stop", "store"]


def test_everything_that_can_be_named_is_listed() -> None:
    said = CliRunner().invoke(verify.app, ["list"]).output
    for name in (*verify_names.FAULTS, *verify_names.CLIENTS, *verify_names.WORKLOADS, *ANOMALIES, *LIES):
        assert f"{name} " in said
