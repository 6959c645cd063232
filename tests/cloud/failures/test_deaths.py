"""A real broker dies, as by kill -9, at each step of its writing, while a producer writes and writes."""

from __future__ import annotations

import pytest
from confluent_kafka import Consumer

from sexton.harness.brokers import SextonCluster
from tests.cloud.failures.conftest import CloudPlace
from tests.cloud.failures.dying import FILE_NAME, STEPS
from tests.cloud.failures.load import PATIENCE_S, QUIET, Load, leader_of, until

pytestmark = pytest.mark.cluster

IS_HAUNTED = True
"""Brokers of this file can be told where to die."""


def test_what_was_acknowledged_is_there_once_at_whichever_step_brokers_died(place: CloudPlace, is_soak: bool) -> None:
    """Without --soak after each step, which is before the next one (and `test_crashes` has all of them)."""
    cluster = place.cluster
    with Load(cluster, "deaths") as load:
        for step in STEPS if is_soak else [step for step in STEPS if step.startswith("after")]:
            leader = leader_of(cluster, load.topic)
            victim = successor(cluster, load.topic, leader) if step.endswith("claim") else leader
            command = cluster.node_dir(victim) / FILE_NAME
            command.write_text(step)
            if victim != leader:
                cluster.kill_node(leader)
            until(lambda at=victim: not cluster.is_running(at), f"broker {victim} dies {step}")  # type: ignore[misc]
            command.unlink()
            for node_id in cluster.node_ids:
                if not cluster.is_running(node_id):
                    cluster.start_node(node_id, wait=False)
            cluster.wait_ready(PATIENCE_S)
            load.go_on()
    assert place.check().is_right


def successor(cluster: SextonCluster, topic: str, leader: int) -> int:
    """Who is asked first when the leader is gone."""
    client = Consumer({**QUIET, "bootstrap.servers": cluster.bootstrap, "group.id": "asking"})
    replicas = client.list_topics(topic, timeout=PATIENCE_S).topics[topic].partitions[0].replicas
    client.close()
    return int(next(each for each in replicas if each != leader))
