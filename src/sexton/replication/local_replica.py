"""One partition on this broker: its log, its role, its high watermark.

A replica is leader, follower or idle (no leader is known, or a role change is under way). Its role changes only in
`Roles` (roles.py), one change at a time; requests of clients and followers are answered here, without waiting for
that.

"On disk" below means flushed if the topic flushes before acknowledging, and appended otherwise (Kafka's behaviour). But
everything up to the replica's own watermarks is flushed in any case (docs/decisions, 16).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from sexton.compaction.watermarks.checkpoint import Kept
from sexton.compaction.watermarks.replica import ReplicaWatermarks
from sexton.log import flushed
from sexton.log.checks import Rules
from sexton.log.flushed import FlushedPoint
from sexton.log.log import Log
from sexton.log.producers import Verification
from sexton.log.types import Appended, Read
from sexton.log.waiting import CommitWaiters, Watchers
from sexton.ports.disk import Buffer
from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import ErrorCode, KafkaError, StorageError
from sexton.replication.coordination import Coordination
from sexton.replication.host import Host
from sexton.replication.leadership import UNKNOWN_OFFSET, Leadership
from sexton.replication.messages import NO_INCARNATION
from sexton.settings.topic import TopicConfig
from sexton.types import NO_LEADER, LeaderEpoch

logger = logging.getLogger(__name__)

FLUSH_AGAIN_MS = 1_000
"""After a flush that failed."""


class Role(Enum):
    IDLE = "idle"
    LEADER = "leader"
    FOLLOWER = "follower"


class ReplicaListener(Protocol):
    """Receives what replicas have to tell the rest of the broker. `Replicas` implements it."""

    def follower_caught_up(self) -> None:
        """A follower outside the ISR may join it."""
        ...

    def follower_fenced(self, replica: LocalReplica, follower: int) -> None:
        """The fetch fence refused a follower's log."""
        ...

    async def high_watermark_lowered(self, replica: LocalReplica) -> None:
        """Awaited before the log is truncated, perhaps below a high watermark that is in the checkpoint."""
        ...

    def has_news_for_leader(self, replica: LocalReplica) -> None:
        """There is something new to report to the leader."""
        ...


class LocalReplica:
    def __init__(
        self,
        row: PartitionRow,
        log: Log,
        *,
        host: Host,
        listener: ReplicaListener,
        high_watermark: int,
        kept: Kept | None = None,
        is_made_here: bool = False,
    ) -> None:
        self.topic: str = log.topic
        self.topic_id: uuid.UUID = row.topic_id
        self.partition: int = row.partition
        self.log = log
        self.row = row
        self.role = Role.IDLE
        self.leadership: Leadership | None = None
        self._is_made_here = is_made_here
        """True if this process created the log and the replica has not led yet, so that no epoch in its history can
        have been led."""
        self.lock = asyncio.Lock()
        """Held while the role changes, and while a fetcher applies a leader's response."""
        self._listener = listener
        self._broker_id = broker_id = host.identity[0]
        self._supervisor = host.supervisor
        self._clock = host.clock
        self._may_serve = host.lease_is_valid
        kept = kept or Kept(log.disk, log.directory, ReplicaWatermarks(row.incarnations.get(broker_id, NO_INCARNATION)))
        self.coordination = Coordination(kept, log, broker_id, self._supervisor, self._watermarks_moved)
        planned = kept.value.planned_high_watermark
        self._high_watermark = max(log.start_offset, min(max(high_watermark, planned), log.end_offset))
        self._sealed_in: LeaderEpoch | None = None
        """The epoch in which this leader's log takes no more appends: it is moved to the store."""
        self._waiting = CommitWaiters()
        self._watchers = Watchers()
        self._append_watchers = Watchers()
        self._flushing: asyncio.Task[None] | None = None
        self._next_flush: asyncio.TimerHandle | None = None
        self._flush_error = ""
        """What the last flush failed with, for a disk that stays full is told once."""
        self._is_marked = flushed.is_marked(log.disk, log.directory)
        """Whether the log is marked as one that may acknowledge unflushed records (`log.flushed`)."""
        self._is_mark_old = log.disk.page_cache_id() is not None and not flushed.is_kept(log.disk, log.directory)
        """True if the mark names a former page cache. It must name the present one: from then on, unflushed records are
        lost only if that page cache is."""

    def __repr__(self) -> str:
        return f"Replica({self.topic}-{self.partition}, {self.role.value}, hw={self._high_watermark})"

    # State

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self.row.leader_epoch

    @property
    def high_watermark(self) -> int:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> int:
        return self.log.last_stable_offset(self._high_watermark)

    @property
    def config(self) -> TopicConfig:
        return self.log.config

    @property
    def has_too_few_in_sync(self) -> bool:
        """Whether acks=all must be refused. No more replicas are required than exist, as in Kafka; unlike in Kafka,
        replicas that a reassignment is still adding do not count as existing."""
        there = len(self.row.replicas) - len(self.row.adding)
        return len(self.row.isr) < min(self.config.min_insync_replicas, there)

    @property
    def durable_end(self) -> int:
        return self.log.flushed_offset if self._must_be_flushed else self.log.end_offset

    @property
    def _must_be_flushed(self) -> bool:
        """True until the log is marked as one that acknowledges unflushed records, and while records below the
        replica's own watermarks are unflushed."""
        if self.config.flush_before_ack or not self._is_marked:
            return True
        return self.log.flushed_offset < self.coordination.kept.value.highest

    @property
    def _mark_is_due(self) -> bool:
        if self.log.is_doubtful:
            return False
        return self._is_marked if self.config.flush_before_ack else not self._is_marked or self._is_mark_old

    def flushed_point(self) -> FlushedPoint:
        offset = self.log.flushed_offset
        return FlushedPoint(self.coordination.kept.value.incarnation, offset, self.log.epochs.epoch_of(offset - 1))

    @property
    def is_flushing(self) -> bool:
        """Whether a flush is running. When it ends, successfully or not, the listener of a
        follower is told (`has_news_for_leader`)."""
        return self._flushing is not None

    def was_led_in(self, leader_epoch: LeaderEpoch) -> bool:
        """Whether a process of this broker has led in that epoch. Or the log knows a later one, of which an older
        metastore knows nothing: an earlier epoch behind that would take it out of the history."""
        latest = self.log.epochs.latest_epoch
        return leader_epoch < latest or (leader_epoch == latest and not self._is_made_here)

    def outlives_its_log(self, row: PartitionRow) -> bool:
        """Whether the watermarks of an in-sync replica go beyond its log. A new generation lowers them, so they do not
        then."""
        return self.coordination.outlives_its_log and row.generation <= self.coordination.kept.value.generation

    def serves_in(self, leader_epoch: LeaderEpoch) -> bool:
        """Whether this replica leads in exactly that epoch and may serve."""
        return self.role is Role.LEADER and self.row.leader_epoch == leader_epoch and self._may_serve()

    def check_serving_as_leader(self) -> None:
        if self.role is not Role.LEADER or not self._may_serve():
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{self.topic}-{self.partition} is not led here")

    def check_epoch(self, current_leader_epoch: LeaderEpoch) -> None:
        """Raises KafkaError if a request names another leader epoch than the current one; -1 means that it names
        none."""
        if current_leader_epoch < 0 or current_leader_epoch == self.row.leader_epoch:
            return
        if current_leader_epoch < self.row.leader_epoch:
            raise KafkaError(ErrorCode.fenced_leader_epoch, f"the leader epoch is {self.row.leader_epoch} by now")
        raise KafkaError(ErrorCode.unknown_leader_epoch, f"only leader epoch {self.row.leader_epoch} is known here")

    def seal(self) -> None:
        """For the rest of this reign, or until `unseal`: nothing is appended, and the log start stays. Clients are told
        to ask who leads, and try again."""
        self._sealed_in = self.row.leader_epoch

    def unseal(self) -> None:
        self._sealed_in = None

    @property
    def is_sealed(self) -> bool:
        return self._sealed_in == self.row.leader_epoch

    def _check_not_sealed(self) -> None:
        if self.is_sealed:
            what = f"{self.topic}-{self.partition} is being moved to the store"
            raise KafkaError(ErrorCode.not_leader_or_follower, what)

    # Client requests

    def must_wait(self, size_bytes: int) -> bool:
        """The disk takes what connections are read for."""
        return False

    def wait_for_room(self, size_bytes: int, go_on: Callable[[], None]) -> Callable[[], None]:
        raise AssertionError("a local log has always room")

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
        """Appends batches as the leader. With acks=-1 the returned future resolves once all of them are committed, or
        fails with the error to send; None means that there is nothing to wait for."""
        self.check_serving_as_leader()
        if self._sealed_in is not None:
            self._check_not_sealed()
        if acks == -1 and self.has_too_few_in_sync:
            raise KafkaError(
                ErrorCode.not_enough_replicas,
                f"{len(self.row.isr)} replicas are in sync, min.insync.replicas is {self.config.min_insync_replicas}",
            )
        appended = self.log.append_as_leader(
            records,
            self.row.leader_epoch,
            now_ms,
            from_client=from_client,
            verification=verification,
            validated_by=validated_by,
        )
        if not appended.is_duplicate:
            self._append_watchers.wake()
            self.flush_and_commit()
        if acks != -1 or appended.last_offset < self._high_watermark:
            return appended, None
        return appended, self._waiting.wait_for(appended.last_offset + 1)

    def read(self, offset: int, max_bytes: int, *, committed_only: bool, min_one: bool) -> Read:
        """Reads for a consumer: up to the high watermark, or up to the last stable offset if `committed_only`."""
        if not self._may_serve() or not (self.is_leader or self._is_in_sync_follower()):
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{self.topic}-{self.partition} is not served here")
        end = self.last_stable_offset if committed_only else self._high_watermark
        if end < offset <= self.log.end_offset:
            return Read([], 0, offset, offset)  # appended, but consumers may not read it yet
        return self.log.read(offset, max_bytes, end, min_one=min_one)

    def _is_in_sync_follower(self) -> bool:
        """A follower that is still catching up serves no consumer (rule 4)."""
        return self.role is Role.FOLLOWER and self._broker_id in self.row.isr

    def is_held_by(self, follower: int, offset: int) -> bool:
        """Whether a follower is known to have fetched up to `offset`. False below this log's start."""
        progress = self.leadership.progress_of(follower) if self.leadership is not None else None
        return progress is not None and self.log.start_offset <= offset <= progress.end_offset

    async def delete_records(self, offset: int) -> int:
        """Moves the log start; -1 means to the high watermark. Returns the new log start."""
        self.check_serving_as_leader()
        self._check_not_sealed()
        if not self.config.deletes:
            raise KafkaError(ErrorCode.policy_violation, "cleanup.policy does not include delete")
        target = self._high_watermark if offset == -1 else offset
        if not 0 <= target <= self._high_watermark:
            raise KafkaError(ErrorCode.offset_out_of_range, f"{offset} is beyond the high watermark")
        await self.advance_start(target)
        self._check_not_sealed()  # sealed meanwhile: the store may have taken over the start that was before
        return self.log.start_offset

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Calls `callback` whenever consumers may read more, or the role changes. Returns a function that cancels
        it."""
        return self._watchers.add(callback)

    def watch_appends(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Like `watch`, for followers, which read up to the log end: called after each append."""
        return self._append_watchers.add(callback)

    # High watermark

    def flush_and_commit(self) -> None:
        """Called whenever a log end may have moved: starts a flush if one is due, and advances the high watermark."""
        if self._flushing is None and self._flush_is_due():
            self._flushing = self._supervisor.work(self._flush(), "flush", self)
        self._commit()

    def _flush_is_due(self) -> bool:
        """Also without flushing before acknowledging, closed segments are flushed: recovery after a crash then has only
        the last one to scan."""
        if self._mark_is_due:
            return True
        if self._must_be_flushed:
            return self.log.flushed_offset < self.log.end_offset
        return self.log.has_unflushed_segments

    def _commit(self) -> None:
        if self.leadership is not None:
            committed = self.leadership.committed_end(self.durable_end)
            if committed > self._high_watermark:
                self._raise_high_watermark(committed)

    def follower_fetched(
        self,
        follower: int,
        broker_epoch: int,
        end_offset: int,
        joins_at: int = 0,
        incarnation: uuid.UUID | None = None,
    ) -> None:
        assert self.leadership is not None
        now_ms = self._clock.monotonic_ms()
        self.leadership.fetched(follower, broker_epoch, end_offset, self.log.end_offset, now_ms, joins_at, incarnation)
        self.flush_and_commit()
        if self.leadership.caught_up(follower, self._high_watermark):
            self._listener.follower_caught_up()

    def follower_held_all(self, follower: int, broker_epoch: int, at_ms: int) -> None:
        if self.leadership is not None:
            self.leadership.held_all(follower, broker_epoch, at_ms)

    def fence(self, follower: int) -> None:
        """The fetch fence refused this follower's log."""
        self._listener.follower_fenced(self, follower)

    def follower_left(self, follower: int, broker_epoch: int) -> None:
        if self.leadership is not None:
            self.leadership.left(follower, broker_epoch)

    def take_high_watermark(self, leaders: int) -> None:
        """Advances a follower's high watermark to the leader's, as far as its own log reaches. It never goes back (rule
        7). Everything below the planned high watermark was committed, even if this leader does not know it yet."""
        planned = self.coordination.kept.value.planned_high_watermark
        reached = min(max(leaders, planned), self.log.end_offset)
        if reached > self._high_watermark:
            self._raise_high_watermark(reached)

    async def advance_start(self, offset: int) -> None:
        """Moves the log start to where the leader has moved it, on this broker or another."""
        if offset > self.log.start_offset:
            await self.log.advance_start(offset)
            if self._high_watermark < self.log.start_offset:
                self._raise_high_watermark(self.log.start_offset)
            self.coordination.advance()  # a leader without followers receives no report that would recompute MTRO

    def _raise_high_watermark(self, offset: int) -> None:
        assert offset <= self.log.end_offset, f"rule 1: {self!r} would commit {offset}, beyond its own log"
        self._high_watermark = offset
        too_few = self.is_leader and self.has_too_few_in_sync
        self._waiting.reached(offset, KafkaError(ErrorCode.not_enough_replicas_after_append) if too_few else None)
        self.wake_watchers()

    def wake_watchers(self) -> None:
        self._watchers.wake()

    def committed(self, end_offset: int) -> asyncio.Future[None] | None:
        """A future that resolves once everything below `end_offset` is committed, or fails if it may never be; None if
        it is committed already."""
        return None if end_offset <= self._high_watermark else self._waiting.wait_for(end_offset)

    async def _flush(self) -> None:
        """One flush at a time; the next covers everything appended meanwhile."""
        try:
            while self._flush_is_due():
                has_changed = await self._change_mark()
                if self._flush_is_due():  # changing the mark may have been enough
                    await self.log.flush()
                self._commit()
                if not has_changed and self.log.flushed_offset >= self.log.end_offset:
                    break  # tried again with the next append
            self._flush_error = ""
        except (OSError, KafkaError) as error:
            if not self.log.is_deleted and str(error) != self._flush_error:
                logger.error("%s-%d: flushing failed: %s", self.topic, self.partition, error)
            self._flush_error = str(error)
            what = f"{self.topic}-{self.partition}: what was appended could not be flushed"
            self.fail_waiting(error if isinstance(error, StorageError) else StorageError(what, error))
            self._flush_later()
        except Exception as bug:
            self.fail_waiting(KafkaError(ErrorCode.unknown_server_error, str(bug)))
            self._flush_later()
            raise
        finally:
            self._flushing = None
            if self.role is Role.FOLLOWER:
                self._listener.has_news_for_leader(self)

    async def _change_mark(self) -> bool:
        """Writes or removes the mark of a log that acknowledges unflushed records. It is written before anything
        unflushed counts, and removed after everything that counted is flushed. Returns False if the disk does not allow
        it now: then each acknowledgement waits for its flush."""
        log = self.log
        if not self._mark_is_due:
            return True
        try:
            if not self.config.flush_before_ack:
                await log.mark_as_unflushed()
                self._is_marked, self._is_mark_old = True, False
            else:
                await log.flush()
                self._is_marked = False
                await flushed.unmark(log.disk, log.directory)
        except OSError as error:
            logger.error("%r: cannot record whether it flushes before acknowledging: %s", self, error)
            return False
        return True

    def resolve_doubt(self) -> None:
        """Accepts the log as it is after a cut of unknown extent: another replica leads, or there is none to compare
        with."""
        self.log.is_doubtful = False
        self.flush_and_commit()

    def _flush_later(self) -> None:
        """After a flush that failed, because of a full disk or a bug. No later event may ask for the next one: a
        producer that tries again appends nothing, its batch is in the log already."""
        if self._next_flush is None:
            self._next_flush = asyncio.get_running_loop().call_later(FLUSH_AGAIN_MS / 1000, self._flush_again)

    def _flush_again(self) -> None:
        self._next_flush = None
        if self.role is not Role.IDLE and self.log.failure is None:
            self.flush_and_commit()

    # Role changes (called by Roles, one at a time)

    async def become_leader(self, row: PartitionRow) -> None:
        """The start of the new epoch is durable before anything is appended in it. If this fails, it can be tried
        again."""
        self.row = row
        self.role = Role.IDLE
        self.leadership = None
        await self._enter(row)
        row = self.row  # same leader epoch: the ISR may have changed meanwhile
        self.leadership = Leadership(row, self._broker_id, self.log.end_offset, self._clock.monotonic_ms())
        self.role = Role.LEADER
        self.coordination.lead(row)
        self.flush_and_commit()
        self.wake_watchers()
        self._is_made_here = False

    async def _enter(self, row: PartitionRow) -> None:
        """Writes the epoch last: an epoch in the history was led, and is never led again (docs/decisions, 8)."""
        await self.coordination.enter_generation(row.generation)
        await self.log.begin_epoch(row.leader_epoch)

    def become_follower(self, row: PartitionRow) -> None:
        self._resign()
        self.row = row
        self.role = Role.IDLE if row.leader == NO_LEADER else Role.FOLLOWER
        self.wake_watchers()

    def follow_row(self, row: PartitionRow) -> None:
        """Takes a newer row with the same leader and epoch: the ISR, the replicas or an incarnation changed."""
        self.row = row
        if self.leadership is not None:
            self.leadership.follow_row(row, self._clock.monotonic_ms())
            self.coordination.follow_row(row)
            self.flush_and_commit()

    def stop(self) -> None:
        self._resign()
        self.role = Role.IDLE
        self.wake_watchers()

    async def restart_log(self, offset: int) -> None:
        """Discards the copy and starts an empty log at `offset`. The high watermark may move up to it, never down."""
        await self.log.restart_at(offset)
        if self._high_watermark < offset:
            self._raise_high_watermark(offset)

    async def start_over(self, offset: int) -> None:
        """Discards the whole log, because none of it is on the leader's history."""
        self._give_up_from(offset)
        await self._listener.high_watermark_lowered(self)
        await self.restart_log(offset)

    async def cut_to(self, offset: int) -> None:
        """Truncates what the leader does not have."""
        self._give_up_from(offset)
        await self._listener.high_watermark_lowered(self)
        await self.log.truncate_to(offset)

    def _give_up_from(self, offset: int) -> None:
        """Lowers the high watermark for a truncation. Committed records are cut only if every in-sync replica had lost
        them, or after an unclean election."""
        if offset < self._high_watermark:
            logger.warning(
                "%r truncates committed records from offset %d on: its leader does not have them", self, offset
            )
            self._high_watermark = offset

    def _watermarks_moved(self) -> None:
        self._listener.has_news_for_leader(self)
        self._append_watchers.wake()

    def _resign(self) -> None:
        self.leadership = None
        self.coordination.resign()
        self.fail_waiting(KafkaError(ErrorCode.not_leader_or_follower, "another broker leads by now"))
        self._append_watchers.wake()

    def fail_waiting(self, error: KafkaError) -> None:
        self._waiting.fail(error)

    # Invariants

    def check_invariants(self) -> None:
        """Rules 1 and 7, as far as one replica can check them."""
        if self.log.failure is not None:
            return  # the disk failed under the log: nothing is promised any more
        self.log.check_invariants()
        self.coordination.check_invariants()
        # An empty copy of a log that starts in the middle of a batch begins with that batch (`_make_room`): what is
        # committed below the leader's log start arrives in a moment, and is never read.
        is_empty_copy = self.role is Role.FOLLOWER and self.log.start_offset == self.log.end_offset
        holds_it = self._high_watermark <= self.log.end_offset or is_empty_copy
        assert holds_it, f"rule 1: {self!r} has committed what it does not hold"
        assert (self.leadership is None) or self.role is not Role.FOLLOWER, f"rule 1: {self!r} leads and follows"
        if self.leadership is not None:
            self.leadership.check_invariants()
            assert not self.coordination.outlives_its_log, f"rule 7: {self!r} ends below its own watermarks, and leads"
        # The future of a flush completes before its caller resumes, and the high watermark rises only then. After a
        # flush that failed others may have flushed the log; the high watermark follows with the next one.
        if self.leadership is not None and self._flushing is None and self._next_flush is None:
            committed = self.leadership.committed_end(self.durable_end)
            assert committed == UNKNOWN_OFFSET or committed <= self._high_watermark, f"rule 7: {self!r} < {committed}"
        awaited = self._waiting.first_offset
        assert awaited is None or awaited > self._high_watermark, f"rule 1: {self!r} owes an answer"
