"""One coordinator under an explicit clock, with everything that it wrote: what the tests of this folder stand on."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sexton.coordinators.groups.classic import ClassicGroup
from sexton.coordinators.groups.consumer import ConsumerGroup
from sexton.coordinators.groups.coordinator import GroupCoordinator
from sexton.coordinators.groups.core import Effects
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
    ParkedAnswer,
    SyncAnswer,
    SyncRequest,
)
from sexton.coordinators.groups.records import Partitions, Record, encode
from sexton.coordinators.timers import Now
from sexton.protocol import embedded
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.broker import GroupSettings

CLIENT = Client("app", "/127.0.0.1")
GROUP = "g"
START_MS = 1_700_000_000_000


@dataclass
class FakeTopics:
    counts: dict[str, int] = field(default_factory=dict)
    revision: int = 1
    deletions: Counter[str] = field(default_factory=Counter)

    def set(self, name: str, partitions_count: int) -> None:
        self.counts[name] = partitions_count
        self.revision += 1

    def delete(self, name: str) -> None:
        del self.counts[name]
        self.deletions[name] += 1
        self.revision += 1

    def make_again(self, name: str) -> None:
        count = self.counts[name]
        self.delete(name)
        self.set(name, count)

    def names(self) -> Iterable[str]:
        return list(self.counts)

    def topic_id(self, name: str) -> uuid.UUID | None:
        return topic_id(name, self.deletions[name]) if name in self.counts else None

    def topic_name(self, wanted: uuid.UUID) -> str | None:
        return next((name for name in self.counts if self.topic_id(name) == wanted), None)

    def partitions_count(self, wanted: uuid.UUID) -> int:
        return self.counts.get(self.topic_name(wanted) or "", 0)


def topic_id(name: str, deletions_count: int = 0) -> uuid.UUID:
    """Of the topic that bears the name after it was deleted so many times."""
    return uuid.uuid5(uuid.NAMESPACE_DNS, name + "'" * deletions_count)


def partitions(**topics: Iterable[int]) -> dict[uuid.UUID, frozenset[int]]:
    return {topic_id(name): frozenset(numbers) for name, numbers in topics.items()}


def subscription(*topics: str, version: int = 0, owned: dict[str, list[int]] | None = None) -> bytes:
    return embedded.write_subscription(embedded.Subscription(topics, version, owned or {}))


class Harness:
    def __init__(self, settings: GroupSettings | None = None, **topics: int) -> None:
        self.settings = settings or GroupSettings()
        self.topics = FakeTopics(dict(topics))
        self.rng = random.Random(7)
        self.now_ms = 0
        self.records: list[Record] = []
        self.answers: dict[int, ParkedAnswer] = {}
        self.tokens_count = 0
        self.coordinator = GroupCoordinator(self.settings, self.topics, self.rng)
        self.take(self.coordinator.on_loaded(self.now))

    @property
    def now(self) -> Now:
        return Now(START_MS + self.now_ms, self.now_ms)

    def take(self, effects: Effects) -> None:
        self.records += effects.records
        for token, answer in effects.answers:
            assert token not in self.answers, "nobody is answered twice"
            self.answers[token] = answer
        self.coordinator.check_invariants()

    def advance(self, delay_ms: int) -> None:
        """Time passes, deadline by deadline."""
        end_ms = self.now_ms + delay_ms
        while (deadline_ms := self.coordinator.next_deadline_ms()) is not None and deadline_ms <= end_ms:
            self.now_ms = max(self.now_ms, deadline_ms)
            self.take(self.coordinator.tick(self.now))
        self.now_ms = end_ms

    def fail_over(self) -> None:
        """Another broker loads what this one wrote."""
        self.coordinator = self.replayed()
        self.take(self.coordinator.on_loaded(self.now))

    def replayed(self) -> GroupCoordinator:
        fresh = GroupCoordinator(self.settings, self.topics, self.rng)
        for key, value in map(encode, self.records):
            fresh.replay(key, value)
        fresh.check_invariants()
        return fresh

    # The classic protocol

    def join_parked(
        self,
        member_id: str = "",
        *,
        protocols: tuple[tuple[str, bytes], ...] = (("range", subscription("t")),),
        instance_id: str | None = None,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 60_000,
        requires_member_id: bool = False,
        can_skip_assignment: bool = True,
        protocol_type: str = "consumer",
        group: str = GROUP,
    ) -> int:
        self.tokens_count += 1
        request = JoinRequest(
            group,
            member_id,
            instance_id,
            CLIENT,
            protocol_type,
            protocols,
            session_timeout_ms,
            rebalance_timeout_ms,
            requires_member_id,
            can_skip_assignment,
        )
        self.take(self.coordinator.join(request, self.tokens_count, self.now))
        return self.tokens_count

    def join_answer(self, token: int) -> JoinAnswer | None:
        answer = self.answers.get(token)
        assert answer is None or isinstance(answer, JoinAnswer)
        return answer

    def joined(self, token: int) -> JoinAnswer:
        answer = self.join_answer(token)
        assert answer is not None, "still parked"
        assert answer.error is ErrorCode.none, answer
        return answer

    def sync_parked(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        instance_id: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
        group: str = GROUP,
    ) -> int:
        self.tokens_count += 1
        request = SyncRequest(
            group, member_id, instance_id, generation, protocol_type, protocol_name, assignments or {}
        )
        self.take(self.coordinator.sync(request, self.tokens_count, self.now))
        return self.tokens_count

    def sync_answer(self, token: int) -> SyncAnswer | None:
        answer = self.answers.get(token)
        assert answer is None or isinstance(answer, SyncAnswer)
        return answer

    def synced(self, token: int) -> SyncAnswer:
        answer = self.sync_answer(token)
        assert answer is not None, "still parked"
        return answer

    def stable_group(self, count: int = 2, **options: object) -> list[str]:
        """Members that have joined and synced; the first leads. Each is assigned its own id as bytes."""
        tokens = [self.join_parked(**options) for _ in range(count)]  # type: ignore[arg-type]
        self.advance(self.settings.group_initial_rebalance_delay_ms * (count + 1))
        ids = [self.joined(token).member_id for token in tokens]
        generation = self.joined(tokens[0]).generation
        assert self.joined(tokens[0]).leader == ids[0]
        for member_id in reversed(ids):
            self.sync_parked(member_id, generation, {one: one.encode() for one in ids})
        assert self.classic().state == "Stable"
        return ids

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        request = HeartbeatRequest(GROUP, member_id, instance_id, generation)
        try:
            self.take(self.coordinator.heartbeat(request, self.now))
        except KafkaError as error:
            return error.code
        return ErrorCode.none

    def leave(self, *members: tuple[str, str | None]) -> list[ErrorCode]:
        leaving = [LeavingMember(*member) for member in members]
        answer, effects = self.coordinator.leave(GROUP, leaving, self.now)
        self.take(effects)
        return [member.error for member in answer.members]

    # The consumer protocol

    def beat(
        self,
        member_id: str,
        epoch: int,
        *,
        topics: tuple[str, ...] | None = None,
        owned: Partitions | None = None,
        rebalance_timeout_ms: int = -1,
        instance_id: str | None = None,
        regex: str | None = None,
        server_assignor: str | None = None,
        requires_member_id: bool = True,
        group: str = GROUP,
    ) -> ConsumerHeartbeatAnswer:
        request = ConsumerHeartbeatRequest(
            group,
            member_id,
            epoch,
            CLIENT,
            instance_id,
            None,
            rebalance_timeout_ms,
            topics,
            regex,
            server_assignor,
            owned,
            requires_member_id,
        )
        answer, effects = self.coordinator.consumer_heartbeat(request, self.now)
        self.take(effects)
        return answer

    def enter(self, member_id: str, *topics: str, **options: object) -> ConsumerHeartbeatAnswer:
        options = {"topics": topics, "owned": {}, "rebalance_timeout_ms": 60_000} | options
        return self.beat(member_id, 0, **options)  # type: ignore[arg-type]

    # Offsets

    def commit(
        self,
        offset: int,
        *,
        topic: str = "t",
        partition: int = 0,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        metadata: str = "",
        version: int = 9,
        retention_ms: int = -1,
        leader_epoch: int = -1,
        group: str = GROUP,
    ) -> ErrorCode:
        committed = CommittedOffset(partition, offset, leader_epoch, metadata)
        request = OffsetCommitRequest(
            group, member_id, instance_id, generation, [(topic, [committed])], version, retention_ms
        )
        try:
            results, effects = self.coordinator.commit_offsets(request, self.now)
        except KafkaError as error:
            return error.code
        self.take(effects)
        return results[0][1][0][1]

    # Looking inside

    def classic(self, group: str = GROUP) -> ClassicGroup:
        found = self.coordinator.core.groups[group]
        assert isinstance(found, ClassicGroup)
        return found

    def consumer(self, group: str = GROUP) -> ConsumerGroup:
        found = self.coordinator.core.groups[group]
        assert isinstance(found, ConsumerGroup)
        return found


def refused(code: ErrorCode) -> _Refused:
    """`with refused(code):` the block must raise that KafkaError."""
    return _Refused(code)


class _Refused:
    def __init__(self, code: ErrorCode) -> None:
        self.code = code

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        assert isinstance(error, KafkaError), f"expected {self.code.name}, got {error!r}"
        assert error.code is self.code, f"expected {self.code.name}, got {error}"
        return True
