"""A topic is copied while it is written and its cleaner runs all the time: nothing is lost, and nothing accused.

Tombstones go as soon as they are compacted, so some are gone before they can be copied: what they deleted is then in
the copy alone, which is found, and deleted on demand.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Producer

from sexton.audit.live.connecting import Connecting
from sexton.cli.connect import parse_bootstrap
from sexton.harness.kafka import KafkaCluster
from sexton.topics.finding import TopicClient
from tests.topics.test_live import make_topic
from tests.topics.test_repartition import copy_of, latest, read

pytestmark = [pytest.mark.kafka, pytest.mark.soak]

CLEANED = {
    "cleanup.policy": "compact",
    "delete.retention.ms": "0",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "200",
}
KEYS = 300
COPIES = 4


@contextmanager
def written_all_the_time(bootstrap: str, topic: str) -> Iterator[None]:
    """Updates and deletions, a few hundred a second."""
    is_over = threading.Event()

    def write() -> None:
        rng = random.Random(1)
        producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "linger.ms": 5})
        number = 0
        while not is_over.wait(0.02):
            for _ in range(10):
                number += 1
                value = None if rng.random() < 0.3 else f"{number}"
                producer.produce(topic, key=f"key {rng.randrange(KEYS)}", value=value)
            producer.poll(0)
        assert producer.flush(60) == 0

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_copies_of_a_topic_that_changes_are_what_it_is(kafka: KafkaCluster) -> None:
    make_topic(kafka.bootstrap, "restless", 2, CLEANED)
    with TopicClient(Connecting(tuple(parse_bootstrap(kafka.bootstrap)))) as client:
        with written_all_the_time(kafka.bootstrap, "restless"):
            for number in range(COPIES):
                work = copy_of(client, "restless", f"rested-{number}")
                work.copy()
                found = work.verify()
                assert found.differing_count == found.extra_count, work.copied
        for number in range(COPIES):
            work = copy_of(client, "restless", f"rested-{number}")
            work.copy()
            work.verify()
            work.delete_extra()
            found = work.verify()
            assert (found.is_same, found.changed_count) == (True, 0), work.copied
    wanted = {key: record for key, record in latest(read(kafka.bootstrap, "restless")).items() if record[1] is not None}
    for number in range(COPIES):
        found_there = latest(read(kafka.bootstrap, f"rested-{number}"))
        assert {key: record for key, record in found_there.items() if record[1] is not None} == wanted
