"""Whole runs: the same seed is the same run, clean seeds are clean, and every rule that is broken is found."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner

from sexton.cli.main import app
from sexton.simulate.broken import BREAKS
from sexton.simulate.broken.rules import RULES
from sexton.simulate.plan import Profile
from sexton.simulate.run import Options, Result, Workers, workers
from sexton.simulate.shrink import shrink
from tests.project import PROJECT_DIR

pytestmark = pytest.mark.long

SEEDS_COUNT = 1
"""Of each profile, in each `make test`. `make simulate` runs hundreds."""

MINUTES = 0.5
SEEDS_TO_FIND_A_BREAK = 200
SEEDS_TO_FIND_A_DIVERGENCE = 40

ROW_OF_A_DEFECT = r"^\| `([\w-]+)` \| (?:earlier: )?\d+ \| ([a-z ]+), ([\d.]+) \|"
"""In docs/simulation.md: its switch, the seed that finds it, profile and minutes."""


@pytest.fixture(scope="module")
def pool() -> Iterator[Workers]:
    with workers(2) as made:
        yield made


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Workers]:
    """A process that has run other seeds before, or none: that must not matter either."""
    with workers(1) as made:
        yield made


def first_failure(
    pool: Workers, options: Options, count: int = SEEDS_TO_FIND_A_BREAK, at_once: int = 10
) -> Result | None:
    for start in range(0, count, at_once):
        for result in pool.run_all(range(start, start + at_once), options):
            if not result.is_clean:
                return result
    return None


@pytest.mark.parametrize("profile", Profile)
def test_the_same_seed_gives_the_same_trace_in_every_process(
    pool: Workers, elsewhere: Workers, profile: Profile
) -> None:
    options = Options(minutes=0.2, profile=profile)
    here, there = pool.submit(5, options), elsewhere.submit(5, options)
    assert here.result().digest == there.result().digest
    assert here.result().counts == there.result().counts


def test_another_seed_gives_another_trace(pool: Workers) -> None:
    options = Options(minutes=0.1, profile=Profile.PLAIN)
    assert pool.submit(5, options).result().digest != pool.submit(6, options).result().digest


@pytest.mark.parametrize("profile", Profile)
def test_seeds_are_clean(pool: Workers, profile: Profile) -> None:
    results = list(pool.run_all(range(SEEDS_COUNT), Options(minutes=MINUTES, profile=profile)))
    failed = [
        f"seed {result.seed}: {result.rule}: {result.evidence}\n{result.cause}" for result in results if result.rule
    ]
    assert not failed
    hours = sum(result.virtual_s for result in results) / 3600
    print(f"\n{len(results)} seeds, {hours:.2f} simulated hours")
    assert sum(result.counts["faults"] for result in results) > SEEDS_COUNT
    assert all(result.counts["acknowledged"] and result.counts["reads"] for result in results)
    assert (profile is Profile.TRANSACTIONS) <= all(result.counts["ends"] for result in results)
    assert (profile is Profile.COMPACTION) <= all(result.counts["compactions"] for result in results)


def test_replicas_that_compact_without_coordination_are_found_to_diverge(pool: Workers) -> None:
    """Kafka's way, as a check of the simulator: with it a key comes back, or a record is lost, sooner or later."""
    options = Options(minutes=MINUTES, profile=Profile.COMPACTION, is_independent=True)
    found = first_failure(pool, options, SEEDS_TO_FIND_A_DIVERGENCE, at_once=2)
    assert found is not None
    assert found.rule in ("rule 3", "rule 4", "rule 8", "liveness")
    assert pool.submit(found.seed, replace(options, is_independent=False)).result().is_clean


@pytest.mark.parametrize("name", BREAKS)
def test_what_is_broken_on_purpose_is_there_to_be_broken(name: str) -> None:
    """The soak is run rarely: what moves in the tree meanwhile must be followed here at once. A replacement that cannot
    be called as the original is would be found at once, for the wrong reason."""
    for patch in BREAKS[name].pieces:
        original, replacement = called(patch.original), called(patch.replacement)
        assert callable(original) == callable(replacement)
        if callable(original):
            assert parameters(replacement) == parameters(original)
            assert inspect.iscoroutinefunction(replacement) == inspect.iscoroutinefunction(original)
    with BREAKS[name].in_force():
        pass


def test_the_page_says_how_each_defect_is_looked_for() -> None:
    page = (PROJECT_DIR / "docs" / "simulation.md").read_text()
    told = {row[1]: (row[2], float(row[3])) for row in re.finditer(ROW_OF_A_DEFECT, page, re.MULTILINE)}
    assert told == {
        name: (str(each.profile or "as drawn"), each.minutes) for name, each in BREAKS.items() if name not in RULES
    }


def called(piece: Any) -> Any:
    return piece.fget if isinstance(piece, property) else piece


def parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(function).parameters)


@pytest.mark.soak
@pytest.mark.parametrize("name", BREAKS)
def test_a_rule_that_is_broken_on_purpose_is_found(pool: Workers, name: str) -> None:
    options = Options(minutes=BREAKS[name].minutes, broken=name, profile=BREAKS[name].profile)
    found = first_failure(pool, options)
    assert found is not None, f"rule {name} was broken in {SEEDS_TO_FIND_A_BREAK} seeds, and nobody noticed"
    assert found.evidence
    assert found.tail
    expected = {"1": "rule 1", "1-flush": "rule 1", "5": "rule 5", "9": "rule 9"}.get(name)
    assert expected is None or found.rule == expected
    without = pool.submit(found.seed, replace(options, broken=None)).result()
    assert without.is_clean, f"seed {found.seed} breaks {without.rule} by itself: {without.evidence}"


@pytest.mark.soak
def test_a_failing_run_is_cut_down_to_what_it_needs(pool: Workers) -> None:
    options = Options(minutes=0.2, broken="1", profile=Profile.PLAIN)
    failed = first_failure(pool, options)
    assert failed is not None
    progress: list[tuple[int, int]] = []
    shrunk, result = shrink(failed, options, pool, lambda items, runs: progress.append((items, runs)))
    assert result.rule == failed.rule
    assert len(shrunk.left_out) > len(options.left_out)
    assert progress[-1][0] <= 3, "a leader that commits alone needs a writer, and little else"
    repeated = pool.submit(failed.seed, shrunk).result()
    assert (repeated.rule, repeated.evidence) == (result.rule, result.evidence)


def test_the_command_prints_what_was_covered() -> None:
    done = CliRunner().invoke(app, ["simulate", "--seed", "3", "--minutes", "0.1"])
    assert done.exit_code == 0, done.output
    assert "simulated hours" in done.output
    assert "trace hash" in done.output


def test_a_failure_prints_the_rule_the_trace_and_how_to_repeat_it() -> None:
    done = CliRunner().invoke(
        app, ["simulate", "--seeds", "20", "--minutes", "0.2", "--break", "1", "--profile", "plain"]
    )
    assert done.exception is not None
    assert "breaks rule 1" in done.output
    assert "repeat it with: sexton simulate --seed" in done.output
    assert "--break 1 --profile plain" in done.output


def test_a_rule_that_cannot_be_broken_is_refused() -> None:
    done = CliRunner().invoke(app, ["simulate", "--break", "13"])
    assert done.exit_code == 2
