"""Topics that are deleted and made again under their names, before an audit and in the middle of one."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from sexton.audit import travelling
from sexton.audit.folders import FolderSource
from sexton.audit.judge import Verdict
from sexton.audit.replica import Replica, ReplicaId
from sexton.audit.run import audit
from sexton.errors import NotALogError
from sexton.records import checkpoints
from sexton.records.checkpoints import PartitionMetadata
from tests.audit.replicas import On, brokers
from tests.audit.test_folds import folded
from tests.audit.working import Log, WorkingCluster
from tests.logs import data
from tests.spark.local_context import LocalContext

REASON = "it is of a former topic of this name"
OLD = On([data((b"k1", b"old"), (b"gone", b"old"), at=0)])
NEW = On([data((b"k1", b"new"), at=0), data((b"k2", b"new"), at=1)])


def name_topic(partition: Path, topic_id: uuid.UUID) -> None:
    (partition / checkpoints.PARTITION_METADATA).write_bytes(
        checkpoints.encode_partition_metadata(PartitionMetadata(topic_id))
    )


def test_the_directory_of_a_broker_that_missed_it_is_not_held_against_those_that_run(tmp_path: Path) -> None:
    """When it comes back, the broker deletes it."""
    cluster = WorkingCluster(random.Random(1), has_planted=False)
    (directory,) = brokers(tmp_path, OLD)[1]
    partition = (directory / "orders-0").rename(directory / "t-0")
    name_topic(partition, uuid.uuid4())
    report = audit(LocalContext(random.Random(1)).as_spark, [cluster, FolderSource({4: [directory]})])
    (found,) = report.partitions
    assert found.verdict is Verdict.PARTIAL
    assert [each.reason for each in found.skipped] == [REASON]


def test_folds_of_a_former_topic_are_not_compared(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, NEW, NEW, OLD)
    former, present = uuid.uuid4(), uuid.uuid4()
    for broker, (directory,) in dirs.items():
        name_topic(directory / "orders-0", former if broker == 3 else present)
    (report,) = travelling.compare(folded(tmp_path, dirs), limit=10).partitions
    assert report.verdict is Verdict.PARTIAL
    assert [each.reason for each in report.skipped] == [REASON]


def test_a_replica_whose_fold_comes_twice_has_no_second_vote(tmp_path: Path) -> None:
    paths = folded(tmp_path, brokers(tmp_path, NEW, OLD))
    with pytest.raises(NotALogError, match="so has"):
        travelling.compare([*paths, paths[0]], limit=10)


class Remade(WorkingCluster):
    """Between two reads the topic is deleted and made again, and the same keys are written, with other values."""

    def __init__(self, rng: random.Random) -> None:
        self.reads_left = rng.randint(2, 10)
        super().__init__(rng, has_planted=False)
        self.make(b"first")

    def make(self, value: bytes) -> None:
        self._logs = {number: Log() for number in self._logs}
        self.topic_id, self.is_at_rest = uuid.uuid4(), True
        for number in range(100):
            self._write(b"k%d" % (number % 12), value)
        self.work()

    def read(self, broker: int, start: int, stop: int) -> tuple[bytes, int]:
        self.reads_left -= 1
        if self.reads_left == 0:
            self.make(b"again")
        return super().read(broker, start, stop)


@pytest.mark.parametrize("seed", range(10))
def test_a_topic_that_is_made_again_while_it_is_read_is_read_again(seed: int) -> None:
    cluster = Remade(random.Random(seed))
    (report,) = audit(LocalContext(random.Random(seed), keeps_shuffles=True).as_spark, [cluster]).partitions
    assert cluster.reads_left < 0
    assert (report.verdict, report.cases, report.counts.changed_count) == (Verdict.AGREE, (), 0)


class Led(WorkingCluster):
    """The leader changes once while it is read, and all replicas are read on afterwards."""

    finds = 0
    leader_epoch = 0

    def find(self) -> Sequence[Replica]:
        self.finds += 1
        return super().find()

    def read_on(self, wanted: Mapping[ReplicaId, int]) -> Sequence[Replica]:
        self.leader_epoch = 1
        return super().read_on(wanted)

    def _replica(self, id: ReplicaId) -> Replica:
        return replace(super()._replica(id), leader_epoch=self.leader_epoch)


def test_a_change_of_leaders_is_seen_though_all_replicas_were_read_on() -> None:
    for seed in range(10):
        cluster = Led(random.Random(seed), has_planted=True)
        audit(LocalContext(random.Random(seed), keeps_shuffles=True).as_spark, [cluster])
        assert cluster.finds == 1 + cluster.leader_epoch


class Deleted(WorkingCluster):
    """The topic is found once."""

    was_found = False

    def find(self) -> Sequence[Replica]:
        found = [] if self.was_found else super().find()
        self.was_found, self.topic_id = True, uuid.uuid4()
        return found


def test_a_topic_that_is_deleted_while_it_is_read_is_named_and_not_judged() -> None:
    cluster = Deleted(random.Random(1), has_planted=True)
    report = audit(LocalContext(random.Random(1)).as_spark, [cluster])
    assert report.partitions == ()
    assert [each.reason for each in report.skipped] == ["it was deleted while it was read"]
