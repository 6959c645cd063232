"""A broker that is started, stopped and started again on the same folder and metastore."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sexton.adapters.clock import SystemClock
from sexton.adapters.files import FileDisk
from sexton.adapters.metastore import open_metastore, sqlite_url
from sexton.adapters.sockets import SocketNetwork
from sexton.broker.broker import Broker
from sexton.broker.topics import NewTopic, create_topic
from sexton.ports.metastore import ConfigScope
from sexton.settings.broker_config import BrokerConfig
from sexton.settings.layers import CLUSTER_DEFAULT


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Broker]:
    disk = FileDisk()
    settings = {
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(folder / "data"),
        "metastore.url": sqlite_url(str(folder / "metastore.db")),
    }
    config = BrokerConfig.of(settings, "test")
    broker = Broker(
        config,
        clock=SystemClock(),
        disk=disk,
        network=SocketNetwork(),
        metastore=open_metastore(config.metastore_url),
        rng=random.Random(1),
    )
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()
        disk.close()


async def test_what_was_set_for_brokers_at_run_time_holds_after_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        changes = {"log.cleaner.backoff.ms": "1234"}
        await broker.metastore.change_settings(ConfigScope.BROKER, CLUSTER_DEFAULT, changes)
        await broker.catch_up()
        assert broker.config.log_cleaner_backoff_ms == 1234
    async with running(tmp_path) as broker:
        assert broker.config.log_cleaner_backoff_ms == 1234


async def test_partitions_are_led_again_in_a_new_epoch_after_a_clean_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await create_topic(broker, NewTopic("t", 5, 1))
        assert [(replica.is_leader, replica.leader_epoch) for replica in broker.replicas.all()] == [(True, 0)] * 5
    async with running(tmp_path) as broker:
        assert [(replica.is_leader, replica.leader_epoch) for replica in broker.replicas.all()] == [(True, 1)] * 5
