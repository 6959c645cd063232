"""Correct histories, broken in one known place: each anomaly that the judge knows, planted on purpose.

Most are made by changing what an operation of a correct history was told; those that need a special constellation are
small scenes that are played after its final reads. `implied` names what else must come of it: the judge finds what was
planted where it was planted, and nothing that this does not imply.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from sexton.checker.edit import Edit, NoPlaceError
from sexton.checker.planted import History, correct
from sexton.checker.plants import logs, tables
from sexton.checker.plants.registry import Place, Plan
from sexton.checker.view import Options

PLANS: Final[dict[str, Plan]] = {**logs.PLANTS, **tables.PLANTS}


@dataclass(frozen=True, slots=True)
class Sabotage:
    name: str
    history: History
    place: Place
    implied: frozenset[str]
    options: Options


def sabotage(name: str, seed: int) -> Sabotage:
    """Of the first history from this seed on that has a place for it."""
    plan = PLANS[name]
    while True:
        edit = Edit(correct(seed), random.Random(f"{name} {seed}"))
        try:
            place = plan.plant(edit)
        except NoPlaceError:
            seed += 1_000
            continue
        return Sabotage(name, edit.result(), place, plan.implied, edit.options)
