"""Clients that take more than they give, and limits of the system: others are served, and memory stays bounded."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from sexton.protocol.errors import ErrorCode
from sexton.protocol.messages import encode_request
from tests.robustness.conftest import Watched, wait_until
from tests.robustness.wire import API_VERSIONS, CREATE_TOPICS, FETCH, METADATA, Wire, batch, fetch_body

pytestmark = pytest.mark.cluster

MEGABYTE = 1 << 20
IDLE_COUNT = 2000
FEW_SENDS = 3000


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """In this process: the broker raises its own limit when it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = IDLE_COUNT + 500
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"only {hard} file descriptors are allowed here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_client_that_never_reads_its_answers_is_read_no_further(broker: Watched) -> None:
    """Each of its fetches asks for a megabyte. The broker stops reading when a few of them wait."""
    topic = broker.new_topic()
    with broker.wire() as wire:
        for _ in range(4):
            assert wire.produce(topic, batch(bytes(500_000))).error_code == ErrorCode.none
        before_bytes = broker.rss_bytes()
        clients = [Wire(broker.address) for _ in range(20)]
        for client in clients:
            client.socket.settimeout(0.1)
            request = encode_request(FETCH, 12, 1, "greedy", fetch_body(topic, 0, max_bytes=4 * MEGABYTE))
            _send_until_it_blocks(client.socket, request * 200)
        assert broker.rss_bytes() - before_bytes < 60 * MEGABYTE
        assert wire.produce(topic, batch(b"meanwhile")).base_offset == 4
        assert broker.serves()
        for client in clients:
            client.close()


def test_small_requests_without_end_are_read_no_further_either(broker: Watched) -> None:
    with broker.wire() as wire:
        before_bytes = broker.rss_bytes()
        clients = [Wire(broker.address) for _ in range(10)]
        body = {"topics": None, "allow_auto_topic_creation": False}
        for client in clients:
            client.socket.settimeout(0.1)
            _send_until_it_blocks(client.socket, encode_request(METADATA, 9, 1, "greedy", body) * FEW_SENDS)
        assert wire.call(API_VERSIONS, 0, {}).api_keys
        assert broker.rss_bytes() - before_bytes < 60 * MEGABYTE
        for client in clients:
            client.close()
    assert broker.serves()


def _send_until_it_blocks(sender: socket.socket, data: bytes) -> None:
    try:
        for _ in range(20):
            sender.sendall(data)
    except TimeoutError:
        return


@pytest.mark.usefixtures("many_descriptors")
def test_two_thousand_idle_connections_cost_little_and_hinder_nobody(broker: Watched) -> None:
    topic = broker.new_topic()
    with broker.wire() as wire:
        before_bytes = broker.rss_bytes()
        idle = [Wire(broker.address) for _ in range(IDLE_COUNT)]
        for client in (idle[0], idle[IDLE_COUNT // 2], idle[-1]):
            assert client.call(API_VERSIONS, 0, {}).api_keys
        assert wire.produce(topic, batch(b"x")).base_offset == 0
        assert broker.rss_bytes() - before_bytes < 60 * MEGABYTE
        for client in idle:
            client.close()
        process = psutil.Process(broker.cluster.pid(1))
        wait_until(lambda: process.num_fds() < 200)
        assert wire.produce(topic, batch(b"x")).base_offset == 1
    assert broker.serves()


def test_without_descriptors_left_nobody_new_comes_in_and_who_is_in_goes_on(broker: Watched) -> None:
    topic = broker.new_topic()
    process = psutil.Process(broker.cluster.pid(1))
    before = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    with broker.wire() as wire:
        assert wire.produce(topic, batch(b"x")).base_offset == 0
        limit = process.num_fds() + 60
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            crowd = [Wire(broker.address) for _ in range(100)]
            wait_until(lambda: "ulimit -n" in broker.cluster.server_log(1))
            assert f"{limit} file descriptors" in broker.new_log()
            assert wire.produce(topic, batch(b"x")).base_offset == 1
            assert wire.fetch(topic, 0).error_code == ErrorCode.none
            # What the broker itself needs is kept for it: a new partition's files, for one
            new = f"{topic}-more"
            wire.call(CREATE_TOPICS, 5, {"topics": [_topic(new)], "timeout": 10_000, "validate_only": False})
            assert wire.produce(new, batch(b"x")).base_offset == 0
            for client in crowd:
                client.close()
            assert broker.serves()  # as soon as there is room again, without help
        finally:
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, before)
        assert wire.produce(topic, batch(b"x")).base_offset == 2
    assert broker.serves()


def _topic(name: str) -> dict[str, Any]:
    return {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
