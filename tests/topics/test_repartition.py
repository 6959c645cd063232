"""`sexton topic repartition` on Apache Kafka and on Sexton: what arrives, what a crash leaves, what comes meanwhile."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import SparkSession

from sexton.audit.live.connecting import Connecting
from sexton.cli.connect import parse_bootstrap
from sexton.client.packed import PackedBatch
from sexton.client.partitioner import partition_of
from sexton.harness.brokers import SextonCluster
from sexton.harness.cloud_store import CloudStore
from sexton.harness.kafka import KafkaCluster
from sexton.harness.store_proxy import StoreFaults
from sexton.topics import copying
from sexton.topics.finding import Reading, TopicClient
from sexton.topics.marks import TargetInUseError
from sexton.topics.preparing import Request, prepare
from sexton.topics.repartition import Repartition
from tests.spark.local_context import LocalContext
from tests.topics.conftest import ON_KAFKA, ON_SEXTON, run
from tests.topics.test_live import QUIET, make_topic

KEYS = 200
Record = tuple[bytes | None, bytes | None, int, tuple[Any, ...]]
"""Key, value, timestamp, headers."""


def write(bootstrap: str, topic: str, times: int = 3, first: int = 0) -> None:
    """Each key several times, with times and headers; some are deleted, one is in an aborted transaction."""
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "compression.type": "lz4"})
    for turn in range(times):
        for number in range(KEYS):
            value = None if number % 10 == turn else f"{first + turn}".encode() * 10
            headers: Any = [("turn", str(turn).encode())] if number % 3 == 0 else None
            when = 1_700_000_000_000 + 1000 * (first + turn) + number
            producer.produce(topic, key=f"key {number}", value=value, headers=headers, timestamp=when)
    assert producer.flush(60) == 0


def write_transactions(bootstrap: str, topic: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "partitioner": "murmur2_random", "transactional.id": f"t-{topic}"}
    )
    producer.init_transactions(60)
    for value, end in (("aborted", producer.abort_transaction), ("committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, key="key 1", value=value, timestamp=1_700_000_100_000)
        producer.flush()
        end()


def read(bootstrap: str, topic: str) -> dict[int, list[Record]]:
    """As a consumer with read_committed sees each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: dict[int, list[Record]] = {}
    for number in AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, timeout=30).topics[topic].partitions:
        into = found[number] = []
        consumer.assign([TopicPartition(topic, number, 0)])
        while True:
            message = consumer.poll(30)
            assert message is not None
            if message.error():
                break
            headers = tuple(message.headers() or ())
            into.append((message.key(), message.value(), message.timestamp()[1], headers))
    consumer.close()
    return found


def latest(records: dict[int, list[Record]]) -> dict[bytes | None, Record]:
    return {record[0]: record for some in records.values() for record in some}


def check_copy(bootstrap: str, source: str, target: str, partitions: int) -> dict[int, list[Record]]:
    """Each key has its newest record, tombstone or not, in the partition in which Kafka's clients look for it."""
    found = read(bootstrap, target)
    assert sorted(found) == list(range(partitions))
    assert latest(found) == latest(read(bootstrap, source))
    for number, some in found.items():
        assert {partition_of(record[0] or b"", partitions) for record in some} <= {number}
    return found


@pytest.mark.spark
@pytest.mark.kafka
def test_a_compacted_topic_is_copied_and_the_copy_verified(spark: SparkSession, kafka: KafkaCluster) -> None:
    bootstrap = kafka.bootstrap
    make_topic(bootstrap, "orders", 3, {**QUIET, "retention.ms": "123456789"})
    write(bootstrap, "orders")
    write_transactions(bootstrap, "orders")
    where = ("--bootstrap", bootstrap, "--rate", 0, "--json")
    done = run("topic", "repartition", "orders", "orders-5", "--partitions", 5, *where)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["verified"]["is_same"]
    assert (told["copied_records"], told["verified"]["same_keys"]) == (KEYS, KEYS - KEYS // 10)
    found = check_copy(bootstrap, "orders", "orders-5", 5)
    assert sum(map(len, found.values())) == KEYS
    described = json.loads(run("topic", "describe", "orders-5", "--bootstrap", bootstrap, "--json").stdout)
    assert described["settings"]["retention.ms"] == "123456789"
    assert described["settings"]["cleanup.policy"] == "compact"

    write(bootstrap, "orders", 1, first=500)
    done = run("topic", "repartition", "orders", "orders-5", "--bootstrap", bootstrap)
    assert done.exit_code == 0, done.output
    assert f"Copied {KEYS} records" in done.stdout
    assert "an earlier copy is continued" in done.stdout
    check_copy(bootstrap, "orders", "orders-5", 5)


# ---- Without Spark's JVM: the same tasks in this process


class CrashError(Exception):
    """A crash."""


@pytest.fixture
def client(bootstrap: str) -> Iterator[TopicClient]:
    with TopicClient(Connecting(tuple(parse_bootstrap(bootstrap)))) as client:
        yield client


def copy_of(client: TopicClient, source: str, target: str, **request: Any) -> Repartition:
    context = LocalContext(random.Random(1)).as_spark
    wanted = Request(source=source, target=target, **{"partitions": 4, **request})
    return Repartition(context, client, Reading(client.connecting), prepare(client, wanted))


def crashing_after(batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [batches]
    add = copying._Writer.add

    async def add_or_crash(self: Any, batch: PackedBatch) -> None:
        left[0] -= 1
        if left[0] < 0:
            await self.producer.flush()
            raise CrashError
        await add(self, batch)

    monkeypatch.setattr(copying._Writer, "add", add_or_crash)


def test_after_a_crash_the_same_command_makes_the_copy_whole(
    bootstrap: str, client: TopicClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(bootstrap, "crashed", 2, QUIET)
    write(bootstrap, "crashed")
    with monkeypatch.context() as patched:
        crashing_after(2, patched)
        with pytest.raises(Exception, match="CrashError"):
            copy_of(client, "crashed", "crashed-4").copy()
    left = sum(map(len, read(bootstrap, "crashed-4").values()))
    assert 0 < left < KEYS
    write(bootstrap, "crashed", 1, first=500)
    again = copy_of(client, "crashed", "crashed-4")
    assert any("broken off" in note for note in again.copied.notes)
    again.copy()
    assert again.verify().is_same
    check_copy(bootstrap, "crashed", "crashed-4", 4)


@ON_SEXTON
def test_what_is_written_between_the_rounds_is_copied_by_the_next(
    bootstrap: str, client: TopicClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(bootstrap, "busy", 2, QUIET)
    write(bootstrap, "busy")
    one_round = Repartition.round
    left = [2]

    def then_write(self: Repartition) -> int | None:
        count = one_round(self)
        if left:
            write(bootstrap, "busy", 1, first=100 * left.pop())
        return count

    monkeypatch.setattr(Repartition, "round", then_write)
    work = copy_of(client, "busy", "busy-4")
    work.copy()
    assert work.copied.round_count == 2
    assert work.verify().is_same
    check_copy(bootstrap, "busy", "busy-4", 4)


@ON_KAFKA
def test_all_records_are_copied_in_order_and_no_run_doubles_them(
    bootstrap: str, client: TopicClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(bootstrap, "events", 1, {"cleanup.policy": "delete", "message.timestamp.type": "LogAppendTime"})
    write(bootstrap, "events")
    work = copy_of(client, "events", "events-4")
    work.copy()
    work.finish()
    before, after = read(bootstrap, "events")[0], read(bootstrap, "events-4")
    for number, some in after.items():
        assert some == [record for record in before if partition_of(record[0] or b"", 4) == number]
    settings = client.topic("events-4").own_settings
    assert settings["message.timestamp.type"] == "LogAppendTime"
    copy_of(client, "events", "events-4").copy()
    assert read(bootstrap, "events-4") == after

    write(bootstrap, "events", 1)
    with monkeypatch.context() as patched:
        crashing_after(1, patched)
        with pytest.raises(Exception, match="CrashError"):
            copy_of(client, "events", "events-4").copy()
    with pytest.raises(TargetInUseError, match="would double records"):
        copy_of(client, "events", "events-4")


@ON_SEXTON
@pytest.mark.parametrize("what", ["records", "another number of partitions"])
def test_a_target_that_is_in_use_is_refused(bootstrap: str, client: TopicClient, what: str, request: Any) -> None:
    source, target = f"mine-{len(what)}", f"theirs-{len(what)}"
    make_topic(bootstrap, source, 2, QUIET)
    make_topic(bootstrap, target, 4 if what == "records" else 3, QUIET)
    if what == "records":
        write(bootstrap, target, 1)
    with pytest.raises(TargetInUseError):
        copy_of(client, source, target)


@ON_KAFKA
def test_somebody_who_writes_to_the_target_meanwhile_is_noticed(
    bootstrap: str, client: TopicClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_topic(bootstrap, "shared", 2, QUIET)
    write(bootstrap, "shared", 1)
    finish: Callable[..., Any] = copying._Writer.finish
    has_written: list[bool] = []

    async def meanwhile(self: Any) -> Any:
        if not has_written:
            has_written.append(True)
            write(bootstrap, "shared-4", 1, first=900)
        return await finish(self)

    monkeypatch.setattr(copying._Writer, "finish", meanwhile)
    with pytest.raises(copying.SomebodyElseWritesError):
        copy_of(client, "shared", "shared-4").copy()


@ON_SEXTON
def test_a_key_that_the_target_alone_has_is_found_and_deleted_on_demand(bootstrap: str, client: TopicClient) -> None:
    """As if its tombstone had been compacted away before the next round came."""
    make_topic(bootstrap, "short", 2, QUIET)
    write(bootstrap, "short", 1)
    work = copy_of(client, "short", "short-4")
    work.copy()
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce("short-4", key="zombie", value="v", partition=3)
    assert producer.flush(60) == 0
    found = work.verify()
    assert (found.differing_count, found.extra_count) == (1, 1)
    assert work.delete_extra() == 1
    assert work.verify().is_same
    assert (b"zombie", None) in [record[:2] for record in read(bootstrap, "short-4")[3]]
    assert work.delete_extra() == 0


@ON_KAFKA
def test_what_somebody_has_written_to_the_copy_since_is_not_covered(bootstrap: str, client: TopicClient) -> None:
    make_topic(bootstrap, "moved", 2, QUIET)
    write(bootstrap, "moved", 1)
    copy_of(client, "moved", "moved-4").copy()
    write(bootstrap, "moved-4", 1, first=900)
    write(bootstrap, "moved", 1, first=100)
    with pytest.raises(TargetInUseError, match="somebody has written"):
        copy_of(client, "moved", "moved-4")


@pytest.mark.cluster
def test_a_cloud_topic_is_copied_by_a_leader_that_has_to_load_it(
    sexton_cluster: SextonCluster, store: CloudStore
) -> None:
    """It answers with nothing until it has; from this store that takes two seconds."""
    make_topic(sexton_cluster.bootstrap, "cloudy", 1, {**QUIET, "storage.mode": "cloud"})
    write(sexton_cluster.bootstrap, "cloudy")
    before = latest(read(sexton_cluster.bootstrap, "cloudy"))
    leader = AdminClient({"bootstrap.servers": sexton_cluster.bootstrap}).list_topics("cloudy", timeout=30)
    node = leader.topics["cloudy"].partitions[0].leader
    sexton_cluster.kill_node(node)
    store.proxy.faults = StoreFaults(median_ms=2_000, p99_ms=2_001, methods=frozenset({"GET"}))
    try:
        with TopicClient(Connecting(tuple(parse_bootstrap(sexton_cluster.bootstrap)))) as client:
            work = copy_of(client, "cloudy", "cloudy-4", settings={"storage.mode": "local"})
            work.copy()
            assert work.verify().same_count == KEYS - KEYS // 10
        assert latest(read(sexton_cluster.bootstrap, "cloudy-4")) == before
    finally:
        store.heal()
        sexton_cluster.start_node(node)
