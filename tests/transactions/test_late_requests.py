"""Requests that come late: an end that would end the wrong transaction, a record that would slide into the next one.

Each story runs against Apache Kafka 3.9.2, where it tears a transaction, and against Sexton, where it does not
(seed 5, sections 5.4 and 6.4; KAFKA-17754). A proxy is the slow network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest
from _pytest.mark.structures import ParameterSet

from sexton.harness.proxy import END_TXN, PRODUCE, Hold, Proxy, Request
from sexton.verify.clients.base import Failure, Producer, Settings
from tests.interop.clients import Client
from tests.transactions.clients import CLIENTS, IMPATIENT, NEW_EPOCHS, ClientProcess
from tests.transactions.reading import settled, values
from tests.transactions.under_test import OLD_KAFKA, WAIT_S, UnderTest

pytestmark = [pytest.mark.cluster, pytest.mark.kafka, pytest.mark.usefixtures("together")]

Processes = Callable[[Client], ClientProcess]

FORGETFUL: dict[str, Settings] = {
    "kafka-python": IMPATIENT["kafka-python"],
    "Java client": {"retries": 1, "request.timeout.ms": 1_000},
}
"""How those that give up on a record without a new epoch are made to give up soon."""

ATTEMPTS_MAX = 20

MOVE_ON = [
    client
    for client in CLIENTS
    if client.name != "kafka-python"  # gives up the producer when an end is not answered in time
    and client not in NEW_EPOCHS
]
SLIDE = [client for client in CLIENTS if client.label == "Java client 1.0.2" or client.name == "kafka-python"]
"""Java since 2.5 (KIP-360), librdkafka: a record that was given up costs the epoch. aiokafka never gives up."""


def each(clients: Sequence[Client]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("client", [pytest.param(client, id=client.label) for client in clients])


def late_ends() -> list[ParameterSet]:
    """A late commit with every client; a late abort, which goes the same way, with the newest of each kind."""
    newest_ones = {client.name: client for client in reversed(MOVE_ON)}.values()
    commits = [pytest.param(client, True, id=f"{client.label}-commit") for client in MOVE_ON]
    return commits + [pytest.param(client, False, id=f"{client.label}-abort") for client in newest_ones]


@dataclass(frozen=True)
class Outcome:
    seen: list[bytes]
    """What `read_committed` consumers read of the transaction that the late request met, in no particular order."""
    said: str
    """What the broker said to the late request, and what the client met after it."""


def error_of(answer: object) -> str:
    return "the connection was closed" if answer is None else f"error {getattr(answer, 'error_code', answer)}"


def late_end(process: ClientProcess, cluster: UnderTest, is_commit: bool) -> Outcome:
    """The end of the first transaction comes in the middle of the second, which its client ends the other way."""
    topic = cluster.topic("late", partitions=2)
    with Proxy(cluster.bootstrap) as proxy:
        producer = process.producer(proxy.bootstrap, cluster.name("late"), 60_000, IMPATIENT[process.client.name])
        producer.init()
        producer.begin()
        producer.send(topic, 0, [b"first"])
        producer.flush()
        late = proxy.hold(END_TXN)
        producer.commit() if is_commit else producer.abort()  # gives up on one connection, asks again on the next
        late.wait(WAIT_S)
        producer.begin()
        producer.send(topic, 0, [b"second a"])
        producer.flush()
        said = error_of(proxy.release(late))
        said += finish(producer, topic, 1, b"second b", not is_commit)
        producer.close()
    seen = values(settled(cluster.bootstrap, [(topic, 0), (topic, 1)]))
    return Outcome(sorted(value for value in seen if value != b"first"), said)


def finish(producer: Producer, topic: str, partition: int, value: bytes, is_commit: bool) -> str:
    try:
        producer.send(topic, partition, [value])
        producer.flush()
        producer.commit() if is_commit else producer.abort()
    except Failure as failure:
        return f"; the client met {failure}"
    return ""


@pytest.mark.parametrize(("client", "is_commit"), late_ends())
def test_an_end_that_comes_late_does_not_end_the_next_transaction(
    client: Client, is_commit: bool, cluster: UnderTest, old_kafka: UnderTest, processes: Processes
) -> str:
    process = processes(client)
    torn = late_end(process, old_kafka, is_commit)
    assert torn.seen == ([b"second a"] if is_commit else [b"second b"]), torn
    whole = late_end(process, cluster, is_commit)
    assert whole.seen == ([] if is_commit else [b"second a", b"second b"]), whole
    return f"torn on Kafka {OLD_KAFKA}, whole on Sexton ({torn.said} there, {whole.said} here)"


@each(NEW_EPOCHS)
@pytest.mark.parametrize("is_commit", [True, False], ids=["commit", "abort"])
def test_a_client_with_a_new_epoch_for_each_transaction_needs_no_such_protection(
    client: Client, is_commit: bool, cluster: UnderTest, processes: Processes
) -> None:
    whole = late_end(processes(client), cluster, is_commit)
    assert whole.seen == ([] if is_commit else [b"second a", b"second b"]), whole


@each([client for client in CLIENTS if client.name == "kafka-python"])
def test_a_client_that_gives_up_on_an_unanswered_end_starts_over_with_a_new_epoch(
    client: Client, cluster: UnderTest, processes: Processes
) -> None:
    """kafka-python: the first connection's end comes late all the same, and must not touch the second producer's."""
    process = processes(client)
    topic, name = cluster.topic("late", partitions=2), cluster.name("late")
    with Proxy(cluster.bootstrap) as proxy:
        first = process.producer(proxy.bootstrap, name, 60_000, IMPATIENT["kafka-python"])
        first.init()
        first.begin()
        first.send(topic, 0, [b"first"])
        first.flush()
        late = proxy.hold(END_TXN)
        with pytest.raises(Failure, match="timed out"):
            first.commit()
        second = process.producer(proxy.bootstrap, name)
        second.init()
        second.begin()
        second.send(topic, 0, [b"second a"])
        second.flush()
        proxy.release(late)
        assert finish(second, topic, 1, b"second b", is_commit=False) == ""
        first.close()
        second.close()
    assert settled(cluster.bootstrap, [(topic, 0), (topic, 1)]) == []


def late_produce(process: ClientProcess, cluster: UnderTest, is_seen: bool = True) -> Outcome:
    """A record of an aborted transaction comes when the next one has its partition, but no record in it yet.

    `is_seen`: that next transaction has written to another partition of the same broker, so the broker has seen the
    connection that its client uses now."""
    topic = cluster.topic("late", partitions=6)
    first, second = two_partitions_of_one_leader(cluster, topic)
    with Proxy(cluster.bootstrap) as proxy:
        producer = process.producer(proxy.bootstrap, cluster.name("late"), 60_000, FORGETFUL[process.client.name])
        producer.init()
        producer.begin()
        attempts = hold_all_produces(proxy)
        producer.send(topic, first, [b"first"])
        with pytest.raises(Failure):
            producer.flush()
        proxy.forget_holds()
        producer.abort()
        producer.begin()
        if is_seen:
            producer.send(topic, second, [b"second a"])
            producer.flush()
        own = proxy.hold(PRODUCE)
        producer.send(topic, first, [b"second b"])
        own.wait(WAIT_S)
        answer = proxy.release(attempts[0])
        said = error_of(None if answer is None else answer.responses[0].partition_responses[0])
        proxy.release(own)
        try:
            producer.flush()
            producer.commit()
        except Failure as failure:
            said += f"; the client met {failure}"
            producer.abort()
        producer.close()
    return Outcome(sorted(values(settled(cluster.bootstrap, [(topic, first), (topic, second)]))), said)


def hold_all_produces(proxy: Proxy) -> list[Hold]:
    """However often the client tries."""

    def is_transactional(request: Request) -> bool:
        return request.body().transactional_id is not None

    return [proxy.hold(PRODUCE, is_transactional) for _ in range(ATTEMPTS_MAX)]


def two_partitions_of_one_leader(cluster: UnderTest, topic: str) -> tuple[int, int]:
    leaders = cluster.leaders(topic)
    return next((one, two) for one in leaders for two in leaders if one < two and leaders[one] == leaders[two] > 0)


@each(SLIDE)
def test_a_record_that_comes_late_does_not_slide_into_the_next_transaction(
    client: Client, cluster: UnderTest, old_kafka: UnderTest, processes: Processes
) -> str:
    process = processes(client)
    torn = late_produce(process, old_kafka)
    assert torn.seen == [b"first", b"second a", b"second b"], torn
    whole = late_produce(process, cluster)
    assert whole.seen in ([], [b"second a", b"second b"]), whole
    return f"torn on Kafka {OLD_KAFKA}, whole on Sexton ({torn.said} there, {whole.said} here)"


@each([client for client in SLIDE if client.name == "kafka-python"])
def test_a_late_record_slides_in_where_nothing_of_the_next_transaction_was_seen(
    client: Client, cluster: UnderTest, processes: Processes
) -> None:
    """What a broker cannot know: its client uses another connection by now, over which nothing has come yet, and the
    epoch is the same. Only the client can close this, by a new epoch; docs/transactions.md says which do."""
    assert late_produce(processes(client), cluster, is_seen=False).seen == [b"first", b"second b"]


@each([client for client in CLIENTS if client not in SLIDE and client.name in ("confluent-kafka", "Java client")])
def test_clients_that_give_up_on_a_record_take_a_new_epoch(
    client: Client, cluster: UnderTest, processes: Processes
) -> None:
    """So that it cannot come back, on any broker."""
    settings: Settings = {"socket.timeout.ms": 1_000, "message.timeout.ms": 4_000}
    if client.name == "Java client":
        settings = {"retries": 1, "request.timeout.ms": 1_000, "delivery.timeout.ms": 30_000}
    topic = cluster.topic("late", partitions=2)
    with Proxy(cluster.bootstrap) as proxy:
        producer = processes(client).producer(proxy.bootstrap, cluster.name("late"), 60_000, settings)
        producer.init()
        producer.begin()
        attempts = hold_all_produces(proxy)
        producer.send(topic, 0, [b"first"])
        with pytest.raises(Failure):
            producer.flush()
        proxy.forget_holds()
        producer.abort()
        producer.begin()
        own = proxy.hold(PRODUCE)
        producer.send(topic, 0, [b"second"])
        own.wait(WAIT_S)
        proxy.release(attempts[0])
        proxy.release(own)
        producer.flush()
        producer.commit()
        producer.close()
    assert values(settled(cluster.bootstrap, [(topic, 0)])) == [b"second"]
