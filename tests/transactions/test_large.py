"""A transaction across a thousand partitions, on three brokers, is all there or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from sexton.verify.clients.base import Place, Producer
from tests.interop.clients import Client
from tests.transactions.clients import FRANZ_GO, client_named, newest
from tests.transactions.kit import Kit
from tests.transactions.reading import UNCOMMITTED, places_of, read, settled, values
from tests.transactions.under_test import WAIT_S, UnderTest, wait_until

pytestmark = pytest.mark.cluster

PARTITIONS = 1_000
CLIENTS = (
    newest("confluent-kafka"),  # adds partitions one request after the other
    client_named("Java client 3.9.2"),  # adds many at once
    client_named("Java client 4.3.0"),  # leaves it to the brokers
    newest(FRANZ_GO),  # the same
)


@pytest.fixture(scope="module")
def wide(cluster: UnderTest) -> Iterator[str]:
    name = cluster.topic("wide", PARTITIONS)

    def is_served() -> bool:
        """Its leaders have made their folders. librdkafka does not try again."""
        try:
            return settled(cluster.bootstrap, places_of([name], PARTITIONS)) == []
        except KafkaException:
            return False

    wait_until(is_served, "the leaders of a thousand partitions")
    yield name
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 2})
    admin.delete_topics([name], operation_timeout=WAIT_S)[name].result(WAIT_S)


def write_everywhere(producer: Producer, places: list[Place], what: str) -> None:
    producer.begin()
    for topic, partition in places:
        producer.send(topic, partition, [f"{what} {partition}".encode()])
    producer.flush()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in CLIENTS])
def test_a_transaction_across_a_thousand_partitions_is_whole(
    client: Client, kits: Callable[[Client], Kit], cluster: UnderTest, wide: str
) -> None:
    places = places_of([wide], PARTITIONS)
    before = values(settled(cluster.bootstrap, places))
    name = cluster.name("writer")
    producer = kits(client).ready(name)
    for what, end in (("aborted", producer.abort), ("committed", producer.commit)):
        write_everywhere(producer, places, f"{name} {what}")
        seen = partial(read, cluster.bootstrap, places)
        assert values(seen()) == before
        open_now = [value for value in values(seen(UNCOMMITTED)) if value.startswith(f"{name} {what}".encode())]
        assert len(open_now) == PARTITIONS
        end()
    found = values(settled(cluster.bootstrap, places))
    assert sorted(found) == sorted(before + [f"{name} committed {each}".encode() for each in range(PARTITIONS)])
