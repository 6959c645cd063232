"""Each way in which a store, a broker or a clock fails, with real brokers on a real S3: brokers stay up, producers are
told nothing but to try again, nothing acknowledged is lost, and all goes on by itself.

Every test writes through its failure with an idempotent producer, and ends with a judgement of the whole log (`Load`).
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, ElectionType, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sexton.harness.brokers import SextonCluster
from sexton.harness.store_proxy import StoreFaults
from tests.cloud.failures.conftest import CloudPlace
from tests.cloud.failures.load import PARTITIONS, PATIENCE_S, QUIET, Load, leader_of, read_all, records_of, until

pytestmark = pytest.mark.cluster

SOON_S = 2.0
PUTS = frozenset({"PUT"})


@pytest.mark.parametrize(
    ("fault", "faults"),
    [
        ("away", StoreFaults(unsent=1.0)),
        ("silent", StoreFaults(hanging=1.0)),
        ("busy", StoreFaults(busy=1.0)),
        ("forbidden", StoreFaults(refused=1.0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_while_nothing_can_be_stored_nothing_is_acknowledged_and_then_all_goes_on(
    place: CloudPlace, fault: str, faults: StoreFaults
) -> None:
    with Load(place.cluster, fault) as load:
        place.store.proxy.faults = faults
        load.stands_still(1.5)
        place.store.heal()
        load.go_on()
    assert_up(place.cluster)


@pytest.mark.parametrize(
    ("fault", "faults"),
    [
        ("slow", StoreFaults(median_ms=150, p99_ms=400)),
        ("often-busy", StoreFaults(busy=0.5)),
        ("half-uploads", StoreFaults(half=0.5, methods=PUTS)),
        ("lost-answers", StoreFaults(dropped=0.5)),
        ("short-answers", StoreFaults(short=0.5, methods=frozenset({"GET"}))),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_writing_and_reading_go_on_through_a_store_that(place: CloudPlace, fault: str, faults: StoreFaults) -> None:
    with Load(place.cluster, fault) as load:
        place.store.proxy.faults = faults
        load.go_on()
        if fault != "slow":
            read_all(place.cluster, fault)
        place.store.heal()


def test_a_store_that_stops_for_good_and_is_started_again(place: CloudPlace) -> None:
    """What was put is still there: versitygw's folder is. Not the proxy's fault, but the store's."""
    with Load(place.cluster, "restarted") as load:
        place.store.gateway.kill()
        load.stands_still(1.0)
        place.store.gateway.start()
        load.go_on()


def test_a_leader_that_sleeps_longer_than_its_lease_wakes_up_as_nobody(place: CloudPlace) -> None:
    with Load(place.cluster, "sleeper") as load:
        sleeper = leader_of(place.cluster, load.topic)
        place.cluster.pause_node(sleeper)
        until(lambda: sleeper not in place.cluster.leaders(load.topic).values(), "others lead")
        load.go_on()
        place.cluster.resume_node(sleeper)
        load.go_on()
    assert_up(place.cluster)


def test_a_broker_whose_bucket_is_another_clusters_leads_nothing_and_others_do(place: CloudPlace) -> None:
    cluster, marker = place.cluster, place.store.marker
    with Load(cluster, "anothers") as load:
        ours = marker.read_bytes()
        victim = leader_of(cluster, load.topic)
        try:
            marker.write_bytes(b'{"cluster_id": "00000000-0000-0000-0000-0000000000aa", "format_version": 1}')
            cluster.stop_node(victim)
            cluster.start_node(victim)
            elect_preferred(cluster, load.topic)
            until(lambda: "belongs to cluster 00000000" in cluster.server_log(victim), "it says why")
            until(lambda: victim not in cluster.leaders(load.topic).values(), "others lead")
            load.go_on()
        finally:
            marker.write_bytes(ours)
        others = [other for other in cluster.node_ids if other != victim]
        for other in others:
            cluster.kill_node(other)
        load.go_on()  # it leads, now that it may
        for other in others:
            cluster.start_node(other)


def test_a_damaged_object_is_an_error_at_its_offsets_and_never_a_hole(place: CloudPlace) -> None:
    cold_topic(place, "damaged")
    (path,) = [path for path in place.store.objects if b"value-0-0" in path.read_bytes()]
    right = path.read_bytes()
    at = right.index(b"value-0-0")
    path.write_bytes(right[:at] + b"VALUE" + right[at + 5 :])
    assert first_of(place.cluster, "damaged") is None
    until(lambda: is_told(place.cluster, "damaged", "CRC"), "a broker tells what is damaged")
    assert [what for _, what in place.check().lost] != []
    path.write_bytes(right)
    until(lambda: first_of(place.cluster, "damaged") == b"value-0-0", "what was repaired is read")
    assert place.check().is_right


def test_a_bucket_that_was_emptied_is_an_error_where_it_was_read_and_writing_goes_on(place: CloudPlace) -> None:
    cold_topic(place, "wiped")
    kept = {path: path.read_bytes() for path in place.store.objects}
    for path in kept:
        path.unlink()
    assert first_of(place.cluster, "wiped") is None
    until(lambda: is_told(place.cluster, "wiped", "no such object"), "a broker tells what is missing")
    with Load(place.cluster, "after-the-wipe"):
        pass
    assert len(place.check().lost) > 0
    for path, data in kept.items():
        path.write_bytes(data)
    until(lambda: first_of(place.cluster, "wiped") == b"value-0-0", "what is back is read")
    assert place.check().is_right


def cold_topic(place: CloudPlace, topic: str) -> None:
    """A topic whose first object is in nobody's memory any more."""
    place.cluster.create_topic(topic, PARTITIONS, 3)
    producer = Producer({**QUIET, "bootstrap.servers": place.cluster.bootstrap, "linger.ms": 0})
    for number in range(8):
        for partition in range(PARTITIONS):
            value = b"value-%d-%d" % (partition, number) + bytes(20_000 if number else 0)
            producer.produce(topic, value, partition=partition)
        assert producer.flush(60) == 0


def first_of(cluster: SextonCluster, topic: str) -> bytes | None:
    """The first record that a consumer from the beginning of partition 0 gets, if it gets one soon."""
    consumer = Consumer(
        {**QUIET, "bootstrap.servers": cluster.bootstrap, "group.id": "first", "fetch.error.backoff.ms": 50}
    )
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    deadline_s = time.monotonic() + SOON_S
    try:
        while time.monotonic() < deadline_s:
            for _, _, value in records_of(consumer):
                return value
        return None
    finally:
        consumer.close()


def is_told(cluster: SextonCluster, topic: str, what: str) -> bool:
    """Whether a broker has logged this of the topic's first offset."""
    lines = [line for node_id in cluster.node_ids for line in cluster.server_log(node_id).splitlines()]
    return any(f"{topic}-0: offsets 0 to" in line and what in line for line in lines)


def elect_preferred(cluster: SextonCluster, topic: str) -> None:
    """Whoever is asked first leads again."""
    admin = AdminClient({**QUIET, "bootstrap.servers": cluster.bootstrap})
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    admin.elect_leaders(ElectionType.PREFERRED, places).result(PATIENCE_S)


def assert_up(cluster: SextonCluster) -> None:
    assert all(cluster.is_running(node_id) for node_id in cluster.node_ids)
