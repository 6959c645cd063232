"""The same against real brokers: their lock, their metadata, and their recovery of what we left half done."""

from __future__ import annotations

import random
import shutil
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from sexton.compaction.contract import NewSegment
from sexton.errors import LogInUseError
from sexton.harness.errors import HarnessError
from sexton.harness.kafka import KafkaCluster
from sexton.harness.kafka_node import KafkaNode
from sexton.harness.kafka_tools import run_tool
from sexton.log.stopped import locks, swap
from sexton.log.stopped.kraft_metadata import read_metadata
from sexton.log.stopped.surroundings import Surroundings
from sexton.records import batch, checkpoints, indexes
from sexton.records.names import parse_segment_file, segment_file_name
from sexton.settings.schema import BadSettingError
from tests.log.stopped.disks import Crash, StoppingFiles

pytestmark = pytest.mark.kafka

WAIT_S = 30
RECORD_COUNT = 60


def set_config(kafka: KafkaCluster, entity: tuple[str, ...], setting: str) -> None:
    options = ("--bootstrap-server", kafka.bootstrap, "--alter", "--add-config", setting)
    run_tool("kafka.admin.ConfigCommand", *options, *entity)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def test_a_real_brokers_metadata_tells_what_was_set_altered_and_deleted() -> None:
    with KafkaCluster() as kafka:
        kafka.create_topic("orders", config={"cleanup.policy": "compact", "segment.ms": "60000"})
        kafka.create_topic("plain")
        kafka.create_topic("gone", config={"cleanup.policy": "compact"})
        set_config(kafka, ("--topic", "orders"), "cleanup.policy=[compact,delete]")
        set_config(kafka, ("--broker-defaults",), "log.cleaner.threads=2")
        set_config(kafka, ("--broker", "1"), "log.cleaner.backoff.ms=14000")
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        for result in admin.delete_topics(["gone"]).values():
            result.result(WAIT_S)
        until(lambda: "gone" not in admin.list_topics(timeout=WAIT_S).topics)
        with pytest.raises(LogInUseError, match=f"pid {kafka.pid(1)} "), locks.hold(kafka.log_dir(1)):
            pass
        kafka.stop_node(1)
        found = read_metadata(kafka.log_dir(1))
        assert found is not None
        assert found.topics == {
            "orders": {"cleanup.policy": "compact,delete", "segment.ms": "60000"},
            "plain": {},
        }
        # A new 4.3 cluster has min.insync.replicas there from the start.
        assert found.cluster_defaults.items() >= {"log.cleaner.threads": "2"}.items()
        assert found.brokers == {"1": {"log.cleaner.backoff.ms": "14000"}}
        assert found.replicas == {("orders", 0): frozenset({1}), ("plain", 0): frozenset({1})}
        mine = checkpoints.read_meta_properties(kafka.log_dir(1) / checkpoints.META_PROPERTIES)
        assert mine is not None
        assert found.log_dirs is not None
        assert found.log_dirs[1] == {mine.directory_id}
        topic_id = checkpoints.read_partition_metadata(kafka.partition_dir(1, "orders", 0) / "partition.metadata")
        assert topic_id is not None
        assert found.topic_ids["orders"] == topic_id.topic_id


class TwoDisks(KafkaCluster):
    """Each node has a second log directory, where nobody would look for it by itself."""

    def disks(self, node: KafkaNode) -> list[Path]:
        return [node.data_dir, node.directory / "elsewhere" / "data2"]

    def _settings_of(self, node: KafkaNode) -> dict[str, str | int | float | bool]:
        return {**super()._settings_of(node), "log.dirs": ",".join(map(str, self.disks(node)))}


def test_a_move_between_a_real_brokers_disks_is_seen_and_so_is_a_disk_that_was_not_named() -> None:
    """What we take for a half-done move, the broker does, too: it finishes it when it starts."""
    with TwoDisks() as kafka:
        kafka.create_topic("orders", config={"cleanup.policy": "compact"})
        kafka.stop_node(1)
        disks = kafka.disks(kafka.node(1))
        (partition,) = (disk / "orders-0" for disk in disks if (disk / "orders-0").exists())
        (other,) = (disk for disk in disks if disk != partition.parent)
        metadata_dir = kafka.base_dir / "copy"
        shutil.copytree(disks[0] / "__cluster_metadata-0", metadata_dir / "__cluster_metadata-0")
        with pytest.raises(BadSettingError, match="broker 1 has 1 more log directories"):
            Surroundings(frozenset({partition.parent}), metadata_dir).check_may_change(partition)
        properties = {"log.dirs": ",".join(map(str, disks))}
        around = Surroundings(frozenset({partition.parent}), server_properties=properties)
        around.check_may_change(partition)
        future = other / f"orders-0.{uuid.uuid4().hex}-future"
        shutil.copytree(partition, future)
        with pytest.raises(LogInUseError, match="being moved"):
            around.check_may_change(partition)
        kafka.start_node(1)
        until(lambda: (other / "orders-0").exists() and not partition.exists())


def test_a_real_broker_does_not_start_while_we_hold_its_directory() -> None:
    with KafkaCluster() as kafka:
        kafka.stop_node(1)
        with locks.hold(kafka.log_dir(1)), pytest.raises(HarnessError):
            kafka.start_node(1)
        assert "Failed to acquire lock on file .lock" in kafka.server_log(1)
        kafka.start_node(1)


def test_a_real_broker_finishes_or_undoes_a_replacement_that_crashed_anywhere() -> None:
    """One topic per crash point, each left half done while the broker was down, and one start for them all."""
    stops = range(40)
    with KafkaCluster(settings={"log.segment.bytes": 1024 * 1024, "log.cleaner.enable": False}) as kafka:
        for stop in stops:
            kafka.create_topic(f"stop-{stop}", config={"cleanup.policy": "compact", "segment.bytes": "1048576"})
        produce(kafka, [f"stop-{stop}" for stop in stops])
        kafka.stop_node(1)
        crashed = {}
        for stop in stops:
            partition = kafka.partition_dir(1, f"stop-{stop}", 0)
            swap.recover(partition)
            old, new, staged = stage(partition)
            with suppress(Crash):
                swap.commit(partition, staged, StoppingFiles(stop))
            crashed[stop] = (old, new)
        kafka.start_node(1)
        outcomes = []
        for stop, (old, new) in crashed.items():
            read = consume(kafka, f"stop-{stop}")
            assert read in (old, new), f"a mix after {stop} operations"
            outcomes.append(read == new)
        assert outcomes == sorted(outcomes)
        assert set(outcomes) == {False, True}
        assert kafka.recoveries(1) == []
        complaints = [text for text in kafka.warnings(1) if "stop-" in text]
        assert complaints == []


def produce(kafka: KafkaCluster, topics: list[str]) -> None:
    """Incompressible values of 100 kB, so that a topic gets several segments; keys repeat."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "batch.num.messages": 1, "linger.ms": 0})
    rng = random.Random(1)
    for topic in topics:
        for number in range(RECORD_COUNT):
            producer.produce(topic, key=f"key {number % 7}", value=rng.randbytes(100_000), partition=0)
        producer.flush(WAIT_S)


def consume(kafka: KafkaCluster, topic: str) -> list[int]:
    """The offsets that are there."""
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "g", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    offsets: list[int] = []
    deadline_s = time.monotonic() + WAIT_S
    while not offsets or offsets[-1] < RECORD_COUNT - 1:
        message = consumer.poll(1.0)
        assert time.monotonic() < deadline_s
        if message is not None:
            offset = message.offset()
            assert offset is not None, message.error()
            offsets.append(offset)
    consumer.close()
    return offsets


def bases_of(partition: Path) -> list[int]:
    parsed = (parse_segment_file(path.name) for path in partition.glob("*.log"))
    return sorted(file.base_offset for file in parsed if file is not None)


def stage(partition: Path) -> tuple[list[int], list[int], list[NewSegment]]:
    """The first four segments as two, the even offsets of them only (and the last batch, which says where it ends).
    Returns the offsets before and after."""
    bases = bases_of(partition)
    assert len(bases) >= 5
    old, new, staged = [], [], []
    for group in (bases[:2], bases[2:4]):
        batches = [
            one
            for base in group
            for one in batch.decode_all((partition / segment_file_name(base, ".log")).read_bytes())
        ]
        kept = [one for one in batches if one.base_offset % 2 == 0 or one is batches[-1]]
        old += [one.base_offset for one in batches]
        new += [one.base_offset for one in kept]
        write_staged(partition, group[0], kept)
        staged.append(NewSegment(group[0], kept[-1].next_offset, tuple(group)))
    rest = list(range(bases[4], RECORD_COUNT))
    return old + rest, new + rest, staged


def write_staged(partition: Path, base_offset: int, kept: list[batch.Batch]) -> None:
    log, positions = b"", []
    for one in kept:
        positions.append(len(log))
        log += batch.encode(one)
    ends = [one.last_offset for one in kept]
    times = indexes.make_time_entries(base_offset, [kept[-1].max_timestamp_ms], [kept[-1].last_offset])
    contents = {
        ".log": log,
        ".index": indexes.encode(indexes.make_offset_entries(base_offset, ends[1:], positions[1:])),
        ".timeindex": indexes.encode(times),
    }
    for kind, content in contents.items():
        (partition / segment_file_name(base_offset, kind, ".cleaned")).write_bytes(content)
