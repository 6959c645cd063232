"""Whatever bytes a client sends, the broker stays up, says so in one line at most, and serves the next client.

A fixed number of streams by default. SEXTON_FUZZ_SECONDS runs as many as fit, from a random seed; SEXTON_FUZZ_SEED
repeats one stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from sexton.broker import api
from sexton.broker.network.request import Request
from sexton.harness.brokers import SextonCluster
from tests.broker.network.fuzzing import hostile_stream
from tests.broker.serving import TOPIC, TOPIC_ID, Client, ServingBroker, serving_broker
from tests.logs import data, encode_as_broker
from tests.protocol.random_entities import every_api_and_version

STREAMS_COUNT = 2500
STREAMS_TO_A_REAL_BROKER_COUNT = 300
API_VERSIONS = 18
STREAMS_PER_BROKER_COUNT = 100


def seeds(count: int) -> Iterator[int]:
    chosen = os.environ.get("SEXTON_FUZZ_SEED")
    if chosen is not None:
        yield int(chosen)
        return
    seconds = os.environ.get("SEXTON_FUZZ_SECONDS")
    if seconds is None:
        yield from range(count)
        return
    first = random.SystemRandom().randrange(2**48)
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        yield first
        first += 1


class Defaults:
    """Of an API that this broker does not have: the request is read and answered with defaults."""

    def __init__(self, api_key: int, versions: tuple[int, int]) -> None:
        self.API_KEY = api_key
        self.VERSIONS = versions

    def handle(self, broker: object, request: Request) -> dict[str, Any]:
        repr(request.body)
        return {}


@pytest.fixture
def _every_api(monkeypatch: pytest.MonkeyPatch) -> None:
    versions: dict[int, list[int]] = {}
    for api_key, version in every_api_and_version():
        versions.setdefault(api_key, []).append(version)
    real = api.modules()
    table = {
        key: real[key] if key in real else Defaults(key, (min(numbers), max(numbers)))
        for key, numbers in versions.items()
    }
    monkeypatch.setattr(api, "modules", lambda: table)


@pytest.mark.usefixtures("_every_api")
async def test_no_stream_of_bytes_brings_the_broker_down(caplog: pytest.LogCaptureFixture) -> None:
    apis = list(every_api_and_version())
    apis += [one for one in apis if one[0] in api.modules()] * 8
    with caplog.at_level(logging.WARNING):
        for number, seed in enumerate(seeds(STREAMS_COUNT)):
            if number % STREAMS_PER_BROKER_COUNT == 0:
                broker, first = await serving_broker(queued_max_request_bytes=1 << 20), seed
            how = f"repeat with SEXTON_FUZZ_SEED={seed}; this broker's first stream was that of {first}"
            try:
                await survives(broker, random.Random(seed), apis)
            except BaseException as error:
                raise AssertionError(how) from error
            unexpected = [record for record in caplog.records if record.exc_info or record.name == "asyncio"]
            assert not unexpected, f"{how}: {unexpected[0].exc_info}"
            caplog.clear()


async def survives(broker: ServingBroker, rng: random.Random, apis: list[tuple[int, int]]) -> None:
    hostile, honest = Client(broker), Client(broker, "honest:1")
    stream = hostile_stream(rng, apis, [TOPIC, TOPIC_ID])
    cuts = sorted(rng.randint(0, len(stream)) for _ in range(rng.randint(0, 4)))
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if not hostile.connection.is_closed and not hostile.connection.is_paused:
            hostile.feed(stream[start:end])
        for _ in range(3):
            await asyncio.sleep(0)
    answer = await honest.call(API_VERSIONS, 0, {})
    assert answer.api_keys
    await broker.dispatch.stop()
    for _ in range(3):
        await asyncio.sleep(0)
    assert broker.dispatch.budget.held_bytes == 0
    assert not broker.dispatch.budget.has_waiting
    assert not broker.supervisor.bugs


@pytest.mark.cluster
def test_no_stream_of_bytes_brings_a_real_broker_down() -> None:
    """All APIs with their real handlers, behind them a log, a metastore and a coordinator."""
    apis = [
        (api_key, version)
        for api_key, module in api.modules().items()
        for version in range(module.VERSIONS[0], module.VERSIONS[1] + 1)
    ]
    batch = encode_as_broker(data((b"key", b"value"), at=0))
    words = ["fuzzed", "fuzzed", "group", "range", "consumer", "1", batch]
    with SextonCluster(nodes=1) as cluster:
        cluster.create_topic("fuzzed", partitions=3)
        host, _, port = cluster.bootstrap.partition(":")
        pid = cluster.pid(1)
        for seed in seeds(STREAMS_TO_A_REAL_BROKER_COUNT):
            _send(host, int(port), hostile_stream(random.Random(seed), apis, words))
            log = cluster.server_log(1)
            assert "Traceback" not in log, f"repeat with SEXTON_FUZZ_SEED={seed}: {log[log.index('Traceback') :]}"
        assert cluster.is_running(1)
        assert cluster.pid(1) == pid
        cluster.create_topic("still-here", partitions=1)


def _send(host: str, port: int, stream: bytes) -> None:
    with socket.create_connection((host, port)) as sock, contextlib.suppress(OSError):
        sock.settimeout(0.02)
        sock.sendall(stream)
        while sock.recv(1 << 16):
            pass
