"""confluent-kafka (librdkafka)."""

from __future__ import annotations

import random

from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]

from sexton.verify.clients import confluent
from sexton.verify.clients.base import CALL_TIMEOUT_S, Failure
from tests.interop.scenarios import everyone
from tests.interop.scenarios.common import TOPIC_CODECS, WAIT_S, Cluster, numbers, raised_by, wait_until
from tests.interop.scenarios.kit import Client, take

scenarios = everyone.over(confluent)


@scenarios("unknown_topic")
def subscribing_to_an_unknown_topic(cluster: Cluster) -> None:
    settings = {"allow.auto.create.topics": False}
    group, topic = cluster.name("unknown"), cluster.name("unknown")
    with Client(confluent, cluster).subscribed(group, topic, settings) as consumer:
        assert raised_by(lambda: take(consumer, 1), Failure).name == "UNKNOWN_TOPIC_OR_PART"


@scenarios("codecs")
def large_batches_in_topics_with_a_codec(cluster: Cluster) -> None:
    client = Client(confluent, cluster)
    values = [random.Random(number).randbytes(100_000) for number in range(20)]
    for codec in TOPIC_CODECS:
        topic = client.create(codec, config={"compression.type": codec})
        client.produce(topic, values, {"enable.idempotence": True, "batch.size": 200_000})
        assert client.read(topic, 20) == values


@scenarios("manual_commit")
def committing_a_message(cluster: Cluster) -> None:
    client = Client(confluent, cluster)
    topic = client.create("manual-commit")
    client.produce(topic, numbers(10))
    consumer = confluent.Consumer(cluster.bootstrap, confluent.ISOLATION, cluster.name("manual-commit"), {})
    consumer.subscribe([topic])
    messages = consumer.client.consume(10, WAIT_S)
    (committed,) = consumer.client.commit(message=messages[3], asynchronous=False)
    assert committed.offset == 4
    consumer.leave()


@scenarios("configs")
def telling_defaults_from_what_was_set(cluster: Cluster) -> None:
    client = Client(confluent, cluster)
    topic = client.create("configs", config={"retention.ms": "12345678"})
    admin = confluent.Admin(cluster.bootstrap)

    def are_defaults() -> tuple[bool, bool]:
        """Retention and cleanup policy."""
        resource = ConfigResource("topic", topic)
        found = admin.client.describe_configs([resource])[resource].result(CALL_TIMEOUT_S)
        return found["retention.ms"].is_default, found["cleanup.policy"].is_default

    assert are_defaults() == (False, True)
    admin.alter(topic, {"cleanup.policy": "compact"})  # which replaces all of them
    wait_until(lambda: are_defaults() == (True, False), "the new setting")
