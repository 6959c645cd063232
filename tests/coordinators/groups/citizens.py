"""Clients that do nothing wrong, each with a group of its own, and notice at once if they are told what the protocol
does not have for them. Nobody else touches their groups; others share their partitions of `__consumer_offsets`."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Iterable

from sexton.coordinators.groups.messages import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    CommittedOffset,
    ConsumerHeartbeatAnswer,
    ConsumerHeartbeatRequest,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeavingMember,
    OffsetCommitRequest,
    OffsetFetchRequest,
    SyncAnswer,
    SyncRequest,
)
from sexton.coordinators.groups.service import GroupService
from sexton.coordinators.log import EndMarker
from sexton.protocol import embedded
from sexton.protocol.errors import ErrorCode, KafkaError
from tests.coordinators.groups.harness import CLIENT, topic_id
from tests.producers import producer_at

TOPIC = "citizens"
NUMBERS = range(4)
HEARTBEAT_S = 3.0
PATIENCE_S = 120.0
"""A rebalance of two members that both answer takes seconds."""


class Citizen:
    """What they have in common: the offsets that the group has committed, which must be there when asked for."""

    def __init__(self, service: GroupService, rng: random.Random, group: str) -> None:
        self.service = service
        self.rng = rng
        self.group = group
        self.committed: dict[int, int] = {}
        self.rounds_count = 0
        self.rebalances_count = 0

    async def live(self) -> None:
        raise NotImplementedError

    async def commit(self, number: int, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        offset = self.committed.get(number, 0) + self.rng.randint(1, 9)
        request = OffsetCommitRequest(
            self.group, member_id, instance_id, generation, [(TOPIC, [CommittedOffset(number, offset)])], 9
        )
        results = await self.service.commit_offsets(request)
        ((_, ((_, code),)),) = results
        if code is ErrorCode.none:
            self.committed[number] = offset
        return code

    async def check_offsets(self, numbers: Iterable[int], require_stable: bool = False) -> None:
        """Of partitions that nobody else of the group commits for meanwhile."""
        request = OffsetFetchRequest(self.group, topics=[(TOPIC, sorted(numbers))], require_stable=require_stable)
        ((_, fetched),) = await self.service.fetch_offsets(request)
        for one in fetched:
            assert one.error is ErrorCode.none, self.group
            assert one.offset == self.committed.get(one.partition, -1), f"{self.group}-{one.partition}"


class ClassicCitizen(Citizen):
    """Two members that take turns in going away and coming back, static ones without saying so."""

    def __init__(self, service: GroupService, rng: random.Random, group: str, is_static: bool) -> None:
        super().__init__(service, rng, group)
        self.is_static = is_static
        self.reading: dict[int, frozenset[int]] = {}

    async def live(self) -> None:
        await asyncio.gather(self._member(0), self._member(1))

    async def _member(self, number: int) -> None:
        instance_id = f"instance-{number}" if self.is_static else None
        member_id = ""
        while True:
            async with asyncio.timeout(PATIENCE_S):
                joined, mine = await self._assigned(member_id, instance_id)
            member_id = joined.member_id
            self.reading[number] = mine
            self.rebalances_count += 1
            assert not mine & self.reading.get(1 - number, frozenset()), f"{self.group}: two readers"
            if await self._read_until_told(joined, instance_id, mine):
                self.reading[number] = frozenset()
                continue
            self.reading[number] = frozenset()
            if self.is_static:
                member_id = ""  # a new process with the same name
            else:
                answer = await self.service.leave(self.group, [LeavingMember(member_id, None)])
                assert [one.error for one in answer.members] == [ErrorCode.none], self.group
                member_id = ""

    async def _assigned(self, member_id: str, instance_id: str | None) -> tuple[JoinAnswer, frozenset[int]]:
        while True:
            joined = await self._join(member_id, instance_id)
            if joined.error is ErrorCode.member_id_required:
                assert not member_id
                assert instance_id is None
                member_id = joined.member_id
                continue
            if joined.error is ErrorCode.rebalance_in_progress:
                continue
            assert joined.error is ErrorCode.none, f"{self.group}: {joined}"
            member_id = joined.member_id
            synced = await self._sync(joined, instance_id)
            if synced.error is ErrorCode.rebalance_in_progress:
                continue
            assert synced.error is ErrorCode.none, f"{self.group}: {synced}"
            return joined, frozenset(embedded.read_assignment(synced.assignment).get(TOPIC, ()))

    async def _join(self, member_id: str, instance_id: str | None) -> JoinAnswer:
        protocols = (("range", embedded.write_subscription(embedded.Subscription((TOPIC,)))),)
        return await self.service.join(
            JoinRequest(self.group, member_id, instance_id, CLIENT, "consumer", protocols, 30_000, 60_000)
        )

    async def _sync(self, joined: JoinAnswer, instance_id: str | None) -> SyncAnswer:
        ids = [member.member_id for member in joined.members] if not joined.skip_assignment else []
        assignments = {
            one: embedded.write_assignment({TOPIC: [number for number in NUMBERS if number % len(ids) == place]}, 0)
            for place, one in enumerate(ids)
        }
        return await self.service.sync(
            SyncRequest(self.group, joined.member_id, instance_id, joined.generation, None, None, assignments)
        )

    async def _read_until_told(self, joined: JoinAnswer, instance_id: str | None, mine: frozenset[int]) -> bool:
        """True: there is a rebalance. False: it has read enough."""
        for _ in range(self.rng.randint(5, 60)):
            await asyncio.sleep(HEARTBEAT_S)
            self.rounds_count += 1
            try:
                request = HeartbeatRequest(self.group, joined.member_id, instance_id, joined.generation)
                await self.service.heartbeat(request)
                if mine:
                    number = self.rng.choice(sorted(mine))
                    assert await self.commit(number, joined.member_id, joined.generation, instance_id) is ErrorCode.none
            except KafkaError as error:
                if error.code is not ErrorCode.rebalance_in_progress:
                    raise
                return True
        await self.check_offsets(mine)
        return False


class ConsumerCitizen(Citizen):
    """Two members that speak KIP-848 and say what they own only when it has changed, as Java's."""

    def __init__(self, service: GroupService, rng: random.Random, group: str) -> None:
        super().__init__(service, rng, group)
        self.reading: dict[int, frozenset[int]] = {}

    async def live(self) -> None:
        await asyncio.gather(self._member(0), self._member(1))

    async def _member(self, number: int) -> None:
        lives_count = 0
        while True:
            lives_count += 1
            member_id = f"{number}-{lives_count}"
            answer = await self._beat(member_id, JOIN_EPOCH, is_full=True, owned={})
            told, says = self._take(number, answer)
            for _ in range(self.rng.randint(5, 60)):
                await asyncio.sleep(HEARTBEAT_S)
                self.rounds_count += 1
                answer = await self._beat(member_id, answer.member_epoch, owned=told if says else None)
                told, says = self._take(number, answer, told)
                if self.reading[number]:
                    one = self.rng.choice(sorted(self.reading[number]))
                    assert await self.commit(one, member_id, answer.member_epoch) is ErrorCode.none
            await self.check_offsets(self.reading[number])
            self.reading[number] = frozenset()
            await self._beat(member_id, LEAVE_EPOCH)
            await asyncio.sleep(self.rng.random() * 20)

    async def _beat(
        self,
        member_id: str,
        epoch: int,
        *,
        is_full: bool = False,
        owned: dict[uuid.UUID, frozenset[int]] | None = None,
    ) -> ConsumerHeartbeatAnswer:
        request = ConsumerHeartbeatRequest(
            self.group,
            member_id,
            epoch,
            CLIENT,
            rebalance_timeout_ms=60_000 if is_full else -1,
            topics=(TOPIC,) if is_full else None,
            owned=owned,
        )
        return await self.service.consumer_heartbeat(request)

    def _take(
        self, number: int, answer: ConsumerHeartbeatAnswer, before: dict[uuid.UUID, frozenset[int]] | None = None
    ) -> tuple[dict[uuid.UUID, frozenset[int]], bool]:
        """What it has from now on, and whether its next heartbeat says so."""
        if answer.assignment is None:
            return before or {}, False
        told = dict(answer.assignment)
        self.reading[number] = told.get(topic_id(TOPIC), frozenset())
        assert not self.reading[number] & self.reading.get(1 - number, frozenset()), f"{self.group}: two readers"
        self.rebalances_count += 1
        return told, told != before


class TransactionalCitizen(Citizen):
    """Commits what it read in transactions, and some of them abort."""

    def __init__(self, service: GroupService, rng: random.Random, group: str, producer_id: int) -> None:
        super().__init__(service, rng, group)
        self.producer_id = producer_id

    async def live(self) -> None:
        epoch = 0
        while True:
            self.rounds_count += 1
            owner = producer_at(self.producer_id, epoch)
            verification = self.service.begin_verification(self.group, owner)
            await asyncio.sleep(self.rng.random())
            offsets = {number: self.committed.get(number, 0) + self.rng.randint(1, 9) for number in NUMBERS[:2]}
            committed = [CommittedOffset(number, offset) for number, offset in offsets.items()]
            request = OffsetCommitRequest(self.group, "", None, -1, [(TOPIC, committed)], 5)
            await self.service.commit_in_transaction(request, owner, verification)
            await self.check_offsets(NUMBERS)
            await asyncio.sleep(self.rng.random())
            is_commit = self.rng.random() < 0.7
            partition = self.service.partition_of(self.group)
            await self.service.end_transaction(partition, EndMarker(owner, is_commit, 1))
            if is_commit:
                self.committed.update(offsets)
            await self.check_offsets(NUMBERS, require_stable=True)
            epoch = (epoch + self.rng.randrange(2)) % 1_000
            await asyncio.sleep(self.rng.random() * 3)
