"""What brokers need beside themselves: who compacts for them, who keeps the cluster's state, and who keeps the records
of cloud topics."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from sexton.harness.brokers import SextonCluster
from sexton.harness.errors import HarnessError
from sexton.harness.store_proxy import StoreFaults
from sexton.harness.systems import kafka_version
from sexton.verify.faults.base import Fault, Scene, Told
from sexton.verify.faults.schedule import Act, Target

SQLITE_PREFIX: Final = "sqlite:///"
LOCK_TIMEOUT_S: Final = 10.0
STORE_FAULTS: Final = {
    "away": StoreFaults(unsent=1.0),
    "silent": StoreFaults(hanging=1.0),
    "slow": StoreFaults(median_ms=300, p99_ms=1_500),
    "busy": StoreFaults(busy=0.7),
    "forbidden": StoreFaults(refused=1.0),
    "losing answers": StoreFaults(dropped=0.5),
    "losing requests": StoreFaults(unsent=0.2, half=0.3, short=0.2),
}


class Compactor(Fault):
    """The compactor is killed in the middle of its work, or paused, and goes on or is started again."""

    name = "compactor"
    targets = (Target.ONE, Target.ALL)
    needs_compaction = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_paused = self._is_killed = False

    @classmethod
    def check(cls, system: str) -> None:
        _check_sexton(cls.name, system, "Kafka's brokers compact by themselves; kill and pause hit their cleaners, too")

    def begin(self, act: Act) -> Told:
        compactor = self.scene.compactor
        if compactor is None:
            return Told()
        self._is_paused = act.target is Target.ONE
        self._is_killed = not self._is_paused
        if self._is_paused:
            compactor.pause()
        else:
            compactor.kill()
        return Told(["compactor"], {"how": "paused" if self._is_paused else "killed"})

    def end(self) -> Told:
        compactor = self.scene.compactor
        if compactor is None or not (self._is_paused or self._is_killed):
            return Told()
        if self._is_paused:
            compactor.resume()
        else:
            compactor.start()
        self._is_paused = self._is_killed = False
        return Told(["compactor"])


class Metastore(Fault):
    """The cluster's state is away: SQLite is locked; PostgreSQL, or controllers of Kafka's, killed or paused."""

    name = "metastore"
    targets = (Target.ALL,)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._away: list[int] = []
        """Controllers of Kafka's."""
        self._lock: sqlite3.Connection | None = None
        self._back: Callable[[], None] | None = None
        """What ends it, of a server."""

    @classmethod
    def check(cls, system: str) -> None:
        _check_sexton(
            cls.name,
            system,
            "Kafka's controllers are in its brokers: kill, pause and partition hit them, too. Or have some that are "
            "not: --controllers 3",
        )

    def begin(self, act: Act) -> Told:
        if self.scene.cluster.controller_ids:
            return self._take_controllers(random.Random(act.choice))
        server = self.scene.metastore
        if server is None:
            self._begin_to_lock()
            return Told([self.name], {"how": "locked"})
        ways = {
            "stopped": (server.stop, server.start),
            "killed": (server.kill, server.start),
            "paused": (server.pause, server.resume),
        }
        how = random.Random(act.choice).choice(sorted(ways))
        away, self._back = ways[how]
        away()
        return Told([self.name], {"how": how})

    def _take_controllers(self, rng: random.Random) -> Told:
        """A majority of them: nobody decides anything. A minority: if the one that leads is among them, another has
        to be elected."""
        cluster = self.scene.cluster
        majority = len(cluster.controller_ids) // 2 + 1
        sizes = {"a majority": majority, "a minority": len(cluster.controller_ids) - majority}
        which = rng.choice([name for name, size in sizes.items() if size])
        how = rng.choice(["killed", "paused"])
        self._away = sorted(rng.sample(cluster.controller_ids, sizes[which]))
        for node_id in self._away:
            (cluster.kill_node if how == "killed" else cluster.pause_node)(node_id)
        return Told(_named(self._away), {"how": f"{which} of the controllers {how}"})

    def _give_controllers_back(self) -> Told:
        cluster, (away, self._away) = self.scene.cluster, (self._away, [])
        for node_id in away:
            if cluster.is_running(node_id):
                cluster.resume_node(node_id)
            else:
                cluster.start_node(node_id, wait=False)
        return Told(_named(away))

    def _begin_to_lock(self) -> None:
        cluster = self.scene.cluster
        assert isinstance(cluster, SextonCluster)
        path = cluster.metastore_url.removeprefix(SQLITE_PREFIX)
        self._lock = sqlite3.connect(path, timeout=LOCK_TIMEOUT_S, isolation_level=None, check_same_thread=False)
        self._lock.execute("BEGIN EXCLUSIVE")

    def end(self) -> Told:
        if self._away:
            return self._give_controllers_back()
        back, self._back = self._back, None
        if back is not None:
            back()
            return Told([self.name])
        lock, self._lock = self._lock, None
        if lock is None:
            return Told()
        with suppress(sqlite3.Error):
            lock.execute("ROLLBACK")
        lock.close()
        return Told(["metastore"])


class Store(Fault):
    """The store of cloud topics is away, silent, slow, busy, forbids everything, or loses requests and answers."""

    name = "store"
    targets = (Target.ALL,)

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._is_broken = False

    @classmethod
    def check(cls, system: str) -> None:
        _check_sexton(cls.name, system, "Kafka has no cloud topics")

    def begin(self, act: Act) -> Told:
        store = self.scene.store
        if store is None:
            return Told()
        how = random.Random(act.choice).choice(sorted(STORE_FAULTS))
        store.proxy.faults = STORE_FAULTS[how]
        self._is_broken = True
        return Told([self.name], {"how": how})

    def end(self) -> Told:
        store = self.scene.store
        if store is None or not self._is_broken:
            return Told()
        store.heal()
        self._is_broken = False
        return Told([self.name])


def _named(controller_ids: Sequence[int]) -> list[str]:
    return [f"controller {each}" for each in controller_ids]


def _check_sexton(fault: str, system: str, why: str) -> None:
    if kafka_version(system) is not None:
        raise HarnessError(f"there is no fault {fault} of {system}", "", why)
