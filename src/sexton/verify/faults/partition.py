"""Brokers that do not hear each other. Clients reach all of them meanwhile, and so the metastore's file does."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Final

from sexton.harness.fittings import Fitting
from sexton.verify.faults.base import Fault, Scene, Told, chosen
from sexton.verify.faults.schedule import Act, Target

Cuts = list[tuple[int, int]]
"""Who sends in vain to whom."""


def isolated(node_id: int, others: Sequence[int]) -> Cuts:
    return [*deaf(node_id, others), *unheard(node_id, others)]


def deaf(node_id: int, others: Sequence[int]) -> Cuts:
    return [(each, node_id) for each in others]


def unheard(node_id: int, others: Sequence[int]) -> Cuts:
    return [(node_id, each) for each in others]


def link(node_id: int, others: Sequence[int]) -> Cuts:
    """Of two brokers that both hear all others: with three, a bridge, and a ring of majorities."""
    return isolated(node_id, others[:1])


SHAPES: Final = {shape.__name__: shape for shape in (isolated, deaf, unheard, link)}


class Partition(Fault):
    """A broker is cut off from the others, from one of them, or in one direction; clients still reach it."""

    name = "partition"
    targets = (Target.ONE, Target.LEADER)
    needs = frozenset({Fitting.NETWORK})

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._hit: list[int] = []

    def begin(self, act: Act) -> Told:
        network = self.scene.cluster.network
        assert network is not None
        rng = random.Random(act.choice)
        shape = rng.choice(sorted(SHAPES))
        hit = self._hit = chosen(act, self.scene)[:1]
        for node_id in hit:
            others = [each for each in self.scene.cluster.node_ids if each != node_id]
            for sender, receiver in SHAPES[shape](node_id, rng.sample(others, len(others))):
                network.cut(sender, receiver)
        told: Mapping[str, str] = {"shape": shape} if hit else {}
        return Told(hit, told)

    def end(self) -> Told:
        network = self.scene.cluster.network
        if network is not None:
            network.mend()
        hit, self._hit = self._hit, []
        return Told(hit)
