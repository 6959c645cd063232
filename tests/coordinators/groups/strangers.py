"""Clients that send whatever comes to their minds: any order, any value, now and then something that makes sense."""

from __future__ import annotations

import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from sexton.coordinators.groups.messages import (
    Client,
    CommittedOffset,
    ConsumerHeartbeatAnswer,
    ConsumerHeartbeatRequest,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncRequest,
)
from sexton.coordinators.groups.service import GroupService
from sexton.coordinators.log import EndMarker
from sexton.protocol import embedded
from sexton.protocol.errors import KafkaError
from tests.coordinators.groups.harness import topic_id
from tests.producers import producer_at

T = TypeVar("T")
INT_MAX, LONG_MAX = 2**31 - 1, 2**63 - 1
ODD_STRINGS = ("", "x" * 40_000, "\u20ac" * 12_000, "\U0001f600", "\0", "a b\n", "." * 300, "x" * 32_700)
ODD_BYTES = (b"", b"\x00", b"\xff" * 10, b"\x7f\xff" * 40, bytes(20_000), bytes(500_000), bytes(1_200_000))
REGEXES = ("t.*", ".*", "(", "(a|b)*c", "[a-z]{1,50}", "x" * 5_000, "t[0-9]+", "")
MANY = tuple(f"{number:0100}" for number in range(3_000))
FAR_TOO_MANY = 30_000
TOO_MANY = [CommittedOffset(number, 1) for number in range(FAR_TOO_MANY)]
KNOWN_MEMBERS_MAX = 30
NO_RETENTION_SINCE, LEADER_EPOCH_SINCE = 5, 6
"""Versions of OffsetCommit."""


class Stranger:
    """`groups` are the ones that it meddles with, `topics` those that exist or may."""

    def __init__(self, service: GroupService, rng: random.Random, groups: Sequence[str], topics: Sequence[str]) -> None:
        self.service = service
        self.rng = rng
        self.groups = groups
        self.topics = topics
        self.known: dict[str, list[tuple[str, int]]] = {}
        """What it was told: members with their generation or epoch, by group. Shared with nobody."""
        self.codes: dict[str, int] = {}
        """How often each operation succeeded and was refused."""

    async def act(self) -> None:
        name = self.rng.choices(OPERATIONS, WEIGHTS)[0]
        operation: Callable[[], Awaitable[object]] = getattr(self, f"_{name}")
        try:
            await operation()
            outcome = "done"
        except KafkaError as error:
            outcome = error.code.name
        self.codes[f"{name} {outcome}"] = self.codes.get(f"{name} {outcome}", 0) + 1

    # The classic protocol

    async def _join(self) -> None:
        rng, group = self.rng, self._group()
        member_id, _ = self._member(group)
        answer = await self.service.join(
            JoinRequest(
                group,
                "" if rng.random() < 0.4 else member_id,
                self._instance(),
                self._client(),
                self._often("consumer", "connect", *ODD_STRINGS),
                self._protocols(),
                self._often(rng.choice((6_000, 10_000)), 0, -1, INT_MAX, 1_800_000),
                self._often(rng.choice((1_000, 5_000)), 0, -1, 1, -INT_MAX, 60_000),
                rng.random() < 0.5,
                rng.random() < 0.5,
            )
        )
        self._learn(group, answer)

    async def _sync(self) -> None:
        group = self._group()
        member_id, generation = self._member(group)
        ids = [known for known, _ in self.known.get(group, [])] + [member_id]
        assignments = {one: self._bytes() for one in self._some(ids)}
        request = SyncRequest(
            group, member_id, self._instance(), generation, None, self._often(None, "range"), assignments
        )
        await self.service.sync(request)

    async def _heartbeat(self) -> None:
        group = self._group()
        member_id, generation = self._member(group)
        await self.service.heartbeat(HeartbeatRequest(group, member_id, self._instance(), generation))

    async def _leave(self) -> None:
        group = self._group()
        count = self._often(1, 0, 2, 3_000)
        members = [LeavingMember(self._member(group)[0], self._instance()) for _ in range(min(count, 5))]
        await self.service.leave(group, (members * (count // 5 + 1))[:count])

    # The consumer protocol

    async def _beat(self) -> None:
        rng, group = self.rng, self._group()
        member_id, epoch = self._member(group)
        is_joining = rng.random() < 0.3
        answer = await self.service.consumer_heartbeat(
            ConsumerHeartbeatRequest(
                group,
                self._often(member_id, f"new-{rng.randrange(10)}", *ODD_STRINGS),
                0 if is_joining else self._often(epoch, -1, -2, -3, 0, epoch + 1, epoch - 1, INT_MAX),
                self._client(),
                self._instance(),
                self._often(None, "rack", *ODD_STRINGS),
                self._often(5_000 if is_joining else -1, 1, 0, -1, -5, INT_MAX),
                self._often(self._subscribed() if is_joining else None, None, (), MANY[: rng.randrange(3_000)]),
                self._often(None, *REGEXES),
                self._often(None, "uniform", "range", "nobody", *ODD_STRINGS),
                {} if is_joining and rng.random() < 0.9 else self._owned(),
                rng.random() < 0.7,
            )
        )
        self._learn(group, answer)

    # Offsets

    async def _commit(self) -> None:
        await self.service.commit_offsets(self._commit_request(self._group()))

    async def _commit_in_a_transaction(self) -> None:
        group = self._group()
        owner = producer_at(self.rng.randrange(3_000, 3_010), self._often(0, 1, 2))
        request = self._commit_request(group)
        verification = self.service.begin_verification(group, owner) if self.rng.random() < 0.8 else None
        await self.service.commit_in_transaction(request, owner, verification)

    async def _end_a_transaction(self) -> None:
        owner = producer_at(self.rng.randrange(3_000, 3_010), self._often(0, 1, 2))
        marker = EndMarker(owner, self.rng.random() < 0.5, 1, self._often(0, 2))
        await self.service.end_transaction(self.rng.randrange(6), marker)

    async def _fetch(self) -> None:
        group = self._group()
        member_id, epoch = self._member(group)
        topics = None if self.rng.random() < 0.5 else [(self._topic(), [0, 1, -1, INT_MAX]) for _ in range(2)]
        member = self._often(None, member_id)
        await self.service.fetch_offsets(OffsetFetchRequest(group, member, epoch, topics, self.rng.random() < 0.5))

    async def _delete_offsets(self) -> None:
        await self.service.delete_offsets(self._group(), [(self._topic(), [0, 1, -1]) for _ in range(2)])

    async def _delete_group(self) -> None:
        await self.service.delete_group(self._group())

    async def _look(self) -> None:
        group = self._group()
        await self.service.describe_classic(group)
        await self.service.describe_consumer(group)
        await self.service.list_groups(self._some(["Stable", "x"]), self._some(["classic", "CONSUMER"]))

    def _commit_request(self, group: str) -> OffsetCommitRequest:
        rng = self.rng
        member_id, generation = self._member(group)
        count = rng.choices((1, 3, 20, 1_500, FAR_TOO_MANY), (50, 30, 15, 0.5, 0.2))[0]
        metadata = self._often("", "m", "m" * 4_096, "m" * 4_097, *ODD_STRINGS) if count < 100 else ""
        offset = self._often(rng.randrange(1_000), 0, -1, -5, LONG_MAX)
        first = self._often(0, 0, 5, -1, INT_MAX - 40_000)
        version = rng.choice((2, 5, 8, 9, 10))
        epoch = self._often(-1, 0, INT_MAX) if version >= LEADER_EPOCH_SINCE else -1
        committed = TOO_MANY
        if count < FAR_TOO_MANY:
            committed = [CommittedOffset(first + number, offset, epoch, metadata) for number in range(count)]
        is_member = rng.random() < 0.6
        return OffsetCommitRequest(
            group,
            member_id if is_member else "",
            self._instance(),
            generation if is_member else self._often(-1, 0, INT_MAX),
            [(self._topic(), committed) for _ in range(1 if count > 100 else rng.randint(0, 3))],
            version,
            -1 if version >= NO_RETENTION_SINCE else self._often(-1, 0, 1_000, LONG_MAX),
        )

    # Values

    def _often(self, usual: T, *others: T) -> T:
        return usual if not others or self.rng.random() < 0.95 else self.rng.choice(others)

    def _some(self, values: Sequence[T]) -> list[T]:
        return [value for value in values if self.rng.random() < 0.6]

    def _group(self) -> str:
        return self._often(self.rng.choice(self.groups), *ODD_STRINGS)

    def _topic(self) -> str:
        return self._often(self.rng.choice(self.topics), *ODD_STRINGS)

    def _subscribed(self) -> tuple[str, ...]:
        return tuple(self._some(self.topics))

    def _client(self) -> Client:
        return Client(self._often("app", "", "c" * 32_767, "\U0001f600"), "/10.0.0.1")

    def _instance(self) -> str | None:
        return self._often(None, "i1", "i2", "i3", *ODD_STRINGS) if self.rng.random() < 0.5 else None

    def _member(self, group: str) -> tuple[str, int]:
        known = self.known.get(group)
        if not known:
            return self._often("", "nobody", *ODD_STRINGS), self._often(-1, 0, 1, INT_MAX)
        member_id, generation = self.rng.choice(known)
        return member_id, self._often(generation, generation + 1, generation - 1, -1, 0)

    def _bytes(self) -> bytes:
        return self._often(b"assigned", *ODD_BYTES)

    def _protocols(self) -> tuple[tuple[str, bytes], ...]:
        rng = self.rng
        if rng.random() < 0.05:
            return self._often((), tuple((str(number), b"") for number in range(rng.choice((99, 101, 3_000)))))
        owned = {topic: [0, 1] for topic in self._some(self.topics)}
        told = embedded.Subscription(self._subscribed(), rng.choice((0, 1, 2, 3)), owned)
        metadata = self._often(embedded.write_subscription(told), *ODD_BYTES)
        names = self._often(["range"], ["range", "sticky"], ["sticky"], ["range", "range"], [rng.choice(ODD_STRINGS)])
        return tuple((name, metadata) for name in names)

    def _owned(self) -> dict[uuid.UUID, frozenset[int]] | None:
        if self.rng.random() < 0.6:
            return None
        return {topic_id(name): frozenset(self._some([0, 1, 2, INT_MAX])) for name in self._some(self.topics)}

    def _learn(self, group: str, answer: JoinAnswer | ConsumerHeartbeatAnswer) -> None:
        if not answer.member_id:
            return
        generation = answer.generation if isinstance(answer, JoinAnswer) else answer.member_epoch
        known = self.known.setdefault(group, [])
        known[:] = [one for one in known if one[0] != answer.member_id][-KNOWN_MEMBERS_MAX:]
        known.append((answer.member_id, generation))


_TABLE: dict[str, float] = {
    "join": 20,
    "sync": 10,
    "heartbeat": 10,
    "leave": 4,
    "beat": 25,
    "commit": 12,
    "commit_in_a_transaction": 5,
    "end_a_transaction": 3,
    "fetch": 5,
    "delete_offsets": 2,
    "delete_group": 2,
    "look": 2,
}
OPERATIONS: list[str] = list(_TABLE)
WEIGHTS: list[float] = list(_TABLE.values())
