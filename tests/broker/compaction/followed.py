"""A leader and its follower, each with a log of its own; what one sends the other goes through here, and can be changed
on the way."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

from sexton.broker.compaction.adoption import Adopter
from sexton.compaction.watermarks.replica import Pair
from sexton.compactor.engines.reference import carry_out
from sexton.ports.clock import Clock
from sexton.ports.metastore import PartitionRow
from sexton.protocol import private
from sexton.protocol.private import PrivateApi
from sexton.replication.messages import FetchPartition
from sexton.settings.topic import TopicConfig
from sexton.types import LeaderEpoch
from tests.broker.compaction.harness import CONFIG, TOPIC, Broker
from tests.log.helpers import content

LOGS = {1: uuid.UUID(int=11, version=4), 2: uuid.UUID(int=22, version=4)}
BOTH = PartitionRow(TOPIC, 0, (1, 2), (1, 2), 1, LeaderEpoch(3), 0, incarnations=LOGS)


class Followed:
    def __init__(self, path: Path, config: TopicConfig = CONFIG) -> None:
        self.leader = Broker(path / "leader", 1, BOTH, adopts=True)
        self.follower = Broker(path / "follower", 2, BOTH, config, adopts=True)
        self.change_offer: Callable[[dict[str, Any]], None] = lambda offer: None
        self.change_piece: Callable[[bytes], bytes] = lambda data: data
        self.asked: list[int] = []
        self.supervisor = self.follower.supervisor

    async def start(self) -> None:
        await self.leader.start()
        await self.follower.start()
        self.adopter = self.new_adopter(self.follower.clock)

    def new_adopter(self, clock: Clock) -> Adopter:
        host = copy(self.follower)
        host.clock = clock
        return Adopter(self.follower.service, host, lambda *question: self.ask(*question))

    async def ask(self, broker_id: int, api_key: int, body: bytes) -> memoryview:
        assert broker_id == 1
        self.asked.append(api_key)
        answer = await self.leader.ask(api_key, body)
        if api_key == PrivateApi.COMPACTION_OFFER:
            decoded = private.decode(answer)
            if "offer" in decoded:
                self.change_offer(decoded["offer"])
            answer = private.encode(decoded)
        elif api_key == PrivateApi.COMPACTION_PIECE:
            answer = self.change_piece(answer)
        return memoryview(answer)

    async def copy(self, high_watermark: int | None = None) -> None:
        """The follower fetches all there is, and hears of a high watermark: if not told otherwise, of the end."""
        ours, theirs = self.leader.replica, self.follower.replica
        if theirs.log.end_offset < ours.log.end_offset:
            read = ours.log.read(theirs.log.end_offset, 1 << 20, ours.log.end_offset, min_one=True)
            theirs.log.append_as_follower(content(read.parts))
            await theirs.log.flush()
        ours.follower_fetched(2, 1, theirs.durable_end)
        theirs.take_high_watermark(ours.high_watermark if high_watermark is None else high_watermark)
        self.report()
        await asyncio.sleep(0.01)

    def report(self) -> None:
        watermarks = self.follower.replica.coordination.watermarks
        held = FetchPartition(
            topic_id=TOPIC,
            partition=0,
            is_wanted=True,
            leader_epoch=LeaderEpoch(3),
            end_offset=0,
            last_epoch=LeaderEpoch(0),
            history_digest=0,
            incarnation=LOGS[2],
            generation=watermarks.generation,
            compacted=watermarks.compacted,
        )
        self.leader.replica.coordination.take_report(2, 1, held)

    async def write(self, count: int) -> None:
        await self.leader.write(count)
        await self.copy()

    async def compact(self) -> int:
        """On the leader alone. Returns the bound."""
        plan = await self.leader.service.plans.plan(TOPIC, 0)
        await self.leader.service.plans.commit(carry_out(self.leader.disk, plan))
        return plan.bound

    async def adopt(self) -> None:
        await self.adopter.adopt(1, self.follower.replica)

    def follow(self, **changes: Any) -> None:
        self.follower.replica.row = replace(self.follower.replica.row, **changes)

    @property
    def compacted(self) -> Pair:
        return self.follower.replica.coordination.kept.value.compacted

    def check_same(self, bound: int) -> None:
        """Byte for byte below the bound; and both fold to the same."""
        assert below(self.follower, bound) == below(self.leader, bound)
        assert self.follower.fold() == self.leader.fold()
        assert self.follower.staged() == []


def below(broker: Broker, bound: int) -> bytes:
    log = broker.replica.log
    found = b""
    for segment in log.segments.closed(bound).segments:
        found += segment.file.read(0, segment.position_of(bound) if segment.end_offset > bound else segment.size_bytes)
    return found
