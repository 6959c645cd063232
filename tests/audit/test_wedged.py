"""A broker whose last stable offset stays where nothing holds it: its own log says so, and its consumers wait there."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from sexton.audit import run
from sexton.audit.classes import Class
from sexton.audit.judge import Counts, PartitionReport, Verdict, judge
from sexton.audit.plan import plan
from sexton.audit.replica import OpenClaim, Replica, ReplicaId
from sexton.audit.report import Report
from sexton.audit.run import audit
from sexton.audit.standing import reference_of
from tests.audit.replicas import On, judged
from tests.audit.working import WorkingCluster
from tests.logs import commit, data, in_transaction
from tests.spark.local_context import LocalContext

SEEDS = 30


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "WEDGED_PAUSE_S", 0)


class Wedged(WorkingCluster):
    """Broker 3 says the same last stable offset each time."""

    stays_at = 1

    def _replica(self, id: ReplicaId) -> Replica:
        found = super()._replica(id)
        stays_at = min(self.stays_at, found.high_watermark or 0)
        return replace(found, last_stable_offset=stays_at) if id.broker == 3 else found


class Hesitant(WorkingCluster):
    """Each broker's last stable offset follows its high watermark a moment later."""

    def __init__(self, rng: random.Random) -> None:
        self._said: dict[int, int] = {}
        super().__init__(rng, has_planted=False)

    def _replica(self, id: ReplicaId) -> Replica:
        found = super()._replica(id)
        end = found.high_watermark or 0
        before, self._said[id.broker] = self._said.get(id.broker, 0), end
        return replace(found, last_stable_offset=before)


def look_all(cluster: WorkingCluster, seed: int) -> Report:
    return audit(LocalContext(random.Random(seed), keeps_shuffles=True).as_spark, [cluster])


def look(cluster: WorkingCluster, seed: int) -> PartitionReport:
    (report,) = look_all(cluster, seed).partitions
    return report


def enough_to_be_behind(cluster: WorkingCluster) -> None:
    for _ in range(20):
        cluster.work()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_whose_last_stable_offset_stays_is_stuck_however_much_is_written(seed: int) -> None:
    cluster = Wedged(random.Random(seed), has_planted=False)
    enough_to_be_behind(cluster)
    cluster.is_at_rest = seed % 2 == 0
    found = look(cluster, seed)
    assert found.verdict is Verdict.DIVERGED
    (stuck,) = found.findings
    assert (stuck.is_class, found.standings[stuck.replica].replica.id.broker) == (Class.STUCK, 3)
    assert stuck.facts["last_stable_offset"] == 1
    assert "its log has no open transaction below" in stuck.because
    assert not found.cases


@pytest.mark.parametrize("seed", range(SEEDS))
def test_one_that_is_about_to_go_on_is_asked_again_and_not_accused(seed: int) -> None:
    cluster = Hesitant(random.Random(seed))
    for is_at_rest in (False, False, True):
        cluster.is_at_rest = is_at_rest
        assert look(cluster, seed).findings == ()


def test_without_being_asked_again_one_that_is_about_to_go_on_is_accused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is why it is."""
    monkeypatch.setattr(run, "CLAIM_LOOKS", 0)
    assert any(look(Hesitant(random.Random(seed)), seed).verdict.is_error for seed in range(SEEDS))


def test_what_to_do_is_to_start_it_again_and_not_to_end_a_transaction() -> None:
    cluster = Wedged(random.Random(1), has_planted=False)
    enough_to_be_behind(cluster)
    text = plan(look_all(cluster, 1), "host:9092")
    assert "a restart may be enough" in text
    assert "kafka-transactions.sh" not in text


# ---- By what brokers say beside their logs ----

LOG = [in_transaction((b"k", b"1"), at=1, pid=7), commit(2, 7), data((b"filler", b"x"), at=8)]


def judged_live(parent: Path, on_3: On, **said: object) -> PartitionReport:
    """Three logs, of brokers that answer: the third one says something of its own."""
    standings = dict(judged(parent, On(LOG), On(LOG), on_3).standings)
    for number, each in standings.items():
        live = replace(each.replica, is_live=True, is_down=False, open_as_of=None)
        live = replace(live, last_stable_offset=9, high_watermark=9, cut=9)
        mine = replace(live, **said) if live.id.broker == 3 else live  # type: ignore[arg-type]
        standings[number] = replace(each, replica=mine)
    return judge(("orders", 0), standings, reference_of(standings), (), (), Counts())


def test_a_transaction_that_is_open_in_its_log_is_told_as_such(tmp_path: Path) -> None:
    (stuck,) = judged_live(tmp_path, On([LOG[0], LOG[2]]), last_stable_offset=1).findings
    assert (stuck.is_class, stuck.facts["first_offset"]) == (Class.STUCK, 1)


def test_a_list_that_still_has_the_transaction_is_named(tmp_path: Path) -> None:
    listed = OpenClaim(7, 0, 1)
    found = judged_live(tmp_path, On(LOG), last_stable_offset=1, open=(listed,), claims_are_complete=True).findings
    assert [each.is_class for each in found] == [Class.STUCK, Class.WRONG_CLAIM]
    assert "though it lists one of producer 7 since offset 1" in found[0].because


@pytest.mark.parametrize(
    "said",
    [
        {"last_stable_offset": 9},
        {"last_stable_offset": 1, "cut": None},  # it has not passed the barrier
        {"last_stable_offset": 1, "cut": 1},  # nor have the others gone on
        {"last_stable_offset": None},
    ],
)
def test_nothing_is_said_where_nothing_is_known(tmp_path: Path, said: dict[str, object]) -> None:
    report = judged_live(tmp_path, On(LOG), **said)
    assert (report.verdict, report.findings) == (Verdict.AGREE, ())
