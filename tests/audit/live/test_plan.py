"""The commands of `--plan`, run on the cluster that it was made for, by Kafka's own tools: after them all agree."""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from typer.testing import CliRunner

from sexton.audit.judge import Verdict
from sexton.audit.run import audit
from sexton.cli.main import app
from sexton.harness.kafka import KafkaCluster
from sexton.harness.kafka_tools import tool_command
from tests.audit.live.planting import BAD, CLEANED, EAGER, plant
from tests.audit.live.reading import source_at
from tests.project import PROJECT_DIR
from tests.spark.local_context import LocalContext

pytestmark = [pytest.mark.kafka, pytest.mark.soak]

TOPIC = "users"
TOOLS = {
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-leader-election.sh": "org.apache.kafka.tools.LeaderElectionCommand",
}
TIMEOUT_S = 120


@pytest.fixture
def kafka() -> Iterator[KafkaCluster]:
    with KafkaCluster(nodes=3, settings=EAGER, heap="400m") as kafka:
        kafka.create_topic(TOPIC, 1, 3, CLEANED)
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in range(200):
            producer.produce(TOPIC, key=f"k{number % 50}", value=f"v{number}")
        assert producer.flush(60) == 0
        plant(kafka, TOPIC)
        yield kafka


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """Kafka's scripts and ours, as they are on an operator's path."""
    folder = tmp_path / "bin"
    folder.mkdir()
    commands = {name: tool_command(main_class) for name, main_class in TOOLS.items()}
    commands["sexton"] = [sys.executable, "-m", "sexton.cli.main"]
    for name, command in commands.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


def make_lead(kafka: KafkaCluster, broker: int) -> None:
    others = [each for each in (1, 2, 3) if each != broker]
    order = ",".join(map(str, [broker, *others]))
    for command in (["reassign", TOPIC, f"0={order}", "--wait"], ["elect", TOPIC]):
        done = CliRunner().invoke(app, ["topic", *command, "--bootstrap", kafka.bootstrap], catch_exceptions=False)
        assert done.exit_code == 0, done.output
    assert leader_of(kafka) == broker


def leader_of(kafka: KafkaCluster) -> int:
    return AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(TOPIC).topics[TOPIC].partitions[0].leader


def run(block: str, tools: Path, folder: Path) -> str:
    env = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(PROJECT_DIR / "src")}
    done = subprocess.run(
        ["bash", "-euc", block], cwd=folder, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def run_until_complete(block: str, tools: Path, folder: Path) -> None:
    """As the plan says: the next step is for when this one has said that it is complete."""
    told = run(block, tools, folder)
    (verify,) = [line for line in block.splitlines() if line.endswith("--verify")] or [""]
    deadline_s = time.monotonic() + TIMEOUT_S
    while verify and f"Reassignment of partition {TOPIC}-0 is completed" not in told:
        assert time.monotonic() < deadline_s, told
        told = run(verify, tools, folder)


def test_the_steps_of_a_plan_lead_to_agreement_also_where_the_bad_replica_leads(
    kafka: KafkaCluster, tools: Path, tmp_path: Path
) -> None:
    make_lead(kafka, BAD)
    where = ("--bootstrap", kafka.bootstrap, "--topic", TOPIC)
    found = run(shlex.join(["sexton", "audit", *where, "--json", "--plan", "plan.md"]) + " || true", tools, tmp_path)
    (tmp_path / "report.json").write_text(found)
    plan = (tmp_path / "plan.md").read_text()
    assert "It leads now" in plan
    blocks = re.findall(r"```sh\n(.*?)```", plan, re.DOTALL)
    assert len(blocks) == 5  # who is preferred, the election, away, back, the look at the same keys
    for block in blocks:
        run_until_complete(block, tools, tmp_path)
    assert leader_of(kafka) != BAD
    with source_at(kafka.bootstrap, TOPIC) as source:
        (partition,) = audit(LocalContext(random.Random(1)).as_spark, [source]).partitions
    assert partition.verdict is Verdict.AGREE
    assert sorted(each.replica.id.broker for each in partition.standings.values()) == [1, 2, 3]
