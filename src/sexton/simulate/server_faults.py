"""Faults of the servers beside the brokers: the metastore, and the object store of cloud topics. (`nemesis` cuts them
off.)"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict

from sexton.simulate.cluster import SimulatedCluster
from sexton.simulate.faults import Fault, Kind
from sexton.simulate.loop import MS
from sexton.simulate.objects import ObjectService

Undo = Callable[[], None]
"""Ends a fault."""

Starter = Callable[[Fault], Undo | None]


class ServerFaults:
    def __init__(self, cluster: SimulatedCluster, clients: Sequence[str], wipe_store: Callable[[], object]) -> None:
        self._cluster = cluster
        self._clients = clients
        self._wipe_store = wipe_store
        self._store_calm = {} if cluster.objects is None else asdict(cluster.objects.weather)

    def starters(self) -> dict[Kind, Starter]:
        return {
            Kind.METASTORE_DOWN: self._metastore_down,
            Kind.METASTORE_HANGS: self._metastore_hangs,
            Kind.METASTORE_BREAKS: self._metastore_breaks,
            Kind.METASTORE_LOCKED: self._metastore_locked,
            Kind.METASTORE_STRAGGLES: self._metastore_straggles,
            Kind.METASTORE_FAILS_OVER: self._metastore_fails_over,
            Kind.STORE_DOWN: lambda fault: self._store_is(is_down=True),
            Kind.STORE_REFUSES: lambda fault: self._store_is(is_refusing=True),
            Kind.STORE_HANGS: self._store_hangs,
            Kind.STORE_BUSY: self._store_busy,
            Kind.STORE_BREAKS: lambda fault: self._of_hosts(self._store.weather.lost_probabilities, fault),
            Kind.STORE_LATE: lambda fault: self._store_weather(late_probability=fault.amount / 100),
            Kind.STORE_SLOW: lambda fault: self._store_weather(
                median_ns=int(self._store_calm["median_ns"]) * fault.amount
            ),
            Kind.STORE_DAMAGES: lambda fault: self._store_weather(
                short_probability=fault.amount / 200, flip_probability=fault.amount / 200
            ),
            Kind.STORE_WIPES: lambda fault: self._wipe(),
        }

    def _wipe(self) -> None:
        self._wipe_store()

    # The metastore

    def _metastore_down(self, fault: Fault) -> Undo:
        service = self._cluster.metastore
        service.is_down = True

        def undo() -> None:
            service.is_down = False

        return undo

    def _metastore_hangs(self, fault: Fault) -> Undo:
        self._cluster.metastore.hang()
        return self._cluster.metastore.go_on

    def _metastore_breaks(self, fault: Fault) -> Undo:
        return self._of_hosts(self._cluster.metastore.weather.break_probabilities, fault)

    def _metastore_locked(self, fault: Fault) -> Undo:
        return self._of_hosts(self._cluster.metastore.weather.lock_probabilities, fault)

    def _of_hosts(self, probabilities: dict[str, float], fault: Fault) -> Undo:
        hosts = fault.targets or (*self._cluster.nodes, *self._clients)
        probabilities.update(dict.fromkeys(hosts, fault.amount / 100))

        def undo() -> None:
            for host in hosts:
                probabilities.pop(host, None)

        return undo

    def _metastore_straggles(self, fault: Fault) -> Undo:
        weather = self._cluster.metastore.weather
        weather.straggler_probability = fault.amount / 100

        def undo() -> None:
            weather.straggler_probability = 0.0

        return undo

    def _metastore_fails_over(self, fault: Fault) -> Undo:
        self._cluster.metastore.fail_over()
        return self._metastore_down(fault)

    # The object store

    @property
    def _store(self) -> ObjectService:
        assert self._cluster.objects is not None
        return self._cluster.objects

    def _store_is(self, **state: bool) -> Undo:
        for name, value in state.items():
            setattr(self._store, name, value)

        def undo() -> None:
            for name, value in state.items():
                setattr(self._store, name, not value)

        return undo

    def _store_weather(self, **changed: float) -> Undo:
        """Of two at once the later one counts, and its end is the end of both."""
        weather = self._store.weather
        for name, value in changed.items():
            setattr(weather, name, value)

        def undo() -> None:
            for name in changed:
                setattr(weather, name, self._store_calm[name])

        return undo

    def _store_hangs(self, fault: Fault) -> Undo:
        self._store.hang()
        return self._store.go_on

    def _store_busy(self, fault: Fault) -> None:
        self._store.be_busy(fault.lasts_ms * MS)
