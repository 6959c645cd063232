"""The group coordinator of one broker: a thin asyncio shell around one pure coordinator for each partition of
`__consumer_offsets` that this broker leads.

How the broker uses it:

    groups = GroupService(clock, rng, config, ViewTopics(view), partitions_count, own_config_of)
    groups.load(partition, log)     when it has become the leader of that partition (a new epoch is a new call)
    groups.unload(partition)        when it no longer is
    await groups.close()

`log` is a `TransactionalLog` (`coordinators/shard.py`): append and read of the leader's replica. Every other method is
one request of the protocol. Each raises KafkaError: NOT_COORDINATOR if another broker coordinates the group,
COORDINATOR_LOAD_IN_PROGRESS while its log is being read, COORDINATOR_NOT_AVAILABLE if the change could not be
committed.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

from sexton.coordinators.groups.coordinator import GroupCoordinator
from sexton.coordinators.groups.core import Effects
from sexton.coordinators.groups.messages import (
    JOIN_EPOCH,
    ConsumerHeartbeatAnswer,
    ConsumerHeartbeatRequest,
    DescribedClassicGroup,
    DescribedConsumerGroup,
    FetchedOffset,
    HeartbeatRequest,
    JoinAnswer,
    JoinRequest,
    LeaveAnswer,
    LeavingMember,
    ListedGroup,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetResults,
    SyncAnswer,
    SyncRequest,
)
from sexton.coordinators.groups.shard import Shard, TransactionalLog, Verification, up_to_date
from sexton.coordinators.groups.topics import Topics
from sexton.coordinators.service import CoordinatorService
from sexton.coordinators.shard import EndMarker
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.ports.clock import Clock
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.broker import GroupSettings
from sexton.settings.group import GroupConfig
from sexton.supervision import Supervisor
from sexton.types import ProducerIdAndEpoch

T = TypeVar("T")
logger = logging.getLogger(__name__)

NOTHING = Effects()
"""Effects of a read: none."""


class GroupService(CoordinatorService[Shard]):
    topic = OFFSETS_TOPIC
    invalid_name = ErrorCode.invalid_group_id

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        settings: GroupSettings,
        topics: Topics,
        partitions_count: Callable[[], int],
        own_config_of: Callable[[str], GroupConfig | None] = lambda group: None,
        may_serve: Callable[[], bool] = lambda: True,
        supervisor: Supervisor | None = None,
        catch_up: Callable[[], Awaitable[None]] = up_to_date,
        is_elected: Callable[[str, int], bool] = lambda topic, partition: False,
    ) -> None:
        """`own_config_of` returns the configs of one group. `catch_up` returns when `topics` shows every change
        that was made before the call."""
        super().__init__(clock, partitions_count, may_serve, supervisor, is_elected)
        self.settings = settings
        self._rng = rng
        self._topics = topics
        self._own_config_of = own_config_of
        self._catch_up = catch_up

    def reconfigure(self, settings: GroupSettings) -> None:
        self.settings = settings
        for shard in self._shards.values():
            shard.coordinator.reconfigure(settings)

    def load(self, partition: int, log: TransactionalLog) -> asyncio.Task[None]:
        return self._load_into(self._new_shard(partition, log))

    def topics_deleted(self, names: Collection[str]) -> None:
        """Deletes the offsets of deleted topics. Must be called as soon as `topics` shows the deletion."""
        for shard in self._shards.values() if names else ():
            self.supervisor.work(self._forget_deleted(shard, names), "forgetting deleted topics", shard.partition)

    async def _forget_deleted(self, shard: Shard, names: Collection[str]) -> None:
        loading = self._loading.get(shard.partition)
        if loading is not None:
            await asyncio.wait([loading])

        def forget() -> tuple[bool, Effects]:
            effects = shard.coordinator.forget_deleted(names, self._now())
            return bool(effects.records), effects

        while shard.is_loaded and not shard.is_closed and self._carry_out(shard, forget):
            await asyncio.sleep(0)

    def check_invariants(self) -> None:
        for shard in self._shards.values():
            if shard.is_loaded and not shard.is_closed:
                shard.coordinator.check_invariants()

    def _commit_timeout_ms(self) -> int:
        return self.settings.offsets_commit_timeout_ms

    def _empty(self, shard: Shard) -> None:
        shard.coordinator = self._new_coordinator()

    def _load_again(self, shard: Shard) -> None:
        again = self._new_shard(shard.partition, shard.transactional_log)
        again.has_caught_up = shard.has_caught_up
        self._load_into(again)

    def _new_shard(self, partition: int, log: TransactionalLog) -> Shard:
        coordinator = self._new_coordinator()
        return Shard(partition, log, coordinator, self._now, self._on_failed, self.supervisor, self._catch_up)

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.settings, self._topics, self._rng, self._own_config_of)

    # Requests

    async def join(self, request: JoinRequest) -> JoinAnswer:
        shard = self._shard_to_write(request.group)
        token, future = shard.park()
        self._carry_out(shard, lambda: (None, shard.coordinator.join(request, token, self._now())))
        answer = await future
        assert isinstance(answer, JoinAnswer)
        return answer

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        shard = self._shard_to_write(request.group)
        token, future = shard.park()
        self._carry_out(shard, lambda: (None, shard.coordinator.sync(request, token, self._now())))
        answer = await future
        assert isinstance(answer, SyncAnswer)
        return answer

    async def heartbeat(self, request: HeartbeatRequest) -> None:
        """The response carries nothing that could be lost, so it does not wait for a commit: members stay while a
        replica is slow."""
        shard = self._shard(request.group)
        self._carry_out(shard, lambda: (None, shard.coordinator.heartbeat(request, self._now())))

    async def leave(self, group: str, members: Sequence[LeavingMember]) -> LeaveAnswer:
        shard = self._shard_to_write(group)
        return await self._run(shard, lambda: shard.coordinator.leave(group, members, self._now()))

    async def consumer_heartbeat(self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatAnswer:
        # A member may go on while the log cannot be written, if there is nothing to write.
        is_member = request.member_epoch > JOIN_EPOCH
        shard = self._shard(request.group) if is_member else self._shard_to_write(request.group)
        answer = self._carry_out(shard, lambda: shard.coordinator.consumer_heartbeat(request, self._now()))
        if answer.member_epoch != request.member_epoch or answer.assignment is not None:
            await self._committed(shard)
        return answer

    async def commit_offsets(self, request: OffsetCommitRequest) -> OffsetResults:
        shard = self._shard_to_write(request.group)
        return await self._run(shard, lambda: shard.coordinator.commit_offsets(request, self._now()))

    def is_in_transaction(self, group: str, owner: ProducerIdAndEpoch) -> bool:
        """Whether the group's coordinator already holds offsets of the producer's open transaction."""
        return self._shard(group).coordinator.is_in_transaction(owner)

    def begin_verification(self, group: str, owner: ProducerIdAndEpoch) -> Verification:
        """The result must be kept while the transaction's coordinator is asked, and passed to
        `commit_in_transaction`."""
        return self._shard(group).begin_verification(owner)

    def end_verification(self, group: str, owner: ProducerIdAndEpoch, verification: Verification) -> None:
        self._shard(group).end_verification(owner, verification)

    def commit_in_transaction(
        self, request: OffsetCommitRequest, owner: ProducerIdAndEpoch, verification: Verification | None
    ) -> Coroutine[Any, Any, OffsetResults]:
        """The offsets take effect with the transaction's COMMIT marker. Commits are made in the order of the calls,
        whenever their results are awaited."""
        shard = self._shard_to_write(request.group)
        shard.check_owner(owner, verification)
        commit = shard.coordinator.commit_in_transaction
        results = self._carry_out(shard, lambda: commit(request, owner, self._now()))
        return self._results(shard, results)

    async def _results(self, shard: Shard, results: OffsetResults) -> OffsetResults:
        await self._committed(shard)
        return results

    async def end_transaction(self, partition: int, marker: EndMarker) -> None:
        """Writes the marker. Raises as an append does."""
        shard = self._shards.get(partition)
        if shard is None or not shard.is_loaded:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"__consumer_offsets-{partition} is not led here")
        shard.log.check_writable()
        try:
            if shard.end_transaction(marker):
                producer_id, is_commit = marker.owner.producer_id, marker.is_commit
                effects = shard.coordinator.end_transaction(producer_id, is_commit, self._now())
                shard.carry_out(effects, marker)
            await shard.committed()
        except KafkaError as error:
            if error.code is ErrorCode.not_coordinator:
                raise KafkaError(ErrorCode.not_leader_or_follower, error.message) from error
            raise

    async def fetch_offsets(self, request: OffsetFetchRequest) -> list[tuple[str, list[FetchedOffset]]]:
        shard = self._shard(request.group)
        return await self._run(shard, lambda: (shard.coordinator.fetch_offsets(request), NOTHING))

    async def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> OffsetResults:
        shard = self._shard_to_write(group)
        return await self._run(shard, lambda: shard.coordinator.delete_offsets(group, topics, self._now()))

    async def delete_group(self, group: str) -> None:
        shard = self._shard_to_write(group)
        await self._run(shard, lambda: (None, shard.coordinator.delete_group(group, self._now())))

    async def describe_classic(self, group: str) -> DescribedClassicGroup | None:
        shard = self._shard(group)
        return await self._run(shard, lambda: (shard.coordinator.describe_classic(group), NOTHING))

    async def describe_consumer(self, group: str) -> DescribedConsumerGroup | None:
        shard = self._shard(group)
        return await self._run(shard, lambda: (shard.coordinator.describe_consumer(group), NOTHING))

    async def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """Lists the groups of all partitions that this broker leads. While one is loading its groups are unknown, so
        this raises."""
        listed: list[ListedGroup] = []
        for partition in self.partitions():
            shard = self._shards.get(partition)
            if shard is None:
                continue
            if not shard.is_loaded:
                raise KafkaError(ErrorCode.coordinator_load_in_progress)
            listed += await self._list_one(shard, states, types)
        return listed

    async def _list_one(self, shard: Shard, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        return await self._run(shard, lambda: (shard.coordinator.list_groups(states, types), NOTHING))
