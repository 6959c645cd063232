"""The systems on which scenarios run, by name: clusters of three brokers with the same settings."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

from sexton.harness import jars
from sexton.harness.asking import client_of
from sexton.harness.brokers import SextonCluster
from sexton.harness.compactor import CompactorProcess
from sexton.harness.kafka import KafkaCluster
from sexton.harness.systems import KAFKA_PREFIX, UnknownSystemError, cluster_of, kafka_version
from sexton.reproduce.live import Cluster, LiveWorld
from sexton.reproduce.pace import HURRIED, Pace

SEXTON_PREFIX: Final = "sexton-"
INDEPENDENT: Final = f"{SEXTON_PREFIX}independent"
COORDINATED: Final = f"{SEXTON_PREFIX}coordinated"
KAFKAS: Final = ("4.3.0", "4.2.1", "4.1.2", "4.0.2", "3.9.2")
"""One of each series since the last that had ZooKeeper."""

ALL_SYSTEMS: Final = (*(f"{KAFKA_PREFIX}{version}" for version in KAFKAS), INDEPENDENT, COORDINATED)

CLIENT_TIMEOUT_MS: Final = 30_000
TOPIC_SETTINGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0",
    "segment.ms": "500",
}
"""Compaction comes by all the time; when things may go is said by a `Pace`."""


def check_name(name: str) -> str:
    if name not in ALL_SYSTEMS and kafka_version(name) is None:
        known = ", ".join(ALL_SYSTEMS)
        raise UnknownSystemError(f"there is no system {name}", "", f"Known are {known}, and kafka-VERSION")
    return name


def is_safe(name: str) -> bool:
    """Whether we expect every scenario to come out right there."""
    return name == COORDINATED


def prepare(name: str) -> None:
    """Fetches what has to be fetched, so that it fails before anything was started."""
    if name.startswith(KAFKA_PREFIX):
        jars.java()
        jars.classpath(name.removeprefix(KAFKA_PREFIX))


def together(names: Sequence[str]) -> list[list[str]]:
    """Systems that run at the same time, on the same brokers: Sexton's differ in one setting of their topics only."""
    alone = [[name] for name in names if name.startswith(KAFKA_PREFIX)]
    ours = [name for name in names if not name.startswith(KAFKA_PREFIX)]
    return [*alone, ours] if ours else alone


@asynccontextmanager
async def running(
    names: Sequence[str], keep_in: Path | None = None, pace: Pace = HURRIED
) -> AsyncIterator[dict[str, LiveWorld]]:
    """One of the groups of `together`. Its processes end with the block; its files go, unless they are to be kept."""
    folder = names[0] if names[0].startswith(KAFKA_PREFIX) else "sexton"
    base_dir = Path(tempfile.mkdtemp(prefix=f"sexton-reproduce-{folder}-")) if keep_in is None else keep_in / folder
    base_dir.mkdir(parents=True, exist_ok=True)
    keep = keep_in is not None
    expiration = {"producer.id.expiration.ms": str(pace.producer_expiration_ms)}
    try:
        async with AsyncExitStack() as stack:
            cluster = cluster_of(names[0], base_dir / "cluster", expiration, keep=keep)
            await stack.enter_async_context(_started(cluster))
            if isinstance(cluster, SextonCluster):
                await stack.enter_async_context(_compactor(cluster, base_dir))
            yield {name: await stack.enter_async_context(_world(cluster, topic_settings(name, pace))) for name in names}
    finally:
        if not keep:
            await asyncio.to_thread(shutil.rmtree, base_dir, True)


def topic_settings(name: str, pace: Pace = HURRIED) -> Mapping[str, str]:
    settings = {**TOPIC_SETTINGS, "delete.retention.ms": str(pace.delete_retention_ms)}
    if name.startswith(KAFKA_PREFIX):
        return settings
    return {**settings, "compaction.coordination": name.removeprefix(SEXTON_PREFIX)}


@asynccontextmanager
async def _started(cluster: KafkaCluster | SextonCluster) -> AsyncIterator[None]:
    try:
        await asyncio.to_thread(cluster.start)
        yield
    finally:
        await asyncio.to_thread(cluster.close)


@asynccontextmanager
async def _compactor(cluster: SextonCluster, base_dir: Path) -> AsyncIterator[None]:
    """As `sexton up` starts it, with Spark on this machine."""
    process = CompactorProcess(cluster.metastore_url, base_dir, "--nice", "0")  # nobody else is to go first
    try:
        yield
    finally:
        await asyncio.to_thread(process.stop)


@asynccontextmanager
async def _world(cluster: Cluster, settings: Mapping[str, str]) -> AsyncIterator[LiveWorld]:
    client = client_of(cluster.bootstrap, "sexton-reproduce", CLIENT_TIMEOUT_MS)
    try:
        await client.open()
        world = LiveWorld(cluster, client, settings)
        try:
            await world.warm_up()
            yield world
        finally:
            await world.close()
    finally:
        client.close()
