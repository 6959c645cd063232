"""Leaders and replicas that move, by requests that any administrator may send: works on any Kafka."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from sexton.client.admin import Admin
from sexton.client.client import Client
from sexton.errors import SextonError
from sexton.harness import asking
from sexton.harness.asking import Door
from sexton.verify import probes
from sexton.verify.clients.base import Place
from sexton.verify.faults.base import Fault, Scene, Told, chosen
from sexton.verify.faults.schedule import Act, Target

REASSIGN_TIMEOUT_S: Final = 30.0

Order = Callable[[Sequence[int]], list[int]]
"""Of a log's replicas; the first is to lead."""


def lead(scene: Scene, node_id: int, timeout_s: float) -> None:
    """Makes it the leader of all logs of which it has a replica: the same replicas, with it as the preferred one."""
    scene.wait_until(f"broker {node_id} leads", lambda: _is_leading(scene, node_id), timeout_s)


def _is_leading(scene: Scene, node_id: int) -> bool:
    """Asks for it if it is not so."""
    try:
        replicas = {
            place: each.replicas
            for place, each in probes.partitions(scene.door, scene.topics()).items()
            if node_id in each.replicas and each.leader != node_id
        }
        if replicas:
            prefer(scene.door, {place: first(node_id, ids) for place, ids in replicas.items()})
        return not replicas
    except SextonError:
        return False


def first(node_id: int, replicas: Sequence[int]) -> list[int]:
    return [node_id, *(each for each in replicas if each != node_id)]


def prefer(where: str | Door, replicas: Mapping[Place, Sequence[int]]) -> None:
    """Gives logs these replicas, and asks the first of each to lead, which it does if it is in sync."""

    async def question(client: Client) -> None:
        admin = Admin(client)
        await admin.reassign(dict(replicas))
        await admin.elect_leaders(list(replicas))

    asking.ask(where, question)


def reassign(where: str | Door, replicas: Mapping[Place, Sequence[int]]) -> None:
    async def question(client: Client) -> None:
        await Admin(client).reassign(dict(replicas))

    asking.ask(where, question)


class Leadership(Fault):
    """One broker is made the leader of every log; later each log's leader is another one."""

    name = "leadership"
    targets = (Target.ONE,)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._choice = -1

    def begin(self, act: Act) -> Told:
        led = chosen(act, self.scene)
        for node_id in led:
            self._move(partial(first, node_id))
        self._choice = act.choice
        return Told(led)

    def end(self) -> Told:
        if self._choice < 0:
            return Told()
        rng = random.Random(self._choice)
        self._choice = -1
        return Told(self._move(lambda replicas: rng.sample(list(replicas), len(replicas))))

    def heal(self) -> None:
        """Nothing to heal: the partitions may stay where they are."""
        self._choice = -1

    def _move(self, order: Order) -> list[int]:
        partitions = probes.partitions(self.scene.door, self.scene.topics())
        wanted = {place: order(each.replicas) for place, each in sorted(partitions.items())}
        if wanted:
            prefer(self.scene.door, wanted)
        return sorted({ids[0] for ids in wanted.values()})


class Membership(Fault):
    """One broker's replicas are taken from it, and given back later: it copies every log anew."""

    name = "membership"
    targets = (Target.ONE, Target.LEADER)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._from = -1
        self._taken: dict[Place, tuple[int, ...]] = {}

    def begin(self, act: Act) -> Told:
        """Nobody is hit unless every log would have replicas left in sync: what is acknowledged stays with them."""
        taken = chosen(act, self.scene)
        for node_id in taken:
            partitions = probes.partitions(self.scene.door, self.scene.topics())
            had = {place: each.replicas for place, each in partitions.items() if node_id in each.replicas}
            if not had or any(set(partitions[place].isr) <= {node_id} for place in had):
                return Told()
            self._from, self._taken = node_id, had
            self._await({place: [each for each in ids if each != node_id] for place, ids in had.items()})
        return Told(taken)

    def end(self) -> Told:
        taken, self._taken = self._taken, {}
        if not taken:
            return Told()
        self._await(taken)
        return Told([self._from])

    def heal(self) -> None:
        """Asked for, and not waited for: all brokers may not be up yet. Who heals waits until all is whole."""
        taken, self._taken = self._taken, {}
        if taken:
            reassign(self.scene.door, taken)

    def _await(self, wanted: Mapping[Place, Sequence[int]]) -> None:
        reassign(self.scene.door, wanted)
        topics = sorted({topic for topic, _ in wanted})

        def is_done() -> bool:
            try:
                found = probes.partitions(self.scene.door, topics)
            except SextonError:
                return False
            return all(set(found[place].replicas) == set(ids) for place, ids in wanted.items() if place in found)

        self.scene.wait_until("replicas are where they should be", is_done, REASSIGN_TIMEOUT_S)
