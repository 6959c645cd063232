"""The network between clients and brokers, as a proxy makes it: before a broker that answers whatever it is asked."""

from __future__ import annotations

import random
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from sexton.harness.proxy import CLEAR, Address, Hold, Proxy, Request, Watch, Weather
from sexton.verify.faults.base import Scene
from sexton.verify.faults.network import DELAY, NARROW, RESET, WAYS, SlowNetwork, weather
from sexton.verify.faults.schedule import Act, Target

API_VERSIONS: Final = 18
"""Its answer names no brokers, so that it passes as it is."""
WAIT_S: Final = 30.0


class Broker(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.got: list[int] = []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def bootstrap(self) -> str:
        host, port = self.server_address[:2]
        return f"{host!s}:{port}"


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Broker)
        while head := self.rfile.read(4):
            (size,) = struct.unpack(">i", head)
            _, _, correlation_id = struct.unpack_from(">hhi", self.rfile.read(size))
            self.server.got.append(correlation_id)
            self.wfile.write(struct.pack(">ii", 4, correlation_id))


class Client:
    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=WAIT_S)

    def ask(self, number: int, size: int = 8) -> None:
        frame = struct.pack(">hhi", API_VERSIONS, 0, number).ljust(size, b"x")
        self._socket.sendall(struct.pack(">i", len(frame)) + frame)

    def answer(self, timeout_s: float = WAIT_S) -> int:
        self._socket.settimeout(timeout_s)
        found = self._socket.recv(8)
        if not found:
            raise EOFError
        return int(struct.unpack(">ii", found)[1])


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as broker:
        yield broker
        broker.shutdown()


@pytest.fixture
def proxy(broker: Broker) -> Iterator[Proxy]:
    with Proxy(broker.bootstrap) as proxy:
        yield proxy


def asked(client: Client, number: int, size: int = 8) -> float:
    """How long the answer took."""
    begin_s = time.monotonic()
    client.ask(number, size)
    assert client.answer() == number
    return time.monotonic() - begin_s


def test_a_delay_is_of_each_frame_in_either_direction(proxy: Proxy) -> None:
    client = Client(proxy.bootstrap)
    asked(client, 1)
    proxy.set_weather(Weather(delay_s=0.3), proxy.addresses)
    assert asked(client, 2) >= 0.6
    assert asked(Client(proxy.bootstrap), 3) >= 0.6, "new connections, too"


def test_what_is_large_takes_longer_where_the_network_is_narrow(proxy: Proxy) -> None:
    client = Client(proxy.bootstrap)
    proxy.set_weather(Weather(bytes_per_s=10_000), proxy.addresses)
    assert asked(client, 1, size=5_000) >= 0.5


def test_a_connection_that_is_reset_tells_its_client_so(proxy: Proxy) -> None:
    client = Client(proxy.bootstrap)
    asked(client, 1)
    proxy.set_weather(Weather(reset_p=1.0), proxy.addresses)
    client.ask(2)
    with pytest.raises(ConnectionResetError):
        client.answer()
    proxy.set_weather(CLEAR, proxy.addresses)
    asked(Client(proxy.bootstrap), 3)


def test_a_half_open_connection_tells_its_client_nothing_until_it_is_reset(proxy: Proxy, broker: Broker) -> None:
    client = Client(proxy.bootstrap)
    asked(client, 1)
    assert proxy.leave_half_open(proxy.addresses) == 1
    client.ask(2)
    with pytest.raises(TimeoutError):
        client.answer(0.5)
    asked(Client(proxy.bootstrap), 3)
    assert broker.got == [1, 3]
    assert proxy.reset_half_open() == 1
    with pytest.raises(ConnectionResetError):
        client.answer()


class HoldsTheFirst(Watch):
    """Until the third is answered."""

    def __init__(self) -> None:
        self.hold = Hold(API_VERSIONS, lambda _: True)

    def caught(self, request: Request) -> Hold | None:
        return None if self.hold.caught.is_set() else self.hold

    def due(self, request: Request) -> Sequence[Hold]:
        return [self.hold] if request.correlation_id == 3 else []


def test_what_is_held_reaches_the_broker_before_the_client_is_told_more(proxy: Proxy, broker: Broker) -> None:
    watch = HoldsTheFirst()
    proxy.watched_by(watch)
    first, second = Client(proxy.bootstrap), Client(proxy.bootstrap)
    first.ask(1)
    first.ask(2)
    watch.hold.wait(WAIT_S)
    asked(second, 3)
    assert broker.got[:2] == [3, 1]
    assert [first.answer(), first.answer()] == [1, 2]
    assert broker.got == [3, 1, 2], "and with it what its client had sent after it"


def test_what_is_held_for_a_broker_that_is_gone_is_lost(proxy: Proxy, broker: Broker) -> None:
    watch = HoldsTheFirst()
    proxy.watched_by(watch)
    client = Client(proxy.bootstrap)
    client.ask(1)
    watch.hold.wait(WAIT_S)
    proxy.leave_half_open(proxy.addresses)
    proxy.release_all([watch.hold])
    assert broker.got == []


@pytest.mark.parametrize("choice", range(12))
def test_a_fault_of_the_network_ends_with_everything_clear(proxy: Proxy, choice: int) -> None:
    fault = SlowNetwork(Scene(None, own_proxy=proxy))
    assert list(fault.end().hit) == []
    told = fault.begin(Act(0, fault.name, True, Target.ALL, choice))
    assert (told.hit, told.ext["how"] in WAYS) == ([names(proxy.addresses)], True)
    fault.end()
    assert [proxy.weather_at(address) for address in proxy.addresses] == [CLEAR]


def names(addresses: Sequence[Address]) -> str:
    ((host, port),) = addresses
    return f"{host}:{port}"


def test_each_way_to_be_slow_is_another_weather() -> None:
    found = {way: weather(way, random.Random(1)) for way in (DELAY, NARROW, RESET)}
    assert found[DELAY].delay_s > 0
    assert found[NARROW].bytes_per_s < 1_000_000
    assert found[RESET].reset_p > 0
