"""Replicas of Sexton's own brokers, read one by one; and a follower that lags, that is away, that comes back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from sexton.audit.folders import broker_of
from sexton.audit.live.source import LiveSource
from sexton.audit.replica import Replica
from sexton.harness.brokers import SextonCluster
from tests.audit.live.reading import read, source_at

pytestmark = pytest.mark.cluster

TOPIC = "users"


@pytest.fixture(scope="module")
def sexton() -> Iterator[SextonCluster]:
    with SextonCluster() as sexton:
        sexton.create_topic(TOPIC, 1, 3, {"cleanup.policy": "compact"})
        yield sexton


def write(sexton: SextonCluster, first: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": sexton.bootstrap, "linger.ms": 5})
    for number in range(first, first + count):
        producer.produce(TOPIC, key=f"k{number % 100}", value="x" * 100, partition=0)
    assert producer.flush(60) == 0


def find(source: LiveSource) -> list[Replica]:
    return sorted(source.find(), key=lambda each: each.id.broker)


def test_followers_are_read_and_hold_what_the_leader_holds(sexton: SextonCluster) -> None:
    write(sexton, 0, 1_000)
    transactional = Producer({"bootstrap.servers": sexton.bootstrap, "transactional.id": "t"})
    transactional.init_transactions()
    for end in (transactional.abort_transaction, transactional.commit_transaction):
        transactional.begin_transaction()
        transactional.produce(TOPIC, key="in-transaction", value="v", partition=0)
        transactional.flush()
        end()
    with source_at(sexton.bootstrap) as source:
        source.read_on({each.id: 1_004 for each in find(source)})  # a commit returns before its marker is there
        replicas = find(source)
        assert [each.id.broker for each in replicas] == [1, 2, 3]
        assert {(each.high_watermark, each.last_stable_offset, each.barrier) for each in replicas} == {(1_004,) * 3}
        assert all(each.claims_are_complete for each in replicas if each.is_leader)
        contents = [read(source, each) for each in replicas]
        assert contents[0].records == contents[1].records == contents[2].records
        assert [{offset for _, offset in each.aborted} for each in contents] == [{1_000}] * 3


def test_a_brokers_directory_says_whose_it_is(sexton: SextonCluster) -> None:
    assert [broker_of([sexton.log_dir(number)]) for number in (1, 2, 3)] == [1, 2, 3]


def test_a_broker_that_is_away_is_told_and_the_others_are_read(sexton: SextonCluster) -> None:
    with source_at(sexton.bootstrap) as source:
        follower = next(each.id.broker for each in find(source) if not each.is_leader)
        sexton.kill_node(follower)
        try:
            away = {each.id.broker: each for each in find(source)}
            assert not away[follower].is_read
            assert away[follower].failure is not None
            assert all(each.is_read for broker, each in away.items() if broker != follower)
        finally:
            sexton.start_node(follower)
        wanted = {each.id: each.high_watermark or 0 for each in find(source)}
        assert all(each.is_read for each in source.read_on(wanted))
