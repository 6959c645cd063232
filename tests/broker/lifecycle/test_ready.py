"""What a broker says of itself: to clients that come the moment it is ready, and to probes that ask if it lives."""

from __future__ import annotations

import asyncio
import json
import random
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from sexton.adapters.clock import SystemClock
from sexton.adapters.files import FileDisk
from sexton.adapters.metastore import open_metastore
from sexton.adapters.sockets import SocketNetwork
from sexton.broker.admin import serving_ids
from sexton.broker.broker import Broker
from sexton.http.server import HttpError, Request
from sexton.settings.broker_config import BrokerConfig
from sexton.simulate.metastore import HOST as METASTORE
from tests.simulated import Story


def test_who_asks_a_broker_as_soon_as_all_are_ready_is_told_of_all_of_them() -> None:
    """librdkafka's AdminClient that does not find its controller among them waits a minute."""
    story = Story(3)

    async def body() -> None:
        for node in story.cluster.nodes.values():
            story.cluster.start(node)
        await story.until(lambda: all(node.is_started for node in story.cluster.nodes.values()))
        assert [serving_ids(story.broker(broker_id).view) for broker_id in (1, 2, 3)] == [{1, 2, 3}] * 3

    story.run(body())


async def status(broker: Broker, path: str) -> int:
    try:
        return (await broker.admin.answer(Request(path))).status
    except HttpError as error:
        return error.status


def test_a_broker_lives_while_the_metastore_is_away_though_it_does_not_serve() -> None:
    story = Story(1)

    async def body() -> None:
        own = story.node(1).name
        story.fabric.cut(own, METASTORE)
        story.cluster.start(story.node(1))
        await asyncio.sleep(60)
        assert not story.node(1).is_started
        paths = ("/live", "/health", "/metrics", "/")
        assert [await status(story.broker(1), path) for path in paths] == [200, 503, 503, 200]
        story.fabric.heal(own, METASTORE)
        await story.until(lambda: story.node(1).is_started)
        assert [await status(story.broker(1), path) for path in paths] == [200, 200, 200, 200]
        story.fabric.cut(own, METASTORE)
        await story.until(lambda: not story.broker(1).lease_is_valid())
        assert [await status(story.broker(1), path) for path in paths] == [200, 503, 200, 200]

    story.run(body())


async def test_a_broker_that_waits_for_the_metastore_answers_a_probe(tmp_path: Path) -> None:
    settings = {
        "node.id": "7",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "admin.listener": "http://127.0.0.1:0",
        "log.dirs": str(tmp_path / "data"),
        "metastore.url": "postgresql://127.0.0.1:1/nobody-is-there",
    }

    def get(port: int, path: str) -> tuple[int, Any]:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    config = BrokerConfig.of(settings)
    disk, network, metastore = FileDisk(), SocketNetwork(), open_metastore(config.metastore_url)
    broker = Broker(config, clock=SystemClock(), disk=disk, network=network, metastore=metastore, rng=random.Random(1))
    starting = asyncio.ensure_future(broker.start())
    async with asyncio.timeout(30):
        while not broker.admin.port:
            await asyncio.sleep(0.01)
    live, health = [await asyncio.to_thread(get, broker.admin.port, path) for path in ("/live", "/health")]
    assert live == (200, {"broker": 7, "is_live": True})
    assert health == (503, {"broker": 7, "status": "starting", "is_serving": False})
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    broker.admin.close()
    await metastore.close()
    disk.close()
