"""Every state of an arena, breadth first: what is found is found by a shortest way."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any, Protocol

from tests.model.errors import Violation

State = tuple[Any, ...]
Action = tuple[Any, ...]


class Model(Protocol):
    """What can be explored and walked: states as tuples of parts that hash, and what leads from one to the next."""

    def start(self) -> Any: ...

    def actions(self, state: Any) -> Iterator[Action]:
        """All that might be possible."""
        ...

    def apply(self, state: Any, action: Action) -> Any:
        """None if it is not possible or changes nothing. Raises a Violation if it must not have been."""
        ...

    def canonical(self, state: Any) -> Any:
        """One of all the states that do not differ in what matters."""
        ...

    def bring_to_rest(self, state: Any) -> Any:
        """The state when nothing fails any more. Raises a Violation if there is none."""
        ...

    def show(self, state: Any) -> str: ...


AT_REST: Action = ("at rest",)
"""Not an action: the partition is left alone from here on."""


@dataclass(slots=True)
class Outcome:
    states: int
    steps: int
    depth: int
    is_complete: bool
    """Every state of the arena was seen."""
    seconds: float
    violation: Violation | None = None
    trace: list[Action] = field(default_factory=list)

    def __str__(self) -> str:
        how = "all" if self.is_complete else "the first"
        found = f"{self.violation} after {len(self.trace)} steps" if self.violation else "nothing found"
        return f"{how} {self.states:,} states, {self.steps:,} steps, depth {self.depth}, {self.seconds:.1f} s: {found}"


class _Seen:
    """States by number, each as one integer: brokers and shared parts are few, their combinations many."""

    def __init__(self, parts_count: int) -> None:
        self._shifts = tuple(range(24 * (parts_count - 1), -1, -24))
        self._parts: dict[object, int] = {}
        self._values: list[object] = []
        self._numbers: dict[int, int] = {}
        self._keys: list[int] = []
        self.parents = array("q")

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, state: State, parent: int) -> bool:
        key = 0
        for part in state:
            number = self._parts.get(part)
            if number is None:
                number = self._parts[part] = len(self._values)
                self._values.append(part)
            key = key << 24 | number
        if key in self._numbers:
            return False
        self._numbers[key] = len(self._keys)
        self._keys.append(key)
        self.parents.append(parent)
        return True

    def state(self, number: int) -> State:
        key = self._keys[number]
        return tuple(self._values[key >> shift & 0xFFFFFF] for shift in self._shifts)

    def path(self, number: int) -> list[State]:
        states = []
        while number >= 0:
            states.append(self.state(number))
            number = self.parents[number]
        return states[::-1]


def explore(
    machine: Model,
    states_max: int,
    wanted: Callable[[Violation], bool] = lambda _: True,
    start: State | None = None,
    rest_every: int = 0,
) -> Outcome:
    """Stops at the first violation that is wanted; a state that violates something else is not gone on from.

    Every `rest_every`th state is brought to rest."""
    began = time.perf_counter()
    first = machine.canonical(machine.start() if start is None else start)
    seen = _Seen(len(first))
    seen.add(first, -1)
    steps = current = depth = 0
    level_end = 1
    while current < len(seen) < states_max:
        if current == level_end:
            depth, level_end = depth + 1, len(seen)
        state = seen.state(current)
        actions = machine.actions(state)
        if rest_every and current % rest_every == 0:
            actions = chain([AT_REST], actions)
        for action in actions:
            try:
                after = machine.bring_to_rest(state) if action is AT_REST else machine.apply(state, action)
            except Violation as violation:
                if not wanted(violation):
                    continue
                trace = _actions(machine, seen.path(current))
                seconds = time.perf_counter() - began
                return Outcome(len(seen), steps, depth, False, seconds, violation, [*trace, action])
            if after is not None and action is not AT_REST:
                steps += 1
                seen.add(machine.canonical(after), current)
        current += 1
    return Outcome(len(seen), steps, depth, current == len(seen), time.perf_counter() - began)


def _actions(machine: Model, path: list[State]) -> list[Action]:
    """Which actions lead along a path of canonical states. Brokers are renumbered with every state."""
    found = []
    for before, after in pairwise(path):
        found.append(next(action for action in machine.actions(before) if _leads_to(machine, before, action, after)))
    return found


def _leads_to(machine: Model, before: State, action: Action, after: State) -> bool:
    try:
        reached = machine.apply(before, action)
    except Violation:
        return False
    return reached is not None and machine.canonical(reached) == after


def tell(machine: Model, trace: list[Action], start: State | None = None) -> str:
    """A trace, step by step, in states as the exploration saw them."""
    state = machine.canonical(machine.start() if start is None else start)
    lines = [machine.show(state)]
    for action in trace:
        lines.append(f"--> {' '.join(str(part) for part in action)}")
        try:
            after = machine.bring_to_rest(state) if action == AT_REST else machine.apply(state, action)
        except Violation as violation:
            return "\n".join([*lines, str(violation)])
        if after is not None:
            state = machine.canonical(after)
            lines.append(machine.show(state))
    return "\n".join(lines)
