"""Controllers of Kafka that are processes of their own: the fault `metastore` takes some away, and gives them back."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from sexton.cli.broker import UsageError
from sexton.cli.main import app
from sexton.errors import SextonError
from sexton.harness.errors import HarnessError
from sexton.harness.kafka import KafkaCluster
from sexton.harness.systems import UnknownSystemError, cluster_of
from sexton.verify import probes
from sexton.verify.faults.base import Scene
from sexton.verify.faults.schedule import Act, Target
from sexton.verify.faults.services import Metastore
from sexton.verify.run import check_faults
from sexton.verify.systems import check_controllers
from tests.verify.commands import ONE, ended, started

TOPIC = "t"
TIMEOUT_S = 60


class Controllers:
    """Of a cluster, as far as the fault asks."""

    def __init__(self, count: int) -> None:
        self.controller_ids = list(range(101, 101 + count))
        self.killed: set[int] = set()
        self.paused: set[int] = set()

    def kill_node(self, node_id: int) -> None:
        self.killed.add(node_id)

    def pause_node(self, node_id: int) -> None:
        self.paused.add(node_id)

    def is_running(self, node_id: int) -> bool:
        return node_id not in self.killed

    def start_node(self, node_id: int, wait: bool) -> None:
        assert not wait, "a minority alone would wait for ever"
        self.killed.remove(node_id)

    def resume_node(self, node_id: int) -> None:
        self.paused.remove(node_id)


def fake() -> Any:
    return Controllers(3)


def act(choice: int) -> Act:
    return Act(0, "metastore", True, Target.ALL, choice)


def test_a_minority_or_a_majority_is_killed_or_paused_and_all_come_back() -> None:
    seen = set()
    for choice in range(60):
        controllers: Any = Controllers(3)
        fault = Metastore(Scene(controllers))
        told = fault.begin(act(choice))
        away = controllers.killed or controllers.paused
        assert told.hit == [f"controller {each}" for each in sorted(away)]
        seen.add((told.ext["how"], len(away)))
        assert fault.end().hit == told.hit
        assert not controllers.killed
        assert not controllers.paused
        assert fault.end().hit == (), "it has ended"
    assert seen == {
        (f"{which} of the controllers {how}", count)
        for which, count in (("a minority", 1), ("a majority", 2))
        for how in ("killed", "paused")
    }


def test_of_a_single_controller_there_is_no_minority() -> None:
    for choice in range(20):
        controllers: Any = Controllers(1)
        assert Metastore(Scene(controllers)).begin(act(choice)).hit == ["controller 101"]


def test_the_fault_is_there_only_if_the_controllers_are_beside_the_brokers() -> None:
    with pytest.raises(HarnessError, match="there is no fault metastore") as refused:
        check_faults(("metastore",), "kafka-4.3.0")
    assert "--controllers 3" in refused.value.remedy
    check_faults(("metastore",), "kafka-4.3.0", 3)
    check_faults(("metastore",), "sexton")
    with pytest.raises(UnknownSystemError, match="no controllers"):
        check_controllers("sexton", 3)
    asked = ["verify", "run", "--bootstrap", "127.0.0.1:1", "--client", "confluent-kafka", "--controllers", "3"]
    with pytest.raises(UsageError, match="of what verify starts"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


def test_brokers_and_controllers_have_settings_and_directories_of_their_own(tmp_path: Path) -> None:
    cluster = cluster_of("kafka-4.3.0", tmp_path, {}, keep=True, nodes=2, controllers=3)
    assert isinstance(cluster, KafkaCluster)
    assert (cluster.node_ids, cluster.controller_ids) == ([1, 2], [101, 102, 103])
    assert {cluster.log_dir(each) for each in (1, 101)} == {
        tmp_path / "node-1" / "data",
        tmp_path / "controller-101" / "data",
    }
    broker, controller = (cluster._settings_of(cluster.node(each)) for each in (1, 101))
    assert (broker["process.roles"], controller["process.roles"]) == ("broker", "controller")
    assert "CONTROLLER://" not in str(broker["listeners"])
    assert str(controller["listeners"]).startswith("CONTROLLER://127.0.0.1:")
    assert broker["controller.quorum.voters"] == controller["controller.quorum.voters"]
    assert [each.partition("@")[0] for each in str(broker["controller.quorum.voters"]).split(",")] == [
        "101",
        "102",
        "103",
    ]
    cluster.close()


def wait_until_made(cluster: KafkaCluster, topic: str) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            cluster.create_topic(topic, 1, 1)
            return
        except SextonError:
            assert time.monotonic() < deadline_s, "a majority is back, and decides nothing"
            time.sleep(0.2)


@pytest.mark.kafka
@pytest.mark.soak
def test_without_a_majority_of_its_controllers_kafka_makes_no_topic_and_then_it_does(tmp_path: Path) -> None:
    with cluster_of("kafka-4.3.0", tmp_path / "kafka", {}, keep=True, nodes=1, controllers=3) as cluster:
        assert isinstance(cluster, KafkaCluster)
        cluster.create_topic("before")
        majority = next(each for each in range(100) if len(Metastore(Scene(fake())).begin(act(each)).hit) == 2)
        fault = Metastore(Scene(cluster))
        assert len(fault.begin(act(majority)).hit) == 2
        with pytest.raises(SextonError):
            cluster.create_topic("not-now")
        assert "before" in probes.topics(cluster.bootstrap), "brokers go on with what they know"
        fault.end()
        wait_until_made(cluster, "now")


@pytest.mark.kafka
@pytest.mark.soak
def test_a_run_of_kafka_takes_controllers_away_and_reads_everything_afterwards(tmp_path: Path) -> None:
    run = tmp_path / "run"
    asked = ("--system", "kafka-4.3.0", "--controllers", 3, "--nemesis", "metastore", *ONE)
    code, said = ended(started("run", *asked, "--time", 25, "--interval", 5, "--seed", 1, "--dir", run))
    assert code == 0, said
    assert json.loads((run / "test.json").read_text())["controllers"] == 3
    faults = [json.loads(line) for line in (run / "faults.jsonl").read_text().splitlines()]
    begun = [each for each in faults if each["type"] == "info" and each.get("ext", {}).get("phase") == "start"]
    assert begun
    assert all(each["value"][0].startswith("controller 10") for each in begun)
    assert (run / "cluster" / "controller-101" / "server.log").exists()
    assert not (run / "cluster" / "controller-101" / "data").exists()
