"""What a cloud partition is to API modules: the protocol `replication.replica.Replica`.

A broker leads it or knows nothing of it. To lead it must have claimed it from the metastore; the claim brings all that
there is to know, without a byte of an object. When it resigns, or is fenced, its tail goes as a whole: what was
committed is in the metastore, and what was not is nobody's.

acks=1 waits as acks=all does, because a leader's memory is no log.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from sexton.cloud.cache import Cache
from sexton.cloud.claims import Claims
from sexton.cloud.host import CloudHost, CloudSettings
from sexton.cloud.log import CloudLog, Piece
from sexton.cloud.patience import until_known
from sexton.cloud.reading import Reader
from sexton.cloud.uploads import Uploads
from sexton.cloud.views import Views
from sexton.errors import SextonError
from sexton.log.checks import Rules
from sexton.log.epochs import EpochHistory
from sexton.log.producers import ProducerStates, Verification
from sexton.log.types import AbortedTransaction, Appended, Read, TimedOffset
from sexton.log.waiting import CommitWaiters, Watchers
from sexton.ports.cloud import Claimed, CloudPartitionRow, Extent, Outcome
from sexton.ports.disk import Buffer
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.topic import TopicConfig
from sexton.types import NO_EPOCH, LeaderEpoch, PartitionId

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudParts:
    """What all cloud partitions of a broker share."""

    host: CloudHost
    settings: CloudSettings
    uploads: Uploads
    cache: Cache
    claims: Claims
    views: Views
    led: dict[PartitionId, LeaderEpoch] = field(default_factory=dict)
    """The last epoch in which this process has led a partition, also one that was removed since. It leads in none of
    them again: commits of its former tail may still be on their way, and nobody could tell them from its next ones."""

    @classmethod
    def make(cls, host: CloudHost, settings: CloudSettings) -> CloudParts:
        cache, views = Cache(host, settings), Views(host.clock, settings.view_age_max_ms)
        return cls(
            host=host,
            settings=settings,
            uploads=Uploads(host, settings, cache),
            cache=cache,
            claims=Claims(host),
            views=views,
        )


class Role(Enum):
    IDLE = "idle"
    CLAIMING = "claiming"
    LEADER = "leader"


class LedLog:
    """The records of a partition that is led here: `replication.replica.ReplicaLog`."""

    def __init__(self, log: CloudLog, reader: Reader) -> None:
        self._log = log
        self._reader = reader

    @property
    def start_offset(self) -> int:
        return self._log.start_offset

    @property
    def end_offset(self) -> int:
        return self._log.end_offset

    @property
    def size_bytes(self) -> int:
        return self._log.size_bytes

    @property
    def extents_count(self) -> int:
        return len(self._log.extents)

    @property
    def producers(self) -> ProducerStates:
        return self._log.producers

    @property
    def epochs(self) -> EpochHistory:
        return self._log.epochs

    @property
    def rules(self) -> Rules:
        return self._log.rules

    @property
    def looks_inside(self) -> bool:
        return self._log.looks_inside

    def aborted_transactions(self, start_offset: int, end_offset: int) -> Sequence[AbortedTransaction]:
        return self._log.aborted_transactions(start_offset, end_offset)

    def offset_for_time(self, timestamp_ms: int, end_offset: int) -> Awaitable[TimedOffset | None]:
        return self._reader.offset_for_time(timestamp_ms, end_offset)

    def offset_of_max_timestamp(self, end_offset: int) -> Awaitable[TimedOffset | None]:
        return self._reader.offset_of_max_timestamp(end_offset)


class CloudReplica:
    """Implements `uploads.CommitListener`."""

    def __init__(self, topic: str, row: PartitionRow, parts: CloudParts) -> None:
        self.topic = topic
        self.topic_id: uuid.UUID = row.topic_id
        self.partition = row.partition
        self.row = row
        self.role = Role.IDLE
        self.is_stranded = False
        """This broker should lead, and cannot in this epoch: it was claimed before, or the tail was lost. It needs
        another one."""
        self._parts = parts
        self._told: CloudPartitionRow | None = None
        self._led: CloudLog | None = None
        self._reader: Reader | None = None
        self._served: LedLog | None = None
        self._claiming: asyncio.Task[None] | None = None
        self._waiting = CommitWaiters()
        self._watchers = Watchers()

    def __repr__(self) -> str:
        return f"CloudReplica({self.topic}-{self.partition}, {self.role.value}, {self._led!r})"

    # State

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.row.leader_epoch

    @property
    def log(self) -> LedLog:
        if self._served is None:
            raise self._not_led()
        return self._served

    @property
    def config(self) -> TopicConfig:
        return self._cloud_log.config

    @property
    def high_watermark(self) -> int:
        return self._cloud_log.committed_offset

    @property
    def last_stable_offset(self) -> int:
        return self._cloud_log.last_stable_offset

    @property
    def _cloud_log(self) -> CloudLog:
        if self._led is None:
            raise self._not_led()
        return self._led

    def _not_led(self) -> KafkaError:
        return KafkaError(ErrorCode.not_leader_or_follower, f"{self.topic}-{self.partition} is not led here")

    def check_serving_as_leader(self) -> None:
        if self.role is not Role.LEADER or not self._parts.host.lease_is_valid():
            raise self._not_led()

    def serves_in(self, leader_epoch: LeaderEpoch) -> bool:
        return self.is_leader and self.row.leader_epoch == leader_epoch and self._parts.host.lease_is_valid()

    def check_epoch(self, current_leader_epoch: LeaderEpoch) -> None:
        if current_leader_epoch < 0 or current_leader_epoch == self.row.leader_epoch:
            return
        if current_leader_epoch < self.row.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch, f"the leader epoch is {self.row.leader_epoch} by now")
        raise KafkaError(ErrorCode.unknown_leader_epoch, f"only leader epoch {self.row.leader_epoch} is known here")

    # Client requests

    def must_wait(self, size_bytes: int) -> bool:
        return self._led is not None and self._parts.uploads.must_wait(self._led, size_bytes)

    def wait_for_room(self, size_bytes: int, go_on: Callable[[], None]) -> Callable[[], None]:
        return self._parts.uploads.wait_for_room(self._cloud_log, size_bytes, go_on)

    def append(
        self,
        records: Buffer,
        acks: int,
        now_ms: int,
        *,
        from_client: bool = True,
        verification: Verification | None = None,
        validated_by: Rules | None = None,
    ) -> tuple[Appended, asyncio.Future[None] | None]:
        self.check_serving_as_leader()
        appended = self._parts.uploads.append(
            self._cloud_log,
            records,
            now_ms,
            from_client=from_client,
            verification=verification,
            validated_by=validated_by,
        )
        return appended, None if acks == 0 else self.committed(appended.last_offset + 1)

    def committed(self, end_offset: int) -> asyncio.Future[None] | None:
        return None if end_offset <= self.high_watermark else self._waiting.wait_for(end_offset)

    def read(self, offset: int, max_bytes: int, *, committed_only: bool, min_one: bool) -> Read:
        self.check_serving_as_leader()
        assert self._reader is not None
        end = self.last_stable_offset if committed_only else self.high_watermark
        if end < offset <= self._cloud_log.end_offset:
            return Read([], 0, offset, offset)  # appended, but consumers may not read it yet
        return self._reader.read(offset, max_bytes, end, min_one=min_one)

    def is_held_by(self, follower: int, offset: int) -> bool:
        """There are no followers."""
        return False

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        return self._watchers.add(callback)

    def wake_watchers(self) -> None:
        self._watchers.wake()

    # The start

    async def delete_records(self, offset: int) -> int:
        self.check_serving_as_leader()
        log = self._cloud_log
        if not log.config.deletes:
            raise KafkaError(ErrorCode.policy_violation, "cleanup.policy does not include delete")
        await self._advance_start(log, log.check_deletable(offset))
        return log.start_offset

    async def retain(self, now_ms: int) -> None:
        """Moves the start as retention allows, and drops producers that have been idle for too long."""
        log = self._led
        if log is None or not self.is_leader:
            return
        log.producers.expire(now_ms)
        if log.config.deletes:
            assert self._reader is not None
            leveled = await self._reader.leveled_extents()
            if log.is_dropped:
                return
            start = log.retention_start(leveled, now_ms)
            if start > log.start_offset:
                logger.info("%s: retention moves the log start to %d", log.place, start)
                await self._advance_start(log, start)

    async def _advance_start(self, log: CloudLog, offset: int) -> None:
        """Not in the chain of commits: the start has nothing to do with the end."""
        host = self._parts.host
        while offset > log.start_offset:
            told = await until_known(lambda: host.metastore.advance_start(log.key, log.leader_epoch, offset), host.rng)
            if told.outcome is Outcome.GONE:
                raise KafkaError(ErrorCode.unknown_topic_or_partition, f"{log.place}: the topic was deleted")
            if told.outcome is not Outcome.ACCEPTED or log.is_dropped:
                raise self._not_led()
            if not told.has_more:
                log.note_start(told.start_offset)

    def note_leveled(self, row: CloudPartitionRow) -> None:
        """Kept also while a claim is under way: its answer may be older than the news."""
        self._told = row
        if self._led is not None:
            self._led.note_leveled(row)

    # Commits (uploads.CommitListener)

    def committed_piece(self) -> None:
        """The high watermark has moved."""
        self._waiting.reached(self.high_watermark)
        self.wake_watchers()

    def lost(self, error: KafkaError) -> None:
        logger.warning("%r: what was not committed is dropped: %s", self, error.message)
        self.is_stranded = self.is_leader
        self._let_go(error)

    # Role changes

    def take(self, row: PartitionRow) -> None:
        """Gives the replica the role that the row says. A claim takes its time."""
        is_same_reign = (row.leader, row.leader_epoch) == (self.row.leader, self.row.leader_epoch)
        if is_same_reign and self.role is not Role.IDLE:
            self.row = row
            return
        if row.partition_epoch < self.row.partition_epoch or (is_same_reign and self.is_stranded):
            return
        self.resign()
        self.row = row
        self.is_stranded = False
        if row.leader == self._parts.host.identity[0]:
            if row.leader_epoch <= self._parts.led.get((self.topic_id, self.partition), NO_EPOCH):
                self.is_stranded = True
                return
            self.role = Role.CLAIMING
            self._claiming = self._parts.host.supervisor.work(self._claim(row), "a claim", self)
        self.wake_watchers()

    async def _claim(self, row: PartitionRow) -> None:
        host = self._parts.host
        asked_ms = host.clock.monotonic_ms()
        try:
            claimed = await self._parts.claims.claim((self.topic_id, self.partition), row.leader_epoch)
            if self.role is not Role.CLAIMING or self.row.leader_epoch != row.leader_epoch:
                return
            if isinstance(claimed, Claimed):
                self._lead(claimed, asked_ms, host.clock.now_ms())
                return
            logger.info("%s-%d: epoch %d cannot be claimed: %s", self.topic, self.partition, row.leader_epoch, claimed)
            self.is_stranded = claimed is Outcome.FENCED
        except SextonError as error:
            logger.error("%s-%d cannot be led: %s", self.topic, self.partition, error)
        finally:
            if self.role is Role.CLAIMING and self.row.leader_epoch == row.leader_epoch:
                self.role = Role.IDLE

    def _lead(self, claimed: Claimed, as_of_ms: int, now_ms: int) -> None:
        parts = self._parts
        log = CloudLog(
            claimed,
            f"{self.topic}-{self.partition}",
            parts.host.topic_config(self.topic),
            producer_expiry_ms=parts.settings.producer_expiry_ms,
            now_ms=now_ms,
        )
        if self._told is not None:
            log.note_leveled(self._told)
        self._led = log
        self._reader = Reader(
            log=log, cache=parts.cache, views=parts.views, host=parts.host, as_of_ms=as_of_ms, wake=self.wake_watchers
        )
        self._served = LedLog(log, self._reader)
        parts.uploads.join(log, _Listener(self, log))
        parts.led[log.key] = log.leader_epoch
        self.role = Role.LEADER
        self.wake_watchers()

    def resign(self) -> None:
        if self._claiming is not None and not self._claiming.done():
            self._claiming.cancel()
        self._claiming = None
        self._let_go(KafkaError(ErrorCode.not_leader_or_follower, "another broker leads by now"))

    def _let_go(self, error: KafkaError) -> None:
        log, self._led, self._reader, self._served = self._led, None, None, None
        self.role = Role.IDLE
        if log is not None:
            self._parts.uploads.leave(log)
        self._waiting.fail(error)
        self.wake_watchers()

    def reconfigure(self, config: TopicConfig) -> None:
        if self._led is not None:
            self._led.reconfigure(config)

    def check_invariants(self) -> None:
        assert (self._led is not None) == self.is_leader, f"rule 1: {self!r} leads without a log, or has one"
        if self._led is not None:
            self._led.check_invariants()
            assert not self._led.is_dropped, f"rule 1: {self!r} leads with a log that was dropped"
            awaited = self._waiting.first_offset
            assert awaited is None or awaited > self.high_watermark, f"rule 1: {self!r} owes an answer"


class _Listener:
    """Of one log: a replica that has claimed again has another."""

    def __init__(self, replica: CloudReplica, log: CloudLog) -> None:
        self._replica = replica
        self._log = log

    def committed(self, piece: Piece, extent: Extent) -> None:
        if self._replica._led is self._log:
            self._replica.committed_piece()

    def lost(self, error: KafkaError) -> None:
        if self._replica._led is self._log:
            self._replica.lost(error)
