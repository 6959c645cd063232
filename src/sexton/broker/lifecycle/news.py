"""Notifies the other brokers at once that the metastore has changed.

A broker reads the metastore every `metadata.poll.ms`. Until then, a topic that a client has created through one broker
would be unknown to the next broker that it asks. So the broker that made a change notifies the others, and sends its
response when they have seen the change, or after WAIT_MS, so that a broker that hangs delays no client for longer.
Polling remains necessary: a notification may be lost.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sexton.broker.admin import serving_brokers
from sexton.broker.lifecycle.peers import Peers
from sexton.broker.network.connection import ClientConnection
from sexton.errors import SextonError
from sexton.ports.metastore import BrokerRow, MetastoreUnavailableError
from sexton.ports.network import Part
from sexton.protocol.private import PrivateApi

if TYPE_CHECKING:
    from sexton.broker.broker import Broker


WAIT_MS: Final = 300

ASKED_MAX: Final = 2

_REVISION: Final = struct.Struct(">q")
_ANSWER: Final = struct.Struct(">qiq")
"""The receiver's revision, after it has caught up if it could, and its broker id and broker epoch."""


class News:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._peers = Peers(broker)

    async def tell(self) -> None:
        """Makes the other brokers catch up with the revision that this broker has seen, if they can be reached."""
        view = self._broker.view
        message = _REVISION.pack(view.revision)
        others = [row for row in serving_brokers(view) if row.broker_id != self._broker.config.node_id]
        await asyncio.gather(*(self._tell_one(row, message) for row in others))

    async def receive(self, connection: ClientConnection, payload: memoryview) -> Sequence[Part]:
        broker = self._broker
        if len(payload) == _REVISION.size and _REVISION.unpack(payload)[0] > broker.view.revision:
            with suppress(MetastoreUnavailableError):
                await broker.catch_up()
        return [_ANSWER.pack(broker.view.revision, *broker.identity)]

    async def is_answered_by(self, row: BrokerRow, wait_ms: int) -> bool:
        """Whether that very process (broker epoch) answers now: another process, even of another broker, may have its
        address by now. The request names revision 0, which every broker has seen, so that it answers without reading
        the metastore; and it is sent twice, because a connection may have broken long ago."""
        try:
            async with asyncio.timeout(wait_ms / 1000):
                for _ in range(ASKED_MAX):
                    with suppress(SextonError):
                        if _is_of(row, await self._peers.call_raw(row, PrivateApi.NEWS, _REVISION.pack(0))):
                            return True
                    self._peers.drop(row.broker_id)
        except TimeoutError:
            self._peers.drop(row.broker_id)
        return False

    def close(self) -> None:
        self._peers.close()

    async def _tell_one(self, row: BrokerRow, message: bytes) -> None:
        try:
            async with asyncio.timeout(WAIT_MS / 1000):
                await self._peers.call_raw(row, PrivateApi.NEWS, message)
        except (SextonError, TimeoutError):
            self._peers.drop(row.broker_id)


def _is_of(row: BrokerRow, answer: memoryview) -> bool:
    """Returns True for an answer without an identity: earlier builds do not send one."""
    if len(answer) < _ANSWER.size:
        return True
    _, broker_id, epoch = _ANSWER.unpack_from(answer)
    return (broker_id, epoch) == (row.broker_id, row.epoch)
