"""A member of a consumer group by KIP-848: everything about membership happens in one heartbeat.

As in Java's consumer, a heartbeat is sent when its interval has passed, or at once when the member has taken on a new
assignment. It contains everything when the member joins, and again after one that got no response; otherwise only what
has changed: the partitions that it owns. Revoked partitions are given up first, after what was read from them is
committed.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sexton.client import apis
from sexton.client.client import Client
from sexton.client.consumer import LATEST, MAX_WAIT_MS, Consumed, start_positions
from sexton.client.errors import BadAnswerError, ConnectionLostError, NotConnectedError, RefusedError
from sexton.client.fetching import READ_UNCOMMITTED
from sexton.client.groups import GroupMember, commit_body, commit_offsets, fetch_offsets
from sexton.protocol.errors import ErrorCode
from sexton.types import TopicPartition

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
REBALANCE_TIMEOUT_MS = 60_000
FIRST_INTERVAL_MS = 1_000
"""Interval between heartbeats until the coordinator has sent one."""
BACKOFF_MS = 100

_FENCED = (ErrorCode.unknown_member_id, ErrorCode.fenced_member_epoch)
_CallError = (NotConnectedError, ConnectionLostError, BadAnswerError, RefusedError)


class ConsumerMember(GroupMember):
    """`poll` returns records of the partitions assigned to this member. Offsets are committed by `commit`."""

    def __init__(
        self,
        client: Client,
        group: str,
        topics: Sequence[str],
        *,
        start_at: int = LATEST,
        isolation: int = READ_UNCOMMITTED,
        rack: str = "",
    ) -> None:
        super().__init__(client, group, topics, start_at=start_at, isolation=isolation, rack=rack)
        self._rack = rack
        self._member_id = str(uuid.UUID(int=client.rng.getrandbits(128)))
        self._epoch = JOIN_EPOCH
        self._interval_ms = FIRST_INTERVAL_MS
        self._target: frozenset[TopicPartition] = frozenset()
        self._told: frozenset[TopicPartition] | None = None
        """The partitions that the last heartbeat named as owned; None if the next one must contain everything."""
        self._topic_ids: dict[uuid.UUID, str] = {}
        self._wake = asyncio.Event()

    async def poll(self, max_wait_ms: int = MAX_WAIT_MS) -> list[Consumed]:
        if self._heart is None or self._heart.done():
            self._heart = asyncio.ensure_future(self._beat())
        if self._target != self.consumer.positions.keys():
            await self._reconcile()
        return await self._poll_assigned(max_wait_ms)

    async def commit(self) -> None:
        """Commits the positions: everything that `poll` returned."""
        moved = self._uncommitted()
        if moved and self._epoch > JOIN_EPOCH:
            body = commit_body(self._group, moved, self._epoch, self._member_id)
            await commit_offsets(self._client, self._group, body)
            self._committed |= moved

    async def close(self) -> None:
        """Leaves the group, so that the other members take over at once. Commits nothing."""
        if self._heart is not None:
            self._heart.cancel()
        if self._epoch > JOIN_EPOCH:
            body = {"group_id": self._group, "member_id": self._member_id, "member_epoch": LEAVE_EPOCH}
            with suppress(*_CallError):
                peer = await self._client.coordinator(self._group)
                await peer.call(apis.CONSUMER_GROUP_HEARTBEAT, body | _UNSAID)
        self._be_fenced()

    # Reconciling with the assignment

    async def _reconcile(self) -> None:
        """First gives up revoked partitions, then adds new ones: a partition that another member waits for is free as
        soon as the coordinator knows."""
        target = self._target
        if self.consumer.positions.keys() - target:
            with suppress(*_CallError):
                await self.commit()
            self._assign({place: at for place, at in self.consumer.positions.items() if place in target})
            return  # the coordinator is informed before anything is added
        added = sorted(target - self.consumer.positions.keys())
        member = (self._member_id, self._epoch)
        committed = await fetch_offsets(self._client, self._group, added, member) if added else {}
        missing = [place for place in added if place not in committed]
        fresh = await start_positions(self._client, missing, self._start_at, isolation=self._isolation)
        if self._target == target:
            self._committed |= committed
            self._assign({**self.consumer.positions, **committed, **fresh})

    def _assign(self, positions: dict[TopicPartition, int]) -> None:
        self.consumer.assign(positions)
        self._committed = {place: at for place, at in self._committed.items() if place in positions}
        self._wake.set()

    # Heartbeats

    async def _beat(self) -> None:
        while True:
            self._wake.clear()
            wait_ms = BACKOFF_MS
            try:
                peer = await self._client.coordinator(self._group)
                owned = frozenset(self.consumer.positions)
                answer = await peer.call(apis.CONSUMER_GROUP_HEARTBEAT, self._body(owned))
                wait_ms = await self._take(answer, owned)
            except _CallError:
                self._told = None
                self._client.forget(self._group)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wake.wait(), wait_ms / 1000)

    def _body(self, owned: frozenset[TopicPartition]) -> dict[str, Any]:
        body = {"group_id": self._group, "member_id": self._member_id, "member_epoch": self._epoch} | _UNSAID
        if self._told is None:
            body |= {"rebalance_timeout": REBALANCE_TIMEOUT_MS, "subscribed_topic_names": self._topics}
            body |= {"rack_id": self._rack or None}
        if self._told != owned:
            ids = {name: topic_id for topic_id, name in self._topic_ids.items()}
            by_topic: dict[uuid.UUID, list[int]] = {}
            for topic, partition in sorted(owned):
                by_topic.setdefault(ids[topic], []).append(partition)
            body["topic_partitions"] = [{"topic_id": each, "partitions": parts} for each, parts in by_topic.items()]
        return body

    async def _take(self, answer: Any, owned: frozenset[TopicPartition]) -> int:
        """Returns the milliseconds until the next heartbeat."""
        code = ErrorCode(answer.error_code)
        if code in _FENCED:
            self._be_fenced()
            return 0
        if code is not ErrorCode.none:
            self._told = None
            self._client.forget(self._group)
            return BACKOFF_MS
        self._epoch, self._interval_ms, self._told = answer.member_epoch, _ms(answer.heartbeat_interval), owned
        if answer.assignment is not None:
            self._target = await self._named(answer.assignment.topic_partitions)
        return self._interval_ms if frozenset(self.consumer.positions) == owned else 0

    async def _named(self, assigned: Any) -> frozenset[TopicPartition]:
        if any(each.topic_id not in self._topic_ids for each in assigned):
            metadata = await self._client.refresh(self._topics)
            self._topic_ids |= {info.topic_id: name for name, info in metadata.topics.items() if info.topic_id}
        known = [(self._topic_ids.get(each.topic_id), each.partitions) for each in assigned]
        return frozenset((name, number) for name, numbers in known if name is not None for number in numbers)

    def _be_fenced(self) -> None:
        """Other members may have this member's partitions: it gives them up at once, and with them what was read and
        not committed."""
        self._epoch, self._target, self._told = JOIN_EPOCH, frozenset(), None
        self._committed = {}
        self.consumer.assign({})


_UNSAID: dict[str, Any] = {
    "instance_id": None,
    "rack_id": None,
    "rebalance_timeout": -1,
    "subscribed_topic_names": None,
    "subscribed_topic_regex": None,
    "server_assignor": None,
    "topic_partitions": None,
}
"""Fields of a heartbeat that mean "unchanged"."""


def _ms(interval: Any) -> int:
    return int(interval.total_seconds() * 1000) if hasattr(interval, "total_seconds") else int(interval)
