"""A consumer that keeps fetch sessions (KIP-227), as Kafka's own clients do: it names only what has changed, and is
told only what is new. A broker that forgets to tell it of something holds it up for ever, or makes it skip records.

A session belongs to a broker and outlives a connection. What became of a request whose answer was lost is not known:
the next one begins anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sexton.client import apis
from sexton.client.client import Peer
from sexton.client.consumer import FETCH_MARGIN_MS, Consumer, fetch_body
from sexton.protocol.errors import ErrorCode
from sexton.types import INT32_MAX, TopicPartition

NO_SESSION = 0
INITIAL_EPOCH = 0

NOTHING = SimpleNamespace(error_code=ErrorCode.none, responses=())


@dataclass(slots=True)
class Session:
    """A fetch session with one broker, as far as the client knows."""

    id: int = NO_SESSION
    epoch: int = INITIAL_EPOCH
    told: dict[TopicPartition, int] = field(default_factory=dict)
    """Where the broker believes this consumer to be."""

    def changes(self, asked: Mapping[TopicPartition, int]) -> tuple[dict[TopicPartition, int], list[TopicPartition]]:
        """What must be named, and what is not wanted any more."""
        if self.epoch == INITIAL_EPOCH:
            return dict(asked), []
        changed = {place: offset for place, offset in asked.items() if self.told.get(place) != offset}
        return changed, [place for place in self.told if place not in asked]

    def begin_anew(self) -> None:
        """The next request asks for everything; it names the session, so that the broker can forget it."""
        self.epoch = INITIAL_EPOCH

    def answered(self, asked: Mapping[TopicPartition, int], session_id: int) -> None:
        if self.epoch == INITIAL_EPOCH:
            self.id = session_id
        self.told = dict(asked)
        if self.id != NO_SESSION:
            self.epoch = 1 if self.epoch == INT32_MAX else self.epoch + 1


class SessionConsumer(Consumer):
    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.sessions: dict[str, Session] = {}
        """Sessions, by the broker's address."""

    async def _fetch(self, peer: Peer, asked: Mapping[TopicPartition, int], max_wait_ms: int) -> Any:
        session = self.sessions.setdefault(peer.rpc.peer, Session())
        changed, forgotten = session.changes(asked)
        body = fetch_body(changed, self._isolation, max_wait_ms) | {
            "rack_id": self._rack,
            "session_id": session.id,
            "session_epoch": session.epoch,
            "forgotten_topics_data": _by_topic(forgotten),
        }
        try:
            answer = await peer.call(apis.FETCH, body, max_wait_ms + FETCH_MARGIN_MS)
        except BaseException:
            session.begin_anew()
            raise
        if answer.error_code in (ErrorCode.fetch_session_id_not_found, ErrorCode.invalid_fetch_session_epoch):
            self.sessions[peer.rpc.peer] = Session()
            return NOTHING
        session.answered(asked, int(answer.session_id))
        return answer


def _by_topic(places: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in places:
        topics.setdefault(topic, []).append(partition)
    return [{"topic": topic, "partitions": partitions} for topic, partitions in topics.items()]
