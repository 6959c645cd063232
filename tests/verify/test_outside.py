"""Clusters that verify has not started: what is allowed there, who does it, and what is touched."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from sexton.checker.verdict import Verdict
from sexton.harness.brokers import SextonCluster
from sexton.harness.errors import HarnessError
from sexton.harness.kafka import KafkaCluster
from sexton.harness.proxy import Liar, Proxy, Request, answer_of
from sexton.verify import probes
from sexton.verify import run as verifying
from sexton.verify.faults.base import Scene
from sexton.verify.faults.schedule import Act, Target
from sexton.verify.generator import NS
from sexton.verify.outside import ByCommand, NotAllowedError, Outside, check, fault
from sexton.verify.plan import Plan
from sexton.verify.selftest import Silent
from sexton.verify.workloads.known import Asked

COMMAND = "prog {start|stop} {kind} {broker}"
PREFIX = "sexton-verify-test-"
METADATA = 3
ACT = Act(at_ns=0, fault="pause", begins=True, target=Target.ONE, choice=1)


@dataclass
class Brokers:
    """Of a cluster, as far as a fault asks."""

    bootstrap: str = ""
    node_ids: Sequence[int] = (4,)

    def is_serving(self, node_id: int) -> bool:
        return True


def scene() -> Scene:
    brokers: Any = Brokers()
    return Scene(brokers)


def test_nothing_is_broken_that_its_owner_has_not_allowed() -> None:
    check((), allows_admin=False, command="")
    check(("leadership", "membership"), allows_admin=True, command="")
    check(("kill", "pause"), allows_admin=False, command=COMMAND)
    for faults, allows_admin, command in (
        (("leadership",), False, COMMAND),
        (("kill",), True, ""),
        (("grave",), True, COMMAND),
        (("kill",), True, "prog {kind}"),
    ):
        with pytest.raises(NotAllowedError):
            check(faults, allows_admin=allows_admin, command=command)


def test_the_owners_command_is_told_what_begins_and_ends_and_for_whom(tmp_path: Path) -> None:
    """No shell reads it: a word is a word."""
    program = tmp_path / "prog with space"
    program.write_text(f'#!/bin/sh\necho "$#" "$@" >> "{tmp_path}/told"\n')
    program.chmod(0o755)
    command = f"'{program}' {{start|stop}} --what={{kind}} broker-{{broker}} '$HOME; ls'"
    paused = fault("pause", command, scene())
    assert paused.begin(ACT).hit == [4]
    assert paused.end().hit == [4]
    assert paused.end().hit == [], "it has ended"
    told = (tmp_path / "told").read_text().splitlines()
    assert told == ["4 start --what=pause broker-4 $HOME; ls", "4 stop --what=pause broker-4 $HOME; ls"]


def test_what_a_command_says_that_fails_is_told() -> None:
    failing = ByCommand("kill", "sh -c 'echo no such broker: $2; exit 7' {start|stop} {kind} {broker}", scene())
    with pytest.raises(HarnessError, match="ended with 7: no such broker: 4"):
        failing.begin(ACT)
    with pytest.raises(HarnessError, match="nobody-has-this"):
        ByCommand("kill", "nobody-has-this {start|stop} {kind} {broker}", scene()).begin(ACT)


@dataclass
class Watching(Liar):
    """Writes down which topics, groups and transactional ids are named by whoever writes or asks for something."""

    named: set[str] = field(default_factory=set)
    ids: dict[Any, str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def request(self, request: Request) -> Request:
        if request.api_key != METADATA or request.body().topics:
            with self.lock:
                self.named.update(self._names(request.body()))
        return request

    def answer(self, request: Request, frame: bytes) -> bytes:
        if request.api_key == METADATA:
            with self.lock:
                for topic in answer_of(request, frame).topics:
                    if getattr(topic, "topic_id", None) is not None:
                        self.ids[topic.topic_id] = str(topic.name)
        return frame

    def _names(self, body: Any) -> Iterator[str]:
        for name in ("group_id", "transactional_id", "v3_and_below_transactional_id", "key"):
            if isinstance(found := getattr(body, name, None), str) and found:
                yield found
        yield from getattr(body, "coordinator_keys", None) or ()
        topics = [
            *(getattr(body, "topics", None) or ()),
            *(getattr(body, "topic_data", None) or ()),
            *(getattr(body, "v3_and_below_topics", None) or ()),
        ]
        for topic in topics:
            named = getattr(topic, "name", None) or getattr(topic, "topic", None)
            yield str(named or self.ids.get(getattr(topic, "topic_id", None), f"unknown topic: {topic}"))


def ran(bootstrap: str, directory: Path, **more: Any) -> Verdict:
    plan = Plan(
        seed=4,
        concurrency=3,
        rate=100,
        calm_ns=0,
        main_ns=3 * NS,
        final_ns=60 * NS,
        period_ns=3 * NS,
        interval_ns=NS,
        clients=("confluent-kafka",),
        topic_prefix=PREFIX,
        transaction_timeout_ms=20_000,
        **{name: value for name, value in more.items() if name != "allows_admin"},
    )
    wanted = verifying.Wanted(
        system=bootstrap,
        is_existing=True,
        asked=Asked(is_transactional=True),
        directory=directory,
        allows_admin=bool(more.get("allows_admin")),
    )
    return verifying.run(wanted, plan, Silent()).verdict


def touched(cluster: SextonCluster | KafkaCluster, directory: Path) -> Watching:
    cluster.create_topic("theirs")
    watching = Watching()
    with Proxy(cluster.bootstrap, watching) as proxy:
        assert ran(proxy.bootstrap, directory) is not Verdict.FALSE  # a slow machine may not get to everything
    assert [each for each in probes.topics(cluster.bootstrap) if not each.startswith("__")] == ["theirs"]
    return watching


@pytest.mark.cluster
def test_of_a_cluster_that_exists_no_request_names_anything_but_ours(tmp_path: Path) -> None:
    with SextonCluster(nodes=1) as cluster:
        watching = touched(cluster, tmp_path / "run")
    assert len(watching.named) > 3
    assert not [each for each in watching.named if not each.startswith(PREFIX)]


@pytest.mark.soak
@pytest.mark.kafka
def test_of_a_kafka_that_exists_no_request_names_anything_but_ours(tmp_path: Path) -> None:
    with KafkaCluster("4.3.0", 1, tmp_path / "kafka") as cluster:
        watching = touched(cluster, tmp_path / "run")
    assert len(watching.named) > 3
    assert not [each for each in watching.named if not each.startswith(PREFIX)]


@pytest.mark.cluster
def test_leaders_of_our_topics_move_in_a_cluster_that_is_not_ours(tmp_path: Path) -> None:
    with SextonCluster(nodes=3) as cluster:
        assert list(Outside(cluster.bootstrap).node_ids) == list(cluster.node_ids)
        assert Outside(cluster.bootstrap).is_serving(1)
        command = f"sh -c 'echo $0 $1 $2 >> {tmp_path}/told' {{start|stop}} {{kind}} {{broker}}"
        verdict = ran(
            cluster.bootstrap,
            tmp_path / "run",
            faults=("leadership", "pause"),
            fault_command=command,
            allows_admin=True,
        )
        assert verdict is not Verdict.FALSE
    ops = map(json.loads, (tmp_path / "run" / "history.jsonl").read_text().splitlines())
    started = {op["f"] for op in ops if op["process"] == "nemesis" and op.get("ext", {}).get("phase") == "start"}
    assert started == {"leadership", "pause"}
    told = [line.split()[:2] for line in (tmp_path / "told").read_text().splitlines()]
    assert told.count(["start", "pause"]) == told.count(["stop", "pause"]) > 0
