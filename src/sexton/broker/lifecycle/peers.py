"""Connections to the other brokers, for requests between brokers.

There is at most one connection to each broker at a time, opened at first use. It keeps the order of requests; when a
response fails to come, it is closed, and the next request goes over a new one. The receivers' rule about late requests
relies on that (`coordinators/transactions/connection_binding.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sexton.client.connection import Rpc
from sexton.client.errors import NotConnectedError
from sexton.ports.metastore import BrokerRow

if TYPE_CHECKING:
    from sexton.broker.broker import Broker

CLIENT_ID = "sexton-broker"
CONNECT_TIMEOUT_MS = 3_000
CALL_TIMEOUT_MS = 4_000
"""A transaction waits for the response. A broker that hangs for longer than this is about to lose its leaderships, and
then other brokers must be asked."""


class Peers:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._connections: dict[int, Rpc] = {}
        self._connecting: dict[int, asyncio.Lock] = {}
        self._is_closed = False

    async def call(self, row: BrokerRow, api_key: int, version: int, body: Mapping[str, Any]) -> Any:
        """Raises NotConnectedError (the request was not sent), ConnectionLostError or BadAnswerError (the outcome is
        unknown)."""
        rpc = await self._connection(row)
        return await rpc.call(api_key, version, body, timeout_ms=CALL_TIMEOUT_MS)

    async def call_raw(
        self, row: BrokerRow, api_key: int, message: bytes, timeout_ms: int = CALL_TIMEOUT_MS
    ) -> memoryview:
        """Sends a private message, not one of Kafka's. Raises as `call` does."""
        rpc = await self._connection(row)
        return await rpc.call_raw(api_key, [message], timeout_ms=timeout_ms)

    def drop(self, broker_id: int) -> None:
        """Closes the connection; the next call opens a new one."""
        rpc = self._connections.pop(broker_id, None)
        if rpc is not None:
            rpc.close()

    def close(self) -> None:
        self._is_closed = True
        for broker_id in list(self._connections):
            self.drop(broker_id)

    async def _connection(self, row: BrokerRow) -> Rpc:
        async with self._connecting.setdefault(row.broker_id, asyncio.Lock()):
            rpc = self._connections.get(row.broker_id)
            if rpc is not None and not rpc.is_closed:
                return rpc
            if self._is_closed:
                raise NotConnectedError("this broker is stopping", f"{row.host}:{row.port}")
            rpc = await Rpc.connect(
                self._broker.network,
                row.host,
                row.port,
                client_id=f"{CLIENT_ID}-{self._broker.config.node_id}",
                connect_timeout_ms=CONNECT_TIMEOUT_MS,
            )
            self._connections[row.broker_id] = rpc
            return rpc
