"""When which fault begins and ends: all of it follows from the seed, so that a replay breaks the same things.

Time is cut into *stable periods*. In each another random set of the enabled kinds may happen, in a quarter of them none
(a system must also be seen to recover), though never in the first: a short run would test nothing. Within a period acts
follow each other: each begins a fault that is not in force, or ends one that is. A fault that the next period does not
allow ends with its own.

Whom a fault hits is decided when it begins, among those that are there then: the schedule says which sort, and a number
to choose by.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

NS: Final = 1_000_000_000
CALM_P: Final = 0.25
"""Share of periods without any fault."""


class Target(StrEnum):
    ONE = "one"
    MINORITY = "minority"
    MAJORITY = "majority"
    ALL = "all"
    LEADER = "leader"
    """The leader of a log that is being written."""


@dataclass(frozen=True, slots=True)
class Act:
    at_ns: int
    fault: str
    begins: bool
    target: Target
    choice: int
    """Whoever decides which of several it is decides by this."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault, as far as it is scheduled."""

    name: str
    targets: tuple[Target, ...] = (Target.ONE, Target.LEADER, Target.MINORITY)
    is_steady: bool = False
    """In force from the beginning to the end: it decides itself when it does something."""


def schedule(
    kinds: Sequence[Kind],
    rng: random.Random,
    *,
    begin_ns: int,
    end_ns: int,
    period_ns: int = 30 * NS,
    interval_ns: int = 10 * NS,
) -> list[Act]:
    """By time. Everything ends at `end_ns` at the latest."""
    steady = [kind for kind in kinds if kind.is_steady]
    acts = [Act(begin_ns, kind.name, True, rng.choice(kind.targets), rng.getrandbits(32)) for kind in steady]
    ends = [Act(end_ns, act.fault, False, act.target, act.choice) for act in acts]
    kinds = [kind for kind in kinds if not kind.is_steady]
    in_force: dict[str, Act] = {}

    def end(fault: str, at_ns: int) -> None:
        begun = in_force.pop(fault)
        acts.append(Act(at_ns, fault, False, begun.target, begun.choice))

    for start_ns in range(begin_ns, end_ns, period_ns):
        allowed = _subset(kinds, rng, may_be_calm=start_ns > begin_ns)
        for fault in sorted(in_force.keys() - {kind.name for kind in allowed}):
            end(fault, start_ns)
        at_ns = start_ns + rng.randrange(interval_ns)
        while allowed and at_ns < min(start_ns + period_ns, end_ns):
            kind = rng.choice(allowed)
            if kind.name in in_force:
                end(kind.name, at_ns)
            else:
                act = Act(at_ns, kind.name, True, rng.choice(kind.targets), rng.getrandbits(32))
                in_force[kind.name] = act
                acts.append(act)
            at_ns += interval_ns // 2 + rng.randrange(interval_ns)
    for fault in sorted(in_force):
        end(fault, end_ns)
    return acts + ends


def _subset(kinds: Sequence[Kind], rng: random.Random, *, may_be_calm: bool) -> list[Kind]:
    is_calm = rng.random() < CALM_P and may_be_calm
    if is_calm or not kinds:
        return []
    return rng.sample(kinds, rng.randint(1, len(kinds)))


@dataclass(frozen=True, slots=True)
class Episode:
    """A fault from its beginning to its end."""

    number: int
    """By when it begins."""
    begin: Act
    end: Act


def episodes(acts: Sequence[Act]) -> list[Episode]:
    ends = {id(begin): end for begin, end in _pairs(acts)}
    begins = [act for act in acts if act.begins]
    return [Episode(number, begin, ends[id(begin)]) for number, begin in enumerate(begins)]


def _pairs(acts: Sequence[Act]) -> Iterator[tuple[Act, Act]]:
    in_force: dict[str, Act] = {}
    for act in acts:
        if act.begins:
            in_force[act.fault] = act
        else:
            yield in_force.pop(act.fault), act


def without(acts: Sequence[Act], left_out: Collection[int]) -> list[Act]:
    """Returns the acts of all other episodes, in their order."""
    gone = {id(act) for each in episodes(acts) if each.number in left_out for act in (each.begin, each.end)}
    return [act for act in acts if id(act) not in gone]
