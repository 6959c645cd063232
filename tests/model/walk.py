"""Random walks, far beyond what can be explored exhaustively; and the shrinking of what they find."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.model.errors import Violation
from tests.model.explore import Action, Model, State

TRIES_MAX = 40
"""How many actions are tried for one that is possible. With none, the walk is over."""


@dataclass(frozen=True, slots=True)
class Found:
    violation: Violation
    trace: list[Action]


def walk(machine: Model, rng: random.Random, steps: int, at_rest: bool = True) -> Found | int:
    """What was found, or how many steps were taken. At its end the partition is brought to rest."""
    state = machine.start()
    trace: list[Action] = []
    try:
        for _ in range(steps):
            after = _some_step(machine, rng, state, trace)
            if after is None:
                break
            state = after
        if at_rest:
            machine.bring_to_rest(state)
    except Violation as violation:
        return Found(violation, trace)
    return len(trace)


def _some_step(machine: Model, rng: random.Random, state: State, trace: list[Action]) -> State | None:
    """Kinds of action are drawn evenly, so that what has many forms is not all that ever happens."""
    by_name: dict[str, list[Action]] = {}
    for action in machine.actions(state):
        by_name.setdefault(action[0], []).append(action)
    names = list(by_name)
    for _ in range(TRIES_MAX):
        action = rng.choice(by_name[rng.choice(names)])
        trace.append(action)
        after: State | None = machine.apply(state, action)
        if after is not None:
            return after
        trace.pop()
    return None


def replay(machine: Model, trace: Sequence[Action]) -> Violation | None:
    """What a trace leads to; actions that are not possible are left out."""
    state = machine.start()
    try:
        for action in trace:
            state = machine.apply(state, action) or state
        machine.bring_to_rest(state)
    except Violation as violation:
        return violation
    return None


def shrink(machine: Model, found: Found) -> Found:
    """A trace from which nothing can be left out: halves, quarters, ..., single steps."""
    trace, violation = list(found.trace), found.violation

    def still_fails(shorter: list[Action]) -> Violation | None:
        result = replay(machine, shorter)
        return result if result is not None and result.kind == violation.kind else None

    size = max(1, len(trace) // 2)
    while True:
        trace, violation = _without_pieces(trace, violation, size, still_fails)
        if size == 1:
            return Found(violation, trace)
        size = max(1, size // 2)


def _without_pieces(
    trace: list[Action], violation: Violation, size: int, still_fails: Callable[[list[Action]], Violation | None]
) -> tuple[list[Action], Violation]:
    position = 0
    while position < len(trace):
        shorter = trace[:position] + trace[position + size :]
        result = still_fails(shorter)
        if result is None:
            position += size
        else:
            trace, violation = shorter, result
    return trace, violation
