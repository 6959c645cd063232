"""Brokers that do not hear each other, or not the metastore, where that is a server. Clients reach all of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Final

from sexton.harness.fittings import Fitting
from sexton.harness.network import METASTORE_ID
from sexton.verify.faults.base import Fault, Scene, Told, chosen
from sexton.verify.faults.schedule import Act, Target

Cuts = list[tuple[int, int]]
"""Pairs of sender and receiver whose messages are lost."""

Shape = Callable[[int, Sequence[int]], Cuts]
"""Chooses the cuts between one broker and all others."""

SHAPES_OF_THREE: Final = 3
"""Among so many brokers, the larger shapes are the same as some of the smaller ones."""


def between(some: Sequence[int], others: Sequence[int]) -> Cuts:
    return [*product(some, others), *product(others, some)]


def isolated(node_id: int, others: Sequence[int]) -> Cuts:
    return between([node_id], others)


def deaf(node_id: int, others: Sequence[int]) -> Cuts:
    return [(each, node_id) for each in others]


def unheard(node_id: int, others: Sequence[int]) -> Cuts:
    return [(node_id, each) for each in others]


def link(node_id: int, others: Sequence[int]) -> Cuts:
    """Of two brokers that both hear all others: with three, a bridge, and a ring of majorities."""
    return isolated(node_id, others[:1])


def halves(node_id: int, others: Sequence[int]) -> Cuts:
    """It is in the smaller one, if one is."""
    beside = (len(others) + 1) // 2 - 1
    return between([node_id, *others[:beside]], others[beside:])


def bridge(node_id: int, others: Sequence[int]) -> Cuts:
    """Two halves that hear it, and not each other."""
    middle = len(others) // 2
    return between(others[:middle], others[middle:])


def ring(node_id: int, others: Sequence[int]) -> Cuts:
    """Each hears a majority, itself included, and no two the same one."""
    circle = [node_id, *others]
    count = len(circle)
    reach = -(-(count // 2) // 2)
    return [
        (sender, receiver)
        for at, sender in enumerate(circle)
        for to, receiver in enumerate(circle)
        if min((at - to) % count, (to - at) % count) > reach
    ]


def metastore(node_id: int, others: Sequence[int]) -> Cuts:
    """It hears all brokers, and not who keeps their state."""
    return between([node_id], [METASTORE_ID])


SHAPES: Final[Mapping[str, Shape]] = {shape.__name__: shape for shape in (isolated, deaf, unheard, link)}
LARGER_SHAPES: Final[Mapping[str, Shape]] = {shape.__name__: shape for shape in (halves, bridge, ring)}


def shapes(nodes_count: int, *, has_server: bool) -> Mapping[str, Shape]:
    """That there are among so many brokers, and a metastore that is a server or not."""
    larger = LARGER_SHAPES if nodes_count > SHAPES_OF_THREE else {}
    return {**SHAPES, **larger, **({metastore.__name__: metastore} if has_server else {})}


class Partition(Fault):
    """A broker is cut off from others, in one direction or both, or from the metastore; clients still reach it."""

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
        known = shapes(len(self.scene.cluster.node_ids), has_server=self.scene.metastore is not None)
        shape = rng.choice(sorted(known))
        hit = self._hit = chosen(act, self.scene)[:1]
        cuts = []
        for node_id in hit:
            others = [each for each in self.scene.cluster.node_ids if each != node_id]
            cuts = sorted(known[shape](node_id, rng.sample(others, len(others))))
            for sender, receiver in cuts:
                network.cut(sender, receiver)
        told = {"shape": shape, "cuts": " ".join(f"{sender}>{receiver}" for sender, receiver in cuts)}
        return Told(hit, told if hit else {})

    def end(self) -> Told:
        network = self.scene.cluster.network
        if network is not None:
            network.mend()
        hit, self._hit = self._hit, []
        return Told(hit)
