"""Every client in every version runs transactions as Kafka promises them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sexton.harness.proxy import ADD_PARTITIONS, PRODUCE, Proxy
from sexton.verify.clients.base import ABORT, FATAL, FENCED, Failure, Producer
from tests.interop.clients import Client
from tests.transactions.application import COMMITTED, Application
from tests.transactions.clients import CLIENTS, FRANZ_GO, IMPATIENT, NEW_EPOCHS, ClientProcess
from tests.transactions.kit import Kit
from tests.transactions.reading import UNCOMMITTED, numbers, places_of, read, settled, values
from tests.transactions.steps import failed_commit, take, transact, verdict, write
from tests.transactions.under_test import WAIT_S, UnderTest

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.usefixtures("together"),
    pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in CLIENTS]),
]


TIMEOUT_MS = 2_000
"""Of a transaction that is made to take too long. librdkafka allows a message no more time than that."""


def test_what_is_committed_is_read_and_what_is_aborted_is_not(kit: Kit, cluster: UnderTest) -> None:
    topic = cluster.topic()
    producer = kit.ready(cluster.name("writer"))
    transact(producer, topic, numbers(0, 10))
    transact(producer, topic, numbers(10, 20), commit=False)
    transact(producer, topic, numbers(20, 30))
    expected = numbers(0, 10) + numbers(20, 30)
    consumer = kit.consumer()
    consumer.assign({(topic, 0): 0})
    assert values(take(consumer, 20)) == expected
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == expected
    everything = kit.consumer(isolation=UNCOMMITTED)
    everything.assign({(topic, 0): 0})
    assert values(take(everything, 30)) == numbers(0, 30)


def test_a_transaction_over_topics_and_partitions_appears_at_once(kit: Kit, cluster: UnderTest) -> None:
    topics = [cluster.topic("one", 3), cluster.topic("two", 3)]
    places = places_of(topics, 3)
    producer = kit.ready(cluster.name("writer"))
    producer.begin()
    for topic, partition in places:
        producer.send(topic, partition, numbers(0, 5))
    producer.flush()
    assert read(cluster.bootstrap, places) == []
    assert len(read(cluster.bootstrap, places, UNCOMMITTED)) == 30
    producer.commit()
    consumer = kit.consumer()
    consumer.assign(dict.fromkeys(places, 0))
    assert sorted(values(take(consumer, 30))) == sorted(numbers(0, 5) * 6)


def test_read_committed_waits_at_the_first_open_transaction(kit: Kit, cluster: UnderTest) -> None:
    topic = cluster.topic()
    first, second = kit.ready(cluster.name("first")), kit.ready(cluster.name("second"))
    first.begin()
    first.send(topic, 0, numbers(0, 1))
    first.flush()
    transact(second, topic, numbers(1, 2))
    consumer = kit.consumer()
    consumer.assign({(topic, 0): 0})
    assert take(consumer, 1, timeout_s=0.5) == []
    everything = kit.consumer(isolation=UNCOMMITTED)
    everything.assign({(topic, 0): 0})
    assert values(take(everything, 2)) == numbers(0, 2)
    first.commit()
    assert values(take(consumer, 2)) == numbers(0, 2)


NOT_TOLD_BY_KAFKA = "franz-go v1.15.4"
"""With Apache Kafka 4 it says that it cannot go on, and not why."""


def test_a_second_instance_fences_the_first(kit: Kit, cluster: UnderTest) -> None:
    topic, name = cluster.topic(), cluster.name("writer")
    first = kit.ready(name)
    first.begin()
    first.send(topic, 0, numbers(0, 5))
    first.flush()
    second = kit.ready(name)
    transact(second, topic, numbers(5, 10))
    failure = failed_commit(first, topic, numbers(10, 15))
    expected = FATAL if kit.client.label == NOT_TOLD_BY_KAFKA and not cluster.is_sexton else FENCED
    assert verdict(first, failure) == expected, failure
    transact(second, topic, numbers(15, 20))
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == numbers(5, 10) + numbers(15, 20)


def test_the_open_transaction_of_an_instance_that_died_is_aborted_by_the_next(
    client: Client, kit: Kit, cluster: UnderTest, directory: Path
) -> None:
    topic, name = cluster.topic(), cluster.name("writer")
    process = ClientProcess(client, directory / "client.log")
    first = process.producer(cluster.bootstrap, name)
    first.init()
    transact(first, topic, numbers(0, 5))
    first.begin()
    first.send(topic, 0, numbers(5, 10))
    first.flush()
    process.end()
    second = kit.ready(name)
    transact(second, topic, numbers(10, 15))
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == numbers(0, 5) + numbers(10, 15)


def test_a_transaction_that_takes_too_long_is_aborted_for_its_producer(kit: Kit, cluster: UnderTest) -> None:
    topic, name = cluster.topic(), cluster.name("writer")
    other = kit.ready(cluster.name("other"))
    application = Application(lambda: kit.ready(name, timeout_ms=TIMEOUT_MS))
    producer = application.producer
    transact(producer, topic, numbers(0, 5))
    producer.begin()
    producer.send(topic, 0, numbers(5, 10))
    producer.flush()
    transact(other, topic, numbers(10, 15))
    consumer = kit.consumer()
    consumer.assign({(topic, 0): 0})
    assert values(take(consumer, 10)) == numbers(0, 5) + numbers(10, 15)
    failure = failed_commit(producer, topic, numbers(15, 20))
    said = verdict(producer, failure)
    print(f"{kit.client.label}: {said} after {failure}")
    if said != ABORT:
        application.renew(time.monotonic() + WAIT_S)
    application.run(lambda mine: mine.send(topic, 0, numbers(20, 25)), time.monotonic() + WAIT_S)
    expected = numbers(0, 5) + numbers(10, 15) + numbers(20, 25)
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == expected


def test_a_commit_that_comes_after_the_timeout_is_refused_and_the_next_one_works(kit: Kit, cluster: UnderTest) -> str:
    """Nothing is sent in between, so the end is the first to be told."""
    topic, name = cluster.topic(), cluster.name("writer")
    other = kit.ready(cluster.name("other"))
    application = Application(lambda: kit.ready(name, timeout_ms=TIMEOUT_MS))
    producer = application.producer
    producer.begin()
    write(producer, (topic, 0), numbers(0, 5))
    transact(other, topic, numbers(5, 10))
    consumer = kit.consumer()
    consumer.assign({(topic, 0): 0})
    assert values(take(consumer, 5)) == numbers(5, 10), "the first transaction has ended"
    with pytest.raises(Failure) as failed:
        producer.commit()
    said = verdict(producer, failed.value)
    assert said in (ABORT, FATAL), failed.value
    if said != ABORT:
        application.renew(time.monotonic() + WAIT_S)
    application.run(lambda mine: mine.send(topic, 0, numbers(10, 15)), time.monotonic() + WAIT_S)
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == numbers(5, 15)
    return f"{kit.client.label}: {said} after {failed.value}"


FATAL_WHEN_LATE = ("kafka-python",)
"""Clients to which a transactional request that timed out is fatal, whatever the broker would say of it: kafka-python
fails it "for unknown reasons". The application starts a new producer."""


def test_a_transaction_that_the_coordinator_has_not_heard_of_can_be_aborted(kit: Kit, cluster: UnderTest) -> None:
    """The request that begins it is late for ever. Once it is the producer's first transaction, once one has been
    committed before."""
    topic = cluster.topic()
    settings = IMPATIENT[kit.client.name]
    begins = PRODUCE if kit.client in NEW_EPOCHS else ADD_PARTITIONS
    with Proxy(cluster.bootstrap) as proxy:
        name = cluster.name("writer")

        def started() -> Producer:
            made = kit.process.producer(proxy.bootstrap, name, 60_000, settings)
            made.init()
            return made

        producer = started()
        for lost, kept in ((numbers(0, 5), numbers(5, 10)), (numbers(10, 15), numbers(15, 20))):
            producer.begin()
            late = proxy.hold(begins)
            producer.send(topic, 0, lost)
            late.wait(WAIT_S)
            try:
                producer.abort()
            except Failure:
                if kit.client.name not in FATAL_WHEN_LATE:
                    raise
                producer = started()
            transact(producer, topic, kept)
        producer.close()
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == numbers(5, 10) + numbers(15, 20)


def test_after_a_failed_send_the_transaction_can_be_aborted_and_the_next_one_works(
    kit: Kit, cluster: UnderTest
) -> None:
    topic = cluster.topic(config={"max.message.bytes": 20_000})
    name = cluster.name("writer")
    application = Application(lambda: kit.ready(name))
    producer = application.producer
    producer.begin()
    producer.send(topic, 0, [b"small"])
    producer.flush()
    failure = failed_commit(producer, topic, [b"x" * 100_000])
    assert verdict(producer, failure) == ABORT, failure
    application.run(lambda mine: mine.send(topic, 0, numbers(0, 5)), time.monotonic() + WAIT_S)
    print(f"{kit.client.label}: {failure}; then {application.failures}")
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == numbers(0, 5)


def test_empty_transactions_leave_nothing_behind(kit: Kit, cluster: UnderTest) -> None:
    topic = cluster.topic()
    producer = kit.ready(cluster.name("writer"))
    for commit in (True, False, True):
        transact(producer, topic, [], commit=commit)
    transact(producer, topic, numbers(0, 5))
    transact(producer, topic, [], commit=False)
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == numbers(0, 5)


def test_a_transaction_over_sixty_partitions_is_whole(kit: Kit, cluster: UnderTest) -> None:
    topic = cluster.topic(partitions=60)
    places = places_of([topic], 60)
    producer = kit.ready(cluster.name("writer"))
    for commit in (True, False):
        producer.begin()
        for _, partition in places:
            producer.send(topic, partition, [b"%d %d" % (partition, commit)])
        producer.flush()
        producer.commit() if commit else producer.abort()
    expected = [b"%d 1" % partition for partition in range(60)]
    assert values(settled(cluster.bootstrap, places)) == expected


COMMITS_WITHOUT_LOOKING = ("aiokafka", FRANZ_GO)
"""A record that failed is told to whoever looks at its future, and to nobody else."""


def test_a_commit_after_a_failed_send_is_refused_by_most_clients(client: Client, kit: Kit, cluster: UnderTest) -> None:
    """By aiokafka and franz-go it is not: what failed is missing in a committed transaction. Applications must look."""
    topic = cluster.topic(partitions=2, config={"max.message.bytes": 20_000})
    producer = kit.ready(cluster.name("writer"))
    producer.begin()
    producer.send(topic, 0, [b"small"])
    producer.send(topic, 1, [b"x" * 100_000])
    said = COMMITTED
    try:
        producer.commit()
    except Failure as failure:
        said = verdict(producer, failure)
    is_committed = client.name in COMMITS_WITHOUT_LOOKING
    assert said == (COMMITTED if is_committed else ABORT)
    assert values(settled(cluster.bootstrap, places_of([topic], 2))) == ([b"small"] if is_committed else [])
