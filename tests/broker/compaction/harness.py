"""A broker with one replica on a real log, and what it can be asked."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from sexton.adapters.clock import SystemClock
from sexton.adapters.files import FileDisk
from sexton.adapters.metastore import InProcessMetastore
from sexton.broker.compaction.cloud_topics import CloudTopics
from sexton.broker.compaction.requests import Requests
from sexton.broker.compaction.service import CompactionService
from sexton.compaction.reference import fold_by_key
from sexton.compaction.watermarks.checkpoint import Kept
from sexton.log import opening
from sexton.ports.clock import Clock
from sexton.ports.metastore import PartitionRow
from sexton.protocol import private
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Record, encode, make_batch
from sexton.replication.local_replica import LocalReplica
from sexton.settings.topic import TopicConfig
from sexton.supervision import Supervisor
from sexton.types import LeaderEpoch
from tests.adapters.metastore.rows import CLUSTER, register
from tests.log.helpers import content, read_all
from tests.replication.hosts import LoneHost
from tests.replication.listeners import Listener

TOPIC = uuid.UUID(int=1)
LOG = uuid.UUID(int=11, version=4)
ROW = PartitionRow(TOPIC, 0, (1,), (1,), 1, LeaderEpoch(3), 0, incarnations={1: LOG})
CONFIG = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=400, delete_retention_ms=0)


class Broker:
    def __init__(
        self, path: Path, node_id: int = 1, row: PartitionRow = ROW, config: TopicConfig = CONFIG, adopts: bool = False
    ) -> None:
        self.directory = path / "t-0"
        self.disk = FileDisk()
        self.node_id = node_id
        self.row = row
        self.config = config
        self.adopts = adopts
        self.clock: Clock = SystemClock()
        self.rng = random.Random(1)
        self.supervisor = Supervisor()
        self.replicas = cast(Any, self)

    async def start(self) -> None:
        directory = str(self.directory)
        log = await opening.open_log(
            self.disk, directory, "t", 0, TOPIC, self.config, now_ms=1000, stopped_cleanly=False
        )
        incarnation = self.row.incarnations[self.node_id]
        kept = await Kept.open(self.disk, directory, incarnation, log.start_offset, log.end_offset)
        self.replica = LocalReplica(
            self.row,
            log,
            host=LoneHost(identity=(self.node_id, 1)),
            high_watermark=0,
            listener=Listener(),
            kept=kept,
        )
        if self.row.leader == self.node_id:
            await self.replica.become_leader(self.row)
        else:
            self.replica.become_follower(self.row)
        self.metastore = InProcessMetastore()
        await self.metastore.open_cluster(CLUSTER)
        row = await register(self.metastore, self.node_id)
        self.epoch = row.epoch
        self.service = CompactionService(self)
        cloud_topics = CloudTopics(None, self.metastore, self.clock)
        self.handlers = Requests(self.service, self, cloud_topics).handlers()

    @property
    def identity(self) -> tuple[int, int]:
        return self.node_id, self.epoch

    def lease_is_valid(self) -> bool:
        return True

    def adopts_compactions(self) -> bool:
        return self.adopts

    def all(self) -> list[LocalReplica]:
        return [self.replica]

    def by_id(self, topic_id: uuid.UUID, partition: int) -> LocalReplica:
        if (topic_id, partition) != (TOPIC, 0):
            raise KafkaError(ErrorCode.not_leader_or_follower, "not here")
        return self.replica

    async def write(self, count: int) -> None:
        for index in range(count):
            value = None if index % 5 == 4 else b"%d" % index
            record = Record(0, 1000, b"key %d" % (index % 3), value)
            self.replica.append(encode(make_batch([record], leader_epoch=-1)), 1, 1000)
        await self.replica.log.flush()
        await asyncio.sleep(0.01)

    def fold(self) -> dict[bytes, bytes | None]:
        return {key: record.value for key, record in fold_by_key(read_all(self.replica.log)).items()}

    def staged(self) -> list[str]:
        return [path.name for path in self.directory.iterdir() if path.name.startswith("staged")]

    async def ask(self, api_key: int, body: bytes) -> bytes:
        parts = await self.handlers[api_key](1, memoryview(body))
        return content(parts)

    async def ask_for(self, api_key: int, body: Mapping[str, Any], data: bytes | None = None) -> dict[str, Any]:
        payload = private.encode(body) + (b"" if data is None else b"\0" + data)
        return private.decode(await self.ask(api_key, payload))
