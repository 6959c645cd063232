"""Order, limits and ends of a client's connection, whatever the APIs behind it do."""

from __future__ import annotations

import asyncio
import logging
import struct
from typing import Any

import pytest

from sexton.broker import api
from sexton.broker.network import dispatch
from sexton.broker.network.connection import IN_FLIGHT_MAX, REQUESTS_PER_TURN_MAX
from sexton.broker.network.request import DropConnectionError, Request
from sexton.ports.network import HIGH_BACKLOG_BYTES
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.protocol.messages import encode_private_request
from sexton.protocol.private import FIRST_PRIVATE_API_KEY
from tests.broker.serving import Client, ServingBroker

API_VERSIONS = 18
HEARTBEAT = 12
"""Stands in for any API here: its handler is the test's."""


class Script:
    """A handler that the test answers by hand."""

    API_KEY = HEARTBEAT
    VERSIONS = (0, 4)

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.futures: list[asyncio.Future[Any]] = []
        self.now: Any = None

    def handle(self, broker: object, request: Request) -> Any:
        self.requests.append(request)
        if self.now is not None:
            return self.now(request)
        self.futures.append(asyncio.get_running_loop().create_future())
        return self.futures[-1]

    @staticmethod
    def named(request: Request) -> dict[str, Any]:
        """An answer by which the request can be told."""
        return {"throttle_time": int(request.body.group_id)}


@pytest.fixture
def sweeps_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "SWEEP_S_MAX", 0.05)
    monkeypatch.setattr(dispatch, "STALLED_REQUEST_S", 0.1)


@pytest.fixture(autouse=True)
def script(monkeypatch: pytest.MonkeyPatch) -> Script:
    script = Script()
    real = api.modules()
    monkeypatch.setattr(api, "modules", lambda: {**real, HEARTBEAT: script})
    return script


def beat(number: int) -> dict[str, Any]:
    return {"group_id": str(number)}


def numbers(client: Client) -> list[int]:
    return [round(answer.throttle_time.total_seconds() * 1000) for answer in client.answers()]


async def test_answers_leave_in_the_order_of_requests_while_later_ones_start(script: Script) -> None:
    client = Client(ServingBroker())
    for number in range(4):
        client.ask(HEARTBEAT, 4, beat(number))
    assert len(script.requests) == 4
    for number in (2, 1, 3):
        script.futures[number].set_result({"throttle_time": number})
    await asyncio.sleep(0)
    assert numbers(client) == []
    script.futures[0].set_result({"throttle_time": 0})
    await asyncio.sleep(0)
    assert numbers(client) == [0, 1, 2, 3]


async def test_an_answer_that_is_ready_waits_for_those_before_it(script: Script) -> None:
    client = Client(ServingBroker())
    client.ask(HEARTBEAT, 4, beat(0))
    script.now = Script.named
    client.ask(HEARTBEAT, 4, beat(1))
    assert numbers(client) == []
    script.futures[0].set_result({"throttle_time": 0})
    await asyncio.sleep(0)
    assert numbers(client) == [0, 1]


async def test_requests_that_arrive_together_are_answered_by_one_send(script: Script) -> None:
    client = Client(ServingBroker())
    script.now = Script.named
    client.feed(b"".join(client.frame(HEARTBEAT, 4, beat(number)) for number in range(50)))
    assert client.connection.sends_count == 1
    assert numbers(client) == list(range(50))


async def test_requests_may_come_byte_by_byte(script: Script) -> None:
    client = Client(ServingBroker())
    script.now = Script.named
    for byte in client.frame(HEARTBEAT, 4, beat(7)) + client.frame(HEARTBEAT, 1, beat(8)):
        client.feed(bytes([byte]))
    assert numbers(client) == [7, 8]


async def test_too_many_waiting_requests_stop_the_reading_until_one_is_answered(script: Script) -> None:
    client = Client(ServingBroker())
    client.feed(b"".join(client.frame(HEARTBEAT, 4, beat(number)) for number in range(IN_FLIGHT_MAX + 3)))
    assert len(script.requests) == IN_FLIGHT_MAX
    assert client.connection.is_paused
    script.futures[0].set_result({})
    await asyncio.sleep(0)
    assert len(script.requests) == IN_FLIGHT_MAX + 1
    assert client.connection.is_paused
    for future in script.futures[1:4]:
        future.set_result({})
    await asyncio.sleep(0)
    assert len(script.requests) == IN_FLIGHT_MAX + 3
    assert [request.body.group_id for request in script.requests] == [str(n) for n in range(IN_FLIGHT_MAX + 3)]
    assert not client.connection.is_paused


async def test_one_client_with_many_requests_lets_others_have_their_turn(script: Script) -> None:
    client = Client(ServingBroker())
    script.now = Script.named
    count = REQUESTS_PER_TURN_MAX * 2 + 1
    client.feed(b"".join(client.frame(HEARTBEAT, 4, beat(number)) for number in range(count)))
    assert len(script.requests) == REQUESTS_PER_TURN_MAX
    assert client.connection.is_paused
    for _ in range(3):
        await asyncio.sleep(0)
    assert numbers(client) == list(range(count))
    assert not client.connection.is_paused


async def test_client_that_does_not_read_is_paused_and_then_closed_as_idle(script: Script) -> None:
    broker = ServingBroker(connections_max_idle_ms=500)
    client = Client(broker)
    script.now = Script.named
    client.connection.backlog_bytes = HIGH_BACKLOG_BYTES + 1
    client.ask(HEARTBEAT, 4, beat(1))
    assert client.connection.is_paused
    assert script.requests == []
    client.connection.backlog_bytes = 0
    client.receiver.writable()
    assert numbers(client) == [1]
    assert not client.connection.is_paused
    client.connection.backlog_bytes = HIGH_BACKLOG_BYTES + 1
    async with asyncio.timeout(10):
        while broker.dispatch.connections:
            await asyncio.sleep(0.01)
    assert client.connection.is_closed


async def test_idle_connection_is_closed_and_one_with_a_waiting_request_is_not() -> None:
    broker = ServingBroker(connections_max_idle_ms=300)
    idle, waiting = Client(broker), Client(broker, "other:2")
    waiting.ask(HEARTBEAT, 4, beat(1))
    async with asyncio.timeout(10):
        while not idle.connection.is_closed:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.3)
    assert not waiting.connection.is_closed
    assert list(broker.dispatch.connections) == [waiting.receiver]


async def test_large_request_waits_for_memory_that_others_hold(script: Script) -> None:
    broker = ServingBroker(queued_max_request_bytes=10_000)
    first, second, third = (Client(broker, f"c:{number}") for number in range(3))
    script.now = Script.named
    big = struct.pack(">i", 8000) + bytes(100)
    first.feed(big)
    second.feed(big)
    third.feed(struct.pack(">i", 100) + bytes(10))
    assert not first.connection.is_paused
    assert second.connection.is_paused
    assert third.connection.is_paused, "a small request does not overtake a large one that waits"
    assert broker.dispatch.budget.held_bytes == 8004
    first.receiver.close()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not second.connection.is_paused
    assert not third.connection.is_paused
    assert broker.dispatch.budget.held_bytes == 8004 + 104
    second.receiver.close()
    third.receiver.close()
    for _ in range(3):
        await asyncio.sleep(0)
    assert broker.dispatch.budget.held_bytes == 0
    assert not broker.dispatch.budget.has_waiting


async def test_request_larger_than_all_memory_is_served_when_it_is_alone(script: Script) -> None:
    broker = ServingBroker(queued_max_request_bytes=100)
    client = Client(broker)
    script.now = Script.named
    frame = client.frame(HEARTBEAT, 4, {"group_id": "1", "member_id": "m" * 5000})
    client.feed(frame[:1000])
    assert not client.connection.is_paused
    client.feed(frame[1000:])
    assert numbers(client) == [1]
    assert broker.dispatch.budget.held_bytes == 0


async def test_without_a_bound_no_request_waits_for_memory() -> None:
    broker = ServingBroker(queued_max_request_bytes=-1)
    clients = [Client(broker, f"c:{number}") for number in range(3)]
    for client in clients:
        client.feed(struct.pack(">i", 8000) + bytes(100))
    assert not any(client.connection.is_paused for client in clients)


@pytest.mark.usefixtures("sweeps_are_quick")
async def test_where_idle_connections_are_kept_one_that_holds_up_others_is_closed_all_the_same() -> None:
    broker = ServingBroker(queued_max_request_bytes=10_000, connections_max_idle_ms=-1)
    stalled, idle, waiting = (Client(broker, f"c:{number}") for number in range(3))
    stalled.feed(struct.pack(">i", 8000) + bytes(100))
    waiting.feed(struct.pack(">i", 8000) + bytes(100))
    assert waiting.connection.is_paused
    async with asyncio.timeout(10):
        while waiting.connection.is_paused:
            await asyncio.sleep(0.01)
    assert stalled.connection.is_closed
    assert not idle.connection.is_closed


async def test_memory_of_a_request_that_is_being_worked_on_is_counted_until_it_is_answered(script: Script) -> None:
    broker = ServingBroker()
    client = Client(broker)
    gate = asyncio.Event()

    async def work() -> dict[str, Any]:
        await gate.wait()
        return {}

    script.now = lambda request: work()
    client.ask(HEARTBEAT, 4, {"group_id": "1", "member_id": "m" * 5000})
    assert broker.dispatch.budget.held_bytes > 5000
    gate.set()
    await client.answer()
    assert broker.dispatch.budget.held_bytes == 0


async def test_memory_of_a_request_that_is_released_is_others_to_use_before_it_is_answered(script: Script) -> None:
    broker = ServingBroker()
    client = Client(broker)
    gate = asyncio.Event()

    async def work(request: Request) -> dict[str, Any]:
        request.release()
        await gate.wait()
        return {}

    script.now = work
    client.ask(HEARTBEAT, 4, {"group_id": "1", "member_id": "m" * 5000})
    await asyncio.sleep(0)
    assert broker.dispatch.budget.held_bytes == 0
    gate.set()
    await client.answer()
    assert broker.dispatch.budget.held_bytes == 0


async def test_closed_connection_forgets_its_waiting_futures_but_lets_tasks_finish(script: Script) -> None:
    broker = ServingBroker()
    client = Client(broker)
    done: list[str] = []

    async def work() -> dict[str, Any]:
        await asyncio.sleep(0.01)
        done.append("task")
        return {}

    client.ask(HEARTBEAT, 4, beat(1))
    script.now = lambda request: work()
    client.ask(HEARTBEAT, 4, beat(2))
    client.receiver.closed(None)
    assert script.futures[0].cancelled()
    assert not done
    await asyncio.sleep(0.05)
    assert done == ["task"]
    assert broker.dispatch.budget.held_bytes == 0
    assert not client.connection.sent


async def test_connections_above_the_limits_are_refused() -> None:
    broker = ServingBroker(max_connections=3, max_connections_per_ip=2)
    clients = [Client(broker, peer) for peer in ("a:1", "a:2", "a:3", "b:1", "b:2")]
    assert [client.connection.is_closed for client in clients] == [False, False, True, True, True]
    await asyncio.sleep(0)
    assert len(broker.dispatch.connections) == 2
    late = Client(broker, "b:3")
    assert not late.connection.is_closed


def test_handler_that_fails_unexpectedly_costs_its_connection_only(
    script: Script, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        broker = ServingBroker()
        bad, good = Client(broker), Client(broker, "good:1")

        def fail(request: Request) -> None:
            raise RuntimeError("a bug")

        async def fail_later() -> None:
            raise RuntimeError("a later bug")

        script.now = fail
        bad.ask(HEARTBEAT, 4, beat(1))
        assert bad.connection.is_closed
        later = Client(broker, "later:1")
        script.now = lambda request: fail_later()
        later.ask(HEARTBEAT, 4, beat(1))
        await asyncio.sleep(0.01)
        assert later.connection.is_closed
        script.now = Script.named
        good.ask(HEARTBEAT, 4, beat(2))
        assert numbers(good) == [2]

    asyncio.run(main())
    assert "RuntimeError: a bug" in caplog.text
    assert "RuntimeError: a later bug" in caplog.text


async def test_kafka_error_that_a_handler_raises_becomes_its_answer(script: Script) -> None:
    client = Client(ServingBroker())

    def refuse(request: Request) -> None:
        raise KafkaError(ErrorCode.group_id_not_found, "no such group")

    async def refuse_later() -> None:
        raise KafkaError(ErrorCode.illegal_generation)

    script.now = refuse
    client.ask(HEARTBEAT, 4, beat(1))
    assert client.answers()[0].error_code is ErrorCode.group_id_not_found
    script.now = lambda request: refuse_later()
    assert (await client.call(HEARTBEAT, 4, beat(2))).error_code is ErrorCode.illegal_generation


async def test_handler_can_drop_the_connection(script: Script) -> None:
    client = Client(ServingBroker())

    def drop(request: Request) -> None:
        raise DropConnectionError("no other way")

    script.now = drop
    client.feed(client.frame(HEARTBEAT, 4, beat(1)) + client.frame(HEARTBEAT, 4, beat(2)))
    assert client.connection.is_closed
    assert len(script.requests) == 1


async def test_version_that_is_not_offered_is_refused_where_the_answer_has_a_place_for_it(script: Script) -> None:
    client = Client(ServingBroker())
    script.VERSIONS = (0, 3)
    answer = await client.call(HEARTBEAT, 4, beat(1))
    assert answer.error_code is ErrorCode.unsupported_version


async def test_api_versions_of_the_future_is_answered_in_version_0() -> None:
    client = Client(ServingBroker())
    client.feed(struct.pack(">ihhih", 12, API_VERSIONS, 99, 5, -1) + b"??")
    (frame,) = client.frames()
    assert struct.unpack_from(">ihihhh", frame) == (5, 35, 1, API_VERSIONS, 0, 4)
    assert not client.connection.is_closed


@pytest.mark.parametrize(
    "garbage",
    [
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, -5, 0, 1, -1),
        struct.pack(">ihhih", 10, FIRST_PRIVATE_API_KEY, 0, 1, -1),
        struct.pack(">ihhih", 10, HEARTBEAT, 77, 1, -1),
        struct.pack(">ihhih", 10, HEARTBEAT, 0, 1, -1),
        struct.pack(">i", -1),
        struct.pack(">i", (100 << 20) + 1),
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(4),
    ],
)
def test_what_cannot_be_read_closes_the_connection_with_one_line(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        broker = ServingBroker()
        client = Client(broker)
        client.feed(garbage)
        assert client.connection.is_closed
        await asyncio.sleep(0)
        assert not broker.dispatch.connections

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    (record,) = caplog.records
    assert "client:1: closed: " in record.getMessage()
    assert record.exc_info is None


def test_clients_of_another_protocol_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        broker = ServingBroker()
        Client(broker).feed(b"GET /metrics HTTP/1.1\r\n\r\n")
        Client(broker).feed(bytes.fromhex("16030100f8010000f4"))

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())
    told = [record.getMessage() for record in caplog.records]
    assert "It speaks HTTP" in told[0]
    assert "set security.protocol=PLAINTEXT" in told[1]
    assert [line.count("speaks") for line in told] == [1, 1], "once is enough"


def test_complaints_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        broker = ServingBroker()
        for _ in range(100):
            Client(broker).feed(b"GET / HTTP/1.1\r\n\r\n")
        assert len(caplog.records) == 10
        broker.clock.ms += 10_000
        Client(broker).feed(b"GET / HTTP/1.1\r\n\r\n")
        assert "90 more lines" in caplog.records[10].getMessage()
        assert len(caplog.records) == 12

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())


async def test_private_messages_are_dispatched_and_not_advertised() -> None:
    broker = ServingBroker()
    client = Client(broker)
    seen: list[bytes] = []

    async def later(payload: memoryview) -> list[bytes]:
        await asyncio.sleep(0)
        return [b"later", bytes(payload)]

    def handler(connection: object, payload: memoryview) -> Any:
        assert connection is client.receiver
        seen.append(bytes(payload))
        return [b"now"] if payload == memoryview(b"now") else later(payload)

    broker.dispatch.private = {FIRST_PRIVATE_API_KEY: handler}
    client.feed(encode_private_request(FIRST_PRIVATE_API_KEY, 0, 77, "b2", b"payload"))
    client.feed(encode_private_request(FIRST_PRIVATE_API_KEY, 0, 78, "b2", b"now"))
    await asyncio.sleep(0.01)
    assert client.frames() == [struct.pack(">i", 77) + b"laterpayload", struct.pack(">i", 78) + b"now"]
    answer = await client.call(API_VERSIONS, 3, {"client_software_name": "a", "client_software_version": "1"})
    assert max(entry.api_key for entry in answer.api_keys) < FIRST_PRIVATE_API_KEY


async def test_requests_wait_while_the_broker_is_not_ready(script: Script) -> None:
    broker = ServingBroker()
    broker.dispatch.hold()
    client = Client(broker)
    script.now = Script.named
    client.ask(HEARTBEAT, 4, beat(3))
    assert client.connection.is_paused
    assert not client.connection.sent
    broker.dispatch.release()
    assert numbers(client) == [3]
    assert not client.connection.is_paused


async def test_stopping_closes_every_connection_and_ends_what_it_began(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = ServingBroker()
    told: list[object] = []
    monkeypatch.setattr(broker.replicas, "connection_closed", told.append)
    clients = [Client(broker, f"c:{number}") for number in range(3)]
    ended: list[str] = []

    async def work() -> dict[str, Any]:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("work")
        return {}

    script.now = lambda request: work()
    clients[0].ask(HEARTBEAT, 4, beat(1))
    await asyncio.sleep(0)
    await broker.dispatch.stop()
    assert ended == ["work"]
    assert told == [client.receiver for client in clients]
    assert not broker.dispatch.connections
