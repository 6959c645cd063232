"""What real brokers tell of themselves over HTTP, and that the command line tells the same."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from sexton.cli.main import app
from sexton.harness.brokers import SextonCluster
from sexton.harness.processes import HOST, Port
from sexton.harness.properties import Settings
from tests.compactor.live import SETTINGS, TOPIC_SETTINGS, RunningCompactor, status_of, wait_until

pytestmark = pytest.mark.cluster
DOCS = Path(__file__).parents[3] / "docs"
OPERATIONS = DOCS / "operations.md"
SAMPLE = re.compile(r'([a-z_]+)(?:\{((?:[a-z]+="(?:[^"\\]|\\.)*",?)+)\})? ([-+0-9.e]+|\+Inf)')


class Watched:
    """Brokers with admin listeners."""

    def __init__(self, nodes: int = 2, settings: Settings = SETTINGS) -> None:
        self.ports = {node: Port() for node in range(1, nodes + 1)}
        listeners = {node: {"admin.listener": f"http://{HOST}:{port.number}"} for node, port in self.ports.items()}
        self.cluster = SextonCluster(nodes=nodes, settings=settings, node_settings=listeners)

    def url(self, path: str, node: int = 1) -> str:
        return f"http://{HOST}:{self.ports[node].number}{path}"

    def get(self, path: str, node: int = 1) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(self.url(path, node), timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def metrics(self, node: int = 1) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Every line must be one of the format's."""
        with urllib.request.urlopen(self.url("/metrics", node), timeout=30) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            text = answer.read().decode()
        found: dict[str, list[tuple[dict[str, str], float]]] = {}
        types: dict[str, str] = {}
        for line in text.splitlines():
            if line.startswith("# "):
                _, kind, name, rest = line.split(" ", 3)
                if kind == "TYPE":
                    assert name not in types, "a family is told once"
                    types[name] = rest
                continue
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            assert name in types or re.sub("_(bucket|sum|count)$", "", name) in types, line
            found.setdefault(name, []).append((dict(re.findall(r'([a-z]+)="([^"]*)"', labels or "")), float(value)))
        return found


def command(watched: Watched, *words: str) -> Any:
    done = CliRunner().invoke(app, [*words, "--json", "--bootstrap-server", watched.cluster.bootstrap])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def watched() -> Iterator[Watched]:
    """Two of them, and a compacted topic that has been compacted."""
    made = Watched()
    with made.cluster as cluster:
        cluster.create_topic("orders", replication_factor=2, config=TOPIC_SETTINGS)
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "batch.num.messages": 5})
        for number in range(400):
            value = None if number % 20 == 17 else b"%030d" % number
            producer.produce("orders", value, b"order-%d" % (number % 20), partition=0)
        assert producer.flush(60) == 0
        with RunningCompactor(cluster):
            wait_until("both have compacted", lambda: len(compacted(cluster)) == 2)
        yield made


def compacted(cluster: SextonCluster) -> list[int]:
    return [node for node, one in status_of(cluster, "orders").items() if one["mcco"] > 100 and not one["is_due"]]


def test_health_and_cluster_say_that_all_is_well(watched: Watched) -> None:
    status, health = watched.get("/health", 2)
    assert status == 200
    assert (health["broker"], health["is_serving"]) == (2, True)
    told = [watched.get("/cluster")[1], command(watched, "cluster", "status")]
    assert {each.pop("controller") for each in told} <= {1, 2}, "each broker names itself"
    assert told[0] == told[1]


def test_compaction_is_told_as_the_command_line_tells_it(watched: Watched) -> None:
    assert watched.get("/compaction/status?topic=orders") == (200, command(watched, "compaction", "status", "orders"))
    status, told = watched.get("/compaction/status?topic=orders&partition=1")
    assert (status, told["replicas"]) == (200, [])
    status, history = watched.get("/compaction/history?limit=1000")
    assert status == 200
    assert history["runs"] == command(watched, "compaction", "history", "--limit", "1000")["runs"] != []
    for what in (("key", "order-17"), ("key", "order-3"), ("offset", "0")):
        status, told = watched.get(f"/compaction/why?topic=orders&partition=0&{what[0]}={what[1]}")
        if status == 200:
            assert told == command(watched, "compaction", "why", "orders:0", f"--{what[0]}", what[1])
        else:
            assert (what[0], status) == ("offset", 404), "it was superseded"


def test_what_cannot_be_told_is_said_so(watched: Watched) -> None:
    for path, status in (
        ("/nowhere", 404),
        ("/compaction/why", 400),
        ("/compaction/why?topic=orders&partition=0", 400),
        ("/compaction/why?topic=orders&partition=x&key=a", 400),
        ("/compaction/why?topic=orders&partition=0&key=nobody", 404),
        ("/compaction/why?topic=nowhere&partition=0&key=a", 404),
        ("/compaction/history?limit=-1", 400),
    ):
        found, told = watched.get(path)
        assert (found, list(told)) == (status, ["error"]), path


def test_metrics_count_what_was_done(watched: Watched) -> None:
    found = {node: watched.metrics(node) for node in (1, 2)}
    leads = watched.cluster.leaders("orders")[0]
    for node, metrics in found.items():
        assert metrics["sexton_broker_lease_valid"] == [({}, 1)]
        assert metrics["sexton_broker_info"][0][0]["broker"] == str(node)
        assert metrics["sexton_brokers_live"] == [({}, 2)]
        assert metrics["sexton_partitions_under_replicated"] == [({}, 0)]
        here = ({"topic": "orders", "partition": "0"},)
        (status,) = [one for one in watched.get("/compaction/status")[1]["replicas"] if one["broker"] == node]
        for name in ("mcco", "mxfo", "mtro", "mxro"):
            assert (*here, status[name]) in metrics[f"sexton_compaction_{name}"]
        runs = dict_of(metrics["sexton_compaction_runs_total"], "outcome")
        assert runs["adopted" if node != leads else "committed"] > 0
        assert metrics["sexton_compaction_saved_bytes"][0][1] > 0
    leader = found[leads]
    requests = dict_of(leader["sexton_requests_total"], "api")
    assert requests["produce"] > 0
    assert requests["replica_fetch"] > 0
    assert dict_of(leader["sexton_request_bytes_total"], "api")["produce"] > 400 * 30 * 0.9
    answered = dict_of(leader["sexton_request_seconds_count"], "api")
    assert answered["produce"] == requests["produce"]
    buckets = [value for labels, value in leader["sexton_request_seconds_bucket"] if labels["api"] == "produce"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == requests["produce"]


def dict_of(samples: list[tuple[dict[str, str], float]], label: str) -> dict[str, float]:
    return {labels[label]: value for labels, value in samples}


def test_the_examples_of_the_manual_work(watched: Watched) -> None:
    lines = [line.strip() for line in OPERATIONS.read_text().splitlines() if line.startswith("    curl ")]
    assert len(lines) == 7
    for line in lines:
        words = shlex.split(line.replace("127.0.0.1:9192", watched.url("").removeprefix("http://")))
        done = subprocess.run([*words, "--fail", "--max-time", "60"], capture_output=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
        assert done.stdout


def test_every_metric_that_the_manual_names_is_told(watched: Watched) -> None:
    section = OPERATIONS.read_text().partition("## Watching it")[2].partition("\n## ")[0]
    named = set(re.findall(r"sexton_[a-z_]+[a-z]", section))
    told = {name for node in (1, 2) for name in watched.metrics(node)}
    sometimes = {"sexton_compaction_held_back_since_timestamp_seconds", "sexton_compaction_waits_for_replica"}
    of_compactors = {name for name in named if name.startswith("sexton_compactor_")}
    of_cloud_topics = {name for name in named if name.startswith("sexton_cloud_")}  # see test_cloud_pages
    assert named - told - of_compactors - of_cloud_topics <= sometimes
    assert len(named) > 10


def test_a_replica_that_is_away_is_named_as_what_tombstones_wait_for(watched: Watched) -> None:
    """The last test: it stops a broker."""
    leader = watched.cluster.leaders("orders")[0]
    other = 3 - leader
    if watched.cluster.is_running(other):
        watched.cluster.kill_node(other)
    producer = Producer({"bootstrap.servers": watched.cluster.bootstrap, "acks": "1", "batch.num.messages": 5})
    for number in range(400):
        producer.produce("orders", b"%030d" % number, b"order-%d" % (number % 20), partition=0)
    assert producer.flush(60) == 0

    def waits_for() -> list[str]:
        found = watched.metrics(leader).get("sexton_compaction_waits_for_replica", [])
        return [labels["replica"] for labels, _ in found if labels["topic"] == "orders"]

    with RunningCompactor(watched.cluster):
        wait_until("the leader has compacted alone", lambda: waits_for() == [str(other)])
        name = "sexton_compaction_held_back_since_timestamp_seconds"
        wait_until("it says since when", lambda: name in watched.metrics(leader))
    wait_until("it is out of sync", lambda: watched.metrics(leader)["sexton_partitions_under_replicated"][0][1] > 0)
