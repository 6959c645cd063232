"""MirrorMaker 2 between two clusters: records, settings and partitions of topics, and where groups are.

It also keeps asking for what may not be there, such as access rules, and complains in every round if a broker does not
know the question: in quiet times its log must be clean.
"""

from __future__ import annotations

import re
import threading
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions

from tests.interop.conftest import ClusterUnderTest, start_cluster
from tests.interop.frameworks.asking import TIMEOUT_S, admin_of, committed_of, ends_of, partitions_of, settings_of
from tests.interop.frameworks.following import Follower
from tests.interop.frameworks.programs import fault_settings, kill_and_start, wait_until
from tests.interop.frameworks.servers import ConnectServer
from tests.interop.frameworks.versions import MIRROR_MAKER, Framework
from tests.transactions.reading import places_of, read

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

BROKERS: Final = 3
PARTITIONS: Final = 4
TOPIC, GROUP = "orders", "billing"
MIRRORED: Final = f"there.{TOPIC}"
PLACES_THERE: Final = places_of([TOPIC], PARTITIONS)
PLACES_HERE: Final = places_of([MIRRORED], PARTITIONS)
RATE_PER_S: Final = 100
SETTINGS: Final = {"cleanup.policy": "compact,delete", "compression.type": "lz4", "retention.ms": "86400000"}
ROUNDS: Final = 3
STORAGES: Final = ("offset", "config", "status")

SCHEDULED: Final = (
    "refreshing topics",
    "syncing topic configs",
    "syncing topic ACLs",
    "refreshing consumer groups",
    "sync idle consumer group offset from source to target",
)
"""What it does again and again, in the words of its log."""


class MirrorMaker(ConnectServer):
    def __init__(self, client: Framework, directory: Path, there: ClusterUnderTest, here: ClusterUnderTest) -> None:
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        settings: dict[str, str | int | bool] = {
            "clusters": "there,here",
            "there.bootstrap.servers": there.bootstrap,
            "here.bootstrap.servers": here.bootstrap,
            "there->here.enabled": True,
            "there->here.topics": f"{TOPIC}.*",
            "there->here.groups": f"{GROUP}.*",
            "here->there.enabled": False,
            "tasks.max": 2,
            "sync.group.offsets.enabled": True,
            "offset.lag.max": 0,
            "replication.factor": here.brokers,
            "offset-syncs.topic.replication.factor": there.brokers,
            "checkpoints.topic.replication.factor": here.brokers,
            "heartbeats.topic.replication.factor": here.brokers,
            # It also runs in the direction that is not enabled, for the heartbeats.
            "here->there.heartbeats.topic.replication.factor": there.brokers,
            **{f"here.{name}.storage.replication.factor": here.brokers for name in STORAGES},
            **{f"there.{name}.storage.replication.factor": there.brokers for name in STORAGES},
            "refresh.topics.interval.seconds": 1,
            "refresh.groups.interval.seconds": 1,
            "sync.topic.configs.interval.seconds": 1,
            "sync.topic.acls.interval.seconds": 1,
            "sync.group.offsets.interval.seconds": 1,
            "emit.checkpoints.interval.seconds": 1,
            "emit.heartbeats.interval.seconds": 1,
        }
        super().__init__(client, main, directory, settings)


class Shop(threading.Thread):
    """Writes orders, and a group reads them as they come: both at the source."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.written: set[str] = set()
        self.errors: list[str] = []
        self._is_over = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})

    def run(self) -> None:
        number = 0
        while not self._is_over.wait(1 / RATE_PER_S):
            partition = number % PARTITIONS
            value = f"{partition}-{number}"
            self._producer.produce(TOPIC, value, f"key-{number}", partition, on_delivery=self._delivered)
            self._producer.poll(0)
            number += 1
        self._producer.flush()

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.errors.append(str(error))
        else:
            self.written.add(message.value().decode())


@pytest.mark.parametrize("client", [pytest.param(each, id=each.label) for each in MIRROR_MAKER])
def test_a_topic_and_its_group_are_mirrored_without_an_error_whichever_broker_is_killed(
    client: Framework, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    client.classpath()  # fetched first, if need be
    settings = fault_settings(request.config)
    with (
        start_cluster(request, tmp_path / "there", 1, settings) as there,
        start_cluster(request, tmp_path / "here", BROKERS, settings) as here,
        closing(MirrorMaker(client, tmp_path / "mirror", there, here)) as mirror,
    ):
        assert there.running is not None
        there.running.create_topic(TOPIC, PARTITIONS, 1, SETTINGS)
        mirror.start()
        shop = Shop(there.bootstrap)
        shop.start()
        wait_until(lambda: partitions_of(here.bootstrap, MIRRORED) == PARTITIONS, "the topic is mirrored")
        with closing(Follower(here.bootstrap, PLACES_HERE)) as reader:
            wait_until(reader.going_on(100), "records are mirrored")
            stay_quiet(mirror, there, here)
            go_through_faults(mirror, there, here, reader)
            shop.stop()
            assert shop.errors == []
            wait_until(reader.has_all({MIRRORED: shop.written}), "every record is mirrored")
        mirrored = {record.value.decode() for record in read(here.bootstrap, PLACES_HERE)}
        assert mirrored == shop.written, "and nothing else"
        consume_all(there)
        wait_until(lambda: is_at_the_end(here), "the group is at the end, there and here")


def stay_quiet(mirror: MirrorMaker, there: ClusterUnderTest, here: ClusterUnderTest) -> None:
    """Whatever it does again and again has been done some times, has had something to do, and brought no error. (While
    it starts it may ask a broker of Kafka's for a topic that it has only just made.)"""
    started_count = len(mirror.events)
    wait_until(
        lambda: settings_of(here.bootstrap, MIRRORED).items() >= SETTINGS.items(), "the topic's settings are mirrored"
    )
    alter(there, TOPIC, {"retention.ms": "172800000"})
    wait_until(
        lambda: settings_of(here.bootstrap, MIRRORED)["retention.ms"] == "172800000", "a new setting is mirrored"
    )
    admin = admin_of(there.bootstrap)
    admin.create_partitions([NewPartitions(TOPIC, PARTITIONS + 1)])[TOPIC].result(timeout=TIMEOUT_S)
    wait_until(lambda: partitions_of(here.bootstrap, MIRRORED) == PARTITIONS + 1, "a new partition is mirrored")
    wait_until(lambda: is_translated(there, here), "the group's offsets are mirrored")
    wait_until(lambda: all(rounds_of(mirror, each) >= ROUNDS for each in SCHEDULED), f"{ROUNDS} rounds of everything")
    assert [event.text for event in mirror.events[started_count:] if event.level in ("ERROR", "FATAL")] == []
    assert sum("No ACL authorizer is configured" in event.text for event in mirror.events) == 1, "it was told so"
    check_translated(there, here)


def is_translated(there: ClusterUnderTest, here: ClusterUnderTest) -> bool:
    """The group goes on meanwhile: where it was before MirrorMaker has heard of it cannot be translated."""
    consume(there, 20)
    return any(committed_of(here.bootstrap, GROUP, PLACES_HERE).values())


def rounds_of(mirror: MirrorMaker, what: str) -> int:
    return sum(bool(re.search(rf"{what} took \d+ ms", event.text)) for event in mirror.events)


def go_through_faults(mirror: MirrorMaker, there: ClusterUnderTest, here: ClusterUnderTest, reader: Follower) -> None:
    """Each broker of the target, the source's only one, and MirrorMaker itself are killed and come back."""
    for node_id in range(1, BROKERS + 1):
        wait_until(reader.going_on(100), "records are mirrored")
        kill_and_start(here, node_id, [MIRRORED, "__consumer_offsets"], reader.going_on(100))
        consume(there, 100)
    assert there.running is not None
    there.running.kill_node(1)
    there.running.start_node(1)
    wait_until(reader.going_on(100), "records are mirrored")
    mirror.kill()
    consume(there, 100)
    mirror.start()
    wait_until(reader.going_on(100), "records are mirrored")
    check_translated(there, here)


def check_translated(there: ClusterUnderTest, here: ClusterUnderTest) -> None:
    """Whoever goes on here from the group's offsets skips nothing that the group has not read there."""
    here_at = committed_of(here.bootstrap, GROUP, PLACES_HERE)  # first: the other may be further
    there_at = committed_of(there.bootstrap, GROUP, PLACES_THERE)
    done = {r.value for r in read(there.bootstrap, PLACES_THERE) if r.offset < there_at[r.topic, r.partition]}
    skipped = {r.value for r in read(here.bootstrap, PLACES_HERE) if r.offset < here_at[r.topic, r.partition]}
    assert skipped <= done, sorted(skipped - done)[:10]


def consume(there: ClusterUnderTest, count: int) -> None:
    """The group reads so many more at the source, and commits."""
    read_count = 0

    def is_read() -> bool:
        nonlocal read_count
        messages: list[Any] = consumer.consume(count - read_count, 0.1)
        read_count += sum(message.error() is None for message in messages)
        return read_count >= count

    with closing(consumer_of(there)) as consumer:
        consumer.subscribe([TOPIC])
        wait_until(is_read, f"the group reads {count} records")
        consumer.commit(asynchronous=False)


def consume_all(there: ClusterUnderTest) -> None:
    def is_read() -> bool:
        consumer.consume(1_000, 0.1)
        at = {(each.topic, each.partition): each.offset for each in consumer.position(consumer.assignment())}
        return all(at.get(place) == end for place, end in ends_of(there.bootstrap, PLACES_THERE).items())

    with closing(consumer_of(there)) as consumer:
        consumer.subscribe([TOPIC])
        wait_until(is_read, "the group reads all")
        consumer.commit(asynchronous=False)


def consumer_of(cluster: ClusterUnderTest) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": cluster.bootstrap,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )


def is_at_the_end(here: ClusterUnderTest) -> bool:
    return committed_of(here.bootstrap, GROUP, PLACES_HERE) == ends_of(here.bootstrap, PLACES_HERE)


def alter(cluster: ClusterUnderTest, topic: str, settings: dict[str, str]) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    admin, asked = (
        admin_of(cluster.bootstrap),
        ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries),
    )
    admin.incremental_alter_configs([asked])[asked].result(timeout=TIMEOUT_S)
