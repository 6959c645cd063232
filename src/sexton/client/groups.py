"""A member of a consumer group, by the classic protocol (join, sync, heartbeat), with the range assignor.

The member that the coordinator makes the leader assigns partitions for all. It reads only the topics of the others'
subscriptions, with which every version of the format begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sexton.client import apis
from sexton.client.client import Client
from sexton.client.consumer import LATEST, MAX_WAIT_MS, Consumed, Consumer, start_positions
from sexton.client.errors import ConnectionLostError, NotConnectedError, RefusedError, check
from sexton.client.fetching import READ_UNCOMMITTED
from sexton.protocol.embedded import (
    PROTOCOL_TYPE,
    Subscription,
    read_assignment,
    read_topics,
    write_assignment,
    write_subscription,
)
from sexton.protocol.errors import ErrorCode
from sexton.types import TopicPartition

SESSION_TIMEOUT_MS = 10_000
HEARTBEAT_INTERVAL_MS = 3_000
REBALANCE_TIMEOUT_MS = 60_000
JOIN_MARGIN_MS = 10_000
"""How much longer than the rebalance timeout a member waits for its JoinGroup response: it comes when all members have
rejoined, or the timeout has passed."""

ASSIGNOR = "range"

_REJOIN = (
    ErrorCode.rebalance_in_progress,
    ErrorCode.illegal_generation,
    ErrorCode.unknown_member_id,
    ErrorCode.member_id_required,
)


def decode_assignment(data: bytes) -> list[TopicPartition]:
    return [(topic, partition) for topic, partitions in read_assignment(data).items() for partition in partitions]


def assign_ranges(
    subscriptions: Mapping[str, Sequence[str]], partition_counts: Mapping[str, int]
) -> dict[str, dict[str, list[int]]]:
    """Returns for each member one range of partitions of each of its topics; the first members get one more each."""
    assigned: dict[str, dict[str, list[int]]] = {member: {} for member in subscriptions}
    for topic, count in sorted(partition_counts.items()):
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        if not members:
            continue
        share, left_over = divmod(count, len(members))
        start = 0
        for index, member in enumerate(members):
            size = share + (index < left_over)
            if size:
                assigned[member][topic] = list(range(start, start + size))
            start += size
    return assigned


@dataclass(slots=True)
class Membership:
    """As the coordinator last said."""

    member_id: str = ""
    generation: int = -1
    is_joined: bool = False


class GroupMember:
    """What members of both protocols have in common: the positions of what they are assigned."""

    def __init__(
        self, client: Client, group: str, topics: Sequence[str], *, start_at: int, isolation: int, rack: str = ""
    ) -> None:
        """`start_at` (EARLIEST, LATEST or a timestamp) is where partitions without a committed offset begin."""
        self._client = client
        self._group = group
        self._topics = list(topics)
        self._start_at = start_at
        self._isolation = isolation
        self._heart: asyncio.Task[None] | None = None
        self._committed: dict[TopicPartition, int] = {}
        self.consumer = Consumer(client, isolation=isolation, reset_to=start_at if start_at < 0 else LATEST, rack=rack)

    @property
    def assigned(self) -> list[TopicPartition]:
        return sorted(self.consumer.positions)

    def _uncommitted(self) -> dict[TopicPartition, int]:
        """Positions that have moved since they were committed."""
        return {place: at for place, at in self.consumer.positions.items() if self._committed.get(place) != at}

    async def _poll_assigned(self, max_wait_ms: int) -> list[Consumed]:
        if not self.consumer.positions:
            await asyncio.sleep(max_wait_ms / 1000)
            return []
        return await self.consumer.poll(max_wait_ms)


class GroupConsumer(GroupMember):
    """`poll` joins when it must, and returns records of the partitions assigned to this member. Offsets are committed
    by `commit`."""

    def __init__(
        self,
        client: Client,
        group: str,
        topics: Sequence[str],
        *,
        start_at: int = LATEST,
        isolation: int = READ_UNCOMMITTED,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
    ) -> None:
        super().__init__(client, group, topics, start_at=start_at, isolation=isolation)
        self._session_timeout_ms = session_timeout_ms
        self.membership = Membership()
        self._assigned_as = ("", -1)
        """Member id and generation that the positions belong to; a new generation starts with new positions."""

    async def poll(self, max_wait_ms: int = MAX_WAIT_MS) -> list[Consumed]:
        if not self.membership.is_joined:
            with suppress(RefusedError, NotConnectedError, ConnectionLostError):
                await self.commit()  # what was read with the former assignment, if that is still valid
            await self._join()
        return await self._poll_assigned(max_wait_ms)

    async def commit(self) -> None:
        """Commits the positions: everything that `poll` returned."""
        moved = self._uncommitted()
        if not moved:
            return
        assigned_as = member_id, generation = self._assigned_as
        try:
            await commit_offsets(self._client, self._group, commit_body(self._group, moved, generation, member_id))
        except RefusedError as error:
            if error.code in _REJOIN and assigned_as == (self.membership.member_id, self.membership.generation):
                self.membership.is_joined = False
            raise
        if assigned_as == self._assigned_as:
            self._committed |= moved

    async def close(self) -> None:
        """Leaves the group, so that the other members take over at once. Commits nothing."""
        if self._heart is not None:
            self._heart.cancel()
        if self.membership.member_id:
            member = {"member_id": self.membership.member_id, "reason": "the consumer was closed"}
            with suppress(RefusedError, NotConnectedError, ConnectionLostError):
                peer = await self._client.coordinator(self._group)
                await peer.call(apis.LEAVE_GROUP, {"group_id": self._group, "members": [member]})
        self.membership = Membership()

    # Membership

    async def _join(self) -> None:
        while not self.membership.is_joined:
            try:
                joined = await self._client.retry(self._ask_to_join, group=self._group)
                places = await self._client.retry(lambda joined=joined: self._sync(joined), group=self._group)  # type: ignore[misc]
            except RefusedError as error:
                if error.code not in _REJOIN:
                    raise
                if error.code == ErrorCode.unknown_member_id:
                    self.membership.member_id = ""
                continue
            self.membership.is_joined = True
            await self._start_from(places)
        if self._heart is None or self._heart.done():
            self._heart = asyncio.ensure_future(self._beat())

    async def _ask_to_join(self) -> Any:
        peer = await self._client.coordinator(self._group)
        subscription = write_subscription(Subscription(tuple(self._topics)))
        body = {
            "group_id": self._group,
            "session_timeout": self._session_timeout_ms,
            "rebalance_timeout": REBALANCE_TIMEOUT_MS,
            "member_id": self.membership.member_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocols": [{"name": ASSIGNOR, "metadata": subscription}],
        }
        answer = await peer.call(apis.JOIN_GROUP, body, REBALANCE_TIMEOUT_MS + JOIN_MARGIN_MS)
        if answer.error_code in (ErrorCode.none, ErrorCode.member_id_required):
            self.membership.member_id = answer.member_id
        check(answer.error_code, f"group {self._group}")
        self.membership.generation = answer.generation_id
        return answer

    async def _sync(self, joined: Any) -> list[TopicPartition]:
        assignments: list[dict[str, Any]] = []
        if joined.leader == joined.member_id:
            subscriptions = {each.member_id: read_topics(each.metadata) for each in joined.members}
            topics = sorted({topic for topics in subscriptions.values() for topic in topics})
            metadata = await self._client.refresh(topics)
            counts = {name: len(metadata.topics[name].partitions) for name in topics if name in metadata.topics}
            assigned = assign_ranges(subscriptions, counts)
            assignments = [
                {"member_id": member, "assignment": write_assignment(parts, 0)} for member, parts in assigned.items()
            ]
        peer = await self._client.coordinator(self._group)
        body = {
            "group_id": self._group,
            "generation_id": joined.generation_id,
            "member_id": joined.member_id,
            "protocol_type": PROTOCOL_TYPE,
            "protocol_name": ASSIGNOR,
            "assignments": assignments,
        }
        answer = await peer.call(apis.SYNC_GROUP, body, REBALANCE_TIMEOUT_MS + JOIN_MARGIN_MS)
        check(answer.error_code, f"group {self._group}")
        return decode_assignment(bytes(answer.assignment))

    async def _start_from(self, places: Sequence[TopicPartition]) -> None:
        committed = await fetch_offsets(self._client, self._group, places) if places else {}
        missing = [place for place in places if place not in committed]
        fresh = await start_positions(self._client, missing, self._start_at, isolation=self._isolation)
        self._committed = dict(committed)
        self._assigned_as = self.membership.member_id, self.membership.generation
        self.consumer.assign({**committed, **fresh})

    async def _beat(self) -> None:
        """Sends heartbeats while joined. If the group rebalances, or does not know this member, the next `poll` joins
        again."""
        while self.membership.is_joined:
            await asyncio.sleep(HEARTBEAT_INTERVAL_MS / 1000)
            body = {
                "group_id": self._group,
                "generation_id": self.membership.generation,
                "member_id": self.membership.member_id,
            }
            try:
                peer = await self._client.coordinator(self._group)
                answer = await peer.call(apis.HEARTBEAT, body, self._session_timeout_ms)
            except (RefusedError, NotConnectedError, ConnectionLostError):
                self._client.forget(self._group)
                continue
            code = ErrorCode(answer.error_code)
            if code in _REJOIN:
                self.membership.is_joined = False
                if code == ErrorCode.unknown_member_id:
                    self.membership.member_id = ""
            elif code != ErrorCode.none:
                self._client.forget(self._group)


def commit_body(
    group: str, offsets: Mapping[TopicPartition, int], generation: int = -1, member_id: str = "", metadata: str = ""
) -> dict[str, Any]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, partition), offset in offsets.items():
        part = {"partition_index": partition, "committed_offset": offset, "committed_metadata": metadata}
        topics.setdefault(topic, []).append(part)
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "retention_time": -1,
        "topics": [{"name": topic, "partitions": parts} for topic, parts in topics.items()],
    }


async def commit_offsets(client: Client, group: str, body: Mapping[str, Any]) -> None:
    """Commits offsets with a body of `commit_body`: as a member, or as an admin for a group that is empty."""

    async def attempt() -> None:
        peer = await client.coordinator(group)
        answer = await peer.call(apis.OFFSET_COMMIT, body)
        for topic in answer.topics:
            for part in topic.partitions:
                check(part.error_code, f"group {group}, {topic.name}-{part.partition_index}")

    await client.retry(attempt, group=group)


async def fetch_offsets(
    client: Client,
    group: str,
    places: Sequence[TopicPartition] | None = None,
    member: tuple[str | None, int] = (None, -1),
) -> dict[TopicPartition, int]:
    """Returns the committed offsets of the given partitions or of all; those without one are left out. A KIP-848 member
    passes its member id and epoch."""
    found = await fetch_committed(client, group, places, member)
    return {place: offset for place, (offset, _) in found.items()}


async def fetch_committed(
    client: Client,
    group: str,
    places: Sequence[TopicPartition] | None = None,
    member: tuple[str | None, int] = (None, -1),
) -> dict[TopicPartition, tuple[int, str]]:
    """The same with the metadata of each."""
    topics: dict[str, list[int]] = {}
    for topic, partition in places or ():
        topics.setdefault(topic, []).append(partition)
    asked = None if places is None else [{"name": name, "partition_indexes": parts} for name, parts in topics.items()]

    async def attempt() -> dict[TopicPartition, tuple[int, str]]:
        peer = await client.coordinator(group)
        named = {"group_id": group, "member_id": member[0], "member_epoch": member[1], "topics": asked}
        body = {"group_id": group, "topics": asked, "groups": [named], "require_stable": True}
        answer = await peer.call(apis.OFFSET_FETCH_OF_ONE_GROUP, body)
        response = answer.groups[0] if hasattr(answer, "groups") else answer
        check(response.error_code, f"group {group}")
        found: dict[TopicPartition, tuple[int, str]] = {}
        for topic in response.topics:
            for part in topic.partitions:
                check(part.error_code, f"group {group}, {topic.name}-{part.partition_index}")
                if part.committed_offset >= 0:
                    found[(topic.name, part.partition_index)] = (part.committed_offset, part.metadata or "")
        return found

    return await client.retry(attempt, group=group)
