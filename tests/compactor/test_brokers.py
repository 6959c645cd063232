"""A compactor's connections to brokers."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from sexton.adapters.metastore import InProcessMetastore
from sexton.client.connection import Rpc
from sexton.client.errors import ConnectionLostError
from sexton.compaction.contract import PassResult
from sexton.compactor import brokers
from sexton.compactor.brokers import Brokers
from sexton.ports.metastore import BrokerStatus
from tests.adapters.metastore.rows import CLUSTER, register


class SilentRpc:
    """Of a machine that lost power: it never answers."""

    is_closed = False

    def __init__(self) -> None:
        self._answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()

    async def call_raw(self, *_: object, **__: object) -> memoryview:
        return await self._answer

    def close(self) -> None:
        if not self._answer.done():
            self._answer.set_exception(ConnectionLostError("closed while the answer was outstanding"))


async def test_a_commit_is_not_waited_for_once_its_broker_has_lost_its_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the simulator: the work was held, and nobody did it, for as long as a commit may take."""

    async def connect(*_: object, **__: object) -> SilentRpc:
        return SilentRpc()

    monkeypatch.setattr(Rpc, "connect", connect)
    monkeypatch.setattr(brokers, "WATCH_MS", 10)

    metastore = InProcessMetastore()
    await metastore.open_cluster(CLUSTER)
    row = await register(metastore, 1)
    await metastore.set_broker_status(1, row.epoch, BrokerStatus.ACTIVE)
    asking = asyncio.ensure_future(Brokers(cast(Any, None), metastore, "one").commit(1, PassResult("plan")))
    await asyncio.sleep(0.1)
    assert not asking.done(), "as long as the broker is live"
    await metastore.set_broker_status(1, row.epoch, BrokerStatus.FENCED)
    with pytest.raises(ConnectionLostError):
        await asyncio.wait_for(asking, 10)


async def test_a_connection_that_has_ended_since_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by the simulator: each restart of a broker failed the next compaction of its partitions, and failures in a
    row mean pauses of up to ten minutes."""
    opened: list[SilentRpc] = []

    async def connect(*_: object, **__: object) -> SilentRpc:
        opened.append(SilentRpc())
        return opened[-1]

    monkeypatch.setattr(Rpc, "connect", connect)
    metastore = InProcessMetastore()
    await metastore.open_cluster(CLUSTER)
    row = await register(metastore, 1)
    await metastore.set_broker_status(1, row.epoch, BrokerStatus.ACTIVE)
    asked = Brokers(cast(Any, None), metastore, "one")
    asking = []
    for opened_count in (1, 1, 2):
        asking.append(asyncio.ensure_future(asked.ask(1, 0, {})))
        await asyncio.sleep(0.01)
        assert len(opened) == opened_count
        opened[0].is_closed = len(asking) == 2
    for one in asking:
        one.cancel()
