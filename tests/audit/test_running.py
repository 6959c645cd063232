"""Directories of brokers that run: what they write and compact while they are read accuses nobody."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from sexton.audit.folders import FolderSource
from sexton.audit.judge import PartitionReport, Verdict
from sexton.audit.replica import Replica, ReplicaId
from sexton.audit.run import audit
from sexton.records import checkpoints, indexes, names
from sexton.records.batch import Batch
from sexton.spark.file_stretch import FileStretch
from sexton.spark.stretches import Piece
from tests import logs
from tests.audit.replicas import TOPIC, On, audited, brokers
from tests.audit.test_folders import running, segment
from tests.audit.working import PLANTED, WorkingCluster
from tests.logs import abort, commit, data, in_transaction
from tests.spark.local_context import LocalContext

FILLER = data((b"filler", b"x"), at=8)


class Files(WorkingCluster):
    """Read from files of brokers that run."""

    def _replica(self, id: ReplicaId) -> Replica:
        live = super()._replica(id)
        return replace(live, is_live=False, is_leader=None, is_in_sync=None, cut=None, barrier=None)


@pytest.mark.parametrize("seed", range(30))
def test_files_that_are_compacted_while_they_are_read_are_looked_at_twice(seed: int) -> None:
    cluster = Files(random.Random(seed), has_planted=seed % 2 == 0)
    for _ in range(3):
        (report,) = audit(LocalContext(random.Random(seed), keeps_shuffles=True).as_spark, [cluster]).partitions
        assert [case.key.key for case in report.cases] == ([PLANTED] if seed % 2 == 0 else [])


def append(directory: Path, *batches: Batch) -> None:
    with open(segment(directory), "ab") as file:
        file.writelines(map(logs.encode_as_broker, batches))


def audited_running(dirs: dict[int, list[Path]]) -> PartitionReport:
    with ExitStack() as stack:
        for (directory,) in dirs.values():
            stack.enter_context(running(directory))
        (report,) = audited(dirs).partitions
    return report


def test_an_abort_that_comes_before_its_log_is_read_is_in_the_index_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its index was read before."""
    whole = [data((b"b", b"1"), at=0), in_transaction((b"a", b"1"), at=1, pid=7)]
    dirs = brokers(tmp_path, On(whole), On(whole))
    pieces = FileStretch.pieces
    was_written: list[bool] = []

    def late(stretch: FileStretch) -> Iterator[Piece]:
        if not was_written:
            was_written.append(True)
            for (directory,) in dirs.values():
                append(directory, abort(2, 7), FILLER)
                index = directory / "orders-0" / names.transaction_index_file_name(0)
                index.write_bytes(indexes.encode(indexes.make_transaction_entries([7], [1], [2], [3])))
        return pieces(stretch)

    monkeypatch.setattr(FileStretch, "pieces", late)
    report = audited_running(dirs)
    assert (report.verdict, report.findings) == (Verdict.AGREE, ())


def test_a_transaction_that_ends_between_two_readings_makes_nobody_stuck(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 1 is read a moment before its marker comes, and broker 3 a moment after."""
    before, after = data((b"x", b"1"), at=9), data((b"z", b"1"), at=13)
    begun = [before, in_transaction((b"k", b"1"), at=10, pid=7), data((b"y", b"1"), at=11)]
    dirs = brokers(tmp_path, On([FILLER]), On([FILLER, before]), On([FILLER]))
    read_on = FolderSource.read_on
    calls = []

    def catches_up(source: FolderSource, wanted: Mapping[ReplicaId, int]) -> Sequence[Replica]:
        calls.append(wanted)
        ((one,), (two,), (three,)) = dirs.values()
        if len(calls) == 1:
            append(one, *begun)
            append(three, *begun, commit(12, 7), after)
            path = three / checkpoints.REPLICATION_OFFSET_CHECKPOINT
            checkpoints.write_offset_checkpoint(path, {(TOPIC, 0): 14})
        elif len(calls) == 2:
            append(one, commit(12, 7), after)
            append(two, *begun[1:], commit(12, 7), after)
        return read_on(source, wanted)

    monkeypatch.setattr(FolderSource, "read_on", catches_up)
    report = audited_running(dirs)
    assert (report.verdict, report.findings, report.cases) == (Verdict.AGREE, (), ())


def test_a_transaction_that_nothing_ends_is_found_in_files_of_brokers_that_run(tmp_path: Path) -> None:
    rest = On([FILLER], clean=8)
    report = audited_running(brokers(tmp_path, rest, rest, On([in_transaction((b"k", b"1"), at=1, pid=7), FILLER])))
    assert report.verdict is Verdict.DIVERGED
    assert [report.standings[each.replica].replica.id.broker for each in report.findings] == [3]
