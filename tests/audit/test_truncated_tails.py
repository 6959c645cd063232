"""Brokers that died as leaders, with records that nobody else got: these go when they come back, and harm nobody."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sexton.audit.classes import Class
from sexton.audit.judge import Verdict
from sexton.records.batch import Batch
from tests.audit.replicas import On, judged, the_case, wrong_brokers
from tests.logs import abort, data, in_transaction

SHARED = data((b"a", b"1"), at=0, leader_epoch=6)
UNSEEN = data((b"k", b"v"), (b"j", b"v"), at=1, leader_epoch=6)
"""Above the high watermark of who has it."""


def later(*batches: Batch) -> list[Batch]:
    return [replace(batch, leader_epoch=7) for batch in batches]


@pytest.mark.parametrize("end", [1, 8])
def test_what_a_dead_leader_alone_had_is_truncated_when_it_is_back(tmp_path: Path, end: int) -> None:
    """Whether its log ends below or above that of the leader that followed it."""
    rest = On([SHARED, *later(data((b"m", b"x"), at=1), data((b"n", b"x"), at=end + 1))], epoch=7)
    report = judged(tmp_path, rest, rest, On([SHARED, UNSEEN], epoch=6, high_watermark=1))
    assert (report.verdict, report.cases, report.findings) == (Verdict.LAGGING, (), ())
    assert "offsets 1 to 3 are not judged" in report.notes[0]


def test_a_transaction_that_a_dead_leader_alone_has_ended_is_open_again(tmp_path: Path) -> None:
    begun = replace(in_transaction((b"k", b"v"), at=1, pid=7), leader_epoch=6)
    mine = [SHARED, begun, replace(abort(2, 7), leader_epoch=6)]
    rest = On([SHARED, begun, *later(data((b"m", b"x"), at=2), abort(3, 7), data((b"f", b"x"), at=8))], epoch=7)
    report = judged(tmp_path, rest, rest, On(mine, epoch=6, high_watermark=2))
    assert (report.verdict, report.cases, report.findings) == (Verdict.LAGGING, (), ())


def test_what_a_dead_leader_knew_to_be_committed_will_come_back(tmp_path: Path) -> None:
    """Its deletion went through after it had died, and is gone."""
    rest = On(later(data((b"filler", b"x"), at=8)), epoch=7, clean=8)
    report = judged(tmp_path, rest, rest, On([SHARED, UNSEEN], epoch=6, high_watermark=1))
    case = the_case(report)
    assert (report.verdict, case.explained.is_class) == (Verdict.WILL_DIVERGE, Class.WILL_DIVERGE)
    assert (case.key.key, wrong_brokers(report, case)) == (b"a", [3])


def test_what_a_follower_had_copied_stays_though_its_high_watermark_is_old(tmp_path: Path) -> None:
    """The leader's epoch went on above it."""
    filler = data((b"filler", b"x"), at=8, leader_epoch=6)
    rest = On([filler, *later(data((b"b", b"x"), at=9))], epoch=7, clean=8)
    report = judged(tmp_path, rest, rest, On([SHARED], epoch=6, high_watermark=0))
    assert (report.verdict, the_case(report).key.key) == (Verdict.WILL_DIVERGE, b"a")
