"""Kafka 2.1 and 2.3, whose followers answer nobody but debugging consumers, and 2.4: audited, counted, copied."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from sexton.audit.judge import Verdict
from sexton.audit.live.connecting import Connecting
from sexton.audit.run import audit
from sexton.cli.connect import parse_bootstrap
from sexton.topics.finding import Reading, TopicClient
from sexton.topics.preparing import Request, prepare
from sexton.topics.repartition import Repartition
from sexton.topics.stats import collect
from tests.audit.live.old_kafka import old_kafka
from tests.audit.live.reading import read, source_at
from tests.spark.local_context import LocalContext

pytestmark = [pytest.mark.kafka, pytest.mark.soak]

TOPIC = "users"


@pytest.fixture(scope="module", params=["2.1.1", "2.3.1", "2.4.1"])
def bootstrap(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("old-kafka")
    with old_kafka(request.param, directory) as bootstrap:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 3, config={"cleanup.policy": "compact"})])[TOPIC].result(60)
        producer = Producer({"bootstrap.servers": bootstrap})
        for number in range(1_000):
            producer.produce(TOPIC, key=f"k{number % 50}", value="x" * 50)
        assert producer.flush(60) == 0
        transactional = Producer({"bootstrap.servers": bootstrap, "transactional.id": "t"})
        transactional.init_transactions(60)
        for end in (transactional.abort_transaction, transactional.commit_transaction):
            transactional.begin_transaction()
            transactional.produce(TOPIC, key="in a transaction", value="v")
            transactional.flush()
            end()
        yield bootstrap


def test_followers_are_read_one_by_one_and_agree(bootstrap: str) -> None:
    with source_at(bootstrap, TOPIC) as source:
        replicas = source.find()
        assert [each.failure for each in replicas] == [None] * 3
        assert {(each.high_watermark, each.last_stable_offset) for each in replicas} == {(1_004, 1_004)}
        contents = [read(source, each).records for each in replicas]
        assert len(contents[0]) == 1_004
        assert contents[0] == contents[1] == contents[2]
        (partition,) = audit(LocalContext(random.Random(1)).as_spark, [source]).partitions
    assert partition.verdict is Verdict.AGREE


def test_topics_are_counted_and_copied_through_a_broker_that_passes_nothing_on(bootstrap: str) -> None:
    context = LocalContext(random.Random(1)).as_spark
    with TopicClient(Connecting(tuple(parse_bootstrap(bootstrap)))) as client:
        reading = Reading(client.connecting)
        total = collect(context, client.topic(TOPIC), reading).total
        assert total is not None
        assert total.key_count is not None
        assert (total.record_count.value, total.key_count.value) == (1_001, 51)
        ready = prepare(client, Request(source=TOPIC, target="users-4", partitions=4))
        work = Repartition(context, client, reading, ready)
        work.copy()
        assert work.verify().same_count == 51
