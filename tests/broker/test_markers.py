"""The markers that end transactions: however often it goes wrong, each is sent until it is written."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sexton.broker import markers
from sexton.broker.broker import Broker
from sexton.broker.markers import MarkerSender
from sexton.broker.peers import Peers
from sexton.coordinators.transactions.messages import Markers
from sexton.coordinators.transactions.service import DueMarkers
from sexton.coordinators.transactions.transaction import ProducerIdAndEpoch, TopicPartition
from sexton.protocol.errors import ErrorCode
from sexton.supervision import Supervisor

BROKER_ID, EPOCH = 1, 5
PLACES = [TopicPartition("t", partition) for partition in range(3)]
DUE = DueMarkers(0, EPOCH, Markers("app", ProducerIdAndEpoch(7, 0), True, 0, tuple(PLACES)))


@pytest.mark.parametrize("times", [1, 3])
def test_a_bug_in_one_marker_is_tried_again_and_holds_up_no_other(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    monkeypatch.setattr(markers, "BACK_OFF_MS", (1, 1))
    written: list[TopicPartition] = []
    broker: Any = SimpleNamespace(
        config=SimpleNamespace(node_id=BROKER_ID),
        supervisor=Supervisor(),
        view=SimpleNamespace(partition=lambda topic, partition: SimpleNamespace(leader=BROKER_ID)),
    )
    service = SimpleNamespace(epoch_of=lambda partition: EPOCH, marker_written=lambda due, place: written.append(place))
    broker.transactions = SimpleNamespace(service=service)
    bugs_left = times

    async def write(broker: object, marker: object, place: TopicPartition) -> ErrorCode:
        nonlocal bugs_left
        if place == PLACES[1] and bugs_left:
            bugs_left -= 1
            raise IndexError("nobody expected this")
        return ErrorCode.none

    monkeypatch.setattr(markers, "write_marker", write)

    async def body() -> None:
        sender = MarkerSender(cast(Broker, broker), cast(Peers, None))
        sender.send(DUE)
        async with asyncio.timeout(30):
            while len(written) < len(PLACES):
                await asyncio.sleep(0.001)
        await sender.close()

    asyncio.run(body())
    assert written == [PLACES[0], PLACES[2], PLACES[1]]
    assert broker.supervisor.bugs == {"markers": times}
