"""Audits of random logs: nobody is accused wrongly, and what the plain folds differ in is found."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.audit.judge import Verdict
from sexton.compaction.reference import compact, fold_by_key
from sexton.records.batch import Batch, Record
from sexton.spark import file_stretch, fold_job, fold_pass
from tests import logs
from tests.audit.replicas import On, judged


def cleaned(rng: random.Random, log: logs.Log) -> logs.Log:
    """By this replica's own cleaner, as far as it happens to have come. Others have been through the same log, so
    whatever is dropped is dropped rightly."""
    bounds = log.bounds()
    if not bounds or rng.random() < 0.2:
        return log
    terms = logs.random_terms(rng, log, rng.choice(bounds))
    batches = compact(log.batches, terms, logs.producers_of(log.batches, logs.NOW_MS, logs.RETENTION_MS)).batches
    segments: list[list[Batch]] = [[] for _ in log.bases]
    for batch in batches:
        segments[max(i for i, base in enumerate(log.bases) if base <= batch.base_offset)].append(batch)
    return logs.Log(log.bases, segments, terms.bound, log.aborted)


def random_log(rng: random.Random) -> logs.Log:
    """Whose indexes say what its markers do, and whose leader epochs rise."""
    log = logs.random_log(rng)
    epochs = iter(sorted(batch.leader_epoch for batch in log.batches))
    segments = [[replace(batch, leader_epoch=next(epochs)) for batch in segment] for segment in log.segments]
    return logs.Log(log.bases, segments, log.clean_below, logs.aborted_entries(log.batches))


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_replicas_that_were_cleaned_at_different_times_agree(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    log = random_log(rng)
    report = judged(tmp_path_factory.mktemp("brokers"), *(On(log=cleaned(rng, log)) for _ in range(3)))
    assert (report.verdict, report.cases, report.findings) == (Verdict.AGREE, (), ())
    assert report.counts.key_count == len(fold_by_key(log.batches))


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_a_replica_that_has_only_the_beginning_lags(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    """As long as nobody has cleaned, everything is still to come."""
    log = random_log(rng)
    batches = log.batches
    rest = batches[: rng.randrange(len(batches))] if batches else []
    whole = On(log=replace(log, clean_below=None))
    lagging = On(rest, start=log.bases[0])
    report = judged(tmp_path_factory.mktemp("brokers"), whole, whole, lagging)
    assert report.verdict in (Verdict.AGREE, Verdict.LAGGING)
    assert (report.cases, report.findings) == ((), ())


def folds_differ(a: dict[bytes, Record], b: dict[bytes, Record]) -> set[bytes]:
    def content(record: Record | None) -> object:
        return None if record is None else (record.offset, record.timestamp_ms, record.value, record.headers)

    return {key for key in {*a, *b} if content(a.get(key)) != content(b.get(key))}


@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_every_key_that_a_lost_batch_changes_is_found_and_no_other(
    tmp_path_factory: pytest.TempPathFactory, rng: random.Random
) -> None:
    log = replace(random_log(rng), clean_below=None)
    plain = [
        (number, place)
        for number, segment in enumerate(log.segments)
        for place, batch in enumerate(segment)
        if not batch.is_control and not batch.is_transactional and batch.next_offset < log.end_offset
    ]
    if not plain or log.batches[-1].next_offset != log.end_offset:
        return
    number, place = rng.choice(plain)
    segments = [list(segment) for segment in log.segments]
    del segments[number][place]
    twin = replace(log, segments=segments)
    report = judged(tmp_path_factory.mktemp("brokers"), On(log=log), On(log=twin), On(log=log))
    expected = folds_differ(fold_by_key(log.batches), fold_by_key(twin.batches))
    assert {case.key.key for case in report.cases} == expected


def test_pieces_runs_and_buckets_cut_anywhere_give_the_same_report(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = logs.random_log(random.Random(9), 80)
    shown = sorted(record.offset for record in fold_by_key(log.batches).values())
    lost = set(shown[: len(shown) // 2])
    segments = [
        [batch for batch in segment if not lost & {record.offset for record in batch.records}]
        for segment in log.segments
    ]
    replicas = [On(log=log), On(log=replace(log, segments=segments)), On(log=log)]

    def keys() -> list[tuple[bytes | None, int, str]]:
        report = judged(tmp_path_factory.mktemp("brokers"), *replicas)
        return sorted(
            (case.key.key, case.explained.is_class, str(sorted(case.explained.facts))) for case in report.cases
        )

    whole = keys()
    monkeypatch.setattr(file_stretch, "PIECE_BYTES", 100)
    monkeypatch.setattr(fold_pass, "RUN_ENTRIES_MAX", 3)
    monkeypatch.setattr(fold_job, "BUCKET_BYTES", 500)
    assert keys() == whole
    assert whole
