"""A simulated client with several batches on the way: in which order they go out, and what is a broker's fault."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sexton.client.client import Peer
from sexton.protocol.errors import ErrorCode
from sexton.simulate.errors import SimulationFailure
from sexton.simulate.pipeline import AbortableError, Batch, Pipeline, Started

OUT_OF_ORDER = ErrorCode.out_of_order_sequence_number
NONE = ErrorCode.none


class Broker:
    """Notes what it was sent, and answers when the test does."""

    def __init__(self) -> None:
        self.peer = cast(Peer, object())
        self.sent: list[int] = []
        self._answers: dict[int, asyncio.Future[Any]] = {}

    def starting(self, number: int) -> Any:
        async def start() -> Started:
            self.sent.append(number)
            self._answers[number] = asyncio.get_running_loop().create_future()
            return self.peer, self._answers[number]

        return start

    async def answer(self, number: int, code: ErrorCode) -> None:
        part = SimpleNamespace(code=code, base_offset=-1 if code else 10 + number)
        self._answers[number].set_result(SimpleNamespace(responses=[SimpleNamespace(partition_responses=[part])]))
        await turns()


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


async def deliver(broker: Broker, batch: Batch, number: int) -> None:
    """As a client does: again and again while it may."""
    with batch.on_its_way():
        while (code := batch.judge((await batch.attempt(broker.starting(number))).code)) is not NONE:
            if not code.retriable:
                raise AbortableError(code.name)


def sending(broker: Broker, count: int, deleted_below: int = 0) -> list[asyncio.Task[None]]:
    pipeline = Pipeline(("topic", 0), lambda place, offset: offset <= deleted_below)
    return [asyncio.ensure_future(deliver(broker, pipeline.enter(each, each + 1), each)) for each in range(count)]


async def test_batches_go_out_in_order_without_waiting_for_answers() -> None:
    broker = Broker()
    sends = sending(broker, 3)
    await turns()
    assert broker.sent == [0, 1, 2]
    for number in range(3):
        await broker.answer(number, NONE)
    await asyncio.gather(*sends)


async def test_what_is_sent_again_waits_for_what_was_sent_before_it() -> None:
    broker = Broker()
    sends = sending(broker, 2)
    await turns()
    await broker.answer(0, ErrorCode.not_enough_replicas)
    await broker.answer(1, OUT_OF_ORDER)  # as it must, for the first is still to come
    assert broker.sent == [0, 1, 0]
    await broker.answer(0, NONE)
    assert broker.sent == [0, 1, 0, 1]
    await broker.answer(1, NONE)
    await asyncio.gather(*sends)


async def test_nothing_is_sent_again_behind_a_batch_that_was_given_up() -> None:
    broker = Broker()
    sends = sending(broker, 3)
    await turns()
    await broker.answer(1, ErrorCode.not_enough_replicas)
    await broker.answer(2, ErrorCode.not_enough_replicas)
    await broker.answer(0, ErrorCode.message_too_large)
    results = await asyncio.gather(*sends, return_exceptions=True)
    assert [type(each) for each in results] == [AbortableError] * 3
    assert broker.sent == [0, 1, 2]


@pytest.mark.parametrize("count", [1, 2, 4])
async def test_a_batch_that_is_out_of_order_behind_nothing_but_what_is_acknowledged_is_a_failure(count: int) -> None:
    broker = Broker()
    sends = sending(broker, count)
    await turns()
    for number in range(count - 1):
        await broker.answer(number, NONE)
    await broker.answer(count - 1, OUT_OF_ORDER)
    with pytest.raises(SimulationFailure, match="out of order"):
        await sends[-1]


async def test_one_that_may_be_in_the_log_already_proves_nothing() -> None:
    """Its first attempt was appended, and the broker remembers only what came after it."""

    broker = Broker()
    sends = sending(broker, 1)
    await turns()
    await broker.answer(0, ErrorCode.request_timed_out)
    await broker.answer(0, OUT_OF_ORDER)
    with pytest.raises(AbortableError):
        await sends[0]


@pytest.mark.parametrize("deleted_below", [12, 13])
async def test_one_behind_what_was_deleted_is_no_failure(deleted_below: int) -> None:
    """A replica that was copied since knows the producer by its marker alone. Seeds 629, 752."""
    broker = Broker()
    sends = sending(broker, 4, deleted_below)
    await turns()
    for number in range(3):
        await broker.answer(number, NONE)
    await broker.answer(3, OUT_OF_ORDER)
    with pytest.raises(AbortableError if deleted_below == 13 else SimulationFailure):
        await sends[-1]
