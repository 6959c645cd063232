"""One connection: what arrives in pieces is put together, and a call that fails says what is known of its outcome."""

from __future__ import annotations

import asyncio
import struct

import pytest

from sexton.client import apis
from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError
from sexton.simulate.network import Weather
from tests.client.scripted import HangUp, World, simulate

PRIVATE = 30_001


@pytest.mark.parametrize("seed", range(5))
def test_answers_in_pieces_reach_the_calls_in_order(seed: int) -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[PRIVATE] = lambda version, body: body * 3
        rpc = await world.rpc()
        sent = [bytes([number]) * (number * 211 + 1) for number in range(50)]
        answers = await asyncio.gather(*(rpc.call_raw(PRIVATE, [each[:5], each[5:]]) for each in sent))
        assert [bytes(answer) for answer in answers] == [each * 3 for each in sent]
        assert rpc.waiting_count == 0

    simulate(scenario, seed, Weather(split_probability=0.7))


def test_an_answer_is_an_entity_of_the_version_asked_for() -> None:
    async def scenario(world: World) -> None:
        answer = await (await world.rpc()).call(apis.METADATA.key, 9, {"topics": None})
        assert [topic.name for topic in answer.topics] == ["t"]
        assert type(answer).__version__ == 9

    simulate(scenario)


def test_nobody_listening_means_that_nothing_was_sent() -> None:
    async def scenario(world: World) -> None:
        with pytest.raises(NotConnectedError) as refused:
            await world.rpc()
        assert "refused" in refused.value.what
        assert "sexton up" in refused.value.remedy

    simulate(scenario, listening=False)


def test_an_answer_that_does_not_come_ends_the_connection_and_leaves_outcomes_unknown() -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[PRIVATE] = lambda version, body: None
        rpc = await world.rpc(timeout_ms=1000)
        late = asyncio.ensure_future(rpc.call_raw(PRIVATE, [b"a"]))
        other = asyncio.ensure_future(rpc.call_raw(PRIVATE, [b"b"], timeout_ms=60_000))
        for call in (late, other):
            with pytest.raises(ConnectionLostError):
                await call
        with pytest.raises(NotConnectedError):  # this one was surely not sent
            await rpc.call_raw(PRIVATE, [b"c"])
        assert rpc.is_closed

    simulate(scenario)


def test_a_broker_that_hangs_up_leaves_the_outcome_unknown() -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[PRIVATE] = lambda version, body: HangUp()
        rpc = await world.rpc()
        with pytest.raises(ConnectionLostError):
            await rpc.call_raw(PRIVATE, [b"a"])

    simulate(scenario)


@pytest.mark.parametrize(
    "nonsense",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        struct.pack(">i", -5),
        struct.pack(">i", 2) + b"ab",
        struct.pack(">ii", 4, 77),  # the answer to another request
        struct.pack(">iih", 6, 1, 0),  # cut off after two bytes of the body
    ],
)
def test_nonsense_ends_the_connection(nonsense: bytes) -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[apis.METADATA.key] = lambda version, body: nonsense
        rpc = await world.rpc()
        with pytest.raises(BadAnswerError):
            await rpc.call(apis.METADATA.key, 9, {"topics": None})
        assert rpc.is_closed

    simulate(scenario)


def test_a_call_that_was_given_up_does_not_disturb_the_next() -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[PRIVATE] = lambda version, body: body
        rpc = await world.rpc()
        first = asyncio.ensure_future(rpc.call_raw(PRIVATE, [b"first"]))
        await asyncio.sleep(0)
        first.cancel()
        assert bytes(await rpc.call_raw(PRIVATE, [b"second"])) == b"second"

    simulate(scenario)


def test_closing_ends_the_calls_that_wait() -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[PRIVATE] = lambda version, body: None
        rpc = await world.rpc()
        call = asyncio.ensure_future(rpc.call_raw(PRIVATE, [b"a"]))
        await asyncio.sleep(0.1)
        rpc.close()
        rpc.close()
        with pytest.raises(ConnectionLostError):
            await call

    simulate(scenario)


def test_a_full_backlog_makes_callers_wait() -> None:
    async def scenario(world: World) -> None:
        world.broker.handlers[PRIVATE] = lambda version, body: struct.pack(">i", len(body))
        rpc = await world.rpc(timeout_ms=60_000)
        part = bytes(1 << 20)
        calls = [asyncio.ensure_future(rpc.call_raw(PRIVATE, [part])) for _ in range(8)]
        await asyncio.sleep(0)
        assert rpc.waiting_count < 8
        answers = await asyncio.gather(*calls)
        assert [struct.unpack(">i", answer)[0] for answer in answers] == [len(part)] * 8

    simulate(scenario)
