"""A partition is committed segment by segment: between any two steps it is a log that means the same."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from sexton.compaction.contract import NewSegment
from sexton.compaction.reference import fold_by_key
from sexton.log.stopped import swap
from sexton.spark import compact as pipeline
from tests import logs
from tests.spark.local_context import LocalContext
from tests.spark.test_compact_matches_reference import Case, case_of, check_files, check_records, make_case, run


class PowerFailureError(Exception):
    """Nothing that would run after it does."""


def run_until(case: Case, rng: random.Random, commits: int, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Compact, and die before the given commit. Whether it got that far."""
    real_commit, done = swap.commit, 0

    def commit(directory: Path, new: Sequence[NewSegment]) -> None:
        nonlocal done
        if done == commits:
            raise PowerFailureError
        done += 1
        real_commit(directory, new)

    with monkeypatch.context() as patch:
        patch.setattr(swap, "commit", commit)
        patch.setattr(pipeline, "clear_staging", lambda request, report: None)
        try:
            run(LocalContext(rng).as_spark, [case])
        except PowerFailureError:
            return True
    return False


@pytest.mark.parametrize("seed", range(12))
def test_a_crash_between_two_steps_changes_no_fold_and_the_next_pass_ends_what_was_begun(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    original = tmp_path / "original" / "topic-0"
    case = make_case(random.Random(seed), original)
    shutil.copytree(original.parent, tmp_path / "whole")
    for commits in [0, 1, 2, 5, 20]:
        work = tmp_path / f"crash-{commits}"
        shutil.copytree(tmp_path / "whole", work)
        crashed = case_of(work / "topic-0", case.first_dirty, case.terms, case.config)
        if not run_until(crashed, random.Random(seed), commits, monkeypatch):
            break
        swap.recover(crashed.directory)
        between = logs.read_batches(crashed.directory)
        assert fold_by_key(between) == fold_by_key(case.before)
        high_watermark = case.before[-1].next_offset
        assert logs.last_stable_offset(between, high_watermark) >= logs.last_stable_offset(case.before, high_watermark)
        again = case_of(crashed.directory, case.first_dirty, case.terms, case.config)
        (report,) = run(LocalContext(random.Random(seed)).as_spark, [again])
        assert report.failure is None
        check_records(again)
        check_files(again, report)
        shutil.rmtree(work)
