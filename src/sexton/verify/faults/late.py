"""Requests that are late: held on their way to the broker until their client has given up on them and gone on.

A client that is not answered in time asks again, over another connection. The first request is still under way, and may
come when its producer is in the middle of another transaction (KAFKA-17754). Here it always does: it is let through
just before the client is told that the next transaction has taken its first step.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sexton.harness.proxy import (
    ADD_PARTITIONS,
    END_TXN,
    NOBODY,
    PRODUCE,
    TXN_OFFSET_COMMIT,
    Hold,
    Request,
    Watch,
)
from sexton.verify.faults.base import Fault, Scene, Told
from sexton.verify.faults.schedule import Act, Target

LATE: Final[Mapping[str, int]] = {
    "end-txn": END_TXN,
    "add-partitions-to-txn": ADD_PARTITIONS,
    "produce": PRODUCE,
    "txn-offset-commit": TXN_OFFSET_COMMIT,
}
"""Requests that can be late, by name."""

STEPS: Final[Mapping[int, frozenset[int]]] = {
    END_TXN: frozenset({PRODUCE}),
    ADD_PARTITIONS: frozenset({END_TXN}),
    PRODUCE: frozenset({ADD_PARTITIONS, PRODUCE}),
    TXN_OFFSET_COMMIT: frozenset({ADD_PARTITIONS, PRODUCE}),
}
"""What the producer does last, before what was held is let through: always after it has ended the transaction that the
held request belongs to."""

EVERY_S: Final = 1.0
"""How often something is held, on average."""

HELD_S_MAX: Final = 20.0
"""For so long, if its producer does not go on: it may have died."""


@dataclass(slots=True)
class _Held:
    hold: Hold
    since_s: float
    has_ended: bool = False


@dataclass(slots=True)
class Holding(Watch):
    """What is held of whom. Of one producer one request at a time, or it would never go on."""

    apis: Sequence[int]
    rng: random.Random
    now_s: Callable[[], float] = time.monotonic
    count: int = 0
    in_time_count: int = 0
    """Of these, those that were let through when their producer had gone on."""
    _held: dict[str, _Held] = field(default_factory=dict)
    _wanted: int = -1
    _next_s: float = 0.0

    def __post_init__(self) -> None:
        self._wanted = self.rng.choice(self.apis)

    def caught(self, request: Request) -> Hold | None:
        if request.api_key != self._wanted or self.now_s() < self._next_s:
            return None
        producer = _producer_of(request)
        if not producer or producer in self._held:
            return None
        self._wanted = self.rng.choice(self.apis)
        self._next_s = self.now_s() + self.rng.uniform(0, 2 * EVERY_S)
        self.count += 1
        held = _Held(Hold(request.api_key, lambda _: True), self.now_s())
        self._held[producer] = held
        return held.hold

    def due(self, request: Request) -> Sequence[Hold]:
        now_s = self.now_s()
        due = [producer for producer, held in self._held.items() if now_s - held.since_s > HELD_S_MAX]
        producer = _producer_of(request) if request.api_key in STEPS else ""
        held = self._held.get(producer)
        if held is not None:
            held.has_ended |= request.api_key == END_TXN
            if held.has_ended and request.api_key in STEPS[held.hold.api_key]:
                self.in_time_count += 1
                due.append(producer)
        return [self._held.pop(each).hold for each in dict.fromkeys(due)]

    def take_all(self) -> Sequence[Hold]:
        held, self._held = self._held, {}
        return [each.hold for each in held.values()]


def _producer_of(request: Request) -> str:
    """Its transactional id. Nothing: it has none."""
    body = request.body()
    name = "transactional_id" if hasattr(body, "transactional_id") else "v3_and_below_transactional_id"
    return getattr(body, name, None) or ""


class Late(Fault):
    """Requests of transactions come late, when their producer is in the middle of the next one."""

    name = "late"
    targets = (Target.ALL,)
    is_steady = True
    needs_proxy = True
    needs_cluster = False
    needs_impatience = True
    needs_transactions = True
    transaction_timeout_ms = 10_000
    """A client must be able to give up on an answer, and to ask again, before its transaction times out."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._holding: Holding | None = None

    def begin(self, act: Act) -> Told:
        self._holding = Holding([LATE[name] for name in self.scene.late], random.Random(act.choice))
        self.scene.proxy.watched_by(self._holding)
        return Told(list(self.scene.late))

    def end(self) -> Told:
        holding, self._holding = self._holding, None
        if holding is None:
            return Told()
        self.scene.proxy.watched_by(NOBODY)
        self.scene.proxy.release_all(holding.take_all())
        told = {"held": holding.count, "let through in a later transaction": holding.in_time_count}
        return Told(list(self.scene.late), told)
