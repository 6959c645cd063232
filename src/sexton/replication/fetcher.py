"""The follower's side of `ReplicaFetch`: one task per broker that leads some of our partitions.

A response is applied under the replica's lock, only while the replica still follows that leader in that epoch, and only
to the log that sent the request: a replica that was removed and added again has another log. The next request reports
what is on disk by then, because a leader may count only what survives a crash of the follower.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from sexton.client.connection import ANSWER_HEADER_BYTES, Rpc
from sexton.errors import SextonError
from sexton.log.log import Log
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.protocol.private import PrivateApi
from sexton.records.header import base_offset_at, head_at
from sexton.replication import messages
from sexton.replication.history import common_end
from sexton.replication.host import Host
from sexton.replication.local_replica import LocalReplica, Role
from sexton.replication.messages import FetchPartition, FetchRequest, PartitionData
from sexton.replication.throttle import Throttle, is_throttled
from sexton.supervision import back_off_ms
from sexton.types import NO_EPOCH, NO_OFFSET, OFFSET_MAX, LeaderEpoch, PartitionId

logger = logging.getLogger(__name__)


RECONNECT_MS = (50, 1000)
"""First and longest pause between two attempts to connect to the leader."""

RETRY_MS = 100
"""Pause after an error of one partition: the leader may not know of its election yet, or we not of a newer one."""

FAILED_DISK_RETRY_MS = 1000

IN_FLIGHT_MAX = 2
"""One request that waits at the leader for new records, and one that reports what changed on our side meanwhile."""


@dataclass(frozen=True, slots=True)
class FetchLimits:
    max_wait_ms: int = 500
    max_bytes: int = 10 << 20
    partition_max_bytes: int = 1 << 20
    timeout_ms: int = 10_000


@dataclass(slots=True)
class _Following:
    replica: LocalReplica
    leader_epoch: LeaderEpoch
    retry_at_ms: int = 0
    bugs_count: int = 0
    """Consecutive bugs met with this partition."""


class Fetcher:
    def __init__(self, leader_id: int, host: Host, limits: FetchLimits, throttle: Throttle | None = None) -> None:
        self.leader_id = leader_id
        self._throttle = throttle
        self._host = host
        self._supervisor = host.supervisor
        self._clock = host.clock
        self._limits = limits
        self._following: dict[PartitionId, _Following] = {}
        self._changed: dict[PartitionId, None] = {}
        self._forgotten: dict[PartitionId, None] = {}
        self._poke = asyncio.Event()
        self._told_identity = (-1, -1)
        self._task: asyncio.Task[None] | None = None

    def follow(self, replica: LocalReplica) -> None:
        key = replica.topic_id, replica.partition
        self._following[key] = _Following(replica, replica.leader_epoch)
        self._forgotten.pop(key, None)
        replica.flush_and_commit()
        self._mark(key)
        if self._task is None:
            self._task = self._supervisor.loop(self._run(), f"replication from broker {self.leader_id}")

    def forget(self, replica: LocalReplica) -> None:
        key = replica.topic_id, replica.partition
        if self._following.pop(key, None) is not None:
            self._changed.pop(key, None)
            self._forgotten[key] = None
            self._poke.set()

    def report(self, replica: LocalReplica) -> None:
        """The next request reports this replica, if it is followed here."""
        self._report((replica.topic_id, replica.partition))

    def _report(self, key: PartitionId) -> None:
        if key in self._following:
            self._mark(key)

    async def stop(self) -> None:
        self._following.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _mark(self, key: PartitionId) -> None:
        self._changed[key] = None
        self._poke.set()

    async def _run(self) -> None:
        pause_ms = RECONNECT_MS[0]
        while True:
            leader = self._host.view.broker(self.leader_id)
            try:
                if leader is None:
                    raise SextonError("its address is not known")
                rpc = await Rpc.connect(
                    self._host.network,
                    leader.host,
                    leader.port,
                    client_id=f"replica-{self._host.identity[0]}",
                    timeout_ms=self._limits.timeout_ms,
                )
                try:
                    pause_ms = RECONNECT_MS[0]
                    await self._converse(rpc)
                finally:
                    rpc.close()
            except (SextonError, ValueError) as error:
                logger.debug("replication from broker %d interrupted: %s", self.leader_id, error)
            await asyncio.sleep(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, RECONNECT_MS[1])

    async def _converse(self, rpc: Rpc) -> None:
        """Exchanges requests and responses until the connection breaks. A new connection starts from nothing: every
        followed partition counts as changed."""
        self._forgotten.clear()
        self._changed = dict.fromkeys(self._following)
        answers: deque[asyncio.Future[memoryview]] = deque()
        try:
            while True:
                self._poke.clear()
                if not answers or (len(answers) < IN_FLIGHT_MAX and self._has_something_to_say()):
                    answers.append(self.ask(rpc))
                    answers[-1].add_done_callback(lambda _: self._poke.set())
                if not answers[0].done():
                    await self._poke.wait()
                if answers[0].done():
                    await self.apply(messages.decode_answer(answers.popleft().result()[ANSWER_HEADER_BYTES:]))
        finally:
            for answer in answers:
                answer.cancel()
            await asyncio.gather(*answers, return_exceptions=True)

    def _has_something_to_say(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        return bool(self._forgotten) or any(self._following[key].retry_at_ms <= now_ms for key in self._changed)

    def ask(self, rpc: Rpc) -> asyncio.Future[memoryview]:
        """Sends the next request. It reports the partitions that have changed and whose log is on disk."""
        now_ms = self._clock.monotonic_ms()
        if self._told_identity != self._host.identity:
            # We registered again: the leader counts a report only for the broker epoch that sent it.
            self._told_identity = self._host.identity
            self._changed = dict.fromkeys(self._following)
        held = [_unwanted(key) for key in self._forgotten]
        self._forgotten.clear()
        wait_ms = self._limits.max_wait_ms
        for key in list(self._changed):
            following = self._following[key]
            if following.retry_at_ms > now_ms:
                wait_ms = min(wait_ms, following.retry_at_ms - now_ms)
                continue
            pause_ms = self._throttle.pause_ms() if self._throttle and self._is_throttled(following.replica) else 0
            if pause_ms:
                following.retry_at_ms = now_ms + pause_ms
                wait_ms = min(wait_ms, pause_ms)
                continue
            del self._changed[key]
            try:
                if self._is_durable(key, following):
                    held.append(held_by(following.replica, following.leader_epoch))
                elif key in self._changed:
                    wait_ms = min(wait_ms, FAILED_DISK_RETRY_MS)
            except Exception as bug:
                self._survive(bug, key, following)
        broker_id, broker_epoch = self._host.identity
        request = FetchRequest(
            broker_id=broker_id,
            broker_epoch=broker_epoch,
            max_wait_ms=wait_ms,
            max_bytes=self._limits.max_bytes,
            partition_max_bytes=self._limits.partition_max_bytes,
            held=held,
        )
        encoded = messages.encode_request(request)
        return rpc.start_raw(PrivateApi.REPLICA_FETCH, [encoded], version=messages.VERSION)

    def _is_throttled(self, replica: LocalReplica) -> bool:
        own_id = self._host.identity[0]
        throttled = replica.config.follower_replication_throttled_replicas
        return own_id not in replica.row.isr and is_throttled(throttled, replica.partition, own_id)

    def _is_durable(self, key: PartitionId, following: _Following) -> bool:
        """Whether the partition may be fetched now. The leader's records must follow everything in our log, so we fetch
        only when all of it is on disk: what the leader has just sent, or the tail from a former leader. The leader's
        other partitions do not wait for this one."""
        replica = following.replica
        if replica.durable_end >= replica.log.end_offset:
            return True
        if not replica.is_flushing:  # the last attempt failed
            self._retry_later(key, following, FAILED_DISK_RETRY_MS)
            replica.flush_and_commit()
        return False

    async def apply(self, answer: Sequence[PartitionData]) -> None:
        for fetched in answer:
            key = fetched.topic_id, fetched.partition
            following = self._following.get(key)
            if following is None:
                continue
            if fetched.error is not ErrorCode.none:
                self._retry_later(key, following, RETRY_MS)
                continue
            try:
                async with following.replica.lock:
                    if not _still_follows(following, fetched):
                        continue
                    if not _is_for(following.replica, fetched):
                        self._report(key)  # the leader sends nothing more until it has a new report
                        continue
                    if self._throttle and self._is_throttled(following.replica):
                        self._throttle.count(fetched.records_bytes)
                    await take_fetched(following.replica, fetched)
                    following.bugs_count = 0
                    if self._is_durable(key, following):
                        self._report(key)
            except (OSError, KafkaError, SextonError) as error:
                logger.error("%r cannot append what its leader sent: %s", following.replica, error)
                self._retry_later(key, following, FAILED_DISK_RETRY_MS)
            except Exception as bug:
                self._survive(bug, key, following)

    def _survive(self, bug: Exception, key: PartitionId, following: _Following) -> None:
        """A bug with one partition does not stop replication of the others."""
        following.bugs_count += 1
        self._supervisor.survived(bug, "replication", following.replica)
        self._retry_later(key, following, back_off_ms(following.bugs_count))

    def _retry_later(self, key: PartitionId, following: _Following, pause_ms: int) -> None:
        """Schedules a retry, unless the partition has been forgotten meanwhile."""
        following.retry_at_ms = self._clock.monotonic_ms() + pause_ms
        if self._following.get(key) is following:
            self._changed[key] = None


def _unwanted(key: PartitionId) -> FetchPartition:
    """Tells a leader that this partition is no longer followed."""
    return FetchPartition(
        *key, is_wanted=False, leader_epoch=NO_EPOCH, end_offset=NO_OFFSET, last_epoch=NO_EPOCH, history_digest=0
    )


def held_by(replica: LocalReplica, leader_epoch: LeaderEpoch) -> FetchPartition:
    """What a follower reports to the leader of that epoch."""
    entries = replica.log.epochs.entries
    end_offset = replica.durable_end
    watermarks = replica.coordination.watermarks
    return FetchPartition(
        replica.topic_id,
        replica.partition,
        True,
        leader_epoch,
        end_offset,
        replica.log.epochs.epoch_of(end_offset - 1),
        messages.history_digest(entries),
        watermarks.incarnation,
        watermarks.generation,
        watermarks.compacted,
        replica.coordination.claim,
        replica.log.start_offset == replica.log.end_offset,
    )


def _still_follows(following: _Following, fetched: PartitionData) -> bool:
    replica = following.replica
    return (
        replica.role is Role.FOLLOWER
        and replica.leader_epoch == following.leader_epoch
        and fetched.leader_epoch == following.leader_epoch
    )


def _is_for(replica: LocalReplica, fetched: PartitionData) -> bool:
    """Whether the response was requested by this log, and the log has not been truncated below the first record since.
    A log that has grown meanwhile skips the batches that it has: a request sent only to report something fetches the
    same records again."""
    asked = replica.coordination.kept.value.incarnation
    return fetched.incarnation == asked and fetched.held_end_offset <= replica.log.end_offset


def _gaps_below(replica: LocalReplica, fetched: PartitionData) -> int:
    """The offset below which compaction may have left gaps. Every compaction makes the high watermark that it was
    planned at durable before it removes anything, and sends it to all that copy its result; what was removed without
    that (by Kafka, by `compaction.coordination=independent`) lies below the fence. So a topic that was compacted once
    and no longer is has gaps only there, and one that never was has none. The log of a topic that is compacted now may
    also have been compacted by `sexton compact` while its broker was stopped, of which no follower is informed."""
    return OFFSET_MAX if replica.config.compacts else max(fetched.planned_high_watermark, fetched.fence_below)


async def take_fetched(replica: LocalReplica, fetched: PartitionData) -> None:
    """Applies a leader's response: truncates to the common prefix, takes the whole epoch history, then the compaction
    watermarks, records, high watermark and log start. In this order, so that after a crash between any two steps the
    next request reports the truth. Only a log start within our log is taken before the history: a history without the
    epochs of records that we still hold would, if we led next, make other replicas truncate theirs."""
    log = replica.log
    replica.coordination.check_claim(fetched)
    if fetched.history is not None:
        shared = common_end(
            log.epochs.entries,
            log.start_offset,
            log.end_offset,
            fetched.history,
            fetched.log_start_offset,
            fetched.log_end_offset,
        )
        if _parts_at_the_start(shared, log, fetched):
            await replica.start_over(fetched.log_start_offset)
        elif shared < log.end_offset:
            await replica.cut_to(shared)
        await replica.advance_start(fetched.log_start_offset)
        await log.replace_epochs(fetched.history)
    await replica.coordination.take(fetched)
    for part in fetched.records:
        assert isinstance(part, memoryview)
        fresh = _without_held(part, fetched.held_end_offset, log)
        if fresh and log.start_offset == log.end_offset:
            await _make_room(replica, fresh)
        if fresh:
            log.append_as_follower(fresh, _gaps_below(replica, fetched), fetched.log_end_offset)
    replica.flush_and_commit()
    replica.take_high_watermark(fetched.high_watermark)
    await replica.advance_start(fetched.log_start_offset)


def _parts_at_the_start(shared: int, log: Log, fetched: PartitionData) -> bool:
    """Whether nothing of this log is the leader's: it ends before the leader's log starts, or it already differs there.
    Then the records below go as well: a transaction that they opened, and that the leader has never seen, would stay
    open."""
    is_other = shared < min(log.end_offset, fetched.log_end_offset)
    return log.end_offset < fetched.log_start_offset or (is_other and shared <= fetched.log_start_offset)


def _without_held(records: memoryview, held_end_offset: int, log: Log) -> memoryview:
    """Skips the batches that an earlier response brought: a request sent to report something, while another one waits
    at the leader, fetches the same records twice. None of them lies below what the request said is held."""
    position = 0
    while position < len(records):
        head = head_at(records, position, position)
        if isinstance(head, str) or head.last_offset >= log.end_offset:
            break  # `append_as_follower` reports what is wrong with it
        if head.last_offset < held_end_offset:
            what = f"a batch that ends with offset {head.last_offset} came, and {held_end_offset} or more was asked for"
            raise KafkaError(ErrorCode.corrupt_message, f"{log.place}: {what}")
        position += head.size_bytes
    return records[position:]


async def _make_room(replica: LocalReplica, records: memoryview) -> None:
    """The leader's log may start in the middle of a batch (DeleteRecords). An empty copy then begins with that batch,
    as in Kafka; the log start moves to the leader's once the batch is appended."""
    log = replica.log
    base_offset = base_offset_at(records)
    if base_offset < log.end_offset:
        entries = log.epochs.entries
        await replica.restart_log(base_offset)
        await log.replace_epochs(entries)
