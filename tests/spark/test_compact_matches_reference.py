"""The pipeline keeps exactly what the reference compactor keeps, for the same reasons: random logs, random terms.

Most logs go through the real driver on an in-process stand-in for Spark, with tiny chunks, grains and buckets, so that
a few hundred bytes are cut up like gigabytes. A few go through Spark itself.

A failure names its seed. ``SEXTON_SEEDS=100000 pytest …`` tries more of them, and `make soak` 4,000.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sexton.compaction import chunking, survey
from sexton.compaction.fates import Fate
from sexton.compaction.reference import Compacted, compact, fold_by_key
from sexton.compaction.survey import LogSurvey
from sexton.compaction.terms import Terms
from sexton.log.stopped.partition import open_partition
from sexton.records import indexes, names
from sexton.records.batch import Batch, ControlType
from sexton.settings.topic import TopicConfig
from sexton.spark import compact as pipeline
from sexton.spark import index_pass, passes, rewrite_pass, unpacking
from sexton.spark.compact import Report, Request
from sexton.spark.rewrite_pass import ChunkResult, SliceResult
from tests import logs
from tests.index_checks import check_offset_index, check_time_index, check_transaction_index
from tests.spark.local_context import LocalContext

SEED_COUNT = int(os.environ.get("SEXTON_SEEDS", "160"))
SEEDS_PER_TEST = 40
SPARK_SEEDS = range(1_000_000, 1_000_010)

AbortedEntry = tuple[int, ...]


@dataclass
class Case:
    """One partition on disk, what to do with it, and what must come out."""

    directory: Path
    first_dirty: int
    terms: Terms
    config: TopicConfig
    before: list[Batch]
    files: dict[str, bytes]
    expected: Compacted


def make_case(rng: random.Random, directory: Path) -> Case:
    log = logs.random_log(rng)
    while not log.bounds():
        log = logs.random_log(rng)
    bound = rng.choice([log.bounds()[-1], rng.choice(log.bounds())])
    config = TopicConfig(
        cleanup_policy=frozenset({"compact"}),
        segment_bytes=rng.choice([1, 300, 1000, 1 << 30]),
        index_interval_bytes=rng.choice([0, 200, 4096]),
        producer_id_expiration_ms=rng.choice([0, logs.RETENTION_MS, 10 * logs.RETENTION_MS]),
    )
    logs.write_partition(log, directory, transaction_indexes=rng.random() < 0.8)
    first_dirty = log.bases[0] if log.clean_below is None else log.clean_below
    terms = logs.random_terms(rng, log, bound)
    if rng.random() < 0.1:
        terms = replace(terms, delete_retention_ms=2**63 - 1)  # "for ever"
    return case_of(directory, first_dirty, terms, config)


def case_of(directory: Path, first_dirty: int, terms: Terms, config: TopicConfig) -> Case:
    before = logs.read_batches(directory)
    producers = logs.producers_of(before, terms.now_ms, config.producer_id_expiration_ms)
    segment_ends = {batches[-1].last_offset for batches in logs.read_segments(directory).values() if batches}
    expected = compact(before, terms, producers, segment_ends)
    return Case(directory, first_dirty, terms, config, before, logs.contents(directory), expected)


def next_pass(rng: random.Random, case: Case) -> Case:
    """The same partition some time later: its front is what the pipeline itself wrote."""
    log = logs.Log(list(logs.read_segments(case.directory)), list(logs.read_segments(case.directory).values()))
    bound = rng.choice([case.terms.bound, *[base for base in log.bounds() if base >= case.terms.bound]])
    later_ms = case.terms.now_ms + rng.choice([1, logs.RETENTION_MS, 2 * logs.RETENTION_MS])
    terms = replace(logs.random_terms(rng, log, bound), now_ms=later_ms)
    return case_of(case.directory, max(case.terms.bound, case.first_dirty), terms, case.config)


def run(context: SparkContext, cases: Sequence[Case], dry_run: bool = False) -> list[Report]:
    opened = [open_partition(case.directory) for case in cases]
    requests = []
    for case, log, surveyed in zip(cases, opened, pipeline.survey_logs(context, opened), strict=True):
        assert isinstance(surveyed, LogSurvey), surveyed
        requests.append(
            Request(log=log, survey=surveyed, config=case.config, terms=case.terms, first_dirty_offset=case.first_dirty)
        )
    return pipeline.compact(context, requests, dry_run=dry_run)


def test_who_claims_too_much_gets_the_same_from_both(tmp_path: Path) -> None:
    """Below what is said to be clean a key is believed to occur once: of two records, one survives its tombstone."""
    a, b = b"a", b"b"
    segments = [
        [logs.data((a, b"1"), at=0), logs.data((a, b"2"), (b, b"1"), at=1)],
        [logs.data((a, None), at=3), logs.data((b, b"2"), at=4)],
        [logs.data((b"other", b""), at=5)],
    ]
    directory = tmp_path / "t-0"
    logs.write_partition(logs.Log([0, 3, 5], segments), directory)
    terms = Terms(logs.NOW_MS, 5, logs.RETENTION_MS)
    case = case_of(directory, 3, terms, TopicConfig(cleanup_policy=frozenset({"compact"})))
    expected = compact(case.before, terms, (), {2, 4, 5}, clean_below=3)
    assert [record.offset for batch in expected.batches for record in batch.records] == [0, 3, 4, 5]
    assert [record.offset for batch in case.expected.batches for record in batch.records] == [3, 4, 5]
    run(LocalContext(random.Random(1)).as_spark, [case])
    after = logs.read_batches(directory)
    assert [_without_size(batch) for batch in after] == [_without_size(batch) for batch in expected.batches]


def test_clean_tombstones_are_not_sent_to_one_reducer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose keys the dirty section does not have need nobody else; many may wait for a replica that is away."""
    clean = [
        logs.data(*[(b"gone %d" % (20 * index + each), None) for each in range(20)], at=20 * index)
        for index in range(20)
    ]
    segments = [clean[:10], clean[10:], [logs.data((b"gone 7", b"back"), at=400)], []]
    directory = tmp_path / "t-0"
    logs.write_partition(logs.Log([0, 200, 400, 401], segments), directory)
    terms = Terms(logs.NOW_MS, 401, logs.RETENTION_MS)
    case = case_of(directory, 400, terms, TopicConfig(cleanup_policy=frozenset({"compact"})))
    reduced: list[int] = []
    strike = index_pass.strike

    def counting(members: list[tuple[int, bool, bytes | index_pass.Note]]) -> Any:
        reduced.append(sum(len(payload) // 24 for _, _, payload in members if isinstance(payload, bytes)))
        return strike(members)

    monkeypatch.setattr(index_pass, "strike", counting)
    (report,) = run(LocalContext(random.Random(1)).as_spark, [case])
    check(case, report)
    assert max(reduced) < 50, "only those that the filter lets through by chance"


class Counting(tuple[SliceResult, ...]):
    """How often somebody goes through them."""

    times = 0

    def __iter__(self) -> Iterator[SliceResult]:
        Counting.times += 1
        return super().__iter__()


def test_results_are_gone_through_once_however_many_segments_there_are(tmp_path: Path) -> None:
    """Not once for each segment: ten thousand small ones would be a hundred million steps in the driver."""
    directory = tmp_path / "t-0"
    segments = [[logs.data((b"%d" % base, b""), at=base)] for base in range(20)]
    logs.write_partition(logs.Log([*range(20), 20], [*segments, []]), directory)
    log = open_partition(directory)
    (survey,) = pipeline.survey_logs(LocalContext(random.Random(1)).as_spark, [log])
    assert isinstance(survey, LogSurvey)
    request = Request(
        log=log,
        survey=survey,
        config=TopicConfig(),
        terms=Terms(logs.NOW_MS, 20, logs.RETENTION_MS),
        first_dirty_offset=0,
    )
    results = [ChunkResult(number, 0, Counting([SliceResult(number, True, (), 10, number)])) for number in range(20)]
    Counting.times = 0
    left = pipeline.rewritten(request, results)
    assert [one.last_offset for one in left] == list(range(20))
    assert Counting.times == len(results)


def test_a_job_leaves_nothing_in_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that succeeds nor one that fails: a compactor's session lives for days."""
    segments = [[logs.data((b"a", b"1"), at=0)], [logs.data((b"a", b"2"), at=1)], []]
    directory = tmp_path / "t-0"
    logs.write_partition(logs.Log([0, 1, 2], segments), directory)
    case = case_of(directory, 1, Terms(logs.NOW_MS, 2, logs.RETENTION_MS), TopicConfig())
    context = LocalContext(random.Random(1))
    with monkeypatch.context() as patch:
        patch.setattr(index_pass, "reduce_buckets", lambda rows: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            run(context.as_spark, [case])
    assert context.held == []
    run(context.as_spark, [case])
    assert context.held == []


def test_no_horizon_starts_in_a_segment_that_has_no_room_to_grow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes every record of its batch longer; when half of the segment has gone, there is room."""
    tombstones = [logs.data((b"gone %d" % at, None), (b"kept %d" % at, b"x" * 50), at=at) for at in range(0, 20, 2)]
    directory = tmp_path / "t-0"
    logs.write_partition(logs.Log([0, 20], [tombstones, []]), directory)
    size_bytes = sum(batch.size_bytes for batch in logs.read_batches(directory))
    monkeypatch.setattr(chunking, "HORIZON_SEGMENT_BYTES_MAX", size_bytes - 1)
    monkeypatch.setattr(chunking, "SEGMENT_BYTES_MAX", size_bytes)
    terms = Terms(logs.NOW_MS, 20, logs.RETENTION_MS, mtro=20)
    config = TopicConfig(cleanup_policy=frozenset({"compact"}))
    case = case_of(directory, 0, terms, config)
    (report,) = run(LocalContext(random.Random(1)).as_spark, [case])
    assert report.failure is None
    assert report.tally.of(Fate.TOMBSTONE_WAITS_FOR_HORIZON) == 10
    assert all(batch.delete_horizon_ms is None for batch in logs.read_batches(directory))

    later = [logs.data(*[(b"kept %d" % each, b"") for each in range(0, 20, 2)], at=20)]
    logs.write_partition(logs.Log([0, 20, 30], [tombstones, later, []]), tmp_path / "t-1")
    monkeypatch.setattr(chunking, "HORIZON_SEGMENT_BYTES_MAX", size_bytes)
    case = case_of(tmp_path / "t-1", 0, replace(terms, bound=30), config)
    (report,) = run(LocalContext(random.Random(1)).as_spark, [case])
    assert report.tally.of(Fate.TOMBSTONE_STARTS_HORIZON) == 10


def test_segments_that_grow_in_a_pass_are_not_merged_past_what_an_index_can_express(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = [[logs.data((b"gone %d" % at, None), at=at)] for at in range(3)]
    directory = tmp_path / "t-0"
    logs.write_partition(logs.Log([0, 1, 2, 3], [*segments, []]), directory)
    old_bytes = sum(batch.size_bytes for batch in logs.read_batches(directory))
    monkeypatch.setattr(chunking, "SEGMENT_BYTES_MAX", old_bytes)
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=old_bytes)
    case = case_of(directory, 0, Terms(logs.NOW_MS, 3, logs.RETENTION_MS, mtro=3), config)
    (report,) = run(LocalContext(random.Random(1)).as_spark, [case])
    check(case, report)
    sizes = [segment.size_bytes for segment in open_partition(directory).segments]
    assert sum(sizes) > old_bytes, "their horizons have started"
    assert max(sizes) <= old_bytes


def test_a_segment_that_would_be_too_large_is_its_partitions_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = []
    for index, key in enumerate((b"a much longer key than the other one has", b"b")):
        segments = [[logs.data((key, b"1"), at=0)], [logs.data((key, b"2"), (key * 3, b""), at=1)], []]
        directory = tmp_path / f"t-{index}"
        logs.write_partition(logs.Log([0, 1, 3], segments), directory)
        cases.append(case_of(directory, 0, Terms(logs.NOW_MS, 3, logs.RETENTION_MS), TopicConfig(segment_bytes=1)))
    monkeypatch.setattr(chunking, "SEGMENT_BYTES_MAX", 200)
    before = logs.contents(cases[0].directory)
    large, small = run(LocalContext(random.Random(1)).as_spark, cases)
    assert large.failure is not None
    assert "segment.bytes" in large.failure.remedy
    assert logs.contents(cases[0].directory) == before
    assert small.failure is None
    assert small.is_changed


def check(case: Case, report: Report) -> None:
    assert report.failure is None, report.failure
    check_records(case)
    check_tally(case, report)
    check_held_back(case, report)
    check_files(case, report)
    for base, batches in logs.read_segments(case.directory).items():
        check_indexes(case, base, batches)


def check_records(case: Case) -> None:
    after = logs.read_batches(case.directory)
    assert [_without_size(batch) for batch in after] == [_without_size(batch) for batch in case.expected.batches]
    assert fold_by_key(after) == fold_by_key(case.before), "rule 3"


def check_tally(case: Case, report: Report) -> None:
    expected = Counter(int(verdict.fate) for verdict in case.expected.verdicts)
    assert {fate: count for fate, count in report.tally.counts.items() if count} == dict(expected)


def check_held_back(case: Case, report: Report) -> None:
    """What waits for replicas, in bytes: each batch by the share of its records."""
    waits = (Fate.TOMBSTONE_WAITS_FOR_REPLICAS, Fate.MARKER_WAITS_FOR_REPLICAS)
    waiting = {verdict.offset for verdict in case.expected.verdicts if verdict.fate in waits}
    assert report.tally.held_back_bytes == sum(
        batch.size_bytes * sum(record.offset in waiting for record in batch.records) // len(batch.records)
        for batch in case.before
        if batch.records
    )


def check_files(case: Case, report: Report) -> None:
    strays = [path.name for path in case.directory.iterdir() if path.suffix in (".cleaned", ".swap", ".deleted")]
    assert strays == []
    assert report.is_changed == (logs.contents(case.directory) != case.files)
    log = open_partition(case.directory)
    assert log.cleaner_offset == max(case.terms.bound, case.first_dirty)
    below = [segment for segment in log.segments if segment.base_offset < case.terms.bound]
    assert report.segments_after == len(below)
    assert report.bytes_after == sum(segment.size_bytes for segment in below)


def check_indexes(case: Case, base: int, batches: Sequence[Batch]) -> None:
    offset_index = _read(case.directory / names.segment_file_name(base, names.OFFSET_INDEX_SUFFIX))
    time_index = _read(case.directory / names.segment_file_name(base, names.TIME_INDEX_SUFFIX))
    transaction_index = _read(case.directory / names.transaction_index_file_name(base))
    check_offset_index(offset_index, base, batches)
    check_time_index(time_index, base, batches)
    check_transaction_index(transaction_index, base, batches)
    if _read(case.directory / names.log_file_name(base)) == case.files.get(names.log_file_name(base)):
        assert transaction_index == case.files.get(names.transaction_index_file_name(base), b"")
    else:
        check_aborted_entries(case, transaction_index, batches)


def check_aborted_entries(case: Case, content: bytes, batches: Sequence[Batch]) -> None:
    """An aborted transaction stays in the index of the segment that holds its marker, as long as the marker does."""
    known: dict[int, AbortedEntry] = {entry[2]: entry for entry in logs.aborted_entries(case.before)}
    for name, old in case.files.items():
        if name.endswith(names.TRANSACTION_INDEX_SUFFIX):
            known.update({entry[2]: entry for entry in _decode_aborted(old)})
    markers = [batch.last_offset for batch in batches if batch.control_type == ControlType.ABORT]
    assert _decode_aborted(content) == [known[offset] for offset in markers if offset in known]


def _decode_aborted(content: bytes) -> list[AbortedEntry]:
    columns = ("producer_id", "first_offset", "last_offset", "last_stable_offset")
    return [tuple(int(entry[name]) for name in columns) for entry in indexes.decode_transaction_index(content)]


def _without_size(batch: Batch) -> Batch:
    return replace(batch, size_bytes=0)


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def cut_up(rng: random.Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a small log go through every loop that a large one goes through."""
    monkeypatch.setattr(chunking, "CHUNK_BYTES_MIN", rng.choice([1, 200, 1000, 1 << 20]))
    monkeypatch.setattr(chunking, "CHUNK_RECORDS_MAX", rng.choice([1, 10, 1 << 20]))
    monkeypatch.setattr(chunking, "BUCKET_ENTRIES", rng.choice([1, 3, 1 << 17]))
    monkeypatch.setattr(survey, "GRAIN_BYTES", rng.choice([1, 150, 1 << 20]))
    monkeypatch.setattr(survey, "GRAIN_RECORDS", rng.choice([1, 5, 1 << 20]))
    monkeypatch.setattr(unpacking, "RUN_BYTES", rng.choice([1, 100, 1 << 20]))
    monkeypatch.setattr(rewrite_pass, "BUFFER_BYTES", rng.choice([1, 500, 1 << 20]))
    monkeypatch.setattr(rewrite_pass, "LINKED_RUN_BYTES_MIN", rng.choice([1, 200, 1 << 20]))
    monkeypatch.setattr(passes, "REDUCE_BYTES", rng.choice([24, 1 << 20]))


@pytest.mark.parametrize("first_seed", range(0, SEED_COUNT, SEEDS_PER_TEST))
def test_pipeline_keeps_what_the_reference_keeps(
    first_seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # durability has its own tests
    for seed in range(first_seed, min(SEED_COUNT, first_seed + SEEDS_PER_TEST)):
        rng = random.Random(seed)
        cut_up(rng, monkeypatch)
        context = LocalContext(rng).as_spark
        case = make_case(rng, tmp_path / f"log-{seed}" / "topic-0")
        try:
            check(case, run(context, [case])[0])
            case = next_pass(rng, case)
            check(case, run(context, [case])[0])
        except BaseException as error:
            error.add_note(f"seed {seed}, {case.terms}, {case.config}")
            raise
        shutil.rmtree(tmp_path / f"log-{seed}")


def test_many_partitions_go_through_one_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(1)
    cut_up(rng, monkeypatch)
    cases = [make_case(rng, tmp_path / f"topic-{index}") for index in range(8)]
    for case, report in zip(cases, run(LocalContext(rng).as_spark, cases), strict=True):
        check(case, report)


def test_a_dry_run_changes_nothing_and_counts_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(15):
        rng = random.Random(seed)
        cut_up(rng, monkeypatch)
        case = make_case(rng, tmp_path / f"log-{seed}" / "topic-0")
        checkpoints = logs.contents(case.directory.parent)
        (report,) = run(LocalContext(rng).as_spark, [case], dry_run=True)
        assert report.failure is None
        assert logs.contents(case.directory) == case.files
        assert logs.contents(case.directory.parent) == checkpoints
        check_tally(case, report)
        (real,) = run(LocalContext(rng).as_spark, [case])
        assert (report.is_changed, report.segments_after) == (real.is_changed, real.segments_after)


def test_a_new_segment_is_as_old_as_the_last_one_it_replaces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where records have no timestamps, retention goes by the file's."""
    batches = [[logs.data((b"a", b"%d" % base), at=base)] for base in (0, 10, 20)]
    directory = tmp_path / "topic-0"
    logs.write_partition(logs.Log([0, 10, 20, 30], [*batches, []]), directory)
    for base in (0, 10, 20, 30):
        os.utime(directory / names.log_file_name(base), (1000 + base, 1000 + base))
    case = case_of(directory, 0, Terms(logs.NOW_MS, 30, logs.RETENTION_MS), TopicConfig(segment_bytes=1 << 20))
    (report,) = run(LocalContext(random.Random(0)).as_spark, [case])
    check(case, report)
    assert report.segments_after == 1
    assert (directory / names.log_file_name(0)).stat().st_mtime == 1020


@pytest.mark.spark
def test_spark_itself_keeps_what_the_reference_keeps(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunking, "CHUNK_BYTES_MIN", 500)
    monkeypatch.setattr(chunking, "BUCKET_ENTRIES", 5)
    cases = [make_case(random.Random(seed), tmp_path / f"topic-{seed}") for seed in SPARK_SEEDS]
    for case, report in zip(cases, run(spark.sparkContext, cases), strict=True):
        check(case, report)
