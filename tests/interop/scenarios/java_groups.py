"""Java's own client: groups and administration."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from tests.interop.scenarios.common import Cluster, covers, numbers, wait_for_topic, wait_until
from tests.interop.scenarios.java_client import (
    Settings,
    admin_of,
    cause_of,
    consumer_of,
    create,
    describe,
    gateway,
    is_missing,
    java,
    java_list,
    java_map,
    kafka,
    partition_of,
    poll,
    produce,
    scenarios,
    take,
    values_of,
    wait,
)


def member_of(cluster: Cluster, group: str, topic: str, settings: Settings | None = None) -> Any:
    consumer = consumer_of(cluster, {"group.id": group, **(settings or {})})
    consumer.subscribe(java_list([topic]))
    return consumer


def partitions_of(consumer: Any) -> list[int]:
    return sorted(each.partition() for each in consumer.assignment())


def poll_until_share(consumers: list[Any], partitions: int, what: str) -> list[Any]:
    """Polls all members until each partition has one owner; returns what they read meanwhile.

    Each in a thread, because before 2.0 a poll returns only when the rebalance is over, for which all must poll."""
    records: list[Any] = []

    def is_shared() -> bool:
        for number, polling in enumerate(polls):
            if polling.done():
                records.extend(polling.result())
                polls[number] = members.submit(poll_and_note, number)
        return covers(assigned, partitions)

    def poll_and_note(number: int) -> list[Any]:
        found = poll(consumers[number], 50)
        assigned[number] = partitions_of(consumers[number])
        return found

    assigned: list[list[int]] = [[] for _ in consumers]
    with ThreadPoolExecutor(len(consumers)) as members:
        polls = [members.submit(poll_and_note, number) for number in range(len(consumers))]
        wait_until(is_shared, what)
    return records + [record for polling in polls for record in polling.result()]


def committed_offset(consumer: Any, topic: str) -> int:
    partition = partition_of(topic)
    asked = java().java.util.HashSet()
    asked.add(partition)
    try:
        found = consumer.committed(asked).get(partition)
    except Py4JError as error:  # before 2.4 it took one partition
        if not is_missing(error):
            raise
        found = consumer.committed(partition)
    return int(found.offset()) if found is not None else -1


@scenarios("auto_commit")
def auto_commit(cluster: Cluster) -> None:
    topic, group = create(cluster, "auto-commit"), cluster.name("auto-commit")
    produce(cluster, topic, numbers(10))
    settings: Settings = {"enable.auto.commit": "true", "auto.commit.interval.ms": 100}
    consumer = member_of(cluster, group, topic, settings)
    assert values_of(take(consumer, 10)) == numbers(10)

    def is_committed() -> bool:
        poll(consumer, 50)
        return committed_offset(consumer, topic) == 10

    wait_until(is_committed, "the automatic commit")
    consumer.close()
    produce(cluster, topic, numbers(5, 10))
    follower = member_of(cluster, group, topic, settings)
    assert values_of(take(follower, 5)) == numbers(5, 10)
    follower.close()


@scenarios("manual_commit")
def manual_commit(cluster: Cluster) -> None:
    topic, group = create(cluster, "manual-commit"), cluster.name("manual-commit")
    produce(cluster, topic, numbers(10))
    consumer = member_of(cluster, group, topic)
    assert len(take(consumer, 10)) == 10
    offsets = java_map({partition_of(topic): kafka().clients.consumer.OffsetAndMetadata(6, "note")})
    consumer.commitSync(offsets)
    assert committed_offset(consumer, topic) == 6
    consumer.close()
    follower = member_of(cluster, group, topic)
    assert values_of(take(follower, 4)) == numbers(4, 6)
    follower.close()


@scenarios("rebalance")
def rebalance(cluster: Cluster) -> None:
    check_rebalance(cluster, {"partition.assignment.strategy": "org.apache.kafka.clients.consumer.RangeAssignor"})


@scenarios("cooperative")
def cooperative(cluster: Cluster) -> None:
    assignor = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
    check_rebalance(cluster, {"partition.assignment.strategy": assignor})


@scenarios("kip848")
def kip848(cluster: Cluster) -> None:
    check_rebalance(cluster, {"group.protocol": "consumer"})
    check_rebalance(cluster, {"group.protocol": "consumer", "group.remote.assignor": "range"})


def check_rebalance(cluster: Cluster, settings: Settings) -> None:
    """One member, two, one again; all records are read, by whoever has the partition."""
    topic, group = create(cluster, "rebalance", partitions=4), cluster.name("rebalance")
    first = member_of(cluster, group, topic, settings)
    poll_until_share([first], 4, "the first member to have all")
    second = member_of(cluster, group, topic, settings)
    poll_until_share([first, second], 4, "both members to share")
    for number in range(4):
        produce(cluster, topic, [b"%d" % number], partition=number)
    seen: list[Any] = []
    while len(seen) < 4:
        seen += poll_until_share([first, second], 4, "the records")
    assert sorted(values_of(seen)) == numbers(4)
    second.close()
    poll_until_share([first], 4, "the one that stays to have all again")
    first.close()


@scenarios("static")
def static(cluster: Cluster) -> None:
    topic, group = create(cluster, "static", partitions=4), cluster.name("static")
    first = member_of(cluster, group, topic, {"group.instance.id": "a"})
    second = member_of(cluster, group, topic, {"group.instance.id": "b"})
    poll_until_share([first, second], 4, "both members to share")
    kept, owned = partitions_of(first), partitions_of(second)
    second.close()  # a static member does not leave the group
    second = member_of(cluster, group, topic, {"group.instance.id": "b"})
    poll_until_share([first, second], 4, "the member that came back")
    assert (partitions_of(first), partitions_of(second)) == (kept, owned)
    first.close()
    second.close()


@scenarios("pattern")
def pattern(cluster: Cluster) -> None:
    check_pattern(cluster, {"metadata.max.age.ms": 500}, java().java.util.regex.Pattern.compile)


@scenarios("server_pattern")
def server_pattern(cluster: Cluster) -> None:
    check_pattern(cluster, {"group.protocol": "consumer"}, kafka().clients.consumer.SubscriptionPattern)


def check_pattern(cluster: Cluster, settings: Settings, compiled: Callable[[str], Any]) -> None:
    prefix = cluster.name("pattern")
    topics = [create(cluster, f"{prefix}.{name}") for name in ("a", "b")]
    consumer = consumer_of(cluster, {"group.id": cluster.name("pattern"), **settings})
    wanted = compiled(f"^{prefix}[.].*")
    try:
        consumer.subscribe(wanted)
    except Py4JError as error:  # before 2.0 it wanted a listener
        if not is_missing(error):
            raise
        consumer.subscribe(wanted, kafka().clients.consumer.internals.NoOpConsumerRebalanceListener())

    def has_all() -> bool:
        poll(consumer, 50)
        return sorted(each.topic() for each in consumer.assignment()) == sorted(topics)

    wait_until(has_all, "both topics")
    topics.append(create(cluster, f"{prefix}.c"))
    wait_until(has_all, "the topic that was added")
    consumer.close()


# ---- Administration.


@scenarios("topics")
def topics(cluster: Cluster) -> None:
    topic = create(cluster, "topics", partitions=3)
    admin = admin_of(cluster)
    assert topic in wait(admin.listTopics().names())
    described = describe(admin, topic)
    for partition in described.partitions():
        replicas = [each.id() for each in partition.replicas()]
        assert len(replicas) == cluster.replication
        assert sorted(each.id() for each in partition.isr()) == sorted(replicas)
    wait(admin.deleteTopics(java_list([topic])).all())
    wait_until(lambda: topic not in wait(admin.listTopics().names()), "the topic to go")
    admin.close()


def setting_of(admin: Any, topic: str, name: str) -> str:
    kind = kafka().common.config.ConfigResource
    resource = kind(kind.Type.TOPIC, topic)
    return str(wait(admin.describeConfigs(java_list([resource])).all()).get(resource).get(name).value())


@scenarios("configs")
def configs(cluster: Cluster) -> None:
    topic = create(cluster, "configs", config={"retention.ms": "12345678"})
    admin = admin_of(cluster)
    assert setting_of(admin, topic, "retention.ms") == "12345678"
    assert setting_of(admin, topic, "cleanup.policy") == "delete"
    kind, classes = kafka().common.config.ConfigResource, kafka().clients.admin
    entry = classes.ConfigEntry("cleanup.policy", "compact")
    resource = kind(kind.Type.TOPIC, topic)
    if hasattr(admin, "incrementalAlterConfigs"):  # since 2.3
        change = classes.AlterConfigOp(entry, classes.AlterConfigOp.OpType.SET)
        wait(admin.incrementalAlterConfigs(java_map({resource: java_list([change])})).all())
        kept = "12345678"
    else:
        wait(admin.alterConfigs(java_map({resource: classes.Config(java_list([entry]))})).all())
        kept = "604800000"
    wait_until(lambda: setting_of(admin, topic, "cleanup.policy") == "compact", "the new setting")
    assert setting_of(admin, topic, "retention.ms") == kept
    admin.close()


@scenarios("partitions")
def partitions(cluster: Cluster) -> None:
    topic = create(cluster, "partitions", partitions=2)
    admin = admin_of(cluster)
    more = kafka().clients.admin.NewPartitions
    wait(admin.createPartitions(java_map({topic: more.increaseTo(4)})).all())

    wait_for_topic(cluster, topic, 4)
    (written,) = produce(cluster, topic, [b"v"], partition=3)
    assert written.partition() == 3
    shrinking = admin.createPartitions(java_map({topic: more.increaseTo(3)})).all()
    assert cause_of(lambda: wait(shrinking)) == "InvalidPartitionsException"
    admin.close()


def records_before(offset: int) -> Any:
    """RecordsToDelete.beforeOffset, which py4j does not find by itself: a method of the object has the same name."""
    kinds = gateway().new_array(java().java.lang.Class, 1)
    kinds[0] = java().java.lang.Long.TYPE
    values = gateway().new_array(java().java.lang.Object, 1)
    values[0] = offset
    found = java().java.lang.Class.forName("org.apache.kafka.clients.admin.RecordsToDelete")
    return found.getMethod("beforeOffset", kinds).invoke(None, values)


@scenarios("delete_records")
def delete_records(cluster: Cluster) -> None:
    topic = create(cluster, "delete-records")
    produce(cluster, topic, numbers(10))
    admin = admin_of(cluster)
    partition = partition_of(topic)
    asked = java_map({partition: records_before(6)})
    deleted = wait(admin.deleteRecords(asked).lowWatermarks().get(partition))
    assert deleted.lowWatermark() == 6
    admin.close()
    consumer = consumer_of(cluster)
    consumer.assign(java_list([partition]))
    consumer.seek(partition, 0)
    assert values_of(take(consumer, 4)) == numbers(4, 6)
    consumer.close()


@scenarios("groups")
def groups(cluster: Cluster) -> None:
    topic, group = create(cluster, "groups", partitions=2), cluster.name("groups")
    admin = admin_of(cluster)
    consumer = member_of(cluster, group, topic, {"client.id": "the-client"})
    poll_until_share([consumer], 2, "a member")

    def listed() -> list[str]:
        return [each.groupId() for each in wait(admin.listConsumerGroups().all())]

    described = wait(admin.describeConsumerGroups(java_list([group])).all()).get(group)
    (member,) = described.members()
    assert member.clientId() == "the-client"
    assert described.state().toString() == "Stable"
    assert sorted(each.partition() for each in member.assignment().topicPartitions()) == [0, 1]
    assert group in listed()
    too_early = admin.deleteConsumerGroups(java_list([group])).all()
    assert cause_of(lambda: wait(too_early)) == "GroupNotEmptyException"
    consumer.close()
    wait(admin.deleteConsumerGroups(java_list([group])).all())
    assert group not in listed()
    admin.close()


@scenarios("group_offsets")
def group_offsets(cluster: Cluster) -> None:
    topic, group = create(cluster, "group-offsets", partitions=2), cluster.name("group-offsets")
    admin = admin_of(cluster)
    wanted = {partition_of(topic, n): kafka().clients.consumer.OffsetAndMetadata(5 + n) for n in (0, 1)}
    wait(admin.alterConsumerGroupOffsets(group, java_map(wanted)).all())

    def offsets() -> dict[int, int]:
        found = wait(admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata())
        return {partition.partition(): found.get(partition).offset() for partition in found.keySet()}

    assert offsets() == {0: 5, 1: 6}
    dropped = java().java.util.HashSet()
    dropped.add(partition_of(topic, 1))
    wait(admin.deleteConsumerGroupOffsets(group, dropped).all())
    assert offsets() == {0: 5}
    admin.close()


@scenarios("cluster")
def describe_cluster(cluster: Cluster) -> None:
    admin = admin_of(cluster)
    described = admin.describeCluster()
    assert wait(described.nodes()).size() == cluster.brokers
    assert wait(described.controller()).id() > 0
    assert wait(described.clusterId())
    admin.close()
