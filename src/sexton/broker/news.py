"""Tells the other brokers at once that the metastore has changed.

A broker looks at the metastore every `metadata.poll.ms`. For that long, a topic that a client has made through one
broker would be unknown to the next one that it asks. So whoever made a change tells the others, and answers when they
have seen it, or after WAIT_MS: one that stands still holds nobody up for longer. The looks remain: news may be lost.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from sexton.broker.admin import serving_brokers
from sexton.broker.connection import ClientConnection
from sexton.broker.peers import Peers
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
"""The receiver's revision, after it has caught up if it could, and who it is: its broker id and broker epoch."""


class News:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._peers = Peers(broker)

    async def tell(self) -> None:
        """What this broker has seen, the others see now, if they can."""
        view = self._broker.view
        message = _REVISION.pack(view.revision)
        others = [row for row in serving_brokers(view) if row.broker_id != self._broker.config.node_id]
        await asyncio.gather(*(self._tell_one(row, message) for row in others))

    async def receive(self, connection: ClientConnection, payload: memoryview) -> Sequence[Part]:
        broker = self._broker
        if len(payload) == _REVISION.size and _REVISION.unpack(payload)[0] > broker.view.revision:
            with suppress(MetastoreUnavailableError):
                await broker.catch_up()
        return [_ANSWER.pack(broker.view.revision, *broker.registration.identity)]

    async def is_answered_by(self, row: BrokerRow, wait_ms: int) -> bool:
        """Whether that very process answers now: another may be at its address by now, of another broker even. It is
        asked about a revision that it has surely seen, so that it answers without asking anybody itself; and twice,
        because a connection may have broken long ago."""
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
    """Earlier builds do not say who they are."""
    if len(answer) < _ANSWER.size:
        return True
    _, broker_id, epoch = _ANSWER.unpack_from(answer)
    return (broker_id, epoch) == (row.broker_id, row.epoch)
