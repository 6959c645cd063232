"""Brokers whose clocks are wrong: set at once, running away, or set back and forth.

By up to an hour, in either direction, each broker by an amount of its own. What happens when can be of any size (a
second is more than a lease's renewal, a minute more than a transaction), so amounts are spread evenly over powers.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable
from typing import ClassVar, Final

from sexton.harness.clocks import Clocks
from sexton.harness.fittings import Fitting
from sexton.verify.faults.base import Fault, Scene, Told, chosen
from sexton.verify.faults.schedule import Act, Target

LEAST_S: Final = 0.1
MOST_S: Final = 3600.0
BOUND_MS: Final = round(2 * MOST_S * 1000)
"""Two clocks, one wrong in each direction."""

DRIFT_S: Final = 10.0
"""In which a clock that runs away gets as far as it does."""

STROBE_S: Final = 0.2
TICK_S: Final = 0.05

Manner = Callable[[float, float], float]
"""By how much a clock is wrong after some seconds, of an amount."""


def jump(elapsed_s: float, amount_s: float) -> float:
    return amount_s


def drift(elapsed_s: float, amount_s: float) -> float:
    return amount_s * min(elapsed_s / DRIFT_S, 1.0)


def strobe(elapsed_s: float, amount_s: float) -> float:
    return 0.0 if int(elapsed_s / STROBE_S) % 2 else amount_s


MANNERS: Final[dict[str, Manner]] = {each.__name__: each for each in (jump, drift, strobe)}


def amount_s(rng: random.Random) -> float:
    size_s = math.exp(rng.uniform(math.log(LEAST_S), math.log(MOST_S)))
    return round(rng.choice((-1, 1)) * size_s, 3)


class Clock(Fault):
    """Clocks of brokers jump, run away or go back and forth, by up to an hour, and are set right again."""

    name = "clock"
    targets = tuple(Target)
    needs = frozenset({Fitting.CLOCK})
    skew_ms = BOUND_MS
    excludes: ClassVar = {
        "grave": "grave lets brokers forget producers after seconds, and by such a clock that is at once: "
        "what clients send again is written twice then, as Kafka's documentation says"
    }

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._amounts_s: dict[int, float] = {}
        self._is_over = threading.Event()
        self._hand: threading.Thread | None = None

    def begin(self, act: Act) -> Told:
        rng = random.Random(act.choice)
        how = rng.choice(sorted(MANNERS))
        self._amounts_s = {node_id: amount_s(rng) for node_id in chosen(act, self.scene)}
        self._move(MANNERS[how], 0.0)
        self._is_over.clear()
        self._hand = threading.Thread(target=self._keep_moving, args=(MANNERS[how],), name="clocks", daemon=True)
        self._hand.start()
        wrong_ms = {str(node_id): round(each * 1000) for node_id, each in self._amounts_s.items()}
        return Told(list(self._amounts_s), {"how": how, "wrong-ms": wrong_ms} if wrong_ms else {})

    def end(self) -> Told:
        hand, self._hand = self._hand, None
        if hand is not None:
            self._is_over.set()
            hand.join()
        hit, self._amounts_s = list(self._amounts_s), {}
        for node_id in hit:
            self._clocks.set(node_id, 0)
        return Told(hit)

    def _keep_moving(self, manner: Manner) -> None:
        start_s = time.monotonic()
        while not self._is_over.wait(TICK_S):
            self._move(manner, time.monotonic() - start_s)

    def _move(self, manner: Manner, elapsed_s: float) -> None:
        for node_id, amount in self._amounts_s.items():
            self._clocks.set(node_id, manner(elapsed_s, amount))

    @property
    def _clocks(self) -> Clocks:
        clocks = self.scene.cluster.clocks
        assert clocks is not None
        return clocks
