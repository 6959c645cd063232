"""Running seeds: one in this process, many in others.

The order of a set of strings differs from process to process unless PYTHONHASHSEED is fixed. Workers are therefore
started with it; a run in a process without it may give another hash.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import traceback
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field

from sexton.simulate import broken
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.loop import NS
from sexton.simulate.plan import Plan, Profile
from sexton.simulate.planning import make_plan
from sexton.simulate.simulation import Simulation
from sexton.simulate.themes import themed

TAIL_LINES = 120

YOUNG_OBJECTS = 50_000
"""Objects between two looks for garbage, in place of Python's 700: a run makes cycles all the time and keeps few."""


@dataclass(frozen=True, slots=True)
class Options:
    brokers: int = 3
    minutes: float = 1.0
    left_out: frozenset[int] = frozenset()
    """Items of the plan that do not happen."""
    broken: str | None = None
    """A rule that is broken on purpose: see `broken.py`."""
    profile: Profile | None = None
    """Drawn from the seed if it is not given."""
    is_only_history_judged: bool = False
    """Whether a run is judged only by what clients were told."""
    is_independent: bool = False
    """Replicas are compacted Kafka's way, which corrupts: a simulator that does not find that finds nothing."""

    def plan(self, seed: int) -> Plan:
        made = make_plan(seed, self.brokers, self.minutes, self.profile, self.is_independent)
        if not self.is_independent:
            made = themed(made)
        return made.without(self.left_out)


@dataclass(slots=True)
class Result:
    seed: int
    digest: str
    virtual_s: float
    rule: str | None = None
    evidence: str = ""
    tail: list[str] = field(default_factory=list)
    state: list[str] = field(default_factory=list)
    cause: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def is_clean(self) -> bool:
        return self.rule is None


def run(seed: int, options: Options) -> Result:
    """One seed, here and now."""
    simulation = Simulation(options.plan(seed), is_only_history_judged=options.is_only_history_judged)
    failure: SimulationFailure | None = None
    try:
        with broken.breaking(options.broken):
            simulation.run()
    except SimulationFailure as error:
        failure = error
    result = Result(seed, simulation.trace.digest, simulation.loop.now_ns / NS, counts=_counts(simulation))
    if failure is not None:
        result.rule, result.evidence = failure.rule, failure.evidence
        result.tail = simulation.trace.tail(TAIL_LINES)
        result.state = simulation.state()
        if failure.__cause__ is not None:
            result.cause = "".join(traceback.format_exception(failure.__cause__))
    return result


def _run_and_forget(seed: int, options: Options) -> Result:
    """One seed in a worker, which would otherwise hold what several runs before it have left: gigabytes."""
    result = run(seed, options)
    gc.collect()
    return result


def _counts(simulation: Simulation) -> dict[str, int]:
    return {
        "faults": simulation.nemesis.done_count,
        "writes": len(simulation.history.writes),
        "acknowledged": simulation.history.acknowledged_count,
        "reads": simulation.history.reads_count,
        "transactions": len(simulation.history.transactions),
        "ends": simulation.judge.transactions.ended_count,
        "compactions": simulation.compactions_count,
        "old images": simulation.nemesis.old_images_count,
        "forced": len(simulation.history.generations),
        "folds": simulation.judge.compaction.folds_count,
        "callbacks": simulation.loop.callbacks_count,
        "bytes": simulation.fabric.bytes_count,
        "events": simulation.trace.lines_count,
    }


class Workers:
    """Processes that run seeds. Results come as they are ready."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def submit(self, seed: int, options: Options) -> Future[Result]:
        return self._pool.submit(_run_and_forget, seed, options)

    def run_all(self, seeds: Iterable[int], options: Options) -> Iterator[Result]:
        futures = [self.submit(seed, options) for seed in seeds]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def workers(count: int) -> Iterator[Workers]:
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = "0"  # read by Python when a worker starts
    context = multiprocessing.get_context("spawn")
    try:
        # Workers are not replaced after so many runs: in Python 3.11 a pool that does so can wait for itself for ever.
        with ProcessPoolExecutor(count, mp_context=context, initializer=_prepare) as pool:
            yield Workers(pool)
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before


def _prepare() -> None:
    """What is loaded stays: it is not looked through each time that garbage is collected."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
