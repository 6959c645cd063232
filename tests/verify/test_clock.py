"""Clocks of brokers that are wrong: by how much, for whom, and that nothing is left of it."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from sexton.harness import clocks
from sexton.harness.clocks import Clocks
from sexton.harness.cluster import Cluster
from sexton.harness.errors import HarnessError
from sexton.verify.faults.base import Scene
from sexton.verify.faults.clock import BOUND_MS, DRIFT_S, LEAST_S, MANNERS, MOST_S, Clock, amount_s
from sexton.verify.faults.schedule import Act, Target
from sexton.verify.run import ExcludedFaultError, check_faults
from tests.verify.commands import ONE, ended, started

TIMEOUT_S = 60

ASKED_FOR_THE_TIME = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


class Told:
    """In the place of clocks: remembers how each was set."""

    def __init__(self) -> None:
        self.offsets_s: dict[int, list[float]] = {1: [0.0], 2: [0.0], 3: [0.0]}

    def set(self, node_id: int, offset_s: float) -> None:
        self.offsets_s[node_id].append(offset_s)


class Brokers:
    node_ids = (1, 2, 3)

    def __init__(self) -> None:
        self.clocks = Told()

    def is_serving(self, node_id: int) -> bool:
        return True


def test_how_wrong_a_clock_is_after_some_time() -> None:
    at_s = (0.0, 0.3, DRIFT_S / 2, 5 * DRIFT_S)
    assert [MANNERS["jump"](each, 8.0) for each in at_s] == [8, 8, 8, 8]
    assert [MANNERS["drift"](each, 8.0) for each in at_s] == [0, pytest.approx(0.24), 4, 8]
    assert [MANNERS["strobe"](each, 8.0) for each in (0.0, 0.1, 0.21, 0.41)] == [8, 8, 0, 8]


def test_amounts_are_of_every_size_and_both_signs_and_never_more_than_an_hour() -> None:
    found = [amount_s(random.Random(seed)) for seed in range(500)]
    assert all(LEAST_S <= abs(each) <= MOST_S for each in found)
    for low_s, high_s in ((0.1, 1), (1, 60), (60, 3600)):
        assert {each > 0 for each in found if low_s <= abs(each) <= high_s} == {False, True}


@pytest.mark.parametrize("how", sorted(MANNERS))
def test_who_is_hit_is_wrong_while_it_is_in_force_and_right_afterwards(how: str) -> None:
    brokers = Brokers()
    fault = Clock(Scene(cast(Cluster[Any], brokers)))
    choice = next(each for each in range(100) if random.Random(each).choice(sorted(MANNERS)) == how)
    told = fault.begin(Act(0, "clock", True, Target.MINORITY, choice))
    (hit,) = told.hit
    assert isinstance(hit, int)
    assert told.ext["how"] == how
    wait_until(lambda: len(brokers.clocks.offsets_s[hit]) > 10)
    assert fault.end().hit == [hit]
    assert fault.end().hit == []
    offsets_s = brokers.clocks.offsets_s.pop(hit)
    assert offsets_s[-1] == 0
    assert 0 < max(map(abs, offsets_s)) <= abs(told.ext["wrong-ms"][str(hit)]) / 1000
    assert all(each == [0] for each in brokers.clocks.offsets_s.values())


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks, "LIBRARIES", ("/nowhere/*",))
    with pytest.raises(HarnessError, match="needs libfaketime") as raised:
        Clock.check("sexton")
    assert "apt-get install libfaketime" in raised.value.remedy


def test_grave_and_clock_are_refused_together() -> None:
    with pytest.raises(ExcludedFaultError, match="forget producers"):
        check_faults(("grave", "clock"), "sexton")


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Clocks]:
    with Clocks([1, 2], tmp_path / "clocks") as made:
        yield made


def test_a_process_goes_by_its_own_clock_from_the_next_question_on(two: Clocks) -> None:
    process = subprocess.Popen(
        [*two.prefix(1), sys.executable, "-c", ASKED_FOR_THE_TIME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def wrong_s() -> tuple[float, float]:
        """The time of day and the monotonic clock: how far from ours."""
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("?\n")
        process.stdin.flush()
        wall_s, monotonic_s = map(float, process.stdout.readline().split())
        return wall_s - time.time(), monotonic_s - time.monotonic()

    for offset_s in (0.0, 3599.5, -3599.5, 0.0):
        two.set(1, offset_s)
        two.set(2, 0)
        wall_s, monotonic_s = wrong_s()
        assert abs(wall_s - offset_s) < 20
        assert abs(monotonic_s) < 20
    assert two.skew_ms == 7_199_000
    assert Path(f"/dev/shm/faketime_shm_{process.pid}").exists()
    process.kill()
    process.communicate()
    two.__exit__(None, None, None)
    assert not list(Path("/dev/shm").glob(f"*faketime_s*_{process.pid}"))


@pytest.mark.soak
@pytest.mark.cluster
@pytest.mark.parametrize("system", ["sexton", "kafka-4.3.0"])
def test_transactions_are_whole_though_clocks_jump_drift_and_strobe(tmp_path: Path, system: str) -> None:
    run = tmp_path / "run"
    asked = ("--system", system, "--txn", "--nemesis", "clock", "--time", 10, "--interval", 2, "--seed", 1, *ONE)
    code, said = ended(started("run", *asked, "--dir", run))
    assert code == 0, said
    ops = [json.loads(line) for line in (run / "history.jsonl").read_text().splitlines()]
    wrong = [op["ext"]["wrong-ms"] for op in ops if op["f"] == "clock" and "wrong-ms" in op.get("ext", {})]
    assert wrong
    most_ms = max(abs(each) for one in wrong for each in one.values())
    skew_ms = json.loads((run / "test.json").read_text())["run"]["clock_skew_ms"]
    assert 1000 < skew_ms <= 1000 + 2 * most_ms <= 1000 + BOUND_MS
