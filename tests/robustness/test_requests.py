"""What is no request, or one that cannot be answered: its connection ends, a line says why, and the broker goes on."""

from __future__ import annotations

import struct

import pytest

from sexton.protocol.errors import ErrorCode
from sexton.protocol.messages import encode_request
from tests.robustness.conftest import Watched
from tests.robustness.wire import API_VERSIONS, METADATA, PRODUCE, Wire, batch, produce_body

pytestmark = pytest.mark.cluster

MEGABYTE = 1 << 20


@pytest.mark.parametrize(
    ("start", "hint"),
    [
        (struct.pack(">i", -1), "-1 bytes"),
        (struct.pack(">i", -(2**31)), "-2147483648 bytes"),
        (struct.pack(">i", (16 << 20) + 1), "socket.request.max.bytes"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01", "TLS"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "HTTP"),
    ],
)
def test_a_size_that_cannot_be_meant_ends_the_connection_and_the_line_says_what_to_look_for(
    broker: Watched, start: bytes, hint: str
) -> None:
    with broker.wire() as wire:
        wire.send(start)
        assert wire.is_hung_up()
    assert hint in broker.new_log()
    assert broker.serves()


def test_the_largest_request_that_is_allowed_is_read(broker: Watched) -> None:
    topic = broker.new_topic(max_message_bytes=15 << 20)
    with broker.wire() as wire:
        assert wire.produce(topic, batch(bytes(14 << 20))).base_offset == 0
    assert broker.serves()


@pytest.mark.parametrize("kept", [0, 3, 9, 20])
def test_a_request_that_is_cut_off_ends_its_connection(broker: Watched, kept: int) -> None:
    """Its size says so little that its body cannot be what it should be."""
    whole = encode_request(PRODUCE, 9, 1, "cut", produce_body("nowhere", batch(b"x"), 0, -1, 1000))[4:]
    with broker.wire() as wire:
        wire.send(struct.pack(">i", kept) + whole[:kept])
        assert wire.is_hung_up()
    assert "closed:" in broker.new_log()
    assert broker.serves()


def test_clients_that_stop_half_way_through_large_requests_cannot_take_all_memory(broker: Watched) -> None:
    """32 MB may be held for requests; thirty clients would like 12 MB each."""
    before_bytes = broker.rss_bytes()
    clients = []
    for _ in range(30):
        wire = Wire(broker.address)
        wire.socket.settimeout(0.2)
        clients.append(wire)
        try:
            wire.socket.sendall(struct.pack(">i", 15 << 20) + bytes(12 << 20))
        except TimeoutError:
            continue  # it is not read any further, as it should be
    assert broker.rss_bytes() - before_bytes < 80 * MEGABYTE
    assert broker.serves()
    for wire in clients:
        wire.close()
    topic = broker.new_topic(max_message_bytes=9 << 20)
    with broker.wire() as wire:
        assert wire.produce(topic, batch(bytes(8 << 20))).error_code == ErrorCode.none


@pytest.mark.parametrize("api_key", [-1, 5, 32_767])
def test_an_api_that_does_not_exist_ends_the_connection(broker: Watched, api_key: int) -> None:
    with broker.wire() as wire:
        wire.send(_frame(api_key, 0))
        assert wire.is_hung_up()
    assert f"no API with key {api_key}" in broker.new_log()
    assert broker.serves()


def test_a_version_from_the_future_ends_the_connection_and_is_named(broker: Watched) -> None:
    with broker.wire() as wire:
        wire.send(_frame(METADATA, 99))
        assert wire.is_hung_up()
    assert "API key 3 has no version 99" in broker.new_log()
    assert broker.serves()


def test_a_version_that_is_not_offered_is_answered_where_its_answer_has_a_place_for_it(broker: Watched) -> None:
    """Kafka 4 dropped the first versions of many APIs; clients that try them are told, or hung up on."""
    with broker.wire() as wire:
        wire.send(_frame(PRODUCE, 0))
        assert wire.is_hung_up()
    assert broker.serves()


@pytest.mark.parametrize("version", [5, 99, 32_767])
def test_api_versions_is_answered_whatever_version_was_asked_for(broker: Watched, version: int) -> None:
    """How newer clients find out (KIP-511): in version 0, with the error and the versions that there are."""
    with broker.wire() as wire:
        wire.send(_frame(API_VERSIONS, version))
        answer = wire.receive()
        assert answer is not None
        correlation_id, code, count = struct.unpack_from(">ihi", answer)
        assert (correlation_id, code) == (7, ErrorCode.unsupported_version)
        assert count > 0
        assert wire.call(API_VERSIONS, 3, {"client_software_name": "x", "client_software_version": "1"}).api_keys


def _frame(api_key: int, version: int) -> bytes:
    body = struct.pack(">hhih", api_key, version, 7, -1) + bytes(8)
    return struct.pack(">i", len(body)) + body
