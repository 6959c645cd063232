"""The proxy in front of a store: it changes nothing but what it is asked to."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from sexton.harness.store_proxy import StoreFaults, StoreProxy


class Store(BaseHTTPRequestHandler):
    """Keeps what it is sent, and gives it back, in chunks if the path says so."""

    protocol_version = "HTTP/1.1"
    kept: dict[str, bytes]

    def do_PUT(self) -> None:
        self.kept[self.path] = self.rfile.read(int(self.headers["content-length"]))
        self._answer(b"")

    def do_GET(self) -> None:
        self._answer(self.kept.get(self.path, b"nothing"))

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "12345")
        self.end_headers()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        if "chunked" in self.path:
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for at in range(0, len(body), 1000):
                part = body[at : at + 1000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def store() -> Iterator[ThreadingHTTPServer]:
    Store.kept = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def client(proxy: StoreProxy) -> HTTPConnection:
    return HTTPConnection(proxy.endpoint.removeprefix("http://"), timeout=10)


def ask(connection: HTTPConnection, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_what_passes_is_not_changed(store: ThreadingHTTPServer) -> None:
    data = random.Random(1).randbytes(300_000)
    with StoreProxy(store.server_port) as proxy:
        connection = client(proxy)
        assert ask(connection, "PUT", "/a", data) == (200, b"")
        assert ask(connection, "GET", "/a") == (200, data)
        assert ask(connection, "PUT", "/chunked", data) == (200, b"")
        assert ask(connection, "GET", "/chunked") == (200, data)
        assert ask(connection, "HEAD", "/a") == (200, b"")
        assert ask(connection, "GET", "/none") == (200, b"nothing")
        assert proxy.counts == {("PUT", "passed"): 2, ("GET", "passed"): 3, ("HEAD", "passed"): 1}


def test_busy_and_refused_are_answers_the_store_knows_nothing_of(store: ThreadingHTTPServer) -> None:
    with StoreProxy(store.server_port, StoreFaults(busy=1.0)) as proxy:
        assert ask(client(proxy), "PUT", "/a", b"x")[0] == 503
        proxy.faults = StoreFaults(refused=1.0)
        status, body = ask(client(proxy), "PUT", "/a", b"x")
        assert status == 403
        assert b"<Code>AccessDenied</Code>" in body
        assert Store.kept == {}


def test_a_dropped_answer_is_of_work_that_was_done_and_an_unsent_request_is_not(store: ThreadingHTTPServer) -> None:
    with StoreProxy(store.server_port, StoreFaults(dropped=1.0)) as proxy:
        with pytest.raises((HTTPException, OSError)):
            ask(client(proxy), "PUT", "/a", b"x")
        assert Store.kept == {"/a": b"x"}
        proxy.faults = StoreFaults(unsent=1.0)
        with pytest.raises((HTTPException, OSError)):
            ask(client(proxy), "PUT", "/b", b"x")
        assert Store.kept == {"/a": b"x"}


def test_a_short_body_ends_before_its_length(store: ThreadingHTTPServer) -> None:
    with StoreProxy(store.server_port) as proxy:
        ask(client(proxy), "PUT", "/a", bytes(10_000))
        proxy.faults = StoreFaults(short=1.0)
        with pytest.raises((HTTPException, OSError)):
            ask(client(proxy), "GET", "/a")


def test_what_hangs_goes_on_when_the_weather_changes(store: ThreadingHTTPServer) -> None:
    with StoreProxy(store.server_port, StoreFaults(hanging=1.0)) as proxy:
        connection = client(proxy)
        connection.request("PUT", "/a", b"x")
        while not proxy.counts:
            time.sleep(0.002)
        assert Store.kept == {}
        proxy.faults = StoreFaults()
        assert connection.getresponse().status == 200
        assert Store.kept == {"/a": b"x"}


def test_only_the_methods_that_are_named_meet_their_fate(store: ThreadingHTTPServer) -> None:
    with StoreProxy(store.server_port, StoreFaults(busy=1.0, methods=frozenset({"PUT"}))) as proxy:
        assert ask(client(proxy), "PUT", "/a", b"x")[0] == 503
        assert ask(client(proxy), "GET", "/a")[0] == 200


def test_delays_have_the_median_and_the_99th_percentile_asked_for() -> None:
    rng = random.Random(1)
    faults = StoreFaults(median_ms=80, p99_ms=175)
    delays = sorted(faults.delay_s(rng) for _ in range(10_000))
    assert 0.075 < delays[5_000] < 0.085
    assert 0.160 < delays[9_900] < 0.190
    assert StoreFaults().delay_s(rng) == 0.0


def test_shares_are_shares() -> None:
    rng = random.Random(1)
    faults = StoreFaults(busy=0.2, dropped=0.3)
    fates = [faults.fate("PUT", rng) for _ in range(10_000)]
    assert 1_800 < fates.count("busy") < 2_200
    assert 2_800 < fates.count("dropped") < 3_200
    assert 4_700 < fates.count("passed") < 5_300
