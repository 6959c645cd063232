"""The example of the article "Understanding Kafka compaction" (fruit-prices: grape, lime, guava, kiwi), pass by pass.

docs/compaction.md tells it with the same offsets.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sexton.compaction.eligibility import Eligibility, SegmentSummary, cleanable_bound, eligibility_of
from sexton.compaction.fates import Fate
from sexton.compaction.survey import LogSurvey
from sexton.compaction.terms import Terms
from sexton.log.stopped.partition import open_partition
from sexton.records.batch import Batch
from sexton.settings.topic import TopicConfig
from sexton.spark import compact as pipeline
from sexton.spark.compact import Report, Request
from tests import logs
from tests.spark.local_context import LocalContext

CONFIG = TopicConfig(cleanup_policy=frozenset({"compact"}))
DAY_MS = 24 * 3_600_000
WEEK_MS = 7 * DAY_MS

FIRST = [(b"grape", b"$2.69"), (b"lime", b"$0.49"), (b"grape", None), (b"lime", b"$1.59")]
SECOND = [(b"lime", b"$1.69"), (b"guava", b"$3.00"), (b"guava", b"$3.10"), (b"kiwi", b"$0.99")]
THIRD = [(b"guava", b"$3.20")]


def segment(prices: Sequence[tuple[bytes, bytes | None]], base: int) -> list[Batch]:
    return [logs.data(one, at=base + number) for number, one in enumerate(prices)]


def judged(directory: Path) -> Eligibility:
    log = open_partition(directory)
    summaries = [SegmentSummary(one.base_offset, one.size_bytes, logs.NOW_MS, logs.NOW_MS) for one in log.segments]
    first_dirty, end = log.cleaner_offset or 0, log.segments[-1].base_offset + 1
    bound = cleanable_bound(summaries, first_dirty, end, end, logs.NOW_MS, CONFIG)
    return eligibility_of(summaries, first_dirty, bound, logs.NOW_MS, CONFIG)


def clean(directory: Path, terms: Terms) -> Report:
    log = open_partition(directory)
    (survey,) = pipeline.survey_logs(LocalContext(random.Random(1)).as_spark, [log])
    assert isinstance(survey, LogSurvey)
    request = Request(log=log, survey=survey, config=CONFIG, terms=terms, first_dirty_offset=log.cleaner_offset or 0)
    (report,) = pipeline.compact(LocalContext(random.Random(1)).as_spark, [request])
    assert report.failure is None
    return report


def offsets(directory: Path) -> dict[int, bytes]:
    return {record.offset: record.key or b"" for batch in logs.read_batches(directory) for record in batch.records}


def test_grape_is_gone_after_the_second_pass_and_the_retention_between_them(tmp_path: Path) -> None:
    """As Kafka does it, with one replica: its own MTRO is where it has compacted to."""
    directory = tmp_path / "fruit-prices-0"
    logs.write_partition(logs.Log([0, 4], [segment(FIRST, 0), segment(SECOND[:1], 4)]), directory)
    before = judged(directory)
    assert (before.dirty_ratio, before.is_eligible, before.bound.offset) == (1.0, True, 4)

    terms = Terms(logs.NOW_MS, 4, DAY_MS, mtro=4)
    report = clean(directory, terms)
    assert offsets(directory) == {2: b"grape", 3: b"lime", 4: b"lime"}, "the open segment is not looked at"
    assert report.tally.of(Fate.TOMBSTONE_STARTS_HORIZON) == 1
    tombstone = logs.read_batches(directory)[0]
    assert tombstone.delete_horizon_ms == logs.NOW_MS + DAY_MS
    after = judged(directory)
    assert (after.dirty_ratio, after.is_eligible) == (0.0, False)

    write_on(directory, segment(SECOND[1:], 5), segment(THIRD, 8))
    assert judged(directory).dirty_ratio > CONFIG.min_cleanable_dirty_ratio, "two clean records, four dirty ones"

    report = clean(directory, replace(terms, now_ms=logs.NOW_MS + WEEK_MS, bound=8, mtro=8))
    assert report.tally.of(Fate.TOMBSTONE_EXPIRED) == 1
    assert offsets(directory) == {4: b"lime", 6: b"guava", 7: b"kiwi", 8: b"guava"}
    assert judged(directory).dirty_ratio == 0.0


def test_grape_waits_while_a_replica_has_not_compacted_past_it(tmp_path: Path) -> None:
    """What Sexton does besides: no time starts before every replica is past the tombstone."""
    directory = tmp_path / "fruit-prices-0"
    logs.write_partition(logs.Log([0, 4], [segment(FIRST, 0), segment(SECOND[:1], 4)]), directory)
    away = Terms(logs.NOW_MS, 4, DAY_MS, mtro=0)
    clean(directory, away)
    write_on(directory, segment(SECOND[1:], 5), segment(THIRD, 8))
    report = clean(directory, replace(away, now_ms=logs.NOW_MS + WEEK_MS, bound=8))
    assert report.tally.of(Fate.TOMBSTONE_WAITS_FOR_REPLICAS) == 1
    assert 2 in offsets(directory), "a week has passed, and it is still there"
    back = replace(away, now_ms=logs.NOW_MS + WEEK_MS, bound=8, mtro=8)
    assert clean(directory, back).tally.of(Fate.TOMBSTONE_STARTS_HORIZON) == 1
    report = clean(directory, replace(back, now_ms=back.now_ms + DAY_MS))
    assert report.tally.of(Fate.TOMBSTONE_EXPIRED) == 1
    assert offsets(directory) == {4: b"lime", 6: b"guava", 7: b"kiwi", 8: b"guava"}


def write_on(directory: Path, rest: list[Batch], active: list[Batch]) -> None:
    """The open segment 4 is filled and closed, and 8 is opened."""
    segments = logs.read_segments(directory)
    kept = {base: batches for base, batches in segments.items() if base < 4}
    checkpoint = directory.parent / "cleaner-offset-checkpoint"
    content = checkpoint.read_bytes()
    shutil.rmtree(directory)
    logs.write_partition(logs.Log([*kept, 4, 8], [*kept.values(), [*segments[4], *rest], active]), directory)
    checkpoint.write_bytes(content)
