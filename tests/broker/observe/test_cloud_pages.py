"""What a real broker tells of its cloud topics, and of its store, which is a folder."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeAlias

import pytest
from confluent_kafka import Producer

from tests.broker.observe.test_pages import DOCS, Watched, dict_of
from tests.compactor.live import wait_until

pytestmark = pytest.mark.cluster

Told: TypeAlias = dict[str, list[tuple[dict[str, str], float]]]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """By the controller, which is the only broker."""
    folder = tmp_path_factory.mktemp("store")
    watched = Watched(nodes=1, settings={"cloud.store.url": f"file://{folder}/objects"})
    with watched.cluster as cluster:
        cluster.create_topic("orders", replication_factor=1, config={"storage.mode": "cloud"})
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all"})
        producer.produce("orders", b"x" * 1000, b"key", partition=0)
        assert producer.flush(60) == 0
        # What the controller tells of all the store is as of a moment ago.
        wait_until("the object is told of", lambda: live_count(watched.metrics()) == 1)
        yield watched.metrics()


def live_count(told: Told) -> float:
    """Told by who has become the controller."""
    found = told.get("sexton_cloud_objects", [])
    return sum(count for labels, count in found if labels == {"level": "L0", "state": "live"})


def test_every_metric_of_cloud_topics_that_the_manual_names_is_told_and_the_other_way_round(told: Told) -> None:
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in told if name.startswith("sexton_cloud_")}
    named = {path.name: set(re.findall(r"sexton_cloud_[a-z_]*[a-z]", path.read_text())) for path in DOCS.glob("*.md")}
    assert named["cloud.md"] == families
    assert set().union(*named.values()) == families
    assert len(families) > 10


def test_what_is_told_is_what_there_is(told: Told) -> None:
    assert told["sexton_cloud_partitions_led"] == [({}, 1)]
    assert told["sexton_cloud_extents_max"] == [({}, 1)]
    assert told["sexton_cloud_log_bytes"][0][1] > 1000
    assert told["sexton_cloud_away"] == told["sexton_cloud_missing_objects_total"] == [({}, 0)]
    puts = [(labels, count) for labels, count in told["sexton_cloud_requests_total"] if labels["operation"] == "put"]
    assert {labels["outcome"] for labels, count in puts if count} == {"ok"}
    assert dict_of(told["sexton_cloud_seconds_count"], "operation")["commit"] == 1
