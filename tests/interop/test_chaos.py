"""Brokers are killed and paused, the metastore goes away, and nobody who was told "acknowledged" was told wrong.

pytest tests/interop/test_chaos.py --chaos-seconds 300 --chaos-seed 7
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from sexton.harness.brokers import SextonCluster
from sexton.harness.postgres import Postgres
from tests.interop import chaos
from tests.postgres import running_postgres
from tests.storage import store_for

pytestmark = [pytest.mark.cluster, pytest.mark.postgres]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    with running_postgres() as server:
        yield server


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--chaos-seconds", 60))


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--chaos-seed", 0)) or random.randrange(1, 1 << 30)


@pytest.mark.timeout(3600)
def test_nothing_acknowledged_is_lost_while_brokers_and_the_metastore_fail(
    postgres: Postgres, seconds: int, seed: int, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    print(f"--chaos-seed {seed}")
    with (
        store_for(pytestconfig, tmp_path / "store") as store,
        SextonCluster(3, tmp_path / "cluster", metastore_url=postgres.new_database(), store=store) as cluster,
    ):
        cluster.create_topic(chaos.TOPIC, chaos.PARTITIONS, 3, {} if store else {"min.insync.replicas": 2})
        story = chaos.Story()
        writer = chaos.Writer(cluster.bootstrap, story)
        readers = [chaos.Reader(cluster.bootstrap, story) for _ in range(2)]
        for reader in readers:
            reader.start()
        faults = chaos.Faults(cluster, postgres, random.Random(seed), seconds, story, store)
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s or not faults.is_over:
            faults.step()
            writer.step()
        print("\n".join(story.faults))

        chaos.wait_until_healed(cluster)
        assert writer.finish() == 0, "records were still without an answer long after all was well"
        assert story.given_up == {}
        logs = chaos.read_all(cluster.bootstrap)
        ends = {number: log[-1][0] + 1 for number, log in logs.items()}
        wait_for_readers(cluster, story, logs)
        for reader in readers:
            reader.stop()
        chaos.check(story, logs)
        assert committed(cluster) == ends
        print(f"{len(story.acknowledged)} acknowledged, {len(story.read)} read, {dict(story.fault_kinds)}")
        assert len(story.acknowledged) > seconds * chaos.RECORDS_PER_S / 20, "hardly anything was written"


def wait_for_readers(cluster: SextonCluster, story: chaos.Story, logs: dict[int, list[tuple[int, int]]]) -> None:
    """The group ends at the last offset, without help."""
    last = {(number, log[-1][0]) for number, log in logs.items()}
    deadline_s = time.monotonic() + chaos.HEAL_TIMEOUT_S
    while not last <= story.read.keys():
        assert time.monotonic() < deadline_s, f"the group has not read {last - story.read.keys()}"
        time.sleep(0.2)


def committed(cluster: SextonCluster) -> dict[int, int]:
    client = Consumer({**chaos.QUIET, "bootstrap.servers": cluster.bootstrap, "group.id": "chaos"})
    asked = [TopicPartition(chaos.TOPIC, number) for number in range(chaos.PARTITIONS)]
    found = {each.partition: each.offset for each in client.committed(asked, timeout=30)}
    client.close()
    return found


# ---- The judge itself.


def story_of(log: list[tuple[int, int]]) -> chaos.Story:
    story = chaos.Story()
    for offset, number in log:
        story.acknowledged[0, number] = offset
        story.read[0, offset] = b"%d" % number
    return story


LOG = [(0, 0), (1, 1), (2, 2)]


def test_a_log_that_holds_what_was_acknowledged_is_accepted() -> None:
    chaos.check(story_of(LOG), {0: LOG})


def test_an_acknowledgement_without_an_offset_is_kept_by_a_log_that_has_the_record_anywhere() -> None:
    story = story_of(LOG)
    story.acknowledged[0, 1] = chaos.NOT_TOLD
    chaos.check(story, {0: LOG})
    with pytest.raises(AssertionError, match="not there"):
        chaos.check(story, {0: [LOG[0], LOG[2]]})


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ([(0, 0), (1, 1)], "not there"),
        ([(0, 0), (1, 2), (2, 1)], "out of order"),
        ([(0, 0), (1, 1), (2, 2), (3, 1)], "twice"),
        ([(0, 0), (1, 1), (3, 2)], "not there"),
    ],
)
def test_a_log_that_lost_moved_or_doubled_something_is_not(log: list[tuple[int, int]], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        chaos.check(story_of(LOG), {0: log})
