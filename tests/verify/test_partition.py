"""Brokers with a network each, that is cut and mended."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from sexton.harness.errors import HarnessError
from sexton.harness.network import METASTORE_ID, Network
from sexton.harness.systems import cluster_of
from sexton.verify import probes
from sexton.verify.clients.confluent import Producer
from sexton.verify.faults.base import Scene
from sexton.verify.faults.partition import SHAPES, Partition, between, shapes
from sexton.verify.faults.schedule import Act, Target

TIMEOUT_S = 60
WRITE_TIMEOUT_MS = 30_000


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


@pytest.mark.parametrize(
    ("shape", "cuts"),
    [
        ("isolated", {(1, 2), (1, 3), (2, 1), (3, 1)}),
        ("deaf", {(2, 1), (3, 1)}),
        ("unheard", {(1, 2), (1, 3)}),
        ("link", {(1, 2), (2, 1)}),
    ],
)
def test_who_sends_in_vain_to_whom(shape: str, cuts: set[tuple[int, int]]) -> None:
    assert set(SHAPES[shape](1, [2, 3])) == cuts


@pytest.mark.parametrize(
    ("shape", "cuts"),
    [
        ("halves", between([1, 2], [3, 4, 5])),
        ("bridge", between([2, 3], [4, 5])),
        ("ring", [*between([1], [3, 4]), *between([2], [4, 5]), *between([3], [5])]),
    ],
)
def test_shapes_of_more_than_three(shape: str, cuts: list[tuple[int, int]]) -> None:
    found = shapes(5, has_server=False)[shape](1, [2, 3, 4, 5])
    assert set(found) == set(cuts)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("count", range(4, 10))
def test_in_a_ring_each_hears_a_majority_and_no_two_the_same(count: int) -> None:
    nodes = range(1, count + 1)
    cuts = set(shapes(count, has_server=False)["ring"](1, list(nodes)[1:]))
    heard = [frozenset(each for each in nodes if (each, node) not in cuts) for node in nodes]
    assert len(set(heard)) == count
    assert all(count // 2 < len(each) < count for each in heard)


def test_three_have_the_small_shapes_and_who_has_a_server_may_lose_it() -> None:
    assert shapes(3, has_server=False).keys() == SHAPES.keys()
    assert shapes(3, has_server=True).keys() - SHAPES.keys() == {"metastore"}
    assert set(shapes(3, has_server=True)["metastore"](2, [1, 3])) == {(2, METASTORE_ID), (METASTORE_ID, 2)}


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda name: "/usr/sbin/ip")
    with pytest.raises(HarnessError, match="only root"):
        Partition.check("sexton")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(HarnessError, match="needs ip"):
        Partition.check("sexton")


@pytest.mark.cluster
def test_who_is_not_heard_leaves_the_in_sync_replicas_and_comes_back(tmp_path: Path) -> None:
    try:
        Network.check()
    except HarnessError as error:
        assert error.remedy  # noqa: PT017
        return
    cluster = cluster_of("sexton", tmp_path, {}, keep=False)
    with Network(cluster.node_ids) as network:
        cluster.move_to(network)
        with cluster:
            cluster.create_topic("t", 1, 3)
            scene = Scene(cluster, lambda: [("t", 0)])
            wait_until(lambda: probes.is_whole(scene.bootstrap, ["t"]))
            fault = Partition(scene)
            choice = next(each for each in range(100) if hits(each) == "isolated")
            assert fault.begin(Act(0, "partition", True, Target.LEADER, choice)).hit
            write_one(scene.bootstrap)
            wait_until(lambda: len(probes.partitions(scene.bootstrap, ["t"])["t", 0].isr) < 3)
            assert len(probes.broker_ids(cluster.bootstrap)) == 3, "who is outside reaches all of them"
            fault.end()
            wait_until(lambda: probes.is_whole(scene.bootstrap, ["t"]))
    assert network.prefix(1)[-1] not in links()


HOLDER = """
import time
from sexton.harness.network import METASTORE_ID, Network
with Network([1]) as network:
    print(network.prefix(1)[-1], flush=True)
    time.sleep(600)
"""


def test_a_network_goes_with_the_process_that_made_it_even_if_that_is_killed() -> None:
    try:
        Network.check()
    except HarnessError as error:
        assert error.remedy  # noqa: PT017
        return
    holder = subprocess.Popen([sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    name = holder.stdout.readline().strip()
    assert name in links()
    holder.kill()
    holder.communicate()
    wait_until(lambda: name not in links())


def links() -> str:
    return subprocess.run(["ip", "link"], capture_output=True, text=True, check=True).stdout


def write_one(bootstrap: str) -> None:
    """Who lags behind an idle log does not leave."""
    producer = Producer(bootstrap, "", WRITE_TIMEOUT_MS, {})
    producer.init()
    producer.send("t", 0, [b"value"])
    producer.flush()
    producer.close()


def hits(choice: int) -> str:
    return random.Random(choice).choice(sorted(SHAPES))
