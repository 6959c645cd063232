"""What `sexton compact` looks at before it changes a stopped broker's directory, and what it then leaves behind."""

from __future__ import annotations

import os
import random
import shutil
import stat
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from sexton.cli.demo import write_sample
from sexton.errors import EnvironmentFailure, LogInUseError, NotALogError
from sexton.log.stopped import locks
from sexton.log.stopped.locks import LOCK_FILE
from sexton.log.stopped.surroundings import SextonReplicaError
from sexton.records import checkpoints
from sexton.records.checkpoints import MetaProperties, PartitionMetadata
from sexton.settings.schema import BadSettingError
from sexton.spark.compact import Report
from sexton.spark.offline import OfflineCoordination, Options, check_free, compact_directories
from tests.kafka.directories import digests
from tests.log.stopped import test_kraft_metadata as metadata
from tests.log.stopped.test_kraft_metadata import ORDERS, Metadata
from tests.spark.local_context import LocalContext

COMPACTED = {"cleanup.policy": "compact"}


@dataclass(frozen=True)
class Broker:
    """A stopped Kafka broker's log directory, with one partition."""

    node_id: int
    log_dir: Path
    directory_id: uuid.UUID

    @property
    def partition(self) -> Path:
        return self.log_dir / "orders-0"

    def name_itself(self, cluster_id: str = "c") -> None:
        meta = MetaProperties(cluster_id, self.node_id, self.directory_id)
        (self.log_dir / checkpoints.META_PROPERTIES).write_bytes(checkpoints.encode_meta_properties(meta))

    def belong_to(self, topic_id: uuid.UUID) -> None:
        content = checkpoints.encode_partition_metadata(PartitionMetadata(topic_id))
        (self.partition / checkpoints.PARTITION_METADATA).write_bytes(content)

    def know(self, replicas: Sequence[int], *more: bytes, log_dirs: Sequence[uuid.UUID] = (), lag: int = 0) -> None:
        """Writes the broker's metadata log. One with a lag has not heard of the last records."""
        shutil.rmtree(self.log_dir / "__cluster_metadata-0", ignore_errors=True)
        values = [
            metadata.topic("orders", ORDERS),
            metadata.config("orders", "cleanup.policy", "compact"),
            metadata.registered(self.node_id, *(log_dirs or [self.directory_id])),
            metadata.partition(ORDERS, 0, *replicas),
            *more,
        ]
        Metadata(self.log_dir).segment(0, *values[: len(values) - lag])


def brokers(tmp_path: Path, *ids: int) -> list[Broker]:
    """Each has the same partition."""
    made = [Broker(node_id, tmp_path / f"node-{node_id}" / "data", uuid.UUID(int=100 + node_id)) for node_id in ids]
    for broker in made:
        write_sample(broker.log_dir)
        broker.belong_to(ORDERS)
        broker.name_itself()
        broker.know(ids)
    return made


def compacting(coordination: OfflineCoordination = OfflineCoordination.ALONE, **more: object) -> Options:
    return Options(time.time_ns() // 1_000_000, coordination, **{"settings": COMPACTED, **more})  # type: ignore[arg-type]


def run(options: Options, *paths: Path) -> list[Report]:
    return compact_directories(LocalContext(random.Random(1)).as_spark, paths, options)


def modes(log_dir: Path) -> dict[str, int]:
    files = [path for path in log_dir.rglob("*") if path.is_file()]
    return {str(path.relative_to(log_dir)): stat.S_IMODE(path.stat().st_mode) for path in files}


# ---- Whose the files are.


def test_everything_that_a_run_leaves_has_the_mode_of_the_brokers_files(tmp_path: Path) -> None:
    partition = write_sample(tmp_path / "data")
    for path in [*partition.iterdir(), *(path for path in partition.parent.iterdir() if path.is_file())]:
        path.chmod(0o640)
    (report,) = run(compacting(), partition)
    assert report.is_changed
    left = modes(partition.parent)
    assert {LOCK_FILE, "cleaner-offset-checkpoint", "orders-0/00000000000000000000.index"} <= set(left)
    assert set(left.values()) == {0o640}


def test_a_user_who_is_neither_the_brokers_nor_root_is_sent_away_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    partition = write_sample(tmp_path / "data")
    before = digests(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(EnvironmentFailure, match="Run as that user, or as root"):
        check_free([partition])
    with pytest.raises(EnvironmentFailure, match="who could not open what would be written"):
        run(compacting(), partition)
    assert digests(tmp_path) == before
    assert not (tmp_path / "data" / LOCK_FILE).exists()


# ---- Whether it is the partition.


def test_a_partition_that_is_being_moved_to_another_disk_is_left_alone(tmp_path: Path) -> None:
    """Kafka would give the cleaner's checkpoint to the copy, which has not been cleaned."""
    (broker,) = brokers(tmp_path, 1)
    other = Broker(1, broker.log_dir.parent / "data2", uuid.UUID(int=7))
    future = other.log_dir / f"orders-0.{uuid.uuid4().hex}-future"
    future.mkdir(parents=True)
    other.name_itself()
    broker.know([1], log_dirs=[broker.directory_id, other.directory_id])
    before = digests(broker.log_dir)
    for options in (compacting(), compacting(dry_run=True), compacting(OfflineCoordination.INDEPENDENT)):
        (report,) = run(options, broker.partition)
        assert isinstance(report.failure, LogInUseError)
        assert f"being moved to {future}" in str(report.failure)
    assert digests(broker.log_dir) == before
    future.rename(other.log_dir / f"orders-00.{uuid.uuid4().hex}-future")
    (report,) = run(compacting(), broker.partition)
    assert report.is_changed, "the other directory says by itself whose it is; another partition's move does not matter"


def test_a_broker_with_log_directories_that_nobody_named_is_asked_for_them(tmp_path: Path) -> None:
    (broker,) = brokers(tmp_path, 1)
    other = Broker(1, tmp_path / "elsewhere" / "data2", uuid.UUID(int=7))
    other.log_dir.mkdir(parents=True)
    other.name_itself()
    broker.know([1], log_dirs=[broker.directory_id, other.directory_id])
    (report,) = run(compacting(), broker.partition)
    assert isinstance(report.failure, BadSettingError)
    assert "has 1 more log directories" in str(report.failure)
    assert "--server-properties" in str(report.failure)
    properties = {"log.dirs": f"{broker.log_dir}, {other.log_dir}"}
    (report,) = run(compacting(server_properties=properties), broker.partition)
    assert report.is_changed
    future = other.log_dir / f"orders-0.{uuid.uuid4().hex}-future"
    future.mkdir()
    (report,) = run(compacting(server_properties=properties), broker.partition)
    assert "being moved" in str(report.failure)


def test_a_partition_named_by_a_link_is_not_compacted_past_the_lock_of_its_broker(tmp_path: Path) -> None:
    """Lock and checkpoints are beside the link. A log directory that is a link is as good as what it leads to."""
    (broker,) = brokers(tmp_path, 1)
    elsewhere = tmp_path / "disk2" / "orders-0"
    elsewhere.parent.mkdir()
    broker.partition.rename(elsewhere)
    broker.partition.symlink_to(elsewhere)
    before = digests(elsewhere)
    with locks.hold(broker.log_dir), pytest.raises(LogInUseError):
        run(compacting(trust_log_end=True), broker.partition)
    for path in (broker.partition, broker.log_dir):
        (report,) = run(compacting(trust_log_end=True), path)
        assert isinstance(report.failure, NotALogError)
        assert "symbolic link" in str(report.failure)
    assert digests(elsewhere) == before
    broker.partition.unlink()
    elsewhere.rename(broker.partition)
    (tmp_path / "link").symlink_to(broker.log_dir)
    with locks.hold(broker.log_dir), pytest.raises(LogInUseError):
        run(compacting(), tmp_path / "link" / "orders-0")
    (report,) = run(compacting(), tmp_path / "link" / "orders-0")
    assert report.is_changed
    assert (broker.log_dir / "cleaner-offset-checkpoint").exists()


@pytest.mark.parametrize("file", ["incarnation", "compaction-watermarks"])
def test_a_sexton_brokers_replica_is_left_to_its_cluster(tmp_path: Path, file: str) -> None:
    (broker,) = brokers(tmp_path, 1)
    (broker.partition / file).touch()
    before = digests(broker.log_dir)
    for coordination in OfflineCoordination:
        (report,) = run(compacting(coordination, replica_count=1), broker.partition)
        assert isinstance(report.failure, SextonReplicaError)
        assert "sexton compaction run" in str(report.failure)
    assert digests(broker.log_dir) == before


# ---- Who has it.


def failures(reports: Sequence[Report]) -> list[str]:
    return [str(report.failure) for report in reports if report.failure is not None]


def test_replicas_are_those_that_the_metadata_names_and_no_fewer(tmp_path: Path) -> None:
    one, two, three = brokers(tmp_path, 1, 2, 3)
    before = digests(tmp_path)
    replicas = compacting(OfflineCoordination.REPLICAS)
    said = failures(run(replicas, one.partition, two.partition))
    assert len(said) == 2
    assert "orders-0 has replicas on the brokers [1, 2, 3], and 2 directories of the brokers" in said[0]
    assert digests(tmp_path) == before
    reports = run(replicas, *(broker.log_dir for broker in (one, two, three)))
    assert failures(reports) == []
    assert {report.mtro for report in reports} == {report.bound for report in reports}


def test_the_newest_metadata_counts_when_one_broker_has_missed_a_reassignment(tmp_path: Path) -> None:
    one, two, three = brokers(tmp_path, 1, 2, 3)
    moved = metadata.moved(ORDERS, 0, 1, 3)
    one.know([1, 2], moved, lag=1)
    three.know([1, 2], moved)
    replicas = compacting(OfflineCoordination.REPLICAS)
    assert (
        "has replicas on the brokers [1, 3]"
        in failures(run(replicas, one.partition, two.partition, three.partition))[0]
    )
    assert failures(run(replicas, one.partition, three.partition)) == []


def test_as_many_directories_that_are_not_the_replicas_do_not_count_as_them(tmp_path: Path) -> None:
    one, two = brokers(tmp_path, 1, 2)
    replicas = compacting(OfflineCoordination.REPLICAS)
    copy = Broker(1, tmp_path / "copy" / "data", one.directory_id)
    shutil.copytree(one.log_dir, copy.log_dir)
    assert "2 directories of the brokers ['1', '1']" in failures(run(replicas, one.partition, copy.partition))[0]
    two.name_itself("another cluster")
    assert "different clusters" in failures(run(replicas, one.partition, two.partition))[0]
    two.name_itself()
    two.belong_to(uuid.UUID(int=5))
    assert "different topics of the same name" in failures(run(replicas, one.partition, two.partition))[0]


def test_where_no_metadata_tells_how_many_replicas_there_are_somebody_must_say_it(tmp_path: Path) -> None:
    one, two = brokers(tmp_path, 1, 2)
    for broker in (one, two):
        shutil.rmtree(broker.log_dir / "__cluster_metadata-0")
    paths = [one.partition, two.partition]
    assert "say it with --replica-count" in failures(run(compacting(OfflineCoordination.REPLICAS), *paths))[0]
    wrong = compacting(OfflineCoordination.REPLICAS, replica_count=3)
    assert "has 3 replicas, and 2 directories" in failures(run(wrong, *paths))[0]
    assert failures(run(compacting(OfflineCoordination.REPLICAS, replica_count=2), *paths)) == []


# ---- How it is set up.


def test_settings_come_from_the_topic_the_broker_the_cluster_and_the_brokers_file_in_that_order(
    tmp_path: Path,
) -> None:
    """By the lag that protects records: with it nothing may be compacted, without it everything may."""
    (broker,) = brokers(tmp_path, 1)
    lag = "log.cleaner.min.compaction.lag.ms"
    week, none = {lag: "604800000"}, {lag: "0"}

    def is_compacted(*values: bytes, server_properties: dict[str, str] | None = None) -> bool:
        broker.know([1], *values)
        options = compacting(dry_run=True, settings={}, server_properties=server_properties)
        (report,) = run(options, broker.partition)
        assert report.failure is None
        return report.is_changed

    def told(value: str, broker_id: str) -> bytes:
        return metadata.config(broker_id, lag, value, resource=4)

    assert is_compacted()
    assert not is_compacted(server_properties=week)
    assert not is_compacted(told("604800000", ""), server_properties=none)
    assert not is_compacted(told("0", ""), told("604800000", "1"))
    assert is_compacted(told("604800000", "2"))
    assert is_compacted(
        told("604800000", "1"), metadata.config("orders", "min.compaction.lag.ms", "0"), server_properties=week
    )


def test_what_is_not_known_of_the_settings_is_said(tmp_path: Path) -> None:
    (broker,) = brokers(tmp_path, 1)
    (report,) = run(compacting(settings={}), broker.partition)
    assert report.is_changed
    assert report.assumptions == (
        "what server.properties sets is not known: Kafka's defaults (see --server-properties)",
    )
    (report,) = run(compacting(settings={}, server_properties={}), broker.partition)
    assert report.assumptions == ()


def test_the_log_of_an_earlier_topic_of_the_same_name_does_not_get_the_later_ones_settings(tmp_path: Path) -> None:
    (broker,) = brokers(tmp_path, 1)
    broker.belong_to(uuid.UUID(int=5))
    (report,) = run(compacting(settings={}), broker.partition)
    assert isinstance(report.failure, BadSettingError)
    assert "cleanup.policy of topic orders is unknown" in str(report.failure)
