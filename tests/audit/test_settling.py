"""Replicas that change while they are read, many hundred times over: nobody is accused who is right, and who is wrong
is found, each time."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest

from sexton.audit import run
from sexton.audit.classes import Class
from sexton.audit.judge import PartitionReport, Verdict
from sexton.audit.replica import Replica
from sexton.audit.run import audit
from sexton.audit.settling import Looks
from sexton.records.batch import Batch
from tests.audit.working import PLANTED, WorkingCluster
from tests.spark.local_context import LocalContext

SEEDS = 30


def look(cluster: WorkingCluster, seed: int) -> PartitionReport:
    (report,) = audit(LocalContext(random.Random(seed), keeps_shuffles=True).as_spark, [cluster]).partitions
    return report


@pytest.mark.parametrize("seed", range(SEEDS))
def test_replicas_that_are_right_are_never_accused(seed: int) -> None:
    cluster = WorkingCluster(random.Random(seed), has_planted=False)
    for _ in range(3):
        assert not look(cluster, seed).verdict.is_error
    cluster.is_at_rest = True
    found = look(cluster, seed)
    assert found.verdict is Verdict.AGREE
    assert (found.counts.busy_count, found.counts.changed_count) == (0, 0)


class Expiring(WorkingCluster):
    """Nothing is written any more, and retention comes to broker 2 while it is read, before it comes to the others."""

    reads_left = 2

    def read(self, broker: int, start: int, stop: int) -> tuple[bytes, int]:
        self.is_at_rest = True
        self.reads_left -= 1
        if self.reads_left == 0:
            self._logs[2].delete_below(self._logs[2].high_watermark)
        return super().read(broker, start, stop)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_retention_takes_from_one_replica_before_the_others_is_no_difference(seed: int) -> None:
    cluster = Expiring(random.Random(seed), has_planted=False)
    assert look(cluster, seed).verdict is Verdict.AGREE


class Emptied(WorkingCluster):
    """Broker 3 shows keys whose deletion has gone through by the time they are looked up."""

    def _plant(self) -> None:
        for number in range(3):
            self._write(b"p%d" % number, b"value")
        self._logs[3].copy_from(self._logs[1], 3)
        for number in range(3):
            self._write(b"p%d" % number, None)
        self._write(b"k0", b"v")
        for broker in (1, 2, 3):
            self._logs[broker].copy_from(self._logs[1], 7)
            self._logs[broker].high_watermark = 7
        for broker in (1, 2):
            for offset in range(6):
                del self._logs[broker].records[offset]
        for offset in range(3, 6):
            del self._logs[3].records[offset]

    def look_up(self, replica: Replica, offsets: Sequence[int]) -> Mapping[int, Batch]:
        for offset in range(3):
            self._logs[3].records.pop(offset, None)
        return super().look_up(replica, offsets)


@pytest.mark.parametrize("confirm", [1, 2, 3, 100])
def test_keys_beyond_those_that_are_looked_up_are_accused_only_if_one_of_those_is(confirm: int) -> None:
    cluster = Emptied(random.Random(1), has_planted=True)
    context = LocalContext(random.Random(1), keeps_shuffles=True).as_spark
    (report,) = audit(context, [cluster], confirm=confirm).partitions
    assert not report.verdict.is_error
    assert report.counts.changed_count == 3


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_that_is_wrong_is_found_among_all_that_changes(seed: int) -> None:
    cluster = WorkingCluster(random.Random(seed), has_planted=True)
    for _ in range(3):
        found = look(cluster, seed)
        assert [case.key.key for case in found.cases] == [PLANTED], found
        (case,) = found.cases
        assert case.explained.is_class == Class.TOMBSTONE
        assert {found.standings[number].replica.id.broker for number in case.explained.accused} == {3}


def test_with_one_look_alone_replicas_that_are_right_are_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is why there are two."""
    monkeypatch.setattr(run, "LOOKS_MAX", 1)
    monkeypatch.setattr(Looks, "settled", lambda looks, limit: (looks.now, 0))
    accused = 0
    for seed in range(SEEDS):
        cluster = WorkingCluster(random.Random(seed), has_planted=False)
        accused += look(cluster, seed).verdict.is_error
    assert accused > 0
