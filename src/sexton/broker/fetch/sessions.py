"""Fetch sessions (KIP-227): what consumers fetch, remembered between their requests.

A session holds every partition that a consumer fetches and its fetch offset, so that a request names only what changed
and a response only what is new. It also watches these partitions: an append adds a partition to the session's `news`,
and a fetch reads those alone. A consumer of a thousand quiet partitions costs next to nothing.

A request without a session (old clients, or no room in the cache) gets one that lasts as long as the request.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sexton.ports.clock import Clock
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import INT32_MAX, NO_EPOCH

if TYPE_CHECKING:
    from sexton.replication.replica import Replica

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0

EVICTION_MS = 120_000
"""A session that was used within this time is not evicted; Kafka's min.incremental.fetch.session.eviction.ms."""


Topic = str | uuid.UUID | None
Key = tuple[Topic, int]


class Wanted:
    """One partition of a session."""

    __slots__ = (
        "cancel_watch",
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "max_bytes",
        "partition",
        "replica",
        "sent_high_watermark",
        "sent_start_offset",
        "topic",
    )

    def __init__(self, topic: Topic, partition: int) -> None:
        self.topic = topic
        """Topic name or id, as in the client's request."""
        self.partition = partition
        self.fetch_offset = 0
        self.max_bytes = 0
        self.current_leader_epoch = NO_EPOCH
        self.last_fetched_epoch = NO_EPOCH
        self.sent_high_watermark = -1
        self.sent_start_offset = -1
        self.replica: Replica | None = None
        self.cancel_watch: Callable[[], None] | None = None

    def take(self, asked: Any, version: int) -> None:
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch if version >= 9 else NO_EPOCH
        self.last_fetched_epoch = asked.last_fetched_epoch if version >= 12 else NO_EPOCH

    def unwatch(self) -> None:
        if self.cancel_watch is not None:
            self.cancel_watch()
            self.cancel_watch = None
        self.replica = None


class Poll(Protocol):
    """A Fetch request that waits for records in its session's partitions."""

    def wake(self) -> None: ...

    def finish(self) -> None:
        """Sends the response with what there is, because the session's next request has arrived."""
        ...


class FetchSession:
    def __init__(self, uses_topic_ids: bool) -> None:
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self.uses_topic_ids = uses_topic_ids
        self.wanted: dict[Key, Wanted] = {}
        self.news: dict[Wanted, None] = {}
        """Partitions that a fetch must read, in that order: those that were served go to the end."""
        self.poll: Poll | None = None
        self.created_ms = 0
        self.used_ms = 0

    def update(self, topics: Iterable[Any], forgotten: Iterable[Any], version: int) -> None:
        for topic in topics:
            name: Topic = topic.topic_id if version >= 13 else topic.topic
            for asked in topic.partitions:
                key = name, asked.partition
                wanted = self.wanted.get(key)
                if wanted is None:
                    wanted = self.wanted[key] = Wanted(name, asked.partition)
                wanted.take(asked, version)
                self.news[wanted] = None
        for topic in forgotten:
            name = topic.topic_id if version >= 13 else topic.topic
            for partition in topic.partitions:
                gone = self.wanted.pop((name, partition), None)
                if gone is not None:
                    gone.unwatch()
                    self.news.pop(gone, None)

    def watch(self, wanted: Wanted, replica: Replica) -> None:
        if wanted.replica is not replica:
            wanted.unwatch()
            wanted.replica = replica
            wanted.cancel_watch = replica.watch(partial(self.note, wanted))

    def note(self, wanted: Wanted) -> None:
        """Called when there are more records to read, or the leader has changed."""
        self.news[wanted] = None
        if self.poll is not None:
            self.poll.wake()

    def served(self, wanted: Wanted) -> None:
        """Moves a partition that was served to the end, so that the others come first next time."""
        self.news.pop(wanted, None)
        self.news[wanted] = None

    def close(self) -> None:
        for wanted in self.wanted.values():
            wanted.unwatch()
        self.news.clear()
        poll, self.poll = self.poll, None
        if poll is not None:
            poll.finish()


class FetchSessions:
    """The cache: at most `slots_count` sessions. A new one evicts the least recently used one, if that was last used
    more than EVICTION_MS ago; otherwise the consumer gets no session. Kafka also evicts small sessions for large
    ones."""

    def __init__(self, slots_count: int, rng: random.Random, clock: Clock) -> None:
        self._slots_count = slots_count
        self._rng = rng
        self._clock = clock
        self._sessions: dict[int, FetchSession] = {}
        """Sessions by id, in the order of their last use."""

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, body: Any, version: int) -> tuple[FetchSession, bool]:
        """Returns (session, whether the response must include every partition). Raises KafkaError if the session is not
        as the client believes; the client then starts a new one."""
        uses_topic_ids = version >= 13
        if version < 7 or body.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            if version >= 7 and body.session_id != NO_SESSION:
                self._remove(body.session_id)
            session = FetchSession(uses_topic_ids)
            session.update(body.topics, (), version)
            if version >= 7 and body.session_epoch == INITIAL_EPOCH and session.wanted:
                self._keep(session)
            return session, True
        return self._go_on(body, version, uses_topic_ids), False

    def _go_on(self, body: Any, version: int, uses_topic_ids: bool) -> FetchSession:
        session = self._sessions.get(body.session_id)
        if session is None:
            raise KafkaError(ErrorCode.fetch_session_id_not_found)
        if session.epoch != body.session_epoch:
            raise KafkaError(ErrorCode.invalid_fetch_session_epoch)
        if session.uses_topic_ids != uses_topic_ids:
            raise KafkaError(ErrorCode.fetch_session_topic_id_error)
        if session.poll is not None:
            session.poll.finish()
        session.update(body.topics, body.forgotten_topics_data, version)
        session.epoch = 1 if session.epoch == INT32_MAX else session.epoch + 1
        session.used_ms = self._clock.monotonic_ms()
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        if not session.wanted:
            del self._sessions[session.session_id]
            session.session_id = NO_SESSION
        return session

    def _keep(self, session: FetchSession) -> None:
        now_ms = self._clock.monotonic_ms()
        if len(self._sessions) >= self._slots_count:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.used_ms <= EVICTION_MS:
                return
            self._remove(oldest.session_id)
        while session.session_id == NO_SESSION or session.session_id in self._sessions:
            session.session_id = self._rng.randint(1, INT32_MAX)
        session.epoch = INITIAL_EPOCH + 1
        session.used_ms = session.created_ms = now_ms
        self._sessions[session.session_id] = session

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.session_id = NO_SESSION
            session.close()
