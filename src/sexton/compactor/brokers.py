"""A compactor's requests to brokers: plans, commits, abandoned plans."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from sexton.client.connection import Rpc
from sexton.client.errors import NotConnectedError
from sexton.compaction.contract import Committed, PassResult, Plan, decode_plan
from sexton.errors import SextonError
from sexton.ports.metastore import Metastore, MetastoreUnavailableError
from sexton.ports.network import Network
from sexton.ports.work_queue import WorkKey
from sexton.protocol import private
from sexton.protocol.private import PrivateApi

ASK_TIMEOUT_MS: Final = 30_000
COMMIT_TIMEOUT_MS: Final = 1_800_000
"""A commit reads all staged segments once more, to validate them. If it takes longer than this, the partition is
planned again."""

WATCH_MS: Final = 10_000
"""Interval at which a waiting commit checks whether the broker is still alive."""


class Brokers:
    """One connection to each broker, opened when needed and again after it broke."""

    def __init__(self, network: Network, metastore: Metastore, client_id: str) -> None:
        self._network = network
        self._metastore = metastore
        self._client_id = client_id
        self._connections: dict[int, Rpc] = {}
        self._connecting: dict[int, asyncio.Lock] = {}
        self._addresses: dict[int, tuple[str, int]] = {}
        self._epochs: dict[int, int] = {}

    async def plan(self, key: WorkKey) -> Plan:
        answer = await self.ask(
            key.broker_id, PrivateApi.COMPACTION_PLAN, {"topic_id": key.topic_id, "partition": key.partition}
        )
        host, port = self._addresses[key.broker_id]
        return replace(decode_plan(answer["plan"]), host=host, port=port)

    async def commit(self, broker_id: int, result: PassResult) -> Committed:
        watch = asyncio.ensure_future(self._drop_when_gone(broker_id))
        try:
            answer = await self.ask(broker_id, PrivateApi.COMPACTION_COMMIT, result, COMMIT_TIMEOUT_MS)
        finally:
            watch.cancel()
        return Committed(**answer["committed"])

    async def _drop_when_gone(self, broker_id: int) -> None:
        """A machine that loses power does not close its connections: a response is awaited only as long as its broker
        process is alive."""
        while True:
            await asyncio.sleep(WATCH_MS / 1000)
            rpc = self._connections.get(broker_id)
            try:
                lease = (await self._metastore.read_leases()).get(broker_id)
            except MetastoreUnavailableError:
                continue
            is_gone = lease is None or lease[0] != self._epochs.get(broker_id)
            if is_gone and rpc is not None and rpc is self._connections.get(broker_id):
                rpc.close()

    async def abandon(self, plan: Plan, uncleanable: str = "") -> None:
        """`uncleanable` says what in the log's bytes no compaction can read, if that is why the plan is abandoned."""
        await self.ask(
            plan.broker_id, PrivateApi.COMPACTION_ABANDON, {"plan_id": plan.plan_id, "uncleanable": uncleanable}
        )

    async def ask(self, broker_id: int, api_key: int, body: Any, timeout_ms: int = ASK_TIMEOUT_MS) -> Mapping[str, Any]:
        """Raises RefusedError if the broker refuses, NotConnectedError if it cannot be reached, another SextonError if
        it does not answer."""
        rpc = await self._connected(broker_id)
        try:
            data = await rpc.call_raw(api_key, [private.encode(body)], timeout_ms=timeout_ms)
        except SextonError:
            if self._connections.get(broker_id) is rpc:
                del self._connections[broker_id]
            rpc.close()
            raise
        return private.decode_answer(data, f"broker {broker_id}")

    async def _connected(self, broker_id: int) -> Rpc:
        async with self._connecting.setdefault(broker_id, asyncio.Lock()):
            found = self._connections.get(broker_id)
            if found is None or found.is_closed:  # such a broker may be back: it has not failed this request
                row = await self._metastore.read_broker(broker_id)
                if row is None or not row.is_live:
                    raise NotConnectedError(
                        f"broker {broker_id} is not running", "", "Its work is done when it is back"
                    )
                found = await Rpc.connect(self._network, row.host, row.port, client_id=self._client_id)
                self._connections[broker_id] = found
                self._addresses[broker_id] = row.host, row.port
                self._epochs[broker_id] = row.epoch
            return found

    def close(self) -> None:
        for rpc in self._connections.values():
            rpc.close()
        self._connections.clear()
