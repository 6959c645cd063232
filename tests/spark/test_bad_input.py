"""Partitions that cannot be compacted: left byte for byte as they were, reported with file and place, and the others
go on."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import crc32c
import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sexton.compaction import chunking
from sexton.compaction.contract import NewSegment
from sexton.compaction.survey import LogSurvey
from sexton.compaction.terms import Terms
from sexton.errors import CorruptLogError, EnvironmentFailure, SextonError, UnsupportedFormatError
from sexton.log.stopped.partition import open_partition
from sexton.records import names
from sexton.records.batch import Batch, decode_all, encode
from sexton.records.codecs import MAX_UNCOMPRESSED_BATCH_BYTES, Codec, compress
from sexton.records.header import HEADER_BYTES
from sexton.settings.topic import TopicConfig
from sexton.spark import compact as pipeline
from sexton.spark import index_pass, rewrite_pass, storage, transaction_index
from sexton.spark.compact import Report, Request
from tests import logs
from tests.spark.local_context import LocalContext

BOUND = 200
CONFIG = TopicConfig(cleanup_policy=frozenset({"compact"}))
TERMS = Terms(logs.NOW_MS, BOUND, logs.RETENTION_MS)


def write_log(directory: Path) -> None:
    """Two closed segments with duplicates, and an empty active one."""

    def segment(base: int, codec: int) -> list[Batch]:
        return [
            logs.data((b"key %d" % (index % 3), b"value" * 20), (b"other", None), at=base + 2 * index, attributes=codec)
            for index in range(10)
        ]

    logs.write_partition(logs.Log([0, 100, BOUND], [segment(0, 0), segment(100, Codec.LZ4), []]), directory)


def log_path(directory: Path, base: int = 100) -> Path:
    return directory / names.log_file_name(base)


def position_of(content: bytes, number: int) -> int:
    return sum(batch.size_bytes for batch in list(decode_all(content))[:number])


def with_right_crc(batch: bytes) -> bytes:
    return batch[:17] + struct.pack(">I", crc32c.crc32c(batch[21:])) + batch[21:]


# --- ways to be bad ---


def flip_a_bit_in_a_record(directory: Path) -> str:
    path = log_path(directory, 0)
    content = bytearray(path.read_bytes())
    at = position_of(bytes(content), 5)
    content[at + HEADER_BYTES + 9] ^= 1
    path.write_bytes(content)
    return f"{path} at byte {at}"


def flip_a_bit_in_packed_records(directory: Path) -> str:
    path = log_path(directory)
    content = bytearray(path.read_bytes())
    at = position_of(bytes(content), 3)
    content[at + HEADER_BYTES + 20] ^= 1
    path.write_bytes(content)
    return f"{path} at byte {at}"


def tear_the_last_batch(directory: Path) -> str:
    path = log_path(directory)
    content = path.read_bytes()
    path.write_bytes(content[:-7])
    return f"{path} at byte {position_of(content, 9)}"


def let_segments_overlap(directory: Path) -> str:
    path = log_path(directory, 0)
    path.write_bytes(path.read_bytes() + encode(logs.data((b"late", b""), at=150)))
    return str(directory)


def write_an_old_format(directory: Path) -> str:
    path = log_path(directory)
    content = bytearray(path.read_bytes())
    at = position_of(bytes(content), 4)
    content[at + 16] = 1
    path.write_bytes(content)
    return f"{path} at byte {at}"


def put_a_directory_in_its_place(directory: Path) -> str:
    path = log_path(directory)
    path.unlink()
    path.mkdir()
    return str(path)


def write_records_that_cannot_be_parsed(directory: Path) -> str:
    path = log_path(directory, 0)
    content = path.read_bytes()
    at, end = position_of(content, 2), position_of(content, 3)
    broken = with_right_crc(content[at : at + HEADER_BYTES + 3] + b"\xff" + content[at + HEADER_BYTES + 4 : end])
    path.write_bytes(content[:at] + broken + content[end:])
    return f"{path} at byte {at}"


def claim_a_billion_records(directory: Path) -> str:
    """It would take 24 GB to believe it."""
    log_path(directory, 0).unlink()
    path = log_path(directory)
    body = compress(Codec.GZIP, b"x" * 1000)
    last = 10**9
    after_crc = struct.pack(">hiqqqhii", Codec.GZIP, last - 100, 0, 0, -1, -1, -1, last - 100)
    batch = with_right_crc(struct.pack(">qiibI", 100, 49 + len(body), 0, 2, 0) + after_crc + body)
    path.write_bytes(batch)
    for kind in (names.LOG_SUFFIX, names.OFFSET_INDEX_SUFFIX, names.TIME_INDEX_SUFFIX):
        (directory / names.segment_file_name(BOUND, kind)).rename(directory / names.segment_file_name(last + 1, kind))
    return f"{path} at byte 0"


def use_an_unknown_codec(directory: Path) -> str:
    path = log_path(directory, 0)
    content = path.read_bytes()
    at, end = position_of(content, 2), position_of(content, 3)
    path.write_bytes(
        content[:at] + with_right_crc(content[at : at + 22] + b"\x05" + content[at + 23 : end]) + content[end:]
    )
    return f"{path} at byte {at}"


@dataclass(frozen=True)
class Damage:
    inflict: Callable[[Path], str]
    """Damages a partition and tells the place that must be named."""
    error: type[SextonError]
    what: str
    bound: int = BOUND


DAMAGES = {
    "bit in a record": Damage(flip_a_bit_in_a_record, CorruptLogError, "CRC does not match"),
    "bit in packed records": Damage(flip_a_bit_in_packed_records, CorruptLogError, "CRC does not match"),
    "torn batch": Damage(tear_the_last_batch, CorruptLogError, "cut off"),
    "overlap": Damage(let_segments_overlap, CorruptLogError, "into the segment 100"),
    "old format": Damage(write_an_old_format, UnsupportedFormatError, "message format v1"),
    "unreadable": Damage(put_a_directory_in_its_place, EnvironmentFailure, "cannot be read"),
    "unparsable": Damage(write_records_that_cannot_be_parsed, CorruptLogError, "cannot be parsed"),
    "a billion records": Damage(claim_a_billion_records, CorruptLogError, "cannot be parsed", 10**9 + 1),
    "unknown codec": Damage(use_an_unknown_codec, UnsupportedFormatError, "codec 5 is unknown"),
}


# --- running ---


@dataclass
class Partition:
    directory: Path
    bound: int = BOUND


def run(context: SparkContext, partitions: Sequence[Partition], **options: Any) -> list[Report | SextonError]:
    """Each partition's report, or why it could not even be surveyed."""
    opened = [open_partition(partition.directory) for partition in partitions]
    surveys = pipeline.survey_logs(context, opened)
    requests = [
        Request(
            log=log,
            survey=found,
            config=CONFIG,
            terms=replace(TERMS, bound=partition.bound),
            first_dirty_offset=log.segments[0].base_offset,
        )
        for partition, log, found in zip(partitions, opened, surveys, strict=True)
        if isinstance(found, LogSurvey)
    ]
    reports = iter(pipeline.compact(context, requests, **options))
    return [found if isinstance(found, SextonError) else next(reports) for found in surveys]


def failure_of(result: Report | SextonError) -> SextonError | None:
    return result if isinstance(result, SextonError) else result.failure


def check_damaged(result: Report | SextonError, damage: Damage, place: str) -> None:
    failure = failure_of(result)
    assert type(failure) is damage.error, failure
    assert damage.what in failure.what
    assert failure.place == place
    assert failure.remedy
    if isinstance(result, Report):
        assert not result.is_changed


@pytest.fixture
def local() -> SparkContext:
    return LocalContext(random.Random(0)).as_spark


@pytest.mark.parametrize("name", DAMAGES)
def test_a_bad_partition_is_left_as_it_was_and_its_neighbour_is_compacted(
    name: str, local: SparkContext, tmp_path: Path
) -> None:
    damage = DAMAGES[name]
    bad, good = tmp_path / "bad-0", tmp_path / "good-0"
    write_log(bad)
    write_log(good)
    place = damage.inflict(bad)
    before, good_before = logs.contents(bad), logs.contents(good)
    bad_result, good_result = run(local, [Partition(bad, damage.bound), Partition(good)])
    check_damaged(bad_result, damage, place)
    assert logs.contents(bad) == before
    assert failure_of(good_result) is None
    assert logs.contents(good) != good_before
    assert len(logs.read_batches(good)) < 20


@pytest.mark.spark
def test_spark_compacts_what_is_good_among_everything_that_is_bad(spark: SparkSession, tmp_path: Path) -> None:
    directories = {name: tmp_path / f"bad-{index}" for index, name in enumerate(DAMAGES)}
    places = {}
    for name, directory in directories.items():
        write_log(directory)
        places[name] = DAMAGES[name].inflict(directory)
    before = {name: logs.contents(directory) for name, directory in directories.items()}
    good = tmp_path / "good-0"
    write_log(good)
    partitions = [Partition(directory, DAMAGES[name].bound) for name, directory in directories.items()]
    *results, good_result = run(spark.sparkContext, [*partitions, Partition(good)])
    for (name, damage), result in zip(DAMAGES.items(), results, strict=True):
        check_damaged(result, damage, places[name])
        assert logs.contents(directories[name]) == before[name]
    assert failure_of(good_result) is None
    assert len(logs.read_batches(good)) < 20


def test_a_batch_that_unfolds_past_the_limit_is_refused_with_the_option_that_allows_it(
    local: SparkContext, tmp_path: Path
) -> None:
    directory = tmp_path / "topic-0"
    bomb = logs.data((b"a", b"\0" * 50_000), at=0, attributes=Codec.ZSTD)
    logs.write_partition(logs.Log([0, BOUND], [[bomb, logs.data((b"a", b""), at=1)], []]), directory)
    before = logs.contents(directory)
    (result,) = run(local, [Partition(directory)], max_batch_bytes=10_000)
    failure = failure_of(result)
    assert isinstance(failure, UnsupportedFormatError)
    assert "--max-batch-bytes" in failure.remedy
    assert logs.contents(directory) == before
    (allowed,) = run(local, [Partition(directory)], max_batch_bytes=MAX_UNCOMPRESSED_BATCH_BYTES)
    assert failure_of(allowed) is None


def test_a_segment_that_is_a_broken_link_is_an_environment_failure(tmp_path: Path) -> None:
    directory = tmp_path / "topic-0"
    write_log(directory)
    log_path(directory).unlink()
    log_path(directory).symlink_to(directory / "nowhere")
    with pytest.raises(EnvironmentFailure, match="listed"):
        open_partition(directory)


# --- a disk that fails ---


def no_space(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


def copy_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewrite_pass, "LINKED_RUN_BYTES_MIN", 1)
    monkeypatch.setattr(os, "copy_file_range", no_space)


def open_no_index(path: Path, mode: str) -> Any:
    return no_space() if "index" in Path(path).name else open(path, mode)


FULL_DISKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "while rewriting": lambda patch: patch.setattr(os, "write", no_space),
    "while assembling": copy_nothing,
    "while writing indexes": lambda patch: patch.setattr(storage, "open", open_no_index, raising=False),
    "while flushing": lambda patch: patch.setattr(os, "fsync", no_space),
    "while keeping times": lambda patch: patch.setattr(os, "utime", no_space),
}


@pytest.mark.parametrize("when", FULL_DISKS)
def test_a_full_disk_leaves_no_staged_file_behind(when: str, local: SparkContext, tmp_path: Path) -> None:
    directory = tmp_path / "topic-0"
    write_log(directory)
    mixed = log_path(directory, 0)
    mixed.write_bytes(mixed.read_bytes() + encode(logs.data((b"unique", b"x" * 500), at=90)))
    before = logs.contents(directory)
    with pytest.MonkeyPatch.context() as patch:
        FULL_DISKS[when](patch)
        (result,) = run(local, [Partition(directory)])
    failure = failure_of(result)
    assert isinstance(failure, EnvironmentFailure), failure
    assert failure.remedy
    assert logs.contents(directory) == before
    (again,) = run(local, [Partition(directory)])
    assert failure_of(again) is None


def die(*_: object, **__: object) -> NoReturn:
    raise ZeroDivisionError("what nobody thought of")


STEPS: dict[str, tuple[object, str]] = {
    "survey": (pipeline, "survey_segment"),
    "plan": (chunking, "cut"),
    "index": (index_pass, "_index_slice"),
    "new part": (storage, "part_path"),
    "rewrite": (rewrite_pass, "_rewrite_slice"),
    "gather": (pipeline, "rewritten"),
    "transaction indexes": (transaction_index, "of_outputs"),
    "assemble": (rewrite_pass, "assemble"),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", [OSError, MemoryError, ZeroDivisionError])
def test_whatever_goes_wrong_with_one_partition_is_no_other_ones_failure(
    step: str, kind: type[Exception], local: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good = tmp_path / "bad-0", tmp_path / "good-0"
    write_log(bad)
    write_log(good)
    before = logs.contents(bad)
    module, name = STEPS[step]
    real = getattr(module, name)

    def failing(*args: Any, **options: Any) -> Any:
        if "bad-0" in repr(args):
            raise kind(errno.EIO, "what nobody thought of")
        return real(*args, **options)

    monkeypatch.setattr(module, name, failing)
    bad_result, good_result = run(local, [Partition(bad), Partition(good)])
    failure = failure_of(bad_result)
    assert isinstance(failure, SextonError)
    assert failure.remedy
    assert "bad-0" in failure.place
    assert logs.contents(bad) == before
    assert failure_of(good_result) is None
    assert len(logs.read_batches(good)) < 20


def test_a_segment_that_vanishes_before_it_is_rewritten_is_its_partitions_failure(
    local: SparkContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its topic is deleted, or retention takes it, while a job of hundreds of partitions runs."""
    gone, good = tmp_path / "gone-0", tmp_path / "good-0"
    write_log(gone)
    write_log(good)
    real = rewrite_pass.rewrite_chunk

    def rewrite_chunk(*args: Any) -> Any:
        log_path(gone, 0).unlink(missing_ok=True)
        return real(*args)

    monkeypatch.setattr(rewrite_pass, "rewrite_chunk", rewrite_chunk)
    monkeypatch.setattr(chunking, "CHUNK_BYTES_MIN", 1)  # a task for each segment, as usual
    gone_result, good_result = run(local, [Partition(gone), Partition(good)])
    failure = failure_of(gone_result)
    assert isinstance(failure, EnvironmentFailure)
    assert failure.place == str(log_path(gone, 0))
    assert failure_of(good_result) is None
    assert len(logs.read_batches(good)) < 20


def test_a_segment_may_be_put_together_again_by_another_attempt_of_the_task(tmp_path: Path) -> None:
    """Spark starts it anew when a worker dies, and beside itself when it is slow (spark.speculation)."""
    folder = storage.Folder(str(tmp_path))
    part = folder.new_part(0, None)
    part.append(0, memoryview(b"batches"))
    part.close()
    output = chunking.Output(NewSegment(0, 10, (0,)), (chunking.Extent(part.path, 0, 7),), False, 7)
    assert folder.write_segment(output) == folder.write_segment(output)
    assert Path(folder.write_segment(output)).read_bytes() == b"batches"
    Path(folder.write_segment(output)).write_bytes(b"other")
    with pytest.raises(EnvironmentFailure):
        folder.write_segment(output)


def test_a_job_that_dies_leaves_no_staged_file_behind(local: SparkContext, tmp_path: Path) -> None:
    directory = tmp_path / "topic-0"
    write_log(directory)
    before = logs.contents(directory)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "assemble", die)
        with pytest.raises(ZeroDivisionError):
            run(local, [Partition(directory)])
    assert logs.contents(directory) == before
