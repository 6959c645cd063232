"""`check_invariants` of every class that has one, of the process that ran.

A turn of a process is what it does without anybody else coming in between. After every second turn of brokers one
replica of whoever ran is checked, with its log, watermarks and leadership; all of its replicas every few turns, and its
coordinators, which may have much to look at, more rarely still. Everything after every turn makes a run half as long
again; this, a tenth.
"""

from __future__ import annotations

from sexton.broker.broker import Broker
from sexton.simulate.cluster import Node
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.loop import Process

TURNS_PER_REPLICA = 2
TURNS_PER_BROKER = 64
TURNS_PER_COORDINATOR = 256


class Invariants:
    def __init__(self) -> None:
        self._brokers: dict[Process, Broker] = {}
        self._turns_count = 0

    def started(self, node: Node, broker: Broker) -> None:
        assert node.process is not None
        self._brokers = {process: known for process, known in self._brokers.items() if process.alive}
        self._brokers[node.process] = broker

    def after_turn(self, process: Process) -> None:
        broker = self._brokers.get(process)
        if broker is None or not process.alive:
            return
        self._turns_count += 1
        try:
            self._check(broker)
        except AssertionError as error:
            raise SimulationFailure("invariant", f"in {process.name}: {error}") from error

    def _check(self, broker: Broker) -> None:
        turn = self._turns_count
        replicas = broker.replicas.all()
        if turn % TURNS_PER_BROKER == 0:
            for replica in replicas:
                replica.check_invariants()
        elif replicas and turn % TURNS_PER_REPLICA == 0:
            replicas[turn % len(replicas)].check_invariants()
        if turn % TURNS_PER_COORDINATOR == 0:
            broker.groups.check_invariants()
            broker.transactions.service.check_invariants()
