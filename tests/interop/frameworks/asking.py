"""What a cluster says of its topics and groups, to librdkafka's admin client."""

from __future__ import annotations

from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource

from sexton.verify.clients.base import Place

TIMEOUT_S = 30


def admin_of(bootstrap: str) -> AdminClient:
    """Keep it until its answer is there: they end together."""
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def partitions_of(bootstrap: str, topic: str) -> int:
    """None, if there is no such topic."""
    found = admin_of(bootstrap).list_topics(timeout=TIMEOUT_S).topics.get(topic)
    return 0 if found is None else len(found.partitions)


def settings_of(bootstrap: str, topic: str) -> dict[str, str]:
    admin, asked = admin_of(bootstrap), ConfigResource(ConfigResource.Type.TOPIC, topic)
    found = admin.describe_configs([asked])[asked].result(timeout=TIMEOUT_S)
    return {name: entry.value for name, entry in found.items()}


def ends_of(bootstrap: str, places: list[Place]) -> dict[Place, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "asks-for-ends", "log_level": 0})
    try:
        return {place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=TIMEOUT_S)[1] for place in places}
    finally:
        consumer.close()


def committed_of(bootstrap: str, group: str, places: list[Place]) -> dict[Place, int]:
    """Where the group is; 0 where it has never been."""
    admin = admin_of(bootstrap)
    asked = ConsumerGroupTopicPartitions(group, [TopicPartition(*place) for place in places])
    found = admin.list_consumer_group_offsets([asked])[group].result(timeout=TIMEOUT_S)
    return {(each.topic, each.partition): max(0, each.offset) for each in found.topic_partitions}
