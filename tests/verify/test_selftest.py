"""The judge's own test, as a person runs it."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.checker.planted import correct
from sexton.checker.sabotage import PLANS, sabotage
from sexton.cli import verify, verify_telling
from sexton.harness.brokers import SextonCluster
from sexton.verify import selftest
from sexton.verify.lies import LIES, Batch, Drops, Reorders, Repeats, batches


@pytest.fixture(scope="module")
def cluster() -> Iterator[SextonCluster]:
    with SextonCluster(nodes=1) as cluster:
        yield cluster


@pytest.mark.cluster
def test_an_honest_proxy_shows_nothing_wrong(cluster: SextonCluster, tmp_path: Path) -> None:
    assert selftest.told_by(cluster.bootstrap, tmp_path / "honest", None, 2) == set()


@pytest.mark.cluster
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.soak if lie.is_long else ()) for name, lie in LIES.items()]
)
def test_a_lie_to_clients_is_found_out(name: str, cluster: SextonCluster, tmp_path: Path) -> None:
    """On a busy machine clients do little in two seconds, and a lie that nobody was told cannot be found."""
    lie = LIES[name]
    told = selftest.told_by(cluster.bootstrap, tmp_path / name, lie, 2)
    if not told & lie.shows:
        told = selftest.told_by(cluster.bootstrap, tmp_path / f"{name}-for-longer", lie, 40)
    assert told & lie.shows, told


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Anomalies to plant. That each of all is found where it was planted is in tests/checker/test_sabotage.py."""
    names = ["lost-write", "eos-loss", "resurrected-key"]
    monkeypatch.setattr(selftest, "PLANS", {name: PLANS[name] for name in names})
    return names


def test_every_anomaly_is_planted_and_found_and_nothing_else(few: list[str]) -> None:
    done = CliRunner().invoke(verify.app, ["selftest", "--no-lies", "--seeds", "1"])
    assert done.exit_code == 0, done.output
    for name in few:
        assert f" {name} " in done.output
    clean = re.search(r"nothing, in correct histories: (\d+) of \1", done.output)
    assert clean is not None
    assert int(clean[1]) >= 10


def test_a_judge_that_misses_what_was_planted_is_told_so() -> None:
    planted = sabotage("lost-write", 1)
    assert selftest.missed_in(planted) == ""
    blind = replace(planted, history=correct(1))
    assert "not found" in selftest.missed_in(blind)
    seeing_ghosts = replace(planted, implied=frozenset(), name="realtime-lag", place=type(planted.place)())
    assert "lost-write" in selftest.missed_in(seeing_ghosts)


@pytest.mark.usefixtures("few")
def test_a_selftest_that_finds_less_ends_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selftest, "missed_in", lambda planted: f"not found in {planted.name}")
    error = CliRunner().invoke(verify.app, ["selftest", "--no-lies", "--seeds", "1"]).exception
    assert isinstance(error, verify_telling.SelfTestError)
    assert "lost-write" in str(error)


@pytest.mark.usefixtures("few")
def test_what_was_found_is_written_down(tmp_path: Path) -> None:
    target = tmp_path / "kept"
    done = CliRunner().invoke(verify.app, ["selftest", "--no-lies", "--seeds", "1", "--dir", str(target)])
    assert done.exit_code == 0, done.output
    results = json.loads((target / selftest.RESULTS).read_text())
    assert {(each["name"], each["tried"], each["found"]) for each in results} >= {("lost-write", 1, 1)}


def batch(base_offset: int, mark: int) -> Batch:
    """One record's, as far as a lie looks at it."""
    body = bytes([mark]) * 60
    data = struct.pack(">qi", base_offset, len(body)) + body
    return Batch(data[:21] + b"\x00\x00" + b"\x00\x00\x00\x00" + data[27:])


def marks(found: list[Batch]) -> list[tuple[int, int]]:
    return [(each.base_offset, each.data[-1]) for each in found]


def test_lies_change_every_fifth_record_and_no_other() -> None:
    found = [batch(offset, 100 + offset) for offset in range(6)]
    assert marks(Drops().change(found)) == [(0, 100), (1, 101), (2, 102), (4, 104), (5, 105)]
    assert marks(Repeats().change(found))[3:] == [(3, 103), (4, 103), (5, 105)]
    assert marks(Reorders().change(found))[3:] == [(3, 104), (4, 103), (5, 105)]
    assert Drops().change(found[3:4]) == found[3:4], "who gets nothing would only ask again"


def test_what_a_fetch_cut_off_is_no_batch() -> None:
    found = [batch(offset, 7) for offset in range(2)]
    data = b"".join(each.data for each in found)
    assert list(batches(data)) == found
    assert list(batches(data[:-1])) == found[:1]
    assert list(batches(b"")) == []
