"""A broker whose id is registered with another log directory waits until that broker's lease has expired."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from sexton.adapters.metastore import InProcessMetastore
from sexton.broker.lifecycle.registration import DuplicateBrokerError, Registration
from sexton.ports.clock import Clock
from sexton.ports.metastore import BrokerRow, BrokerStatus
from tests.adapters.metastore.rows import CLUSTER, broker

LEASE_MS = 2000
PROPOSED = replace(broker(1, lease_ms=LEASE_MS), data_id=uuid.UUID(int=0xFEED))


class World:
    """A metastore, and a clock that goes on while somebody sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.metastore = InProcessMetastore()
        self.time_ms = 10_000.0
        self.at: list[tuple[float, Callable[[], Any]]] = []
        """What happens when."""
        monkeypatch.setattr(asyncio, "sleep", self._sleep)

    def monotonic_ms(self) -> int:
        return int(self.time_ms)

    async def _sleep(self, seconds: float) -> None:
        self.time_ms += seconds * 1000
        for event in [one for one in self.at if one[0] <= self.time_ms]:
            self.at.remove(event)
            await event[1]()

    async def former(self) -> BrokerRow:
        """Another process, with a log directory of its own, that is alive."""
        await self.metastore.open_cluster(CLUSTER)
        row = await self.metastore.register_broker(broker(1, lease_ms=LEASE_MS), None)
        return await self.metastore.set_broker_status(1, row.epoch, BrokerStatus.ACTIVE)

    async def register(self) -> BrokerRow | None:
        clock = cast(Clock, self)
        registration = Registration(1, self.metastore, clock, lease_ms=LEASE_MS, renew_ms=500)

        async def announce(former: BrokerRow | None) -> str | None:
            return "id"

        return await registration.register(PROPOSED, announce)


def test_it_registers_when_the_lease_has_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)

    async def go() -> None:
        former = await world.former()
        assert await world.register() == former
        assert 10_000 + 1.1 * LEASE_MS < world.time_ms < 10_000 + 1.5 * LEASE_MS

    asyncio.run(go())


def test_it_is_refused_when_the_other_one_renews(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(monkeypatch)

    async def go() -> None:
        former = await world.former()
        world.at.append((12_000, lambda: world.metastore.renew_lease(1, former.epoch)))
        with pytest.raises(DuplicateBrokerError):
            await world.register()

    asyncio.run(go())


def test_a_lease_that_nobody_could_renew_has_not_expired(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither process reached the metastore, or this one was paused, for longer than the lease lasts."""
    world = World(monkeypatch)

    async def pause() -> None:
        world.time_ms += 2 * LEASE_MS

    async def go() -> None:
        former = await world.former()
        world.at.append((10_500, pause))
        world.at.append((15_000, lambda: world.metastore.renew_lease(1, former.epoch)))
        with pytest.raises(DuplicateBrokerError):
            await world.register()

    asyncio.run(go())
