"""What a fault is: it begins, it ends, and it can be healed at any time, whatever became of it.

A fault remembers whom it hit, and ends for those only: a broker may be paused by one fault and killed by another, and
then it is the second that brings it back. All of these calls block, and are made one at a time.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Protocol

from sexton.errors import SextonError
from sexton.harness import fittings
from sexton.harness.asking import Door
from sexton.harness.cloud_store import CloudStore
from sexton.harness.cluster import Cluster
from sexton.harness.compactor import CompactorProcess
from sexton.harness.errors import HarnessError
from sexton.harness.fittings import Fitting
from sexton.harness.postgres import Postgres
from sexton.harness.properties import Settings
from sexton.harness.proxy import Proxy
from sexton.verify import probes
from sexton.verify.clients.base import Place
from sexton.verify.faults.schedule import Act, Target

POLL_S: Final = 0.2


class InterruptedFaultError(HarnessError):
    """Whoever leads wants everything healed now: what a fault waits for does not matter any more."""


class Client(Protocol):
    """A client's process. Does nothing to one that has ended."""

    def kill(self) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Scene:
    """What there is to break."""

    own_cluster: Cluster[Any] | None
    """None: it is not ours, and only clients suffer."""
    places: Callable[[], Sequence[Place]] = tuple
    """Returns the partitions that are being used."""
    is_over: threading.Event = field(default_factory=threading.Event)
    """Set when everything is to be healed: whatever a fault waits for, it stops waiting."""
    clients: Callable[[], Sequence[Client]] = tuple
    """That are at a transaction now, or all if none is."""
    compactor: CompactorProcess | None = None
    metastore: Postgres | None = None
    """None: a file, or none of Sexton's."""
    store: CloudStore | None = None
    """The object store of cloud topics, if there are any."""
    own_proxy: Proxy | None = None
    """Between clients and brokers, if a fault needs it."""
    late: tuple[str, ...] = ()
    """Names of requests that may come late."""
    own_door: Door | None = None
    """None: it lets everybody in."""

    @property
    def cluster(self) -> Cluster[Any]:
        assert self.own_cluster is not None, "a fault that breaks brokers must say so: needs_cluster"
        return self.own_cluster

    @property
    def proxy(self) -> Proxy:
        assert self.own_proxy is not None, "a fault of the network must say so: needs_proxy"
        return self.own_proxy

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def door(self) -> Door:
        return self.own_door or Door(self.bootstrap)

    def serving(self) -> list[int]:
        return [node_id for node_id in self.cluster.node_ids if self.cluster.is_serving(node_id)]

    def topics(self) -> list[str]:
        return sorted({topic for topic, _ in self.places()})

    def leader_of(self, choice: int) -> int:
        """Of a log that is being used, by a number to choose by; negative if there is none."""
        places = self.places()
        return probes.leader_of(self.door, places[choice % len(places)]) if places else -1

    def wait_until(self, goal: str, reached: Callable[[], bool], timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while not reached():
            if time.monotonic() > deadline_s:
                raise HarnessError(f"not within {timeout_s:g} s: {goal}")
            if self.is_over.wait(POLL_S):
                raise InterruptedFaultError(f"interrupted before {goal}")


@dataclass(frozen=True, slots=True)
class Told:
    """What came of it, for the history."""

    hit: Sequence[int | str] = ()
    """Brokers by their numbers, anybody else by name. Nobody: no fault is in force."""
    ext: Mapping[str, Any] = field(default_factory=dict)


class Fault(ABC):
    name: ClassVar[str]
    targets: ClassVar[tuple[Target, ...]] = (Target.ONE, Target.LEADER, Target.MINORITY)
    broker_settings: ClassVar[Settings] = {}
    """What brokers must be started with, for this fault to mean anything."""
    needs: ClassVar[frozenset[Fitting]] = frozenset()
    """What each broker must have of its own."""
    skew_ms: ClassVar[int] = 0
    """How far apart it may set clocks of brokers."""
    excludes: ClassVar[Mapping[str, str]] = {}
    """Other faults that nothing could be expected of beside this one, and why."""
    is_steady: ClassVar[bool] = False
    """Whether it is in force all the time, and decides itself when it does something."""
    needs_proxy: ClassVar[bool] = False
    """Whether clients must reach brokers through a proxy."""
    needs_cluster: ClassVar[bool] = True
    """Whether it breaks brokers. One that does not may be had on a cluster that is not ours."""
    needs_compaction: ClassVar[bool] = False
    """Whether it hits nothing where no topic is compacted."""
    needs_transactions: ClassVar[bool] = False
    """Whether it hits nothing where nobody is in a transaction."""
    hits_clients: ClassVar[bool] = False
    """Whether it needs clients that whoever leads has started: shards start theirs themselves."""
    needs_impatience: ClassVar[bool] = False
    """Whether producers must give up soon on an answer that does not come."""
    transaction_timeout_ms: ClassVar[int] = 0
    """Transactions must last so long, at the least."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    @abstractmethod
    def begin(self, act: Act) -> Told: ...

    @abstractmethod
    def end(self) -> Told:
        """Does nothing if it has not begun."""

    def heal(self) -> None:
        """Ends it at once, without anything that takes long. Brokers that are away are started by whoever heals."""
        self.end()

    @classmethod
    def check(cls, system: str) -> None:
        """Raises if this machine or this system cannot have it, and says what is missing."""
        for fitting in sorted(cls.needs):
            fittings.check(fitting)


class NodeFault(Fault):
    """One that is done to each of some brokers."""

    targets: ClassVar[tuple[Target, ...]] = tuple(Target)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._hit: list[int] = []

    def begin(self, act: Act) -> Told:
        """Among those that serve."""
        for node_id in chosen(act, self.scene):
            self._hit.append(node_id)
            self._break(node_id)
        return Told(list(self._hit))

    def end(self) -> Told:
        hit, self._hit = self._hit, []
        for node_id in hit:
            self._mend(node_id)
        return Told(hit)

    @abstractmethod
    def _break(self, node_id: int) -> None: ...

    @abstractmethod
    def _mend(self, node_id: int) -> None: ...


def heal(faults: Iterable[Fault]) -> None:
    """One that cannot be healed keeps none of the others from it."""
    failed = []
    for fault in faults:
        try:
            fault.heal()
        except (SextonError, OSError) as error:
            failed.append(f"{fault.name}: {error}")
    if failed:
        raise HarnessError(f"not healed: {'; '.join(failed)}")


def chosen(act: Act, scene: Scene) -> list[int]:
    serving, nodes_count = scene.serving(), len(scene.cluster.node_ids)
    majority = nodes_count // 2 + 1
    if act.target is Target.LEADER:
        leader = scene.leader_of(act.choice)
        if leader in serving:
            return [leader]
    count = {Target.MINORITY: nodes_count - majority, Target.MAJORITY: majority, Target.ALL: nodes_count}
    return sorted(random.Random(act.choice).sample(serving, min(count.get(act.target, 1), len(serving))))
