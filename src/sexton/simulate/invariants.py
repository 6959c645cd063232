"""`check_invariants` of every class that has one, of the process that ran.

A turn of a process is what it does without anybody else coming in between. After every second turn of a broker one of
its replicas is checked, the next one each time, with its log, watermarks and leadership; all of them every few turns,
and its coordinators, which may have much to look at, more rarely still. Everything after every turn makes a run half as
long again; this, a tenth.
"""

from __future__ import annotations

from dataclasses import dataclass

from sexton.broker.broker import Broker
from sexton.simulate.cluster import Node
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.loop import Process

TURNS_PER_REPLICA = 2
TURNS_PER_BROKER = 64
TURNS_PER_COORDINATOR = 256


@dataclass(slots=True)
class _Watched:
    broker: Broker
    turns_count: int = 0
    """Its own: brokers that run by turns would otherwise always be looked at in the same places."""


class Invariants:
    def __init__(self) -> None:
        self._watched: dict[Process, _Watched] = {}

    def started(self, node: Node, broker: Broker) -> None:
        assert node.process is not None
        self._watched = {process: known for process, known in self._watched.items() if process.alive}
        self._watched[node.process] = _Watched(broker)

    def after_turn(self, process: Process) -> None:
        watched = self._watched.get(process)
        if watched is None or not process.alive:
            return
        watched.turns_count += 1
        try:
            _check(watched.broker, watched.turns_count)
        except AssertionError as error:
            raise SimulationFailure("invariant", f"in {process.name}: {error}") from error


def _check(broker: Broker, turn: int) -> None:
    replicas = broker.replicas.all()
    if turn % TURNS_PER_BROKER == 0:
        for replica in replicas:
            replica.check_invariants()
    elif replicas and turn % TURNS_PER_REPLICA == 0:
        replicas[turn // TURNS_PER_REPLICA % len(replicas)].check_invariants()
    cloud = broker.replicas.cloud
    if cloud is not None and turn % TURNS_PER_BROKER == 0:
        cloud.check_invariants()
    elif cloud is not None and turn % TURNS_PER_REPLICA == 0:
        cloud.parts.uploads.check_invariants()
    if turn % TURNS_PER_COORDINATOR == 0:
        broker.groups.check_invariants()
        broker.transactions.service.check_invariants()
