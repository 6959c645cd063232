"""Folds that travel: they tell the same as the directories that they were made of, as far as it can be told without
records."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.audit import travelling
from sexton.audit.classes import Class
from sexton.audit.folders import FolderSource
from sexton.audit.folds import Plan
from sexton.audit.judge import PartitionReport, Verdict
from sexton.errors import CorruptLogError, NotALogError
from sexton.spark import fold_job
from tests import logs
from tests.audit.replicas import On, audited, brokers, write
from tests.audit.test_folders import running
from tests.audit.test_random_logs import cleaned, random_log
from tests.logs import abort, commit, data, in_transaction
from tests.spark.local_context import LocalContext

FILLER = data((b"filler", b"x"), at=8)
CLEANED = On([FILLER], clean=8)


def folded(parent: Path, dirs: dict[int, list[Path]]) -> list[Path]:
    """Each broker's, made by itself."""
    context = LocalContext(random.Random(1)).as_spark
    paths = []
    for broker, directories in dirs.items():
        path = parent / f"b{broker}.fold"
        travelling.index(context, FolderSource({broker: directories}), Plan.shared(parent / "plan.json"), path)
        paths.append(path)
    return paths


def compared(parent: Path, replicas: Sequence[On]) -> tuple[PartitionReport, PartitionReport]:
    """By folds, and by directories."""
    dirs = brokers(parent, *replicas)
    (by_folds,) = travelling.compare(folded(parent, dirs), limit=1000).partitions
    (by_directories,) = audited(dirs).partitions
    return by_folds, by_directories


STORIES = {
    "tombstone": [CLEANED, CLEANED, On([data((b"user", b"alice"), at=0), FILLER])],
    "stuck": [CLEANED, CLEANED, On([in_transaction((b"price", b"10"), at=1, pid=7), FILLER])],
    "hidden": [
        *[On([in_transaction((b"g", b"x"), at=5, pid=7), abort(6, 7), FILLER], clean=5)] * 2,
        On(
            [
                data((b"user", b"alice"), at=0),
                in_transaction((b"user", None), at=1, pid=7),
                in_transaction((b"g", b"x"), at=5, pid=7),
                abort(6, 7),
                FILLER,
            ]
        ),
    ],
    "will be committed": [
        *[On([in_transaction((b"good", b"1"), at=4, pid=7), commit(5, 7), FILLER], clean=4)] * 2,
        On([in_transaction((b"poison", b"bad"), at=0, pid=7)]),
    ],
    "will be stuck": [CLEANED, CLEANED, On([in_transaction((b"price", b"10"), at=1, pid=7)])],
    "lost": [On([data((b"a", b"1"), at=0), FILLER])] * 2 + [On([FILLER])],
    "retention": [On([data((b"a", b"1"), at=0), FILLER]), On([FILLER], start=5)],
    "an old high watermark": [
        On([data((b"a", b"1"), at=0), data((b"b", b"1"), at=1), FILLER], high_watermark=1),
        CLEANED,
    ],
}


@pytest.mark.parametrize("story", STORIES)
def test_folds_tell_what_directories_tell(tmp_path: Path, story: str) -> None:
    by_folds, by_directories = compared(tmp_path, STORIES[story])
    assert (by_folds.verdict, by_folds.by_class) == (by_directories.verdict, by_directories.by_class)
    assert [case.explained.accused for case in by_folds.cases] == [
        case.explained.accused for case in by_directories.cases
    ]
    assert [finding.because for finding in by_folds.findings] == [
        finding.because for finding in by_directories.findings
    ]


def test_without_the_record_an_epoch_proves_nothing(tmp_path: Path) -> None:
    old = data((b"poison", b"old"), at=0)
    rest = [in_transaction((b"good", b"1"), at=4, pid=7, producer_epoch=1), commit(5, 7, epoch=2), FILLER]
    poisoned = On([old, in_transaction((b"poison", b"bad"), at=1, pid=7), *rest])
    right = On([old, *rest], clean=4)
    by_folds, by_directories = compared(tmp_path, [right, right, poisoned])
    ((told,), (proven,)) = by_folds.cases, by_directories.cases
    assert (told.explained.is_class, told.explained.is_sure) == (Class.ABORTED_TO_COMMITTED, False)
    assert (proven.explained.is_class, proven.explained.is_sure) == (Class.ABORTED_TO_COMMITTED, True)


@settings(max_examples=40, deadline=None)
@given(st.randoms(use_true_random=False))
def test_folds_of_replicas_that_were_cleaned_at_different_times_agree(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    log = random_log(rng)
    parent = tmp_path_factory.mktemp("brokers")
    dirs = brokers(parent, *(On(log=cleaned(rng, log), high_watermark=rng.choice([None, 0])) for _ in range(3)))
    (report,) = travelling.compare(folded(parent, dirs), limit=1000).partitions
    assert (report.verdict, report.cases, report.findings) == (Verdict.AGREE, (), ())


@pytest.mark.parametrize("is_up", [True, False])
def test_a_running_broker_that_was_folded_before_a_deletion_is_not_accused(tmp_path: Path, is_up: bool) -> None:
    """It has gone on since. One that had stopped has not."""
    dirs = brokers(tmp_path, On([FILLER], clean=8), On([data((b"user", b"alice"), at=0)]))
    with running(dirs[2][0]) if is_up else nullcontext():
        paths = folded(tmp_path, dirs)
    (report,) = travelling.compare(paths, limit=10).partitions
    assert (report.verdict, report.counts.busy_count) == ((Verdict.LAGGING, 1) if is_up else (Verdict.WILL_DIVERGE, 0))


def test_folds_with_another_number_of_buckets_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = replace(logs.random_log(random.Random(9), 80), clean_below=None)
    dirs = brokers(tmp_path, On(log=log), On(log=log))
    paths = folded(tmp_path, {1: dirs[1]})
    monkeypatch.setattr(fold_job, "BUCKET_BYTES", 500)
    paths += folded(tmp_path, {2: dirs[2]})
    (report,) = travelling.compare(paths, limit=10).partitions
    assert report.verdict is Verdict.AGREE
    assert report.counts.key_count == audited(dirs).partitions[0].counts.key_count


def test_a_replica_that_could_not_be_read_is_named_by_the_comparison(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, CLEANED, CLEANED, CLEANED)
    (dirs[3][0] / "orders-0" / "00000000000000000000.log").write_bytes(b"\xff" * 100)
    (report,) = travelling.compare(folded(tmp_path, dirs), limit=10).partitions
    assert report.verdict is Verdict.UNKNOWN
    assert report.failures[0][0] == "broker 3"


def test_a_fold_is_32_bytes_a_key_and_a_header(tmp_path: Path) -> None:
    records = [(b"key %d" % number, b"v" * 100) for number in range(1000)]
    directory = tmp_path / "broker-1"
    directory.mkdir()
    write(directory, On([data(*records, at=0), data(*records, at=1000)]))
    (path,) = folded(tmp_path, {1: [directory]})
    assert 32_000 < path.stat().st_size < 33_500
    assert b"key 1" not in path.read_bytes()


def test_folds_of_two_plans_are_refused(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, CLEANED, CLEANED)
    paths = folded(tmp_path, {1: dirs[1]})
    (tmp_path / "plan.json").unlink()
    paths += folded(tmp_path, {2: dirs[2]})
    with pytest.raises(NotALogError, match="another plan"):
        travelling.compare(paths, limit=10)


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: content[:40] + b"x" + content[41:]])
def test_a_damaged_fold_is_refused(tmp_path: Path, damage: object) -> None:
    assert callable(damage)
    paths = folded(tmp_path, brokers(tmp_path, CLEANED, CLEANED))
    paths[1].write_bytes(damage(paths[1].read_bytes()))
    with pytest.raises(CorruptLogError, match="damaged"):
        travelling.compare(paths, limit=10)


@pytest.mark.parametrize("content", [b"", b"something else"])
def test_another_file_is_no_fold(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.fold"
    path.write_bytes(content)
    with pytest.raises(NotALogError, match="no fold"):
        travelling.compare([path, path], limit=10)
