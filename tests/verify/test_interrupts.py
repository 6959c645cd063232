"""Ctrl-C: at whatever moment it comes, what was broken is mended, and what there is can be judged."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from typer.testing import CliRunner

from sexton.checker.planted import correct
from sexton.checker.reference import judge
from sexton.checker.sabotage import sabotage
from sexton.checker.verdict import Judgement
from sexton.cli import verify, verify_telling
from sexton.history.op import HEAL, F, Type
from sexton.verify import run as verifying
from sexton.verify import runner, selftest
from sexton.verify.faults.base import Fault, Told
from sexton.verify.faults.known import FAULTS
from sexton.verify.faults.schedule import Act
from sexton.verify.generator import NS, Ask
from sexton.verify.interrupts import Interrupts
from sexton.verify.plan import Plan
from sexton.verify.run_history import Listener
from sexton.verify.runner import INTERRUPTED, Runner
from sexton.verify.systems import System
from sexton.verify.workloads.queue import Queue, QueueOptions
from tests.verify.test_again import described
from tests.verify.test_findings import Hangs

INTERRUPTED_AGAIN = "interrupted again: judges what there is"


def ctrl_c() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_it_is_raised_where_nothing_is_half_done_and_each_once() -> None:
    with Interrupts() as interrupts:
        ctrl_c()
        ctrl_c()
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                interrupts.take()
        interrupts.take()
    with pytest.raises(KeyboardInterrupt):  # as before
        ctrl_c()


def test_in_another_thread_nothing_changes() -> None:
    """Python hands signals to the main one."""
    before = signal.getsignal(signal.SIGINT)
    found: list[object] = []

    def run() -> None:
        with Interrupts() as interrupts:
            interrupts.take()
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [before]


class Broken(Fault):
    """Something that takes a while to mend."""

    name = "broken"
    needs_cluster = False
    is_steady = True
    mended: threading.Event

    def begin(self, act: Act) -> Told:
        return Told(["something"])

    def end(self) -> Told:
        self.mended.set()
        return Told(["something"])


class Impatient:
    """Presses Ctrl-C when it hears of these phases."""

    def __init__(self, *phases: str) -> None:
        self.presses = phases
        self.phases: list[str] = []

    def phase(self, name: str) -> None:
        self.phases.append(name)
        if name in self.presses:
            ctrl_c()

    def progress(self, now_ns: int, counts: Mapping[Type, int]) -> None: ...

    def fault(self, what: str) -> None: ...


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch) -> System:
    """Brokers that nobody reaches, and clients that never answer."""
    monkeypatch.setattr(runner, "ClientProcess", Hangs)
    monkeypatch.setattr(runner, "HANG_NS", NS // 5)
    monkeypatch.setattr(runner, "HEALED_HANG_NS", NS // 5)
    monkeypatch.setattr(runner, "WHOLE_S", 0)
    monkeypatch.setattr(Hangs, "made", [])
    monkeypatch.setitem(FAULTS, "broken", Broken)
    monkeypatch.setattr(Broken, "mended", threading.Event(), raising=False)
    return System("nowhere", "127.0.0.1:1", 1)


class Sends(Queue):
    """From its first operation on: so that there is something to be read at the end."""

    def next(self, process: int) -> Ask:
        return Ask(F.SEND, (self._send(),))


@pytest.mark.parametrize(
    ("presses", "phases"),
    [
        (("faults",), ["calm", "faults", INTERRUPTED, "heals", "final reads"]),
        (("faults", "heals"), ["calm", "faults", INTERRUPTED, "heals", INTERRUPTED_AGAIN]),
        (("faults", "final reads"), ["calm", "faults", INTERRUPTED, "heals", "final reads", INTERRUPTED_AGAIN]),
    ],
)
def test_whenever_it_comes_all_is_mended_and_there_is_something_to_judge(
    presses: tuple[str, ...], phases: list[str], nowhere: System, tmp_path: Path
) -> None:
    listener = Impatient(*presses)
    plan = Plan(seed=1, concurrency=2, calm_ns=0, main_ns=60 * NS, final_ns=NS, faults=("broken",))
    ops = Runner(
        workload=Sends(QueueOptions(), random.Random(1)),
        system=nowhere,
        plan=plan,
        directory=tmp_path,
        listener=listener,
    ).run()
    assert listener.phases == phases
    assert Broken.mended.is_set()
    assert ops
    assert (HEAL in {op.f for op in ops}) or presses[-1] == "heals"
    assert all(each.is_ended for each in Hangs.made)


class Runs:
    """In the place of real runs."""

    def __init__(self, *planted: str, stopped_in: int = 1) -> None:
        self.planted = planted
        self.stopped_in = stopped_in
        self.ran = 0

    def __call__(self, wanted: verifying.Wanted, plan: Plan, listener: Listener) -> Judgement:
        name = self.planted[min(self.ran, len(self.planted) - 1)]
        self.ran += 1
        if self.ran == self.stopped_in:
            listener.phase(INTERRUPTED)
        wanted.directory.mkdir(parents=True, exist_ok=True)
        history = sabotage(name, 1).history if name else correct(1)
        return judge(history.ops, history.run)


def test_replays_end_with_the_one_that_was_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described(tmp_path / "run")
    runs = Runs("")
    monkeypatch.setattr(verifying, "run", runs)
    CliRunner().invoke(verify.app, ["replay", str(tmp_path / "run"), "--times", "5"])
    assert runs.ran == 1


def test_shrinking_ends_with_the_smallest_plan_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described(tmp_path / "run")
    runs = Runs("lost-write", stopped_in=3)
    monkeypatch.setattr(verifying, "run", runs)
    done = CliRunner().invoke(verify.app, ["replay", str(tmp_path / "run"), "--shrink"])
    assert runs.ran == 3
    assert "The smallest plan that shows it" in done.output
    assert isinstance(done.exception, verify_telling.VerdictFalseError)


def lies_that_stop(monkeypatch: pytest.MonkeyPatch, name: str, stop: Callable[[], None]) -> list[str]:
    told: list[str] = []

    def told_by(bootstrap: str, directory: Path, lie: object, seconds: float) -> set[str]:
        told.append(directory.name)
        if directory.name == name:
            stop()
        return set(getattr(lie, "shows", ()))

    class NoCluster:
        bootstrap = "127.0.0.1:1"

        def __init__(self, *_: object) -> None: ...
        def __enter__(self) -> NoCluster:
            return self

        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(selftest, "told_by", told_by)
    monkeypatch.setattr(selftest, "SextonCluster", NoCluster)
    monkeypatch.setattr(selftest, "PLANS", {})
    return told


def test_a_selftest_shows_what_it_has_found_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    told = lies_that_stop(monkeypatch, "repeats", stop)
    done = CliRunner().invoke(verify.app, ["selftest"])
    assert told[-1] == "repeats"
    assert " drops " in done.output
    assert isinstance(done.exception, verify_telling.VerdictUnknownError), "it was stopped: it has proven nothing"
    assert "before the last" in str(done.exception)


def test_a_run_of_a_selftest_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wants to know what became of it."""
    runs = Runs("")
    monkeypatch.setattr(verifying, "run", runs)
    known = selftest.Known("sexton", Plan(seed=1))
    with pytest.raises(KeyboardInterrupt):
        list(selftest.systems(tmp_path, selftest.Silent(), [known, known]))
    assert runs.ran == 1
