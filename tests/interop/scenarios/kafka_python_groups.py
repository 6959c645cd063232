"""kafka-python: groups and administration. Its poll blocks while a group rebalances, so each member has a thread."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from typing import Any, Final

from kafka.admin import ConfigResource, NewPartitions, NewTopic
from kafka.structs import OffsetAndMetadata

from kafka import TopicPartition
from kafka import errors as kafka_errors
from tests.interop.scenarios.common import Cluster, covers, numbers, raised_by, wait_for_topic, wait_until
from tests.interop.scenarios.kafka_python import (
    admin_of,
    consumer_of,
    create,
    described_partitions,
    produce,
    scenarios,
    take,
    values_of,
)

POLL_MS: Final = 1_000
"""A poll of kafka-python 3.0.12 that ends between SyncGroup and its answer loses the assignment: give it time."""


def committed(offset: int, metadata: str = "") -> Any:
    """OffsetAndMetadata has had a third field, the leader epoch, since 2.1."""
    extra = (-1,) if len(OffsetAndMetadata._fields) > 2 else ()
    return OffsetAndMetadata(offset, metadata, *extra)


class Member:
    """A consumer that is polled by its own thread."""

    def __init__(self, cluster: Cluster, group: str, topic: str, **settings: Any) -> None:
        self.consumer = consumer_of(cluster, group, heartbeat_interval_ms=200, **settings)
        self.consumer.subscribe([topic])
        self.records: list[Any] = []
        self.partitions: list[int] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for part in self.consumer.poll(timeout_ms=POLL_MS).values():
                self.records += part
            self.partitions = sorted(each.partition for each in self.consumer.assignment())
        self.consumer.close()

    def close(self) -> None:
        self._stopped.set()
        self._thread.join(30)
        assert not self._thread.is_alive(), "a member did not close"


@scenarios("auto_commit")
def auto_commit(cluster: Cluster) -> None:
    topic, group = create(cluster, "auto-commit"), cluster.name("auto-commit")
    produce(cluster, topic, numbers(10))
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 100}
    consumer = consumer_of(cluster, group, **settings)
    consumer.subscribe([topic])
    assert values_of(take(consumer, 10)) == numbers(10)

    def is_committed() -> bool:
        consumer.poll(timeout_ms=POLL_MS)
        return bool(consumer.committed(TopicPartition(topic, 0)) == 10)

    wait_until(is_committed, "the automatic commit")
    consumer.close()
    produce(cluster, topic, numbers(5, 10))
    follower = consumer_of(cluster, group, **settings)
    follower.subscribe([topic])
    assert values_of(take(follower, 5)) == numbers(5, 10)
    follower.close()


@scenarios("manual_commit")
def manual_commit(cluster: Cluster) -> None:
    topic, group = create(cluster, "manual-commit"), cluster.name("manual-commit")
    produce(cluster, topic, numbers(10))
    consumer = consumer_of(cluster, group)
    consumer.subscribe([topic])
    assert len(take(consumer, 10)) == 10
    partition = TopicPartition(topic, 0)
    consumer.commit({partition: committed(6, "note")})
    assert consumer.committed(partition) == 6
    consumer.close()
    follower = consumer_of(cluster, group)
    follower.subscribe([topic])
    assert values_of(take(follower, 4)) == numbers(4, 6)
    follower.close()


@scenarios("rebalance")
def rebalance(cluster: Cluster) -> None:
    check_rebalance(cluster)


@scenarios("cooperative")
def cooperative(cluster: Cluster) -> None:
    assignors = importlib.import_module("kafka.coordinator.assignors.cooperative_sticky")  # since 3.0
    check_rebalance(cluster, partition_assignment_strategy=[assignors.CooperativeStickyAssignor])


def check_rebalance(cluster: Cluster, **settings: Any) -> None:
    """One member, two, one again; all records are read, by whoever has the partition."""
    topic, group = create(cluster, "rebalance", partitions=4), cluster.name("rebalance")
    first = Member(cluster, group, topic, **settings)
    wait_until(lambda: len(first.partitions) == 4, "the first member to have all")
    second = Member(cluster, group, topic, **settings)
    wait_until(lambda: covers([first.partitions, second.partitions], 4), "both members to share")
    for number in range(4):
        produce(cluster, topic, [b"%d" % number], partition=number)
    wait_until(lambda: len(first.records) + len(second.records) >= 4, "the records")
    assert sorted(values_of(first.records + second.records)) == numbers(4)
    second.close()
    wait_until(lambda: len(first.partitions) == 4, "the one that stays to have all again")
    first.close()


@scenarios("static")
def static(cluster: Cluster) -> None:
    topic, group = create(cluster, "static", partitions=4), cluster.name("static")
    first = Member(cluster, group, topic, group_instance_id="a")
    second = Member(cluster, group, topic, group_instance_id="b")
    wait_until(lambda: covers([first.partitions, second.partitions], 4), "both members to share")
    kept, owned = first.partitions, second.partitions
    second.close()  # a static member does not leave the group
    second = Member(cluster, group, topic, group_instance_id="b")
    wait_until(lambda: second.partitions, "the member that came back")
    assert (first.partitions, second.partitions) == (kept, owned)
    first.close()
    second.close()


@scenarios("pattern")
def pattern(cluster: Cluster) -> None:
    prefix = cluster.name("pattern")
    topics = [create(cluster, f"{prefix}.{name}") for name in ("a", "b")]
    consumer = consumer_of(cluster, cluster.name("pattern"), metadata_max_age_ms=500, heartbeat_interval_ms=200)

    def has(count: int) -> Callable[[], bool]:
        def poll() -> bool:
            consumer.poll(timeout_ms=POLL_MS)
            return len(consumer.assignment()) == count

        return poll

    try:
        consumer.subscribe(pattern=f"^{prefix}[.].*")
        wait_until(has(2), "both topics")
        topics.append(create(cluster, f"{prefix}.c"))
        wait_until(has(3), "the topic that was added")
        assert sorted(each.topic for each in consumer.assignment()) == sorted(topics)
    finally:
        consumer.close()


# ---- Administration.


@scenarios("topics")
def topics(cluster: Cluster) -> None:
    topic = create(cluster, "topics", partitions=3)
    admin = admin_of(cluster)
    assert topic in admin.list_topics()
    for partition in described_partitions(admin, topic):
        replicas = partition["replica_nodes"] if "replica_nodes" in partition else partition["replicas"]
        in_sync = partition["isr_nodes"] if "isr_nodes" in partition else partition["isr"]
        assert len(replicas) == cluster.replication
        assert sorted(in_sync) == sorted(replicas)
    admin.delete_topics([topic])
    wait_until(lambda: topic not in admin.list_topics(), "the topic to go")
    admin.close()


@scenarios("existing_topic")
def existing_topic(cluster: Cluster) -> None:
    topic = create(cluster, "existing")
    admin = admin_of(cluster)

    def try_one(new: Any, kind: type[Exception]) -> None:
        raised_by(lambda: admin.create_topics([new]), kind)

    try_one(NewTopic(topic, 1, cluster.replication), kafka_errors.TopicAlreadyExistsError)
    try_one(NewTopic(cluster.name("w"), 1, 100), kafka_errors.InvalidReplicationFactorError)
    try_one(NewTopic(cluster.name("w"), 0, 1), kafka_errors.InvalidPartitionsError)
    try_one(NewTopic("no/slash", 1, 1), kafka_errors.InvalidTopicError)
    admin.close()


def setting_of(admin: Any, topic: str, name: str) -> str:
    """A topic's setting; versions before 2.1 return the response as it came."""
    resource = ConfigResource("topic", topic, None)
    if not hasattr(admin, "list_group_offsets"):
        (response,) = admin.describe_configs([resource])
        (described,) = response.resources
        return str({entry[0]: entry[1] for entry in described[4]}[name])
    found = admin.describe_configs([resource], config_filter="all")
    return str(found["topic"][topic][name]["value"])


@scenarios("configs")
def configs(cluster: Cluster) -> None:
    topic = create(cluster, "configs", config={"retention.ms": "12345678"})
    admin = admin_of(cluster)
    assert setting_of(admin, topic, "retention.ms") == "12345678"
    assert setting_of(admin, topic, "cleanup.policy") == "delete"
    admin.alter_configs([ConfigResource("topic", topic, {"cleanup.policy": "compact"})])
    wait_until(lambda: setting_of(admin, topic, "cleanup.policy") == "compact", "the new setting")
    admin.close()


@scenarios("partitions")
def partitions(cluster: Cluster) -> None:
    topic = create(cluster, "partitions", partitions=2)
    admin = admin_of(cluster)
    admin.create_partitions({topic: NewPartitions(4)})

    wait_for_topic(cluster, topic, 4)
    (written,) = produce(cluster, topic, [b"v"], partition=3)
    assert written.partition == 3
    raised_by(lambda: admin.create_partitions({topic: NewPartitions(3)}), kafka_errors.InvalidPartitionsError)
    admin.close()


@scenarios("delete_records")
def delete_records(cluster: Cluster) -> None:
    topic = create(cluster, "delete-records")
    produce(cluster, topic, numbers(10))
    admin = admin_of(cluster)
    admin.delete_records({TopicPartition(topic, 0): 6})
    admin.close()
    consumer = consumer_of(cluster)
    try:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 0)
        assert values_of(take(consumer, 4)) == numbers(4, 6)
    finally:
        consumer.close()


@scenarios("groups")
def groups(cluster: Cluster) -> None:
    topic, group = create(cluster, "groups", partitions=2), cluster.name("groups")
    admin = admin_of(cluster)
    is_new = hasattr(admin, "list_groups")
    member = Member(cluster, group, topic, client_id="the-client")
    wait_until(lambda: len(member.partitions) == 2, "a member")

    def listed() -> list[str]:
        if is_new:
            return [each["group_id"] for each in admin.list_groups()]
        return [name for name, _ in admin.list_consumer_groups()]

    def delete() -> str:
        if is_new:
            return str(admin.delete_groups([group])[group])
        ((_, kind),) = admin.delete_consumer_groups([group])
        return str(kind.__name__)

    if is_new:
        described = admin.describe_groups([group])[group]
        state, (client_id,) = described["group_state"], [each["client_id"] for each in described["members"]]
    else:
        (described,) = admin.describe_consumer_groups([group])
        state, (client_id,) = described.state, [each.client_id for each in described.members]
    assert (state, client_id) == ("Stable", "the-client")
    assert group in listed()
    assert delete() == "NonEmptyGroupError"
    member.close()
    assert delete() in ("OK", "NoError")
    assert group not in listed()
    admin.close()


@scenarios("group_offsets")
def group_offsets(cluster: Cluster) -> None:
    topic, group = create(cluster, "group-offsets", partitions=2), cluster.name("group-offsets")
    consumer = consumer_of(cluster, group)
    consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
    consumer.commit({TopicPartition(topic, number): committed(5 + number) for number in (0, 1)})
    consumer.close()
    admin = admin_of(cluster)
    if hasattr(admin, "list_group_offsets"):
        found = admin.list_group_offsets([group])[group]
        admin.alter_group_offsets(group, {TopicPartition(topic, 0): committed(1)})
        assert admin.list_group_offsets([group])[group][TopicPartition(topic, 0)].offset == 1
    else:
        found = admin.list_consumer_group_offsets(group)
    assert {key.partition: value.offset for key, value in found.items()} == {0: 5, 1: 6}
    admin.close()


@scenarios("cluster")
def describe_cluster(cluster: Cluster) -> None:
    admin = admin_of(cluster)
    described = admin.describe_cluster()
    assert len(described["brokers"]) == cluster.brokers
    assert described["cluster_id"]
    admin.close()
