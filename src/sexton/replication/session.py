"""The leader's side of `ReplicaFetch`: one session per connection of a follower.

A session remembers what the follower holds of each partition that it follows, for the incarnation that it named: with
another incarnation it counts as another follower. Appends mark partitions as changed, so that a response looks at those
alone, however many partitions are followed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from sexton.compaction.watermarks.replica import Pair, ReplicaWatermarks
from sexton.metadata.incarnations import known_incarnation
from sexton.ports.clock import Clock
from sexton.ports.network import Part
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.replication import messages
from sexton.replication.history import is_prefix
from sexton.replication.local_replica import LocalReplica
from sexton.replication.messages import FetchPartition, FetchRequest, PartitionData
from sexton.replication.throttle import Throttle, is_throttled
from sexton.supervision import Supervisor
from sexton.types import PartitionId

HIGH_WATERMARK_DELAY_S = 0.02
"""How long a rise of the high watermark may wait for other data for the follower before it is sent alone: consumers of
that follower wait for it. Longer than it takes, under load, until the next records carry it."""


class LocalReplicas(Protocol):
    def by_id(self, topic_id: uuid.UUID, partition: int) -> LocalReplica:
        """Raises KafkaError if this broker does not have the replica."""
        ...


@dataclass(slots=True)
class _Followed:
    follower: int
    held: FetchPartition
    forget: Sequence[Callable[[], None]]
    """Functions that cancel the callbacks for appends and for the high watermark."""
    replica: LocalReplica
    sent_state: tuple[object, ...] = ()
    """High watermark, log start and compaction watermarks as last sent."""
    sent_state_of: ReplicaWatermarks | None = None
    """The replica's own watermarks at the time when `sent_state` was sent."""
    sent: tuple[int, int] | None = None
    """First offset, and the offset after the last, of the records in the last response."""
    is_answered: bool = False
    """True if something was sent and the follower has not reported since what it holds. Until then nothing more is
    sent."""

    def is_up_to_date(self) -> bool:
        """Whether nothing to be sent has changed. Called for every partition twice a second, so it compares no more
        than it must: `kept.value` is replaced by another object whenever it changes."""
        replica = self.replica
        return (
            self.sent_state_of is replica.coordination.kept.value
            and self.sent_state[0] == replica.high_watermark
            and self.sent_state[1] == replica.log.start_offset
            and replica.serves_in(self.held.leader_epoch)
        )

    def note_sent(self, replica: LocalReplica) -> None:
        self.replica, self.sent_state, self.sent_state_of = (
            replica,
            _state_to_send(replica),
            replica.coordination.kept.value,
        )


class FollowerSession:
    def __init__(
        self,
        replicas: LocalReplicas,
        clock: Clock,
        supervisor: Supervisor | None = None,
        throttle: Throttle | None = None,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._throttle = throttle
        self._supervisor = supervisor or Supervisor()
        self._followed: dict[PartitionId, _Followed] = {}
        self._news: dict[PartitionId, None] = {}
        self._failed: dict[PartitionId, ErrorCode] = {}
        self._stale: dict[PartitionId, None] = {}
        """Partitions whose new high watermark has not been sent yet and that have no response pending."""
        self._waiting: asyncio.Future[bool] | None = None
        """The request that waits, if any. Resolves to True when its wait time is over, to False if something ends the
        wait before."""
        self._hurry: asyncio.TimerHandle | None = None
        self._asked_ms = 0
        """When the last request came, and from which process of the follower's broker."""
        self._broker_epoch = -1

    def fetch(self, request: FetchRequest) -> list[Part] | Awaitable[list[Part]]:
        """Responds at once if there are records or errors to send. Otherwise when there are, when the wait time is
        over, or when the next request of the same follower arrives."""
        self._stop_waiting()
        self._asked_ms, self._broker_epoch = self._clock.monotonic_ms(), request.broker_epoch
        for held in request.held:
            try:
                self._take(held, request)
            except Exception as bug:
                self._survive(bug, (held.topic_id, held.partition))
        answer = self._answer(request)
        if answer or request.max_wait_ms <= 0:
            return messages.encode_answer(answer)
        wait_ms = request.max_wait_ms
        if self._news and self._throttle is not None:
            wait_ms = min(wait_ms, self._throttle.pause_ms() or wait_ms)  # send throttled records once the rate allows
        return self._fetch_later(request, self._start_waiting(wait_ms / 1000))

    async def _fetch_later(self, request: FetchRequest, waiting: asyncio.Future[bool]) -> list[Part]:
        is_over = await waiting
        answer = self._answer(request)
        keys = list(self._stale)
        if is_over:
            keys = [key for key, followed in self._followed.items() if not followed.is_up_to_date()]
        self._stale.clear()
        answer.extend(self._moved_watermarks(keys))
        return messages.encode_answer(answer)

    def close(self) -> None:
        for key in list(self._followed):
            self._forget(key)
        self._stop_waiting()

    def _take(self, held: FetchPartition, request: FetchRequest) -> None:
        key = held.topic_id, held.partition
        self._failed.pop(key, None)
        if not held.is_wanted:
            self._forget(key)
            self._left(key, request)
            return
        try:
            replica = self._leader(held, request.broker_id)
        except KafkaError as error:
            self._fail(key, error)
            return
        known = self._followed.get(key)
        if known is not None and (known.held.incarnation != held.incarnation or known.replica is not replica):
            # What was sent to its former log is not known to the new one, and a former replica of ours has nothing to
            # send.
            self._forget(key)
            known = None
        if known is None:
            watching = replica.watch_appends(lambda: self._appended(key)), replica.watch(lambda: self._committed(key))
            known = self._followed[key] = _Followed(request.broker_id, held, watching, replica)
        else:
            if not self._could_take(known, held, replica):
                return
            known.held = held
            known.is_answered = False
        self._news[key] = None
        if not replica.coordination.has_what_is_claimed(held):
            self._fence(key, replica, request)
            return
        if self._lies_on(held, replica):
            if not replica.coordination.may_copy(held, in_sync=request.broker_id in replica.row.isr):
                self._fence(key, replica, request)
                return
            replica.follower_fetched(
                request.broker_id,
                request.broker_epoch,
                held.end_offset,
                held.claim.end_offset,
                held.incarnation,
            )
        if known.sent_state[:1] != (replica.high_watermark,):
            self._stale[key] = None
        replica.coordination.take_report(request.broker_id, request.broker_epoch, held)

    def _could_take(self, known: _Followed, held: FetchPartition, replica: LocalReplica) -> bool:
        """Returns False if the records sent last are corrupt here. A follower that was sent records and fetches
        them again has a full disk, or sent a report before they arrived, or received damaged batches: nothing in this
        process has looked at what went out by sendfile."""
        sent, known.sent = known.sent, None
        if sent is None or sent[0] != held.end_offset:
            return True
        try:
            replica.log.verify(*sent)
        except KafkaError as error:
            self._fail((held.topic_id, held.partition), error)
            return False
        return True

    def _fence(self, key: PartitionId, replica: LocalReplica, request: FetchRequest) -> None:
        """The follower's log may hold records that all others have removed: it is sent nothing, and the ISR change that
        follows makes it discard its log."""
        self._left(key, request)
        self._fail(key, KafkaError(ErrorCode.unknown_leader_epoch, "the fetch fence"))
        replica.fence(request.broker_id)

    def _forget(self, key: PartitionId) -> None:
        followed = self._followed.pop(key, None)
        if followed is not None:
            for forget in followed.forget:
                forget()
        self._news.pop(key, None)
        self._stale.pop(key, None)

    def _left(self, key: PartitionId, request: FetchRequest) -> None:
        """The follower cannot, or may not, follow any more: what it held must not count for it later."""
        with suppress(KafkaError):
            self._replicas.by_id(*key).follower_left(request.broker_id, request.broker_epoch)

    def _fail(self, key: PartitionId, error: KafkaError) -> None:
        """The error is sent once, and the partition forgotten: the follower sends it again after a pause."""
        self._forget(key)
        self._failed[key] = error.code

    def _survive(self, bug: Exception, key: PartitionId) -> None:
        """A bug with one partition affects no other; the follower sends this one again."""
        self._supervisor.survived(bug, "replication", f"{key[0]}-{key[1]}")
        self._fail(key, KafkaError(ErrorCode.unknown_server_error, str(bug)))

    def _leader(self, held: FetchPartition, follower: int) -> LocalReplica:
        replica = self._replicas.by_id(held.topic_id, held.partition)
        replica.check_epoch(held.leader_epoch)
        replica.check_serving_as_leader()
        if follower not in replica.row.replicas:
            # It learned that it is a replica before we did. Its report would be lost, and a follower reports only
            # changes: so the error makes it report again.
            raise KafkaError(ErrorCode.unknown_leader_epoch, f"broker {follower} is no replica yet")
        known_id = known_incarnation(replica.row, follower)
        if known_id is not None and held.incarnation != known_id:
            # Either it does not know yet that it must start from an empty log, or we do not. It may not fetch, and what
            # it holds does not count.
            raise KafkaError(ErrorCode.unknown_leader_epoch, f"{held.incarnation} is not the log of {known_id}")
        return replica

    @staticmethod
    def _lies_on(held: FetchPartition, replica: LocalReplica) -> bool:
        if held.end_offset < replica.log.start_offset:
            return False
        return is_prefix(held.end_offset, held.last_epoch, replica.log.epochs.entries, replica.log.end_offset)

    def _answer(self, request: FetchRequest) -> list[PartitionData]:
        answer: list[PartitionData] = []
        room_bytes = request.max_bytes
        for key in list(self._news):
            if room_bytes <= 0:
                break
            del self._news[key]
            followed = self._followed[key]
            if followed.is_answered:
                continue
            try:
                data = self._data_of(followed, min(room_bytes, request.partition_max_bytes), is_first=not answer)
            except KafkaError as error:
                self._fail(key, error)
                continue
            except Exception as bug:
                self._survive(bug, key)
                continue
            if data is not None:
                followed.is_answered = True
                self._stale.pop(key, None)
                answer.append(data)
                room_bytes -= data.records_bytes
        answer.extend(PartitionData(*key, code) for key, code in self._failed.items())
        self._failed.clear()
        return answer

    def _data_of(self, followed: _Followed, max_bytes: int, *, is_first: bool) -> PartitionData | None:
        held = followed.held
        replica = self._leader(held, followed.follower)
        log = replica.log
        entries = log.epochs.entries
        lies_on = self._lies_on(held, replica)
        has_history = held.history_digest == messages.history_digest(entries)
        records: list[Part] = []
        size_bytes = 0
        if lies_on and held.end_offset < log.end_offset:
            throttle = self._throttle_of(replica, followed.follower)
            allowed_bytes = max_bytes if throttle is None else min(max_bytes, throttle.allowed_bytes())
            if allowed_bytes:
                min_one = is_first or throttle is not None
                read = log.read(held.end_offset, allowed_bytes, log.end_offset, min_one=min_one)
                followed.sent = held.end_offset, read.next_offset
                records, size_bytes = read.parts, read.size_bytes
            if throttle is not None:
                throttle.count(size_bytes)
            if size_bytes == 0:
                self._news[(held.topic_id, held.partition)] = None  # no room in this response: it goes into the next
        if lies_on and has_history and not records:
            return None
        followed.note_sent(replica)
        watermarks = replica.coordination.kept.value
        return PartitionData(
            held.topic_id,
            held.partition,
            ErrorCode.none,
            replica.leader_epoch,
            held.incarnation,
            held.end_offset,
            replica.high_watermark,
            log.start_offset,
            log.end_offset,
            None if lies_on and has_history else entries,
            records,
            size_bytes,
            watermarks.generation,
            watermarks.removable,
            watermarks.fence_below,
            watermarks.planned_high_watermark,
        )

    def _throttle_of(self, replica: LocalReplica, follower: int) -> Throttle | None:
        throttled = replica.config.leader_replication_throttled_replicas
        if self._throttle is None or follower in replica.row.isr:
            return None
        return self._throttle if is_throttled(throttled, replica.partition, replica.row.leader) else None

    def _moved_watermarks(self, keys: Sequence[PartitionId]) -> list[PartitionData]:
        """Responses for partitions without new records: what has changed since it was last sent."""
        moved = []
        for key in keys:
            followed = self._followed[key]
            if followed.is_answered:
                continue
            try:
                replica = self._leader(followed.held, followed.follower)
            except KafkaError:
                self._note(key)
                continue
            now, before = _state_to_send(replica), followed.sent_state
            followed.note_sent(replica)
            if before != now:
                followed.is_answered = True
                high_watermark, start_offset, generation, removable, fence_below, planned = now
                moved.append(
                    PartitionData(
                        *key,
                        ErrorCode.none,
                        replica.leader_epoch,
                        followed.held.incarnation,
                        followed.held.end_offset,
                        high_watermark,
                        start_offset,
                        replica.log.end_offset,
                        generation=generation,
                        removable=removable,
                        fence_below=fence_below,
                        planned_high_watermark=planned,
                    )
                )
        return moved

    def _appended(self, key: PartitionId) -> None:
        followed = self._followed.get(key)
        if followed is not None and key not in self._news and not followed.is_answered:
            # Nothing to be sent until now. Without this the follower would seem to lag since its last report, which may
            # have been long ago, and would leave the ISR before it could ask for the new records.
            followed.replica.follower_held_all(followed.follower, self._broker_epoch, self._asked_ms)
        self._note(key)

    def _note(self, key: PartitionId) -> None:
        self._news[key] = None
        self._stop_waiting()

    def _committed(self, key: PartitionId) -> None:
        followed = self._followed.get(key)
        if followed is not None and not followed.is_answered:
            self._stale[key] = None
            self._wait_less()

    def _start_waiting(self, seconds: float) -> asyncio.Future[bool]:
        """Starts the wait at once, before the future is awaited, so that no event in between is missed."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting = loop.create_future()
        timer = loop.call_later(seconds, _resolve, waiting, True)
        waiting.add_done_callback(lambda _: timer.cancel())
        if self._stale:
            self._wait_less()
        return waiting

    def _wait_less(self) -> None:
        if self._waiting is not None and self._hurry is None:
            self._hurry = asyncio.get_running_loop().call_later(HIGH_WATERMARK_DELAY_S, self._stop_waiting)

    def _stop_waiting(self) -> None:
        if self._hurry is not None:
            self._hurry.cancel()
            self._hurry = None
        if self._waiting is not None:
            _resolve(self._waiting, False)
            self._waiting = None


def _resolve(waiting: asyncio.Future[bool], is_over: bool) -> None:
    if not waiting.done():
        waiting.set_result(is_over)


def _state_to_send(replica: LocalReplica) -> tuple[int, int, int, Pair, int, int]:
    """Everything that can change without new records."""
    watermarks = replica.coordination.kept.value
    return (
        replica.high_watermark,
        replica.log.start_offset,
        watermarks.generation,
        watermarks.removable,
        watermarks.fence_below,
        watermarks.planned_high_watermark,
    )
