"""Beyond `make explore`: arena after arena to its end, or to the bound given; then random walks from new seeds.

python -m tests.model [STATES_MAX] [WALKS] [FIRST_SEED]
"""

from __future__ import annotations

import random
import sys

from tests.model.compact_once import COMPACT_ONCE
from tests.model.deferral_traps import DEFERRAL
from tests.model.explorations import COARSE, DEFERRED, FINE, WALKS
from tests.model.explore import Model, explore, tell
from tests.model.insync import arenas as insync
from tests.model.insync.machine import Machine as InSync
from tests.model.insync.traps import TRAPS as INSYNC_TRAPS
from tests.model.machine import Machine
from tests.model.traps import MORE, SEEDS, TRAPS
from tests.model.walk import Found, shrink, walk

STEPS = 150


def models() -> dict[str, Model]:
    traps = {**SEEDS, **TRAPS, **MORE, **COMPACT_ONCE, **DEFERRAL}
    arenas = {**FINE, **COARSE, **DEFERRED, **{f"the arena of: {name}": trap.arena for name, trap in traps.items()}}
    of_insync = {**insync.CLEAN, **{f"the arena of: {name}": trap.arena for name, trap in INSYNC_TRAPS.items()}}
    return {name: Machine(arena) for name, arena in arenas.items()} | {
        f"in-sync sets, {name}": InSync(arena) for name, arena in of_insync.items()
    }


def main(states_max: int = 1_000_000, walks: int = 2_000, first_seed: int = 0) -> int:
    states = steps = 0
    for name, model in models().items():
        outcome = explore(model, states_max, rest_every=1_000)
        states += outcome.states
        steps += outcome.steps
        print(f"{name}: {outcome}", flush=True)
        if outcome.violation is not None:
            print(tell(model, outcome.trace))
            return 1
    print(f"explored {states:,} states in {steps:,} steps")
    walked: dict[str, Model] = {name: Machine(arena) for name, arena in WALKS.items()}
    walked |= {f"in-sync sets, {name}": InSync(arena) for name, arena in insync.WALKS.items()}
    for name, model in walked.items():
        taken = 0
        for seed in range(first_seed, first_seed + walks):
            result = walk(model, random.Random(seed), STEPS)
            if isinstance(result, Found):
                shrunk = shrink(model, result)
                print(f"{name}, seed {seed}: {shrunk.violation}", *shrunk.trace, sep="\n")
                return 1
            taken += result
        print(f"{walks:,} walks {name}: {taken:,} steps, nothing found", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
