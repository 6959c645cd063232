"""Brokers that are killed, stopped or paused: works on every cluster of the harness.

Each fault remembers whom it hit, and ends for those only: a broker may be paused by one fault and killed by another,
and then it is the second that brings it back.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from sexton.harness.cluster import Cluster
from sexton.harness.errors import HarnessError
from sexton.verify.faults.schedule import Act, Target

LeaderOf = Callable[[int], int]
"""By a number to choose by: the leader of a log that is being written, or a negative number."""


class ProcessFault(ABC):
    name: ClassVar[str]
    targets: ClassVar[tuple[Target, ...]] = (Target.ONE, Target.LEADER, Target.MINORITY, Target.MAJORITY, Target.ALL)

    def __init__(self, cluster: Cluster[Any], leader_of: LeaderOf) -> None:
        self._cluster = cluster
        self._leader_of = leader_of
        self._hit: list[int] = []

    def begin(self, act: Act) -> list[int]:
        """Whom it has hit: among those that serve."""
        serving = [node_id for node_id in self._cluster.node_ids if self._cluster.is_serving(node_id)]
        for node_id in _chosen(act, serving, len(self._cluster.node_ids), self._leader_of):
            self._hit.append(node_id)
            self._break(node_id)
        return list(self._hit)

    def end(self) -> list[int]:
        """Who is well again. Does nothing if it has not begun."""
        hit, self._hit = self._hit, []
        for node_id in hit:
            self._mend(node_id)
        return hit

    @abstractmethod
    def _break(self, node_id: int) -> None: ...

    @abstractmethod
    def _mend(self, node_id: int) -> None: ...


class Kill(ProcessFault):
    """SIGKILL, and started again."""

    name = "kill"

    def _break(self, node_id: int) -> None:
        self._cluster.kill_node(node_id)

    def _mend(self, node_id: int) -> None:
        if not self._cluster.is_running(node_id):
            self._cluster.start_node(node_id, wait=False)


class Stop(Kill):
    """SIGTERM: it hands its leaderships over, if there is anybody to take them, and else is killed."""

    name = "stop"
    targets = (Target.ONE, Target.LEADER, Target.MINORITY)

    def _break(self, node_id: int) -> None:
        try:
            self._cluster.stop_node(node_id)
        except HarnessError:
            with suppress(HarnessError):
                self._cluster.kill_node(node_id)


class Pause(ProcessFault):
    """SIGSTOP, and resumed."""

    name = "pause"

    def _break(self, node_id: int) -> None:
        self._cluster.pause_node(node_id)

    def _mend(self, node_id: int) -> None:
        if self._cluster.is_running(node_id):
            self._cluster.resume_node(node_id)


FAULTS: Final[Mapping[str, type[ProcessFault]]] = {fault.name: fault for fault in (Kill, Stop, Pause)}


def _chosen(act: Act, serving: Sequence[int], nodes_count: int, leader_of: LeaderOf) -> list[int]:
    rng = random.Random(act.choice)
    majority = nodes_count // 2 + 1
    if act.target is Target.LEADER:
        leader = leader_of(act.choice)
        if leader in serving:
            return [leader]
    count = {Target.MINORITY: nodes_count - majority, Target.MAJORITY: majority, Target.ALL: nodes_count}
    return sorted(rng.sample(list(serving), min(count.get(act.target, 1), len(serving))))
