"""Log directories as a source: what is read, what is named and left alone, and that nothing is left behind."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from sexton.audit.folders import Dirs, FolderSource
from sexton.audit.judge import Verdict
from sexton.audit.replica import Replica, ReplicaId
from sexton.errors import CorruptLogError, NotALogError, UnsupportedFormatError
from sexton.log.stopped.locks import LOCK_FILE
from sexton.log.stopped.running import is_running
from sexton.records import checkpoints, names
from sexton.records.checkpoints import MetaProperties, PartitionMetadata
from sexton.spark import file_stretch
from sexton.spark.file_stretch import FileStretch
from sexton.types import INT64_MAX
from tests import logs
from tests.audit.replicas import TOPIC, On, audited, brokers, write
from tests.logs import abort, data, in_transaction

ALL = [data((b"a", b"1"), at=0), data((b"b", b"1"), at=1), data((b"c", b"1"), at=2)]


def segment(directory: Path, partition: int = 0) -> Path:
    return directory / f"{TOPIC}-{partition}" / names.log_file_name(0)


def test_a_corrupt_batch_makes_its_partition_unknown_and_no_other(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On(ALL))
    for (directory,) in dirs.values():
        write(directory, On(ALL), partition=1)
    path = segment(dirs[2][0], partition=1)
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(bytes(content))
    fine, broken = audited(dirs).partitions
    assert (fine.verdict, broken.verdict) == (Verdict.AGREE, Verdict.UNKNOWN)
    ((label, failure),) = broken.failures
    assert label == "broker 2"
    assert isinstance(failure, CorruptLogError)
    position = len(content) - len(logs.encode_as_broker(ALL[2]))
    assert failure.place == f"{path} at byte {position}"


def test_a_message_of_an_old_format_is_named_and_its_partition_unknown(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On(ALL))
    path = segment(dirs[1][0])
    content = bytearray(path.read_bytes())
    content[16] = 1
    path.write_bytes(bytes(content))
    (report,) = audited(dirs).partitions
    assert report.verdict is Verdict.UNKNOWN
    assert isinstance(report.failures[0][1], UnsupportedFormatError)


def test_a_batch_that_is_just_being_written_is_taken_for_the_end(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On(ALL, high_watermark=2, was_stopped_cleanly=False))
    path = segment(dirs[2][0])
    path.write_bytes(path.read_bytes()[:-5])
    (report,) = audited(dirs).partitions
    assert report.verdict is Verdict.LAGGING
    assert "cut off" in report.notes[0]


def test_a_batch_that_is_cut_off_after_a_clean_stop_is_corrupt(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On(ALL, high_watermark=2))
    path = segment(dirs[2][0])
    path.write_bytes(path.read_bytes()[:-5])
    (report,) = audited(dirs).partitions
    assert report.verdict is Verdict.UNKNOWN


def test_a_length_that_reaches_far_beyond_the_end_is_no_batch_that_is_being_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stretch, "TORN_BYTES_MAX", 100)
    dirs = brokers(tmp_path, On(ALL), On(ALL, was_stopped_cleanly=False))
    path = segment(dirs[2][0])
    content = bytearray(path.read_bytes())
    content[8:12] = (1 << 28).to_bytes(4, "big")
    path.write_bytes(bytes(content))
    (report,) = audited(dirs).partitions
    assert report.verdict is Verdict.UNKNOWN


def test_two_of_three_replicas_are_judged_when_one_cannot_be_read(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On([ALL[0], ALL[2]]), On(ALL))
    path = segment(dirs[3][0])
    path.write_bytes(b"\xff" * 100)
    (report,) = audited(dirs).partitions
    assert report.verdict is Verdict.DIVERGED
    assert {case.key.key for case in report.cases} == {b"b"}


def test_a_broker_with_several_disks_has_partitions_on_each(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On(ALL))
    second_disk = tmp_path / "broker-2b"
    second_disk.mkdir()
    write(second_disk, On(ALL), partition=1)
    write(dirs[1][0], On(ALL), partition=1)
    report = audited({1: dirs[1], 2: [*dirs[2], second_disk]})
    assert [each.name for each in report.partitions] == ["orders-0", "orders-1"]
    assert report.is_judged


def test_what_is_moved_or_deleted_is_named_and_skipped(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On(ALL))
    for suffix in ("delete", "future", "stray"):
        (dirs[1][0] / f"orders-1.0123456789abcdef0123456789abcdef-{suffix}").mkdir()
    (dirs[1][0] / "__cluster_metadata-0").mkdir()
    report = audited(dirs)
    assert [each.reason for each in report.skipped] == [
        "it is being deleted",
        "it is being moved here from another disk",
        "its broker should not have it",
    ]
    assert [each.name for each in report.partitions] == ["orders-0"]


def test_a_former_topic_of_the_same_name_is_not_compared(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On(ALL), On(ALL[:1]))
    present, former = uuid.uuid4(), uuid.uuid4()
    for broker, (directory,) in dirs.items():
        metadata = PartitionMetadata(former if broker == 3 else present)
        path = directory / "orders-0" / checkpoints.PARTITION_METADATA
        path.write_bytes(checkpoints.encode_partition_metadata(metadata))
    (report,) = audited(dirs).partitions
    assert report.verdict is Verdict.PARTIAL
    assert report.skipped[0].reason == "it is of a former topic of this name"


@pytest.mark.parametrize("why", ["its broker was killed", "its broker is one of Sexton's"])
def test_an_index_that_may_still_be_to_be_written_is_not_held_against_the_log(tmp_path: Path, why: str) -> None:
    whole = [in_transaction((b"a", b"1"), at=0, pid=7), abort(1, 7), data((b"b", b"1"), at=2)]
    dirs = brokers(tmp_path, On(whole), On(whole, aborted=[], was_stopped_cleanly=why != "its broker was killed"))
    if why != "its broker was killed":
        (dirs[2][0] / "orders-0" / names.INCARNATION_FILE).write_text(str(uuid.uuid4()))
    (report,) = audited(dirs).partitions
    assert (report.verdict, report.findings) == (Verdict.AGREE, ())


def test_replicas_are_found_again_when_a_partition_is_read_again(tmp_path: Path) -> None:
    source = FolderSource(brokers(tmp_path, On(ALL), On(ALL)))
    assert source.find() == source.find()
    assert source.skipped == []


def test_internal_topics_are_read_only_if_they_are_named(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On(ALL))
    for (directory,) in dirs.values():
        (directory / "orders-0").rename(directory / "__consumer_offsets-0")
    assert audited(dirs).partitions == ()
    assert [replica.name for replica in FolderSource(dirs, "__consumer.*").find()] == ["__consumer_offsets-0"] * 2


def test_a_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On(ALL))
    path = dirs[2][0] / checkpoints.META_PROPERTIES
    path.write_bytes(checkpoints.encode_meta_properties(MetaProperties("a cluster", 1)))
    with pytest.raises(NotALogError, match="belongs to broker 1"):
        audited(dirs)


def test_directories_of_two_clusters_are_refused(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On(ALL))
    for broker, (directory,) in dirs.items():
        meta = MetaProperties(f"cluster {broker}", broker)
        (directory / checkpoints.META_PROPERTIES).write_bytes(checkpoints.encode_meta_properties(meta))
    with pytest.raises(NotALogError, match="2 clusters"):
        audited(dirs)


@pytest.mark.parametrize("text", ["/mnt/b1", "b1=/mnt/b1", "1=", "", "/"])
def test_directories_without_a_broker_are_refused(text: str) -> None:
    with pytest.raises(NotALogError, match="BROKER=DIRECTORY"):
        Dirs.parse([text])


def test_a_directory_that_says_whose_it_is_needs_no_broker(tmp_path: Path) -> None:
    meta = MetaProperties("a cluster", 7)
    (tmp_path / checkpoints.META_PROPERTIES).write_bytes(checkpoints.encode_meta_properties(meta))
    assert Dirs.parse([f"{tmp_path}", "2=/b"]).of_broker == {7: [tmp_path], 2: [Path("/b")]}


def test_several_directories_of_a_broker_are_told_apart_by_commas() -> None:
    assert Dirs.parse(["1=/a,/b", "2=/c"]).of_broker == {1: [Path("/a"), Path("/b")], 2: [Path("/c")]}


# ---- Brokers that run. ----


@contextmanager
def running(log_dir: Path) -> Iterator[None]:
    """Another process with a broker's lock, until the block ends."""
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'w'); fcntl.lockf(file, fcntl.LOCK_EX); "
        "print('held', flush=True); sys.stdin.read()"
    )
    arguments = [sys.executable, "-c", program, str(log_dir / LOCK_FILE)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        yield
        assert process.stdin is not None
        process.stdin.close()


def test_a_running_broker_is_seen_by_its_lock_which_stays_its_own(tmp_path: Path) -> None:
    assert not is_running(tmp_path)
    with running(tmp_path):
        assert is_running(tmp_path)
        with open(tmp_path / LOCK_FILE, "r+b") as file, pytest.raises(OSError, match="temporarily unavailable"):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert not is_running(tmp_path)


def test_what_a_running_broker_has_written_since_is_read_before_anybody_is_accused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broker 2 compacted a deleted key away before it was read, and after broker 1 was: it looks as if it came back."""
    deleted, later = data((b"a", None), at=3), data((b"d", b"1"), at=4)
    dirs = brokers(tmp_path, On(ALL[:2]), On([ALL[1], later], clean=4))
    read_on = FolderSource.read_on
    waited_for = []

    def catches_up(source: FolderSource, wanted: Mapping[ReplicaId, int]) -> list[Replica]:
        waited_for.append(wanted)
        with open(segment(dirs[1][0]), "ab") as file:
            file.writelines(map(logs.encode_as_broker, (deleted, later)))
        return read_on(source, wanted)

    monkeypatch.setattr(FolderSource, "read_on", catches_up)
    with running(dirs[1][0]), running(dirs[2][0]):
        (report,) = audited(dirs).partitions
    assert (report.verdict, report.cases) == (Verdict.AGREE, ())
    assert waited_for == [{ReplicaId(TOPIC, 0, 1): 5}]


def test_a_segment_that_was_compacted_into_its_neighbour_is_read_there(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    logs.write_partition(logs.Log([0, 1, 2], [[ALL[0]], [ALL[1]], [ALL[2]]]), directory)
    first, second = (directory / names.log_file_name(offset) for offset in (0, 1))
    stretch = FileStretch(0, str(second), 100, from_offset=1, to_offset=2)
    first.write_bytes(first.read_bytes() + second.read_bytes())
    second.unlink()
    read = b"".join(piece.data.tobytes() for piece in stretch.pieces())
    assert logs.encode_as_broker(ALL[1]) in read
    assert logs.encode_as_broker(ALL[2]) not in read


def test_a_segment_that_nothing_has_taken_the_place_of_is_told(tmp_path: Path) -> None:
    directory = tmp_path / "orders-0"
    logs.write_partition(logs.Log([2], [[ALL[2]]]), directory)
    (piece,) = FileStretch(0, str(directory / names.log_file_name(0)), 100, 0, 2).pieces()
    assert "deleted meanwhile" in piece.note


# ---- Nothing is left behind. ----


def test_no_file_changes_and_none_is_made(tmp_path: Path) -> None:
    dirs = brokers(tmp_path, On(ALL), On([ALL[0], ALL[2]]))

    def state() -> dict[Path, tuple[bytes, int, int, int]]:
        found = {}
        for path in sorted(tmp_path.rglob("*")):
            status = path.stat()
            content = path.read_bytes() if path.is_file() else b""
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
            found[path] = (content, status.st_mtime_ns, status.st_atime_ns, status.st_mode)
        return found

    for path in tmp_path.rglob("*.log"):
        os.utime(path, ns=(1, path.stat().st_mtime_ns))  # the oldest access there is: any reading would renew it
    before = state()
    assert audited(dirs).is_diverged
    after = state()
    assert after.keys() == before.keys()
    logs_before = {path: it for path, it in before.items() if path.suffix == ".log"}
    assert {path: after[path] for path in logs_before} == logs_before
    assert {path: it[:2] for path, it in after.items()} == {path: it[:2] for path, it in before.items()}


def test_pages_that_were_not_in_the_cache_are_not_there_afterwards(tmp_path: Path) -> None:
    path = tmp_path / "00000000000000000000.log"
    batches = [data((b"k", os.urandom(4000)), at=offset) for offset in range(200)]
    path.write_bytes(b"".join(map(logs.encode_as_broker, batches)))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        cold = file_stretch.resident_pages(file.fileno())
        if cold is None or cold.any():
            pytest.skip("this file system does not let go of pages")
        assert sum(len(piece.data) for piece in FileStretch(0, str(path), 0, 0, INT64_MAX).pieces()) > 800_000
        afterwards = file_stretch.resident_pages(file.fileno())
        assert afterwards is not None
        assert not afterwards.any()
        file.read(100_000)
        warm = file_stretch.resident_pages(file.fileno())
        list(FileStretch(0, str(path), 0, 0, INT64_MAX).pieces())
        kept = file_stretch.resident_pages(file.fileno())
        assert warm is not None
        assert kept is not None
        assert (kept & warm).sum() == warm.sum()
