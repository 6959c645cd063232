"""Java's own client."""

from __future__ import annotations

from typing import Any

from sexton.verify.clients import java as driver
from sexton.verify.clients.base import Attributes, Refused
from sexton.verify.clients.jvm import client_version, java, partition_of, wait
from tests.interop.scenarios import everyone
from tests.interop.scenarios.common import Cluster, raised_by
from tests.interop.scenarios.kit import Client, refusal

scenarios = everyone.over(driver)


@scenarios("unknown_topic")
def describing_an_unknown_topic(cluster: Cluster) -> None:
    with Client(driver, cluster).admin() as admin:
        assert refusal(lambda: admin.describe(cluster.name("unknown"))) == everyone.UNKNOWN_TOPIC_OR_PARTITION


def fate_of(future: Any) -> str:
    return raised_by(lambda: driver.answered(lambda: wait(future)), Refused).name


@scenarios("keyless_compacted")
def records_beside_one_without_a_key(cluster: Cluster) -> None:
    """The others of its batch may be sent again."""
    if client_version() < (3, 0):
        return
    topic = Client(driver, cluster).create("compacted", config={"cleanup.policy": "compact"})
    producer = driver.producer_of(cluster.bootstrap, {"linger.ms": 500})
    sent = [producer.send(driver.record_of(topic, b"v", Attributes(key, 0))) for key in (b"k", None, b"k")]
    assert [fate_of(each) for each in sent] == ["KafkaException", "InvalidRecordException", "KafkaException"]
    producer.close()


@scenarios("group_offsets")
def deleting_an_offset(cluster: Cluster) -> None:
    client = Client(driver, cluster)
    topic, group = client.create("group-offsets", partitions=2), cluster.name("group-offsets")
    client.commit(group, {(topic, 0): 5, (topic, 1): 6})
    admin = driver.Admin(cluster.bootstrap)
    dropped = java().java.util.Collections.singleton(partition_of(topic, 1))
    wait(admin.client.deleteConsumerGroupOffsets(group, dropped).all())
    assert admin.group_offsets(group) == {(topic, 0): 5}
    admin.close()
