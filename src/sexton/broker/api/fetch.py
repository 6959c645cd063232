"""Fetch, versions 4 to 18: records for consumers.

A response is sent as soon as `min_bytes` have been found, something must be reported (an error, a preferred read
replica, a log that was truncated), or `max_wait` has passed; appends wake a waiting fetch, nothing polls. Sessions are
those of KIP-227. From version 11 on a follower in the ISR serves consumers too, and the leader names one in the
consumer's own rack if `replica.selector.class` says so (KIP-392). NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH come
with the current leader (KIP-951).

Deviations from Kafka: a request that claims to come from a replica is served like a consumer's, up to the high
watermark: our brokers replicate by a message of their own. The partitions that come first may use up `max_bytes`; one
that gets nothing is not read, and comes first next time if there is a session. The response is encoded by hand: this is
the hot path.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from sexton.broker.fetch.answer import FetchEncoder, Found, Topics
from sexton.broker.fetch.sessions import NO_SESSION, FetchSession, Wanted
from sexton.broker.leader_hints import leader_hint
from sexton.broker.network.request import Encoded, Request, Response, milliseconds
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.codecs import Codec

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.replication.replica import Replica

API_KEY = 1
VERSIONS = (4, 18)

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 0.002
"""A fetch that waits for many bytes reads again at most this often, not at every append."""

_READ_COMMITTED = 1
_ZSTD_SINCE = 10
_FOLLOWERS_SERVE_SINCE = 11


def handle(broker: Broker, request: Request) -> Response | Awaitable[Response]:
    body, version = request.body, request.version
    sessions = broker.fetch_sessions
    try:
        session, tells_all = sessions.open(body, version)
    except KafkaError as error:
        return FetchEncoder(broker, version, request.correlation_id).encode(error.code, NO_SESSION, {})
    return _Poll(broker, request, session, tells_all).start()


class _Poll:
    """One Fetch request from its arrival to its response. Implements `sessions.Poll`."""

    def __init__(self, broker: Broker, request: Request, session: FetchSession, tells_all: bool) -> None:
        body = request.body
        self._broker = broker
        self._version = request.version
        self._correlation_id = request.correlation_id
        self._session = session
        self._tells_all = tells_all
        self._min_bytes = body.min_bytes
        self._max_bytes = min(max(body.max_bytes, 0), broker.config.fetch_max_bytes)
        self._max_wait_ms = milliseconds(body.max_wait)
        self._committed_only = body.isolation_level == _READ_COMMITTED
        self._rack = body.rack_id if self._version >= _FOLLOWERS_SERVE_SINCE else ""
        self._found: dict[Wanted, Found] = {}
        self._size_bytes = 0
        self._is_urgent = False
        self._is_woken = False
        self._future: asyncio.Future[Response]
        self._timer: asyncio.TimerHandle

    def start(self) -> Encoded | asyncio.Future[Response]:
        self._look()
        if self._is_enough() or self._max_wait_ms <= 0 or not self._session.wanted:
            answer = self._answer()
            self._let_go()
            return answer
        loop = asyncio.get_running_loop()
        self._session.poll = self
        self._future = loop.create_future()
        self._future.add_done_callback(self._ended)
        self._timer = loop.call_later(self._max_wait_ms / 1000, self.finish)
        return self._future

    # Waiting

    def wake(self) -> None:
        if self._is_woken:
            return
        self._is_woken = True
        loop = asyncio.get_running_loop()
        if self._min_bytes > 1:
            loop.call_later(LOOK_AGAIN_S, self._look_again)
        else:
            loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._is_woken = False
        if self._future.done():
            return
        try:
            self._look()
            if self._is_enough():
                self._future.set_result(self._answer())
        except Exception as error:
            self._future.set_exception(error)

    def finish(self) -> None:
        if not self._future.done():
            self._future.set_result(self._answer())

    def _ended(self, _: asyncio.Future[Response]) -> None:
        """Called when the request was answered, or its connection is gone."""
        self._timer.cancel()
        if self._session.poll is self:
            self._session.poll = None
        self._let_go()

    def _let_go(self) -> None:
        """Closes a session that is not kept: it lasts only as long as its request."""
        if self._session.session_id == NO_SESSION:
            self._session.close()

    # Reading

    def _is_enough(self) -> bool:
        return self._is_urgent or self._size_bytes >= self._min_bytes

    def _look(self) -> None:
        """Reads every partition in `session.news`. One that was read to its end is removed from it; one whose next
        batch did not fit into this response stays."""
        session = self._session
        size_bytes = 0
        for wanted in list(session.news):
            left_bytes = self._max_bytes - size_bytes
            found = self._look_at(wanted, left_bytes, is_first=size_bytes == 0)
            self._found[wanted] = found
            size_bytes += found.size_bytes
            if found.is_urgent:
                self._is_urgent = True
            elif wanted.fetch_offset >= self._end_of(found):
                del session.news[wanted]
        self._size_bytes = size_bytes

    def _end_of(self, found: Found) -> int:
        return found.last_stable_offset if self._committed_only else found.high_watermark

    def _look_at(self, wanted: Wanted, left_bytes: int, *, is_first: bool) -> Found:
        name: str | None = None
        try:
            name, replica = self._replica(wanted)
            self._session.watch(wanted, replica)
            if self._version < _ZSTD_SINCE and replica.log.rules.codec == Codec.ZSTD:
                raise KafkaError(ErrorCode.unsupported_compression_type)  # as in Kafka: by the topic's codec alone
            replica.check_epoch(wanted.current_leader_epoch)
            found = Found()
            if wanted.last_fetched_epoch >= 0 and self._diverges(wanted, replica, found):
                pass
            elif self._rack and (near := self._near_replica(replica, wanted.fetch_offset)) is not None:
                found.preferred_replica = near
            elif left_bytes > 0 or is_first:
                self._read(wanted, replica, found, left_bytes, is_first)
            found.high_watermark = replica.high_watermark
            found.last_stable_offset = replica.last_stable_offset
            found.start_offset = replica.log.start_offset
            return found
        except KafkaError as error:
            found = Found(error.code)
            if name is not None:
                found.hint = leader_hint(self._broker, name, wanted.partition, error.code)
            return found
        except OSError as error:
            logger.error("%s-%d: cannot read: %s. Check the disk", name, wanted.partition, error)
            return Found(ErrorCode.kafka_storage_error)

    def _replica(self, wanted: Wanted) -> tuple[str, Replica]:
        topic = wanted.topic
        name: str
        if isinstance(topic, str):
            name = topic
        else:
            row = self._broker.view.topic_by_id(topic) if isinstance(topic, uuid.UUID) else None
            if row is None:
                raise KafkaError(ErrorCode.unknown_topic_id)
            name = row.name
        replicas = self._broker.replicas
        if self._version < _FOLLOWERS_SERVE_SINCE:
            return name, replicas.leader(name, wanted.partition)
        return name, replicas.local(name, wanted.partition)

    def _read(self, wanted: Wanted, replica: Replica, found: Found, left_bytes: int, is_first: bool) -> None:
        max_bytes = min(wanted.max_bytes, left_bytes)
        read = replica.read(
            wanted.fetch_offset, max(max_bytes, 0), committed_only=self._committed_only, min_one=is_first
        )
        found.parts = read.parts
        found.size_bytes = read.size_bytes
        if self._committed_only:  # nothing awaits in between: records and aborted transactions are of one moment
            found.aborted = replica.log.aborted_transactions(wanted.fetch_offset, read.next_offset)

    @staticmethod
    def _diverges(wanted: Wanted, replica: Replica, found: Found) -> bool:
        """Whether the consumer has read records that this log does not have: it must truncate its position."""
        end = replica.log.epochs.end_offset_of(wanted.last_fetched_epoch, replica.log.end_offset)
        if end is None:
            raise KafkaError(ErrorCode.offset_out_of_range)
        epoch, end_offset = end
        if epoch < wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
            found.diverging = end
            return True
        return False

    def _near_replica(self, replica: Replica, offset: int) -> int | None:
        """An in-sync replica in the consumer's rack, unless the leader itself is there. The replica must have the
        offset: a consumer that it refuses comes back to the leader, and would be sent there again for ever."""
        broker = self._broker
        if not replica.is_leader or not broker.config.reads_from_near_replicas:
            return None
        here = broker.view.broker(replica.row.leader)
        if here is not None and here.rack == self._rack:
            return None
        for broker_id in replica.row.isr:
            row = broker.view.broker(broker_id)
            is_near = row is not None and row.rack == self._rack and row.is_live
            if is_near and replica.is_held_by(broker_id, offset):
                return broker_id
        return None

    # Responding

    def _answer(self) -> Encoded:
        session = self._session
        topics: Topics = {}
        for wanted, found in self._found.items():
            if self._tells_all or _is_worth_telling(wanted, found):
                topics.setdefault(wanted.topic, []).append((wanted, found))
                # An error is repeated in the next response, whatever the watermarks are then.
                wanted.sent_high_watermark = -1 if found.code else found.high_watermark
                wanted.sent_start_offset = found.start_offset
            if found.size_bytes:
                session.served(wanted)
        return FetchEncoder(self._broker, self._version, self._correlation_id).encode(0, session.session_id, topics)


def _is_worth_telling(wanted: Wanted, found: Found) -> bool:
    return (
        found.size_bytes > 0
        or found.is_urgent
        or found.high_watermark != wanted.sent_high_watermark
        or found.start_offset != wanted.sent_start_offset
    )
