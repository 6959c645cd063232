"""Cutting the plan of a run that shows something wrong down to what it needs: less time, fewer faults, fewer processes.

Real processes stay free, so a smaller plan counts if the anomaly shows in some of several tries; it may show at another
moment and with other evidence. What is found is the smallest plan along the way, not of all.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sexton.errors import SextonError
from sexton.simulate.shrink import smallest
from sexton.verify.faults.schedule import Episode, episodes
from sexton.verify.generator import NS
from sexton.verify.plan import Plan

TIME_MIN_NS: Final = NS
"""Below that a run is mostly its beginning and its end."""

PROCESSES_MIN: Final = 2
"""One process that sends, and one that polls."""

_TRIES: Final = re.compile(r"([1-9]\d*)/([1-9]\d*)")


class TriesError(SextonError):
    exit_code = 64


@dataclass(frozen=True, slots=True)
class Tries:
    """How often it must show, of how many times."""

    wanted: int = 1
    of: int = 2

    @classmethod
    def parse(cls, text: str) -> Tries:
        found = _TRIES.fullmatch(text)
        tries = cls(*map(int, found.groups())) if found else cls(1, 0)
        if tries.wanted > tries.of:
            raise TriesError(f"{text} is not how often of how many times", "", "Say it as in 1/3")
        return tries

    def hold(self, attempt: Callable[[], bool]) -> bool:
        """No attempt more than it takes to know."""
        shown = 0
        for left in range(self.of, 0, -1):
            if shown + left < self.wanted:
                return False
            shown += attempt()
            if shown == self.wanted:
                return True
        return False


def kept(plan: Plan) -> list[Episode]:
    """The faults that happen."""
    return [each for each in episodes(plan.schedule()) if each.number not in plan.left_out]


def shrink(
    plan: Plan, anomalies: Collection[str], attempt: Callable[[Plan], Collection[str]], tries: Tries
) -> Iterator[Plan]:
    """Each smaller plan that shows one of the anomalies. `attempt` runs a plan once, and says what was wrong."""

    def shows(smaller: Plan) -> bool:
        return tries.hold(lambda: bool(set(attempt(smaller)) & set(anomalies)))

    def by_time(plan: Plan) -> Iterator[Plan]:
        """A shorter run has the beginning of the same schedule."""
        while (main_ns := plan.main_ns // 2) >= TIME_MIN_NS:
            numbers = {each.number for each in episodes(replace(plan, main_ns=main_ns).schedule())}
            smaller = replace(plan, main_ns=main_ns, left_out=tuple(sorted(numbers & set(plan.left_out))))
            if not shows(smaller):
                return
            yield (plan := smaller)

    def by_processes(plan: Plan) -> Iterator[Plan]:
        """Half of them, and if that is too few, one less."""
        least = max(PROCESSES_MIN, plan.shards)
        while plan.concurrency > least:
            for concurrency in dict.fromkeys((max(plan.concurrency // 2, least), plan.concurrency - 1)):
                if shows(smaller := replace(plan, concurrency=concurrency)):
                    break
            else:
                return
            yield (plan := smaller)

    for ways in (by_time, _by_faults(shows), by_processes):
        for smaller in ways(plan):
            plan = smaller
            yield plan


def _by_faults(shows: Callable[[Plan], bool]) -> Callable[[Plan], Iterator[Plan]]:
    def shrunk(plan: Plan) -> Iterator[Plan]:
        found: list[Plan] = []

        def can_go(numbers: Sequence[int], parts: Sequence[Sequence[int]]) -> int | None:
            """The last that can: what came first is more likely to matter."""
            gone = set(range(len(episodes(plan.schedule())))) - set(numbers)
            for index in reversed(range(len(parts))):
                smaller = replace(plan, left_out=tuple(sorted(gone | set(parts[index]))))
                if shows(smaller):
                    found.append(smaller)
                    return index
            return None

        smallest([each.number for each in kept(plan)], can_go, lambda _: None)
        yield from found

    return shrunk


def described(plan: Plan) -> list[str]:
    """Describes the plan for people: its size, then a line for each episode."""
    lines = [f"{plan.main_ns / NS:g} s, {plan.concurrency} processes, seed {plan.seed}"]
    for each in kept(plan):
        span = f"{each.begin.at_ns / NS:.1f} s to {each.end.at_ns / NS:.1f} s"
        lines.append(f"{each.begin.fault} of {each.begin.target}, {span}")
    return lines if len(lines) > 1 else [*lines, "no faults"]
