"""Where a consumer stands before, in and after a transaction: offsets, rewinding, rebalances, automatic commits."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from sexton.verify.clients.base import Consumer, Failure, Producer, Settings
from tests.interop.clients import Client
from tests.transactions.clients import NEWEST, ClientProcess
from tests.transactions.kit import Kit
from tests.transactions.reading import numbers, settled, values
from tests.transactions.steps import has_committed, take, transact
from tests.transactions.under_test import UnderTest, wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("together"),
    pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in NEWEST]),
]

RECORDS = 10

QUICK_COMMITS: dict[str, Settings] = {
    "confluent-kafka": {"enable.auto.commit": True, "auto.commit.interval.ms": 200},
    "kafka-python": {"enable_auto_commit": True, "auto_commit_interval_ms": 200},
    "aiokafka": {"enable_auto_commit": True, "auto_commit_interval_ms": 200},
    "Java client": {"enable.auto.commit": True, "auto.commit.interval.ms": 200},
}
COMMITS_BETWEEN_POLLS = ("confluent-kafka", "aiokafka")
"""These commit in the background what was returned last; Java's client and kafka-python commit inside the next poll."""

KNOWS_GENERATIONS = ("confluent-kafka", "kafka-python", "Java client")
"""Their producers tell which member of which generation the offsets come from (KIP-447); aiokafka names the group."""


def filled(kit: Kit, cluster: UnderTest) -> str:
    topic = cluster.topic("source")
    transact(kit.ready(cluster.name("filler")), topic, numbers(0, RECORDS))
    settled(cluster.bootstrap, [(topic, 0)])
    return topic


def commit_offset(producer: Producer, topic: str, offset: int, consumer: Consumer) -> None:
    producer.begin()
    producer.send_offsets({(topic, 0): offset}, consumer)
    producer.commit()


def has_passed(consumer: Consumer, topic: str, offset: int) -> bool:
    """A position, and so an automatic commit, moves past the marker behind the last record, too."""
    committed = consumer.committed((topic, 0))
    return committed is not None and committed >= offset


def polled_past(consumer: Consumer, topic: str, offset: int) -> bool:
    """After one poll more."""
    consumer.poll(0.1)
    return has_passed(consumer, topic, offset)


def test_the_committed_offset_is_that_of_the_next_record(kit: Kit, cluster: UnderTest) -> None:
    topic, group = filled(kit, cluster), cluster.name("group")
    consumer = kit.consumer(group)
    consumer.subscribe([topic])
    last = take(consumer, RECORDS)[3]
    commit_offset(kit.ready(cluster.name("copier")), topic, last.offset + 1, consumer)
    wait_until(partial(has_committed, consumer, topic, 4), "the group's offset")
    consumer.close()
    successor = kit.consumer(group)
    successor.subscribe([topic])
    assert take(successor, 1)[0].value == b"4"


def test_an_abort_does_not_rewind_the_consumer_and_rewinding_reads_the_same_again(kit: Kit, cluster: UnderTest) -> None:
    """What was polled is right whatever becomes of the transaction; only the application can go back."""
    topic = filled(kit, cluster)
    consumer = kit.consumer(cluster.name("group"))
    consumer.subscribe([topic])
    polled = take(consumer, RECORDS)
    producer = kit.ready(cluster.name("copier"))
    producer.begin()
    producer.send_offsets({(topic, 0): RECORDS}, consumer)
    producer.abort()
    assert consumer.position((topic, 0)) >= RECORDS
    assert consumer.committed((topic, 0)) is None
    consumer.seek((topic, 0), 0)
    assert take(consumer, RECORDS) == polled


def test_after_a_crash_the_next_instance_begins_at_the_committed_offset(
    client: Client, kit: Kit, cluster: UnderTest, directory: Path
) -> None:
    """What the transaction that was open at the crash had read, the next instance reads again."""
    topic, group = filled(kit, cluster), cluster.name("group")
    process = ClientProcess(client, directory / "client.log")
    consumer = process.consumer(cluster.bootstrap, "read_committed", group, {"session.timeout.ms": 6_000})
    consumer.subscribe([topic])
    assert len(take(consumer, RECORDS)) == RECORDS
    producer = process.producer(cluster.bootstrap, f"of-{group}")
    producer.init()
    commit_offset(producer, topic, 6, consumer)
    producer.begin()
    producer.send_offsets({(topic, 0): RECORDS}, consumer)
    process.end()
    kit.ready(f"of-{group}")
    successor = kit.consumer(group)
    successor.subscribe([topic])
    assert take(successor, 1)[0].offset == 6


def test_offsets_of_a_member_that_lost_its_partition_are_refused(client: Client, kit: Kit, cluster: UnderTest) -> None:
    """A rebalance in the middle of a transaction: the new owner reads from the committed offset, the old one's commit
    must not move it. A producer that names its group only is not found out."""
    topic, group = filled(kit, cluster), cluster.name("group")
    first = kit.consumer(group)
    first.subscribe([topic])
    assert len(take(first, RECORDS)) == RECORDS
    producer = kit.ready(cluster.name("copier"))
    producer.begin()
    stale = kit.process.frozen(first)
    first.close()
    second = kit.consumer(group)
    second.subscribe([topic])
    assert take(second, 1)[0].offset == 0
    try:
        producer.send_offsets({(topic, 0): RECORDS}, stale)
        producer.commit()
        is_refused = False
    except Failure:
        is_refused = True
    assert is_refused == (client.name in KNOWS_GENERATIONS)


def test_automatic_commits_cover_what_the_application_may_not_have_processed_yet(
    client: Client, kit: Kit, cluster: UnderTest
) -> None:
    """An application that is busy with the records of its last poll, and crashes then, loses them with some clients."""
    topic = filled(kit, cluster)
    consumer = kit.consumer(cluster.name("group"), settings=QUICK_COMMITS[client.name])
    consumer.subscribe([topic])
    assert len(take(consumer, RECORDS)) == RECORDS
    if client.name in COMMITS_BETWEEN_POLLS:
        wait_until(partial(has_passed, consumer, topic, RECORDS), "an automatic commit")
    else:
        time.sleep(1)
        assert not has_passed(consumer, topic, RECORDS)
        wait_until(partial(polled_past, consumer, topic, RECORDS), "the commit of the next poll")


def test_automatic_commits_are_no_part_of_the_transaction(client: Client, kit: Kit, cluster: UnderTest) -> None:
    """The transaction aborts, the offset moves all the same, and the records count as processed."""
    topic = filled(kit, cluster)
    consumer = kit.consumer(cluster.name("group"), settings=QUICK_COMMITS[client.name])
    consumer.subscribe([topic])
    target = cluster.topic("target")
    producer = kit.ready(cluster.name("copier"))
    producer.begin()
    producer.send(target, 0, values(take(consumer, RECORDS)))
    producer.flush()
    producer.abort()

    wait_until(partial(polled_past, consumer, topic, RECORDS), "an automatic commit")
    assert settled(cluster.bootstrap, [(target, 0)]) == []


def test_a_group_without_offsets_skips_what_is_there_if_it_starts_at_the_end(
    client: Client, kit: Kit, cluster: UnderTest
) -> None:
    topic = filled(kit, cluster)
    name = "auto_offset_reset" if client.name in ("kafka-python", "aiokafka") else "auto.offset.reset"
    consumer = kit.consumer(cluster.name("group"), settings={name: "latest"})
    consumer.subscribe([topic])
    writer = kit.ready(cluster.name("writer"))
    seen: list[bytes] = []

    def has_started() -> bool:
        transact(writer, topic, [b"new"])  # until one comes after the consumer has found the end
        seen.extend(values(take(consumer, 1, timeout_s=0.5)))
        return bool(seen)

    wait_until(has_started, "a record after the start")
    assert set(seen) == {b"new"}
