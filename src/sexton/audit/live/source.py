"""The replicas of a running cluster as the audit's source (`audit.replica.Source`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sexton.audit.live import looking
from sexton.audit.live.barrier import PATIENCE_MS, Barrier
from sexton.audit.live.barrier import Standing as AtBarrier
from sexton.audit.live.cluster import Claims, LiveCluster, Standing
from sexton.audit.live.connecting import Connecting
from sexton.audit.live.discovery import Scope, find_topics
from sexton.audit.live.errors import NoPermissionError
from sexton.audit.live.ranges import cut
from sexton.audit.live.shared_pace import Limits
from sexton.audit.live.stretch import LiveStretch
from sexton.audit.live.worker import LoopThread
from sexton.audit.replica import Replica, ReplicaId, Skipped
from sexton.client.errors import RefusedError
from sexton.errors import SextonError
from sexton.records.batch import Batch
from sexton.spark.stretches import Stretch
from sexton.types import NO_EPOCH, TopicPartition

POLL_S: Final = 0.1
RETRIES_COUNT: Final = 10
RETRY_S: Final = 0.3
OFFSET_BYTES: Final = 200
"""What an offset is taken for where a broker does not tell how large its log is."""

RATE_BYTES_PER_S: Final = 50_000_000
"""Default read rate from one broker."""


class LiveSource:
    def __init__(
        self,
        connecting: Connecting,
        scope: Scope,
        *,
        tasks_count: int,
        rate_bytes_per_s: float = RATE_BYTES_PER_S,
        master: str = "",
        patience_ms: int = PATIENCE_MS,
    ) -> None:
        """`tasks_count` is how many read at once, `master` is Spark's: tasks on one machine share a limit."""
        self.skipped: list[Skipped] = []
        """Topics of which there is nothing to compare."""
        self._connecting = connecting
        self._scope = scope
        self._limits = Limits.of_job(rate_bytes_per_s, master, tasks_count)
        self._patience_ms = patience_ms
        self._thread = LoopThread()
        self._cluster: LiveCluster | None = None
        self._barriers: dict[TopicPartition, Barrier] = {}
        self._sizes_bytes: Mapping[ReplicaId, int | None] = {}
        self._listed_below: Mapping[ReplicaId, int] = {}
        """Last stable offsets before anything was read: below them all was read as read_committed consumers do."""

    # ---- The source

    def find(self) -> Sequence[Replica]:
        return self._thread.run(self._find())

    def stretches(self, replica: Replica, number: int, from_offset: int, to_offset: int | None) -> Sequence[Stretch]:
        end = replica.high_watermark if to_offset is None else to_offset
        address = self._cluster.address(replica.id.broker) if self._cluster is not None else None
        if end is None or end <= from_offset or address is None:
            return []
        size_bytes = self._size_between(replica, from_offset, end)
        parts = cut(from_offset, end, size_bytes)
        return [
            LiveStretch(
                replica=number,
                connecting=self._connecting,
                address=address,
                topic=replica.id.topic,
                partition=replica.id.partition,
                from_offset=start,
                to_offset=stop,
                size_bytes=size_bytes // len(parts),
                is_first=start == from_offset,
                limit=self._limits.limit,
            )
            for start, stop in parts
        ]

    def read_on(self, wanted: Mapping[ReplicaId, int]) -> Sequence[Replica]:
        return self._thread.run(self._read_on(wanted))

    def look_up(self, replica: Replica, offsets: Sequence[int]) -> Mapping[int, Batch]:
        return self._thread.run(self._look_up(replica, offsets))

    def now(self, ids: Sequence[ReplicaId]) -> Sequence[Replica]:
        return self._thread.run(self._now(ids))

    def close(self) -> None:
        self._thread.close()

    # ---- Inside the loop

    async def _open(self) -> LiveCluster:
        if self._cluster is None:
            self._cluster = LiveCluster(await self._thread.client(self._connecting))
        return self._cluster

    async def _find(self) -> list[Replica]:
        cluster = await self._open()
        found = await find_topics(cluster.client, self._scope)
        compared = [topic.name for topic in found.topics if topic.name not in found.single_copies]
        await cluster.refresh(compared)
        ids = [
            ReplicaId(name, partition.partition, broker)
            for name in compared
            if (topic := cluster.client.metadata.topics.get(name)) is not None
            for partition in topic.partitions.values()
            for broker in partition.replicas
        ]
        standings = await self._past_barriers(cluster, ids)
        _check_permission(standings)
        self._sizes_bytes = await cluster.sizes_bytes(ids)
        self._listed_below = {
            each: standing.last_stable_offset for each, standing in standings.items() if isinstance(standing, Standing)
        }
        self.skipped = [Skipped(name, reason) for name, reason in sorted(found.single_copies.items())]
        return await self._told(cluster, ids, standings)

    async def _past_barriers(
        self, cluster: LiveCluster, ids: Sequence[ReplicaId]
    ) -> dict[ReplicaId, Standing | SextonError]:
        """Waits until each replica in sync has passed its partition's barrier, or is out of patience."""
        standings = await self._standings(cluster, ids)
        self._barriers = self._make_barriers(cluster, standings)
        waited_for = list(ids)
        while True:
            waited_for = [each for each in waited_for if self._must_wait(each, standings[each])]
            if not waited_for:
                return standings
            await asyncio.sleep(POLL_S)
            standings |= await self._standings(cluster, waited_for)

    def _make_barriers(
        self, cluster: LiveCluster, standings: Mapping[ReplicaId, Standing | SextonError]
    ) -> dict[TopicPartition, Barrier]:
        offsets: dict[TopicPartition, dict[int, tuple[int, int]]] = {}
        for replica, standing in standings.items():
            if isinstance(standing, Standing):
                pair = standing.last_stable_offset, standing.high_watermark
                offsets.setdefault(replica.topic_partition, {})[replica.broker] = pair
        return {
            name: Barrier.of(known, self._in_sync(cluster, name), _now_ms(), self._patience_ms)
            for name, known in offsets.items()
        }

    @staticmethod
    def _in_sync(cluster: LiveCluster, name: TopicPartition) -> frozenset[int]:
        info = cluster.client.metadata.leader(*name)
        return frozenset() if info is None else frozenset(info.isr)

    def _must_wait(self, replica: ReplicaId, standing: Standing | SextonError) -> bool:
        barrier = self._barriers.get(replica.topic_partition)
        if barrier is None or isinstance(standing, SextonError):
            return False
        return barrier.heard(replica.broker, standing.high_watermark, _now_ms()) is AtBarrier.WAITED_FOR

    async def _standings(
        self, cluster: LiveCluster, ids: Iterable[ReplicaId]
    ) -> dict[ReplicaId, Standing | SextonError]:
        """What passes by itself, such as a change of leaders, is asked for again, a few times."""
        wanted = list(ids)
        found = await cluster.standings(wanted)
        for _ in range(RETRIES_COUNT):
            passing = [each for each in wanted if _is_passing(found.get(each))]
            if not passing:
                break
            await asyncio.sleep(RETRY_S)
            await cluster.refresh(sorted({each.topic for each in passing}))
            found |= await cluster.standings(passing)
        return {each: found.get(each) or SextonError("the broker says nothing of it", _name(each)) for each in wanted}

    async def _read_on(self, wanted: Mapping[ReplicaId, int]) -> list[Replica]:
        cluster = await self._open()
        deadline_ms = _now_ms() + self._patience_ms
        standings: dict[ReplicaId, Standing | SextonError] = {}
        missing = list(wanted)
        while missing:
            standings |= await self._standings(cluster, missing)
            missing = [each for each in missing if _is_below(standings[each], wanted[each]) and self._catches_up(each)]
            if _now_ms() >= deadline_ms:
                break
            if missing:
                await asyncio.sleep(POLL_S)
        return await self._told(cluster, list(wanted), standings)

    def _catches_up(self, replica: ReplicaId) -> bool:
        """Nobody waits for a replica that is not in sync: it may take hours."""
        info = self._cluster.partition(replica) if self._cluster is not None else None
        return info is not None and replica.broker in info.isr

    async def _look_up(self, replica: Replica, offsets: Sequence[int]) -> dict[int, Batch]:
        cluster = await self._open()
        address = cluster.address(replica.id.broker)
        if address is None:
            return {}
        return await looking.batches_at(cluster.client, address, replica.id.topic_partition, offsets)

    async def _now(self, ids: Sequence[ReplicaId]) -> list[Replica]:
        cluster = await self._open()
        await cluster.refresh(sorted({each.topic for each in ids}))
        return await self._told(cluster, ids, await self._standings(cluster, ids))

    async def _told(
        self, cluster: LiveCluster, ids: Sequence[ReplicaId], standings: Mapping[ReplicaId, Standing | SextonError]
    ) -> list[Replica]:
        """What brokers hold to be open is asked for last: whatever ends before the barrier has ended by then."""
        claims = await cluster.claims([each for each in ids if isinstance(standings[each], Standing)])
        return [self._replica(each, standings[each], claims.get(each)) for each in ids]

    # ---- What is told of a replica

    def _replica(self, replica: ReplicaId, standing: Standing | SextonError, claims: Claims | None = None) -> Replica:
        cluster = self._cluster
        assert cluster is not None
        info, address = cluster.partition(replica), cluster.address(replica.broker)
        topic = cluster.client.metadata.topics.get(replica.topic)
        barrier = self._barriers.get(replica.topic_partition)
        has_passed = barrier is not None and barrier.has_passed(replica.broker)
        told = standing if isinstance(standing, Standing) else None
        return Replica(
            id=replica,
            label=f"broker {replica.broker}",
            place=f"{address[0]}:{address[1]}" if address is not None else f"broker {replica.broker}",
            topic_id=None if topic is None else topic.topic_id,
            is_live=True,
            is_leader=None if info is None else info.leader == replica.broker,
            is_in_sync=None if info is None else replica.broker in info.isr,
            leader_epoch=NO_EPOCH if info is None else info.leader_epoch,
            log_start_offset=0 if told is None else told.log_start_offset,
            high_watermark=None if told is None else told.high_watermark,
            last_stable_offset=None if told is None else told.last_stable_offset,
            log_end_offset=None if told is None else told.log_end_offset,
            cut=barrier.cut if barrier is not None and has_passed else None,
            barrier=barrier.barrier if barrier is not None and has_passed else None,
            open=claims.open if claims is not None else (),
            claims_are_complete=claims is not None and claims.is_complete,
            aborted_below=self._listed_below.get(replica),
            is_read=told is not None,
            failure=standing if isinstance(standing, SextonError) else None,
        )

    def _size_between(self, replica: Replica, from_offset: int, to_offset: int) -> int:
        count = to_offset - from_offset
        whole = self._sizes_bytes.get(replica.id)
        if whole is None:
            return count * OFFSET_BYTES
        return whole * count // max(1, (replica.log_end_offset or to_offset) - replica.log_start_offset)


def _check_permission(standings: Mapping[ReplicaId, Standing | SextonError]) -> None:
    """Raises if there is nothing at all that we may read."""
    refusals = [each for each in standings.values() if isinstance(each, NoPermissionError)]
    if refusals and len(refusals) == len(standings):
        raise refusals[0]


def _is_passing(standing: Standing | SextonError | None) -> bool:
    return isinstance(standing, RefusedError) and standing.code.retriable


def _is_below(standing: Standing | SextonError, offset: int) -> bool:
    return isinstance(standing, Standing) and standing.high_watermark < offset


def _name(replica: ReplicaId) -> str:
    return f"{replica.topic}-{replica.partition} on broker {replica.broker}"


def _now_ms() -> int:
    return round(1000 * asyncio.get_running_loop().time())
