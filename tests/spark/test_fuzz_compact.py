"""Mutated logs through the whole pipeline: compacted as the reference would, or refused and left untouched.

``SEXTON_FUZZ_SECONDS`` and ``SEXTON_FUZZ_SEED`` work as in ``tests/records/test_fuzz.py``.
"""

from __future__ import annotations

import os
import random
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from sexton.compaction.reference import compact
from sexton.compaction.survey import LogSurvey
from sexton.compaction.terms import Terms
from sexton.errors import SextonError
from sexton.log.stopped.partition import open_partition
from sexton.records import names
from sexton.records.batch import Batch
from sexton.settings.topic import TopicConfig
from sexton.spark import compact as pipeline
from sexton.spark.compact import Request
from tests import logs
from tests.records.test_fuzz import SECONDS, mutate, seeds
from tests.spark.local_context import LocalContext
from tests.spark.test_compact_matches_reference import cut_up

CONFIG = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=2000)
SANE_TIMES_MS = range(-1, 2**53)


def write_mutated(rng: random.Random, directory: Path) -> None:
    logs.write_partition(replace(logs.random_log(rng), clean_below=None), directory)
    for _ in range(rng.choice([1, 1, 2])):
        path = rng.choice(sorted(directory.glob("*" + names.LOG_SUFFIX)))
        path.write_bytes(mutate(rng, path.read_bytes()))


def read_as_reference(directory: Path) -> dict[int, list[Batch]] | None:
    """The log, if there is nothing wrong with it."""
    try:
        segments = logs.read_segments(directory)
    except SextonError:
        return None
    offsets = [edge for base, batches in segments.items() for edge in (base - 1, *_edges(batches))]
    in_order = all(before < after or (before == after) for before, after in pairwise(offsets))
    times = [r.timestamp_ms for batches in segments.values() for b in batches for r in b.records]
    times += [
        edge for batches in segments.values() for b in batches for edge in (b.base_timestamp_ms, b.max_timestamp_ms)
    ]
    odd = [b for batches in segments.values() for b in batches if b.is_control and (b.codec or len(b.records) > 1)]
    odd += [b for batches in segments.values() for b in batches if b.is_transactional and b.producer_id < 0]
    return segments if in_order and all(time in SANE_TIMES_MS for time in times) and not odd else None


def _edges(batches: list[Batch]) -> list[int]:
    return [edge for batch in batches for edge in (batch.base_offset - 1, batch.last_offset)]


def run_one(rng: random.Random, directory: Path) -> bool:
    """Whether the pipeline took it."""
    before, read = logs.contents(directory), read_as_reference(directory)
    context = LocalContext(rng).as_spark
    log = open_partition(directory)
    (found,) = pipeline.survey_logs(context, [log])
    if not isinstance(found, LogSurvey):
        assert read is None, f"the reference finds nothing wrong: {found}"
        return False
    stable = found.last_stable_offset(found.log_end_offset)
    bound = max(segment.base_offset for segment in found.segments if segment.base_offset <= stable)
    terms: Terms = logs.random_terms(rng, logs.Log([log.segments[0].base_offset], [[]]), bound)
    request = Request(log=log, survey=found, config=CONFIG, terms=terms, first_dirty_offset=log.segments[0].base_offset)
    (report,) = pipeline.compact(context, [request], max_batch_bytes=1 << 20)
    if report.failure is not None:
        assert read is None, f"the reference finds nothing wrong: {report.failure}"
        assert logs.contents(directory) == before
        return False
    if read is not None:
        batches = [batch for segment in read.values() for batch in segment]
        producers = logs.producers_of(batches, terms.now_ms, CONFIG.producer_id_expiration_ms)
        ends = {segment[-1].last_offset for segment in read.values() if segment}
        expected = compact(batches, terms, producers, ends).batches
        after = logs.read_batches(directory)
        assert [replace(batch, size_bytes=0) for batch in after] == [replace(batch, size_bytes=0) for batch in expected]
    return True


def test_a_mutated_log_is_compacted_as_the_reference_would_or_refused_and_left_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    taken = refused = 0
    for seed in seeds(SECONDS):
        rng = random.Random(seed)
        cut_up(rng, monkeypatch)
        directory = tmp_path / str(seed) / "topic-0"
        try:
            write_mutated(rng, directory)
            is_taken = run_one(rng, directory)
        except BaseException as error:
            error.add_note(f"SEXTON_FUZZ_SEED={seed}")
            raise
        taken, refused = taken + is_taken, refused + (not is_taken)
        shutil.rmtree(directory.parent)
    assert "SEXTON_FUZZ_SEED" in os.environ or min(taken, refused) > 0
