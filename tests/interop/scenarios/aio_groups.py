"""aiokafka: groups and administration."""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
from typing import Any

from aiokafka import TopicPartition

from tests.interop.scenarios.aio import (
    admin_of,
    consumer_of,
    create,
    produce,
    scenarios,
    take,
    values_of,
    wait_for,
)
from tests.interop.scenarios.common import Cluster, covers, numbers, wait_for_topic

# Before 0.9 aiokafka borrowed these classes from kafka-python.
kinds: Any = importlib.import_module(
    "aiokafka.admin" if importlib.util.find_spec("aiokafka.protocol.types") else "kafka.admin"
)


def partitions_of(consumer: Any) -> list[int]:
    return sorted(each.partition for each in consumer.assignment())


async def poll_until_share(consumers: list[Any], partitions: int, what: str) -> list[Any]:
    """Polls all members until each partition has one owner; returns what they read meanwhile."""
    records: list[Any] = []

    async def is_shared() -> bool:
        for part in await asyncio.gather(*(take(consumer, 10, timeout_s=0.1) for consumer in consumers)):
            records.extend(part)
        return covers(map(partitions_of, consumers), partitions)

    await wait_for(is_shared, what)
    return records


@scenarios("auto_commit")
async def auto_commit(cluster: Cluster) -> None:
    topic, group = await create(cluster, "auto-commit"), cluster.name("auto-commit")
    await produce(cluster, topic, numbers(10))
    settings = {"enable_auto_commit": True, "auto_commit_interval_ms": 100}
    async with consumer_of(cluster, group, topic, **settings) as consumer:
        assert values_of(await take(consumer, 10)) == numbers(10)

        async def is_committed() -> bool:
            await take(consumer, 1, timeout_s=0.1)
            return bool(await consumer.committed(TopicPartition(topic, 0)) == 10)

        await wait_for(is_committed, "the automatic commit")
    await produce(cluster, topic, numbers(5, 10))
    async with consumer_of(cluster, group, topic, **settings) as follower:
        assert values_of(await take(follower, 5)) == numbers(5, 10)


@scenarios("manual_commit")
async def manual_commit(cluster: Cluster) -> None:
    topic, group = await create(cluster, "manual-commit"), cluster.name("manual-commit")
    await produce(cluster, topic, numbers(10))
    partition = TopicPartition(topic, 0)
    async with consumer_of(cluster, group, topic) as consumer:
        assert len(await take(consumer, 10)) == 10
        await consumer.commit({partition: (6, "note")})
        assert await consumer.committed(partition) == 6
    async with consumer_of(cluster, group, topic) as follower:
        assert values_of(await take(follower, 4)) == numbers(4, 6)


@scenarios("rebalance")
async def rebalance(cluster: Cluster) -> None:
    topic, group = await create(cluster, "rebalance", partitions=4), cluster.name("rebalance")
    settings = {"heartbeat_interval_ms": 200}
    async with consumer_of(cluster, group, topic, **settings) as first:
        await poll_until_share([first], 4, "the first member to have all")
        async with consumer_of(cluster, group, topic, **settings) as second:
            both = [first, second]
            await poll_until_share(both, 4, "both members to share")
            for number in range(4):
                await produce(cluster, topic, [b"%d" % number], partition=number)
            seen: list[Any] = []
            while len(seen) < 4:
                seen += await poll_until_share(both, 4, "the records")
            assert sorted(values_of(seen)) == numbers(4)
        await poll_until_share([first], 4, "the one that stays to have all again")


@scenarios("static")
async def static(cluster: Cluster) -> None:
    topic, group = await create(cluster, "static", partitions=4), cluster.name("static")
    settings: dict[str, Any] = {"heartbeat_interval_ms": 200}
    async with consumer_of(cluster, group, topic, group_instance_id="a", **settings) as first:
        async with consumer_of(cluster, group, topic, group_instance_id="b", **settings) as second:
            await poll_until_share([first, second], 4, "both members to share")
            kept, owned = partitions_of(first), partitions_of(second)
        # A static member that closes does not leave the group.
        async with consumer_of(cluster, group, topic, group_instance_id="b", **settings) as second:
            await poll_until_share([first, second], 4, "the member that came back")
            assert (partitions_of(first), partitions_of(second)) == (kept, owned)


@scenarios("pattern")
async def pattern(cluster: Cluster) -> None:
    prefix = cluster.name("pattern")
    topics = [await create(cluster, f"{prefix}.{name}") for name in ("a", "b")]
    group = cluster.name("pattern")
    async with consumer_of(cluster, group, metadata_max_age_ms=500, heartbeat_interval_ms=200) as consumer:
        consumer.subscribe(pattern=f"^{prefix}[.].*")

        async def has_all() -> bool:
            await take(consumer, 1, timeout_s=0.1)
            return sorted(each.topic for each in consumer.assignment()) == sorted(topics)

        await wait_for(has_all, "both topics")
        topics.append(await create(cluster, f"{prefix}.c"))
        await wait_for(has_all, "the topic that was added")


# ---- Administration.


@scenarios("topics")
async def topics(cluster: Cluster) -> None:
    topic = await create(cluster, "topics", partitions=3)
    async with admin_of(cluster) as admin:
        assert topic in await admin.list_topics()
        (found,) = await admin.describe_topics([topic])
        for partition in found["partitions"]:
            assert len(partition["replicas"]) == cluster.replication
            assert sorted(partition["isr"]) == sorted(partition["replicas"])
        await admin.delete_topics([topic])

        async def is_gone() -> bool:
            return topic not in await admin.list_topics()

        await wait_for(is_gone, "the topic to go")


@scenarios("configs")
async def configs(cluster: Cluster) -> None:
    topic = await create(cluster, "configs", config={"retention.ms": "12345678"})
    async with admin_of(cluster) as admin:

        async def setting(name: str) -> str:
            (response,) = await admin.describe_configs([kinds.config_resource.ConfigResource("topic", topic)])
            (described,) = response.resources
            return str({entry[0]: entry[1] for entry in described[4]}[name])

        assert await setting("retention.ms") == "12345678"
        assert await setting("cleanup.policy") == "delete"
        await admin.alter_configs([kinds.config_resource.ConfigResource("topic", topic, {"cleanup.policy": "compact"})])

        async def is_changed() -> bool:
            return await setting("cleanup.policy") == "compact"

        await wait_for(is_changed, "the new setting")


@scenarios("partitions")
async def partitions(cluster: Cluster) -> None:
    topic = await create(cluster, "partitions", partitions=2)
    async with admin_of(cluster) as admin:
        await admin.create_partitions({topic: kinds.NewPartitions(4)})

    await asyncio.to_thread(wait_for_topic, cluster, topic, 4)
    (written,) = await produce(cluster, topic, [b"v"], partition=3)
    assert written.partition == 3


@scenarios("delete_records")
async def delete_records(cluster: Cluster) -> None:
    records = importlib.import_module("aiokafka.admin")
    topic = await create(cluster, "delete-records")
    await produce(cluster, topic, numbers(10))
    partition = TopicPartition(topic, 0)
    async with admin_of(cluster) as admin:
        assert await admin.delete_records({partition: records.RecordsToDelete(before_offset=6)}) == {partition: 6}
    async with consumer_of(cluster) as consumer:
        consumer.assign([partition])
        consumer.seek(partition, 0)
        assert values_of(await take(consumer, 4)) == numbers(4, 6)


@scenarios("groups")
async def groups(cluster: Cluster) -> None:
    topic, group = await create(cluster, "groups", partitions=2), cluster.name("groups")
    async with admin_of(cluster) as admin, consumer_of(cluster, group, topic) as consumer:
        await poll_until_share([consumer], 2, "a member")
        assert group in [each[0] for each in await admin.list_consumer_groups()]
        (response,) = await admin.describe_consumer_groups([group])
        (described,) = response.groups
        assert (described[0], described[1], described[2]) == (0, group, "Stable")
        assert len(described[5]) == 1


@scenarios("group_offsets")
async def group_offsets(cluster: Cluster) -> None:
    topic, group = await create(cluster, "group-offsets", partitions=2), cluster.name("group-offsets")
    async with consumer_of(cluster, group) as consumer:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        await consumer.commit({TopicPartition(topic, number): (5 + number, "") for number in (0, 1)})
    async with admin_of(cluster) as admin:
        found = await admin.list_consumer_group_offsets(group)
    assert {key.partition: value.offset for key, value in found.items()} == {0: 5, 1: 6}


@scenarios("cluster")
async def describe_cluster(cluster: Cluster) -> None:
    async with admin_of(cluster) as admin:
        assert len((await admin.describe_cluster())["brokers"]) == cluster.brokers
