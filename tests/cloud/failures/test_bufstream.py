"""The five findings of Jepsen's analysis of Bufstream 0.1.0, which keeps its logs in an object store, too: each by its
name, on cloud topics of real brokers. Each test fails on a system that has the bug."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from sexton.broker.api import produce
from sexton.client.client import Client
from sexton.harness import asking
from sexton.protocol.errors import ErrorCode
from tests.cloud.failures.conftest import SETTINGS, CloudPlace
from tests.cloud.failures.load import PARTITIONS, PATIENCE_S, QUIET, Load, leader_of, read_all, records_of, until
from tests.log.helpers import plain

pytestmark = pytest.mark.cluster

LEASE_S = float(SETTINGS["broker.lease.ms"]) / 1000


def test_1_stuck_consumers_a_restarted_broker_knows_the_end_of_what_was_acknowledged(place: CloudPlace) -> None:
    """Its nodes served stale high watermarks and last stable offsets after a restart, for up to an hour."""
    with Load(place.cluster, "stuck-consumers") as load:
        pass
    for node_id in place.cluster.node_ids:
        place.cluster.kill_node(node_id)
    for node_id in place.cluster.node_ids:
        place.cluster.start_node(node_id, wait=False)
    place.cluster.wait_ready(PATIENCE_S)
    leader_of(place.cluster, load.topic)
    load.check()
    committed = read_all(place.cluster, load.topic, **{"isolation.level": "read_committed"})
    assert sum(len(log) for log in committed.values()) == len(load.acknowledged)


def test_2_stuck_producers_and_consumers_all_go_on_after_the_metastore_was_away(place: CloudPlace) -> None:
    """Its agents did not notice that their leases had ended: InitProducerId, ListOffsets and polls hung for good."""
    with Load(place.cluster, "stuck-producers") as load:
        with place.without_metastore():
            load.stands_still(1.5 * LEASE_S)
        load.go_on()
    fresh = Producer({**QUIET, "bootstrap.servers": place.cluster.bootstrap, "enable.idempotence": True})
    fresh.produce(load.topic, b"%d" % load.written(0), partition=0)
    assert fresh.flush(PATIENCE_S) == 0
    for address in place.cluster.bootstrap.split(","):
        client = Consumer({**QUIET, "bootstrap.servers": address, "group.id": "fresh"})
        end = client.get_watermark_offsets(TopicPartition(load.topic, 0), timeout=PATIENCE_S)[1]
        assert end > load.written(0), f"{address} says {end}"
        client.close()


def test_3_spurious_zero_offsets_an_error_says_no_offset(place: CloudPlace) -> None:
    """Its answers to writes whose commit timed out had offset 0 beside the error, and clients believed it."""
    place.cluster.create_topic("zero-offsets", 1, 3)
    leader_of(place.cluster, "zero-offsets")
    until(lambda: written(place, "zero-offsets", b"first")[0] == 0, "its leader has claimed it")
    with place.without_metastore():
        code, offset = written(place, "zero-offsets", b"second", timeout_ms=500)
    assert code in (ErrorCode.request_timed_out, ErrorCode.not_leader_or_follower, ErrorCode.not_enough_replicas)
    assert offset == -1
    until(lambda: written(place, "zero-offsets", b"third")[0] == 0, "writing goes on")
    assert [value for _, value in values(place, "zero-offsets", 3)][:1] == [b"first"]


def test_4_lost_transaction_writes_commits_over_many_epochs_are_all_there(place: CloudPlace) -> None:
    """Its commits were ignored when a producer committed several transactions in several epochs."""
    place.cluster.create_topic("epochs", PARTITIONS, 3)
    told: dict[int, int] = dict.fromkeys(range(PARTITIONS), 0)
    for epoch in range(4):
        producer = Producer(
            {
                **QUIET,
                "bootstrap.servers": place.cluster.bootstrap,
                "transactional.id": "epochs",
                "transaction.timeout.ms": 10_000,
            }
        )
        producer.init_transactions(PATIENCE_S)
        for number in range(4):
            producer.begin_transaction()
            is_kept = (epoch + number) % 2 == 0
            for partition in range(PARTITIONS):
                producer.produce("epochs", b"%d" % (told[partition] if is_kept else -1), partition=partition)
                told[partition] += is_kept
            if is_kept:
                producer.commit_transaction(PATIENCE_S)
            else:
                producer.abort_transaction(PATIENCE_S)
        producer.begin_transaction()  # left open: the next epoch ends it
        producer.produce("epochs", b"-1", partition=epoch % PARTITIONS)
        producer.flush(PATIENCE_S)
        del producer
    last = Producer({**QUIET, "bootstrap.servers": place.cluster.bootstrap, "transactional.id": "epochs"})
    last.init_transactions(PATIENCE_S)
    found = values(place, "epochs", sum(told.values()), PARTITIONS)
    for partition, count in told.items():
        assert [int(value) for at, value in found if at == partition] == list(range(count))


def test_5_lost_writes_due_to_filtering_who_reads_along_skips_nothing(place: CloudPlace) -> None:
    """Its fetches left records out after a pause of a node or of the coordinator, and consumers went on behind them."""
    cluster = place.cluster
    with Load(cluster, "filtering") as load:
        reader = Consumer(
            {**QUIET, "bootstrap.servers": cluster.bootstrap, "group.id": "along", "isolation.level": "read_committed"}
        )
        reader.assign([TopicPartition(load.topic, partition, OFFSET_BEGINNING) for partition in range(PARTITIONS)])
        seen: dict[int, list[int]] = {partition: [] for partition in range(PARTITIONS)}

        def read_on(count: int) -> None:
            goal = len(load.acknowledged) + count

            def has_read() -> bool:
                for partition, _, value in records_of(reader):
                    seen[partition].append(int(value))
                return sum(map(len, seen.values())) >= goal

            until(has_read, "the consumer goes on")

        read_on(30)
        with place.without_metastore():
            read_on(0)
        sleeper = leader_of(cluster, load.topic)
        cluster.pause_node(sleeper)
        until(lambda: sleeper not in cluster.leaders(load.topic).values(), "others lead")
        cluster.resume_node(sleeper)
        read_on(30)
        reader.close()
    for numbers in seen.values():
        assert numbers == list(range(len(numbers))), "skipped, or read twice"


def written(place: CloudPlace, topic: str, value: bytes, timeout_ms: int = 10_000) -> tuple[int, int]:
    """Error code and base offset that the broker answers, to the byte."""
    partition = {"index": 0, "records": plain(value)}
    body = {
        "transactional_id": None,
        "acks": -1,
        "timeout": timeout_ms,
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }

    async def ask(client: Client) -> Any:
        return await (await client.leader(topic, 0)).rpc.call(produce.API_KEY, 9, body)

    told = asking.ask(place.cluster.bootstrap, ask)
    answer = told.responses[0].partition_responses[0]
    return int(answer.error_code), int(answer.base_offset)


def values(place: CloudPlace, topic: str, count: int, partitions: int = 1) -> list[tuple[int, bytes]]:
    """What a read_committed consumer gets from the beginning: partition and value, so many and no more."""
    reader = Consumer(
        {**QUIET, "bootstrap.servers": place.cluster.bootstrap, "group.id": "v", "isolation.level": "read_committed"}
    )
    reader.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(partitions)])
    found: list[tuple[int, bytes]] = []

    def has_read() -> bool:
        found.extend((partition, value) for partition, _, value in records_of(reader))
        return len(found) >= count

    until(has_read, f"{count} records of {topic}")
    found.extend((partition, value) for partition, _, value in records_of(reader, 0.5))
    reader.close()
    return found
