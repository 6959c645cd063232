"""Disks that are full, read-only or damaged: a clear error, a line that says what to do, and a broker that stays up."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from sexton.harness.brokers import SextonCluster
from sexton.harness.disks import SmallDisk
from sexton.log.flushed import decode_points
from sexton.protocol.errors import ErrorCode
from sexton.replication.log_folder import FLUSHED_POINTS_FILE
from tests.robustness.conftest import Watched, wait_until
from tests.robustness.disks import small_disk
from tests.robustness.wire import CREATE_TOPICS, Wire, batch, refused

pytestmark = pytest.mark.cluster

DISK_MB = 24
MEGABYTE = 1 << 20

_topics = itertools.count(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disks") / "cluster"


@pytest.fixture(scope="module")
def disk_of_all(folder: Path) -> Iterator[SmallDisk]:
    """Under the data of the first broker."""
    with small_disk(folder / "disk.img", folder / "node-1" / "data", DISK_MB) as mounted:
        yield mounted


@pytest.fixture
def disk(disk_of_all: SmallDisk) -> Iterator[SmallDisk]:
    yield disk_of_all
    if disk_of_all.is_full:
        disk_of_all.make_room()


@pytest.fixture(scope="module")
def cluster(disk_of_all: SmallDisk, folder: Path) -> Iterator[SextonCluster]:
    """Three brokers, of which the first has the small disk. Each test leaves it as it found it."""
    with SextonCluster(3, folder) as started:
        yield started


def on_the_small_disk(cluster: SextonCluster, **config: str | int) -> tuple[Watched, str]:
    """The broker, and a new topic of which it has the only replica."""
    name = f"topic-{next(_topics)}"
    settings = {key.replace("_", "."): str(value) for key, value in config.items()}
    broker = Watched(cluster)
    with broker.wire() as wire:
        create(wire, name, [[1]], settings)
    broker.new_log()
    return broker, name


def create(wire: Wire, name: str, replicas: list[list[int]], settings: dict[str, str] | None = None) -> None:
    topic = {
        "name": name,
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": i, "broker_ids": ids} for i, ids in enumerate(replicas)],
        "configs": [{"name": key, "value": value} for key, value in (settings or {}).items()],
    }
    (told,) = wire.call(CREATE_TOPICS, 5, {"topics": [topic], "timeout": 10_000, "validate_only": False}).topics
    assert told.error_code == ErrorCode.none, told


def produce_to_all(cluster: SextonCluster, topic: str, partitions_count: int) -> None:
    """With acks=all, and as patiently as clients are."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    failed: list[str] = []
    for partition in range(partitions_count):
        producer.produce(topic, b"value", b"key", partition, on_delivery=lambda error, _: failed.append(str(error)))
    assert producer.flush(40) == 0
    assert failed == ["None"] * partitions_count


def test_a_full_disk_refuses_what_does_not_fit_and_goes_on_when_there_is_room(
    cluster: SextonCluster, disk: SmallDisk
) -> None:
    broker, topic = on_the_small_disk(cluster, segment_bytes=2 * MEGABYTE)
    before_bytes = broker.rss_bytes()
    with broker.wire() as wire:
        assert wire.produce(topic, batch(b"before")).base_offset == 0
        disk.fill()
        answers = [wire.produce(topic, batch(bytes(900_000))) for _ in range(6)]
        assert refused(answers[-1], ErrorCode.kafka_storage_error)
        written = [one for one in answers if one.error_code == ErrorCode.none]
        assert [one.base_offset for one in written] == list(range(1, len(written) + 1))
        assert "No space left on device. Make room on the disk" in broker.new_log()
        assert wire.fetch(topic, 0).error_code == ErrorCode.none
        _, new = on_the_small_disk(cluster)  # the cluster knows it, the disk has no place for it
        assert refused(wire.produce(new, batch(b"x")), ErrorCode.kafka_storage_error)
        assert broker.serves()
        disk.make_room()
        assert wire.produce(topic, batch(b"after")).base_offset == len(written) + 1
        wait_until(lambda: bool(wire.produce(new, batch(b"x")).error_code == ErrorCode.none))
        assert wire.end_offset(topic) == len(written) + 2
    assert broker.rss_bytes() - before_bytes < 60 * MEGABYTE
    assert broker.serves()


def test_a_broker_can_be_stopped_and_started_while_its_disk_is_full(cluster: SextonCluster, disk: SmallDisk) -> None:
    broker, topic = on_the_small_disk(cluster)
    with broker.wire() as wire:
        assert wire.produce(topic, batch(b"one")).base_offset == 0
        disk.fill()
        wire.produce(topic, batch(bytes(900_000)))
    cluster.stop_node(1)
    cluster.start_node(1)
    assert broker.serves()
    with broker.wire() as wire:
        # A leader's new epoch has to be written down before it may lead
        assert refused(wire.produce(topic, batch(b"two")), ErrorCode.not_leader_or_follower)
        disk.make_room()
        wait_until(lambda: bool(wire.produce(topic, batch(b"two")).base_offset >= 1))
        assert wire.fetch(topic, 0).error_code == ErrorCode.none
    assert broker.serves()


def test_a_disk_that_turns_read_only_refuses_writes_and_is_still_read(cluster: SextonCluster, disk: SmallDisk) -> None:
    broker, topic = on_the_small_disk(cluster)
    with broker.wire() as wire:
        assert wire.produce(topic, batch(b"one")).base_offset == 0
        disk.turn_read_only()
        for _ in range(2):
            assert refused(wire.produce(topic, batch(b"two")), ErrorCode.kafka_storage_error)
        assert "Read-only file system" in broker.cluster.server_log(1)
        assert "Repair the disk and start the broker again" in broker.new_log()
        assert wire.fetch(topic, 0).error_code == ErrorCode.none
        _, new = on_the_small_disk(cluster)
        assert refused(wire.produce(new, batch(b"x")), ErrorCode.kafka_storage_error)
        assert broker.serves()
    cluster.stop_node(1)
    cluster.start_node(1, wait=False)  # it is not repaired yet: the broker says so and ends
    wait_until(lambda: not cluster.is_running(1))
    assert (
        "what to do: Run as the user the broker runs as, on a file system that is mounted writable" in broker.new_log()
    )
    disk.repair()
    cluster.start_node(1)
    with broker.wire() as wire:
        assert wire.end_offset(topic) == 1
        assert wire.produce(topic, batch(b"two")).base_offset == 1
        wait_until(lambda: bool(wire.produce(new, batch(b"x")).error_code == ErrorCode.none))
    assert broker.serves()


def test_with_replicas_elsewhere_a_failed_disk_costs_nothing(cluster: SextonCluster, disk: SmallDisk) -> None:
    """Its broker leaves leaderships and in-sync sets to the others, and is back when the disk is repaired."""
    broker, other = Watched(cluster, 1), Watched(cluster, 2)
    broker.new_log()
    with other.wire() as wire:
        create(wire, "copied", [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 3, 2]], {"min.insync.replicas": "2"})
        partitions = range(4)
        produce_to_all(cluster, "copied", 4)
        assert [wire.leader_and_isr("copied", number)[0] for number in partitions] == [1, 2, 3, 1]
        disk.turn_read_only()
        produce_to_all(cluster, "copied", 4)
        wait_until(lambda: all(wire.leader_and_isr("copied", number)[1] == [2, 3] for number in partitions))
        assert [wire.leader_and_isr("copied", number)[0] for number in partitions] == [2, 2, 3, 3]
        produce_to_all(cluster, "copied", 4)
        assert "Repair the disk" in broker.new_log()
        assert broker.serves()
        cluster.stop_node(1)
        disk.repair()
        cluster.start_node(1)
        wait_until(lambda: all(wire.leader_and_isr("copied", number)[1] == [1, 2, 3] for number in partitions))


def damage(cluster: SextonCluster, topic: str) -> Path:
    """In the middle of what was flushed, so that it cannot be taken for a torn write."""
    (segment,) = cluster.partition_dir(1, topic, 0).glob("*.log")
    content = bytearray(segment.read_bytes())
    content[len(content) // 2] ^= 0xFF
    segment.write_bytes(content)
    return segment


def written_down(cluster: SextonCluster, topic: str) -> int:
    """Up to where broker 1 says that the log was flushed (docs/decisions, 15)."""
    path = cluster.partition_dir(1, topic, 0).parent / FLUSHED_POINTS_FILE
    points = decode_points(path.read_bytes()) if path.exists() else {}
    return points[topic, 0].offset if (topic, 0) in points else 0


def test_a_damaged_segment_costs_one_partition_of_one_broker(cluster: SextonCluster) -> None:
    broker, other = Watched(cluster, 1), Watched(cluster, 2)
    with other.wire() as wire:
        create(wire, "damaged-copied", [[1, 2, 3]], {"min.insync.replicas": "2"})
        create(wire, "damaged-alone", [[1]])
        create(wire, "whole", [[1]])
    topics = ("damaged-copied", "damaged-alone", "whole")
    for topic in topics:
        for _ in range(5):
            produce_to_all(cluster, topic, 1)
    wait_until(lambda: all(written_down(cluster, topic) == 5 for topic in topics))
    broker.new_log()
    cluster.kill_node(1)
    damaged = [damage(cluster, topic) for topic in topics[:2]]
    cluster.start_node(1)
    told = broker.new_log()
    assert all(f"{segment} at byte" in told for segment in damaged)
    assert "Restore this partition from another replica" in told
    with other.wire() as wire:
        wait_until(lambda: wire.leader_and_isr("damaged-copied")[1] == [2, 3])
        assert wire.leader_and_isr("damaged-copied")[0] in (2, 3)
        wait_until(lambda: wire.leader_and_isr("damaged-alone")[0] == -1)
    produce_to_all(cluster, "damaged-copied", 1)
    produce_to_all(cluster, "whole", 1)
    with broker.wire() as wire:
        assert refused(wire.produce("damaged-alone", batch(b"x")), ErrorCode.not_leader_or_follower)
    assert broker.serves()
    # As the line says: with the directory out of the way, the partition is copied again.
    cluster.stop_node(1)
    incarnation = (damaged[0].parent / "incarnation").read_text()
    shutil.move(damaged[0].parent, cluster.base_dir / "set-aside")
    cluster.start_node(1)
    with other.wire() as wire:
        wait_until(lambda: wire.leader_and_isr("damaged-copied")[1] == [1, 2, 3])
        wait_until(lambda: wire.leader_and_isr("damaged-alone")[0] == -1)  # still damaged, and nobody else has it
    assert (damaged[0].parent / "incarnation").read_text() != incarnation
    assert broker.serves()
