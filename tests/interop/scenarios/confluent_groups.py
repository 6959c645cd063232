"""confluent-kafka (librdkafka): groups and administration."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import ConfigResource  # type: ignore[attr-defined]
from confluent_kafka.cimpl import NewPartitions, NewTopic

from tests.interop.scenarios.common import WAIT_S, Cluster, covers, numbers, wait_for_topic, wait_until
from tests.interop.scenarios.confluent import (
    admin_of,
    code_of,
    consumer_of,
    create,
    produce,
    scenarios,
    take,
    values_of,
)

QUICK: Final[dict[str, Any]] = {"heartbeat.interval.ms": 200}
"""Members hear of a rebalance with their next heartbeat."""


def partitions_of(consumer: Consumer) -> list[int]:
    return [each.partition for each in consumer.assignment()]


def poll_until(consumers: list[Consumer], reached: Callable[[], object], what: str) -> list[Any]:
    """Polls all of them in turn, as members of a group must; returns what they read meanwhile."""
    messages: list[Any] = []

    def poll() -> object:
        for consumer in consumers:
            message = consumer.poll(0.02)
            if message is not None and message.error() is None:
                messages.append(message)
        return reached()

    wait_until(poll, what)
    return messages


@scenarios("auto_commit")
def auto_commit(cluster: Cluster) -> None:
    topic, group = create(cluster, "auto-commit"), cluster.name("auto-commit")
    produce(cluster, topic, numbers(10))
    settings = {"enable.auto.commit": True, "auto.commit.interval.ms": 100}
    consumer = consumer_of(cluster, group, settings)
    consumer.subscribe([topic])
    assert values_of(take(consumer, 10)) == numbers(10)

    def is_committed() -> bool:
        return bool(consumer.committed([TopicPartition(topic, 0)], timeout=WAIT_S)[0].offset == 10)

    poll_until([consumer], is_committed, "the automatic commit")
    consumer.close()
    produce(cluster, topic, numbers(5, 10))
    follower = consumer_of(cluster, group, settings)
    follower.subscribe([topic])
    assert values_of(take(follower, 5)) == numbers(5, 10)
    follower.close()


@scenarios("manual_commit")
def manual_commit(cluster: Cluster) -> None:
    topic, group = create(cluster, "manual-commit"), cluster.name("manual-commit")
    produce(cluster, topic, numbers(10))
    consumer = consumer_of(cluster, group)
    consumer.subscribe([topic])
    messages = take(consumer, 10)
    (committed,) = consumer.commit(message=messages[3], asynchronous=False)
    assert committed.offset == 4
    consumer.commit(offsets=[TopicPartition(topic, 0, 6, metadata="note")], asynchronous=False)
    consumer.close()  # commits nothing more by itself
    follower = consumer_of(cluster, group)
    follower.subscribe([topic])
    assert values_of(take(follower, 4)) == numbers(4, 6)
    follower.close()


@scenarios("rebalance")
def rebalance(cluster: Cluster) -> None:
    check_rebalance(cluster, QUICK)


@scenarios("cooperative")
def cooperative(cluster: Cluster) -> None:
    check_rebalance(cluster, {"partition.assignment.strategy": "cooperative-sticky", **QUICK})


@scenarios("kip848")
def kip848(cluster: Cluster) -> None:
    check_rebalance(cluster, {"group.protocol": "consumer"})
    check_rebalance(cluster, {"group.protocol": "consumer", "group.remote.assignor": "range"})


def check_rebalance(cluster: Cluster, settings: dict[str, Any]) -> None:
    """One member, two, one again; all records are read, by whoever has the partition."""
    topic, group = create(cluster, "rebalance", partitions=4), cluster.name("rebalance")
    first, second = consumer_of(cluster, group, settings), consumer_of(cluster, group, settings)
    try:
        first.subscribe([topic])
        poll_until([first], lambda: len(first.assignment()) == 4, "the first member to have all")
        second.subscribe([topic])
        both = [first, second]
        poll_until(both, lambda: covers(map(partitions_of, both), 4), "both members to share")
        for number in range(4):
            produce(cluster, topic, [b"%d" % number], partition=number)
        seen: list[Any] = []
        seen += poll_until(both, lambda: len(seen) + 1, "a first poll")
        while len(seen) < 4:
            seen += poll_until(both, lambda: True, "the records")
        assert sorted(values_of(seen)) == numbers(4)
        second.close()
        poll_until([first], lambda: len(first.assignment()) == 4, "the one that stays to have all again")
    finally:
        first.close()


@scenarios("static")
def static(cluster: Cluster) -> None:
    topic, group = create(cluster, "static", partitions=4), cluster.name("static")

    def member(name: str) -> Consumer:
        consumer = consumer_of(cluster, group, {"group.instance.id": name, "session.timeout.ms": 30_000, **QUICK})
        consumer.subscribe([topic])
        return consumer

    first, second = member("a"), member("b")
    poll_until([first, second], lambda: covers(map(partitions_of, (first, second)), 4), "both members to share")
    owned, kept = partitions_of(second), partitions_of(first)
    second.close()  # a static member does not leave the group
    poll_until([first], lambda: True, "a poll")
    second = member("b")
    poll_until([first, second], lambda: len(second.assignment()) == 2, "the member that came back")
    assert partitions_of(second) == owned
    assert partitions_of(first) == kept
    first.close()
    second.close()


@scenarios("pattern")
def pattern(cluster: Cluster) -> None:
    check_pattern(cluster, {"topic.metadata.refresh.interval.ms": 500})


@scenarios("server_pattern")
def server_pattern(cluster: Cluster) -> None:
    check_pattern(cluster, {"group.protocol": "consumer"})


def check_pattern(cluster: Cluster, settings: dict[str, Any]) -> None:
    prefix = cluster.name("pattern")
    topics = [create(cluster, f"{prefix}.{name}") for name in ("a", "b")]
    consumer = consumer_of(cluster, cluster.name("pattern"), settings)
    try:
        consumer.subscribe([f"^{prefix}[.].*"])
        poll_until([consumer], lambda: len(consumer.assignment()) == 2, "both topics")
        topics.append(create(cluster, f"{prefix}.c"))
        poll_until([consumer], lambda: len(consumer.assignment()) == 3, "the topic that was added")
        assert sorted(each.topic for each in consumer.assignment()) == sorted(topics)
    finally:
        consumer.close()


# ---- Administration.


@scenarios("topics")
def topics(cluster: Cluster) -> None:
    topic = create(cluster, "topics", partitions=3)
    admin = admin_of(cluster)
    described = admin.list_topics(topic, timeout=WAIT_S).topics[topic]
    assert sorted(described.partitions) == [0, 1, 2]
    for partition in described.partitions.values():
        assert len(partition.replicas) == cluster.replication
        assert sorted(partition.isrs) == sorted(partition.replicas)
    assert topic in admin.list_topics(timeout=WAIT_S).topics
    admin.delete_topics([topic])[topic].result(WAIT_S)
    wait_until(lambda: topic not in admin.list_topics(timeout=WAIT_S).topics, "the topic to go")


@scenarios("existing_topic")
def existing_topic(cluster: Cluster) -> None:
    topic = create(cluster, "existing")
    wrong = {
        NewTopic(topic, 1, cluster.replication): KafkaError.TOPIC_ALREADY_EXISTS,
        NewTopic(cluster.name("w"), 1, 100): KafkaError.INVALID_REPLICATION_FACTOR,
        NewTopic(cluster.name("w"), 0, 1): KafkaError.INVALID_PARTITIONS,
        NewTopic("no/slash", 1, 1): KafkaError.TOPIC_EXCEPTION,
        NewTopic(cluster.name("w"), 1, 1, config={"retention.ms": "soon"}): KafkaError.INVALID_CONFIG,
    }
    admin = admin_of(cluster)
    for new, code in wrong.items():
        future = admin.create_topics([new])[new.topic]
        assert code_of(partial(future.result, WAIT_S)) == code, new


@scenarios("configs")
def configs(cluster: Cluster) -> None:
    topic = create(cluster, "configs", config={"retention.ms": "12345678"})
    admin = admin_of(cluster)

    def current() -> dict[str, Any]:
        resource = ConfigResource("topic", topic)
        described: dict[str, Any] = admin.describe_configs([resource])[resource].result(WAIT_S)
        return described

    before = current()
    assert before["retention.ms"].value == "12345678"
    assert not before["retention.ms"].is_default
    assert before["cleanup.policy"].value == "delete"
    assert before["cleanup.policy"].is_default
    changed = ConfigResource("topic", topic, set_config={"cleanup.policy": "compact"})
    admin.alter_configs([changed])[changed].result(WAIT_S)
    wait_until(lambda: current()["cleanup.policy"].value == "compact", "the new setting")
    assert current()["retention.ms"].is_default  # AlterConfigs replaces all of them


@scenarios("partitions")
def partitions(cluster: Cluster) -> None:
    topic = create(cluster, "partitions", partitions=2)
    admin = admin_of(cluster)
    admin.create_partitions([NewPartitions(topic, 4)])[topic].result(WAIT_S)

    wait_for_topic(cluster, topic, 4)
    (delivered,) = produce(cluster, topic, [b"v"], partition=3)
    assert delivered.partition() == 3
    shrinking = admin.create_partitions([NewPartitions(topic, 3)])[topic]
    assert code_of(lambda: shrinking.result(WAIT_S)) == KafkaError.INVALID_PARTITIONS


@scenarios("delete_records")
def delete_records(cluster: Cluster) -> None:
    topic = create(cluster, "delete-records")
    produce(cluster, topic, numbers(10))
    asked = TopicPartition(topic, 0, 6)
    admin = admin_of(cluster)
    (deleted,) = admin.delete_records([asked]).values()
    assert deleted.result(WAIT_S).low_watermark == 6
    consumer = consumer_of(cluster, cluster.name("delete-records"))
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert values_of(take(consumer, 4)) == numbers(4, 6)
        assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=WAIT_S) == (6, 10)
    finally:
        consumer.close()


@scenarios("groups")
def groups(cluster: Cluster) -> None:
    topic, group = create(cluster, "groups", partitions=2), cluster.name("groups")
    admin = admin_of(cluster)
    consumer = consumer_of(cluster, group, {"client.id": "the-client"})
    consumer.subscribe([topic])
    poll_until([consumer], lambda: len(consumer.assignment()) == 2, "a member")
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    described = admin.describe_consumer_groups([group])[group].result(WAIT_S)
    (member,) = described.members
    assert member.client_id == "the-client"
    assert sorted(each.partition for each in member.assignment.topic_partitions) == [0, 1]
    assert described.state.name == "STABLE"
    listed = admin.list_consumer_groups().result(WAIT_S)
    assert group in [each.group_id for each in listed.valid]
    assert listed.errors == []
    too_early = admin.delete_consumer_groups([group])[group]
    assert code_of(lambda: too_early.result(WAIT_S)) == KafkaError.NON_EMPTY_GROUP
    consumer.close()
    admin.delete_consumer_groups([group])[group].result(WAIT_S)
    listed = admin.list_consumer_groups().result(WAIT_S)
    assert group not in [each.group_id for each in listed.valid]


@scenarios("group_offsets")
def group_offsets(cluster: Cluster) -> None:
    from confluent_kafka import ConsumerGroupTopicPartitions

    topic, group = create(cluster, "group-offsets", partitions=2), cluster.name("group-offsets")
    admin = admin_of(cluster)
    wanted = [TopicPartition(topic, number, 5 + number) for number in (0, 1)]
    admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group].result(WAIT_S)
    found = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(WAIT_S)
    assert sorted((each.partition, each.offset) for each in found.topic_partitions) == [(0, 5), (1, 6)]


@scenarios("cluster")
def describe_cluster(cluster: Cluster) -> None:
    listed = admin_of(cluster).list_topics(timeout=WAIT_S)
    assert len(listed.brokers) == cluster.brokers
    assert listed.controller_id in listed.brokers
    assert listed.cluster_id
