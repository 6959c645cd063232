"""The group coordinator of one broker: a thin asyncio shell around one pure coordinator for each partition of
`__consumer_offsets` that this broker leads.

How the broker uses it:

    groups = GroupService(host, settings, ViewTopics(view))
    groups.load(partition, log)     when it has become the leader of that partition (a new epoch is a new call)
    groups.unload(partition)        when it no longer is
    await groups.close()

`log` is a `TransactionalLog` (`coordinators/log.py`): append and read of the leader's replica. Every other method is
one request of the protocol. Each raises KafkaError: NOT_COORDINATOR if another broker coordinates the group,
COORDINATOR_LOAD_IN_PROGRESS while its log is being read, COORDINATOR_NOT_AVAILABLE if the change could not be
committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
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
from sexton.coordinators.groups.offset_operations import TIME_MS_MAX
from sexton.coordinators.groups.records import encode
from sexton.coordinators.groups.topics import Topics
from sexton.coordinators.host import GroupHost
from sexton.coordinators.log import EndMarker, TransactionalLog
from sexton.coordinators.partition import LedPartition, PartitionService, fail
from sexton.coordinators.service import CoordinatorService
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.records.batch import Batch, ControlType, Record
from sexton.settings.broker import GroupSettings
from sexton.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch

T = TypeVar("T")
logger = logging.getLogger(__name__)

NOTHING = Effects()
"""Effects of a read: none."""


def _owner_of(batch: Batch) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(ProducerId(batch.producer_id), ProducerEpoch(batch.producer_epoch))


class Verification:
    """A verification by a transaction's coordinator that is in progress. It is valid only for the state that was loaded
    when it began."""

    __slots__ = ("led",)

    def __init__(self, led: GroupsPartition) -> None:
        self.led = led


class GroupsPartition(LedPartition[GroupCoordinator]):
    """One partition of `__consumer_offsets` that this broker leads: the pure coordinator, its log, and waiting
    requests."""

    topic = OFFSETS_TOPIC

    def __init__(
        self,
        partition: int,
        log: TransactionalLog,
        coordinator: GroupCoordinator,
        service: PartitionService,
        host: GroupHost,
    ) -> None:
        super().__init__(partition, log, coordinator, service)
        self.transactional_log = log
        self.parked: dict[int, asyncio.Future[Any]] = {}
        """Futures of waiting JoinGroup and SyncGroup requests, by token."""
        self._host = host
        self.has_caught_up = False
        self.deleted_ms: dict[str, int] = {}
        """Topics whose offsets are to be deleted, and up to which time an offset without an id is of the deleted topic
        if the log is loaded again. Once it is loaded, those alone that have offsets here: so there are never more than
        were committed while the log could be written."""
        self.is_forgetting = False
        self._last_token = 0
        self._verifications: dict[ProducerIdAndEpoch, Verification] = {}

    def topics_deleted(self, names: Collection[str]) -> None:
        """All that is known now is of the deleted topics, whatever times it was committed at: another coordinator may
        have taken it, by another clock. Times are asked only when the log is loaded again."""
        self.deleted_ms |= dict.fromkeys(names, TIME_MS_MAX)
        if self.is_loaded:
            self._find_deleted()

    def _find_deleted(self) -> None:
        """Once per loading, and when more topics were deleted."""
        self.coordinator.topics_deleted(self.deleted_ms)
        now_ms = self.now().wall_ms
        found = self.coordinator.with_offsets(self.deleted_ms)
        self.deleted_ms = {name: min(self.deleted_ms[name], now_ms) for name in found}

    def are_forgotten(self, until_ms: Mapping[str, int]) -> None:
        """Those that have not been deleted once more meanwhile."""
        for name, name_ms in until_ms.items():
            if self.deleted_ms.get(name) == name_ms:
                del self.deleted_ms[name]

    def replay(self, batch: Batch, record: Record) -> None:
        owner = _owner_of(batch) if batch.is_transactional else None
        if record.key is not None:
            self.coordinator.replay(record.key, record.value, owner)

    def replay_control(self, batch: Batch) -> None:
        self.coordinator.replay_end(batch.producer_id, batch.control_type is ControlType.COMMIT)

    async def load(self) -> None:
        """The view catches up before the log is read: other brokers may have written offsets of topics that this broker
        does not know yet, which must not be taken for deleted topics. This is done once per leadership, for afterwards
        only this broker writes here: so the log can be read again while the metastore is unreachable."""
        if not self.has_caught_up:
            await self._host.catch_up()
            self.has_caught_up = True
        await super().load()
        self._find_deleted()
        await self.until_writable()
        while not self.is_closed and (gone := self.coordinator.forget_deleted(None, self.now())).records:
            self.carry_out(gone)
            await asyncio.sleep(0)
            await self.until_writable()

    def park(self) -> tuple[int, asyncio.Future[Any]]:
        """Returns a token for the coordinator, and the future that gets the response when the coordinator answers that
        token."""
        self._last_token += 1
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.parked[self._last_token] = future
        return self._last_token, future

    def carry_out(self, effects: Effects, marker: EndMarker | None = None) -> None:
        if effects.records or marker is not None:
            self.write([encode(record) for record in effects.records], effects.owner, marker)
        for token, answer in effects.answers:
            future = self.parked.pop(token, None)
            if future is not None:
                self.answer_when_committed(future, answer)
        self.set_alarm()

    # Transactions of clients

    def begin_verification(self, owner: ProducerIdAndEpoch) -> Verification:
        """A marker voids the verification (see `log/producers.py`)."""
        return self._verifications.setdefault(owner, Verification(self))

    def check_owner(self, owner: ProducerIdAndEpoch, verification: Verification | None) -> None:
        """Raises if the producer's transaction has ended, or its epoch is stale."""
        if verification is not None and verification.led is not self:
            # A marker may have been written in between. The client retries, and with it comes a new verification.
            what = f"{self.place} was loaded while the transaction's coordinator was asked. Try again"
            raise KafkaError(ErrorCode.coordinator_load_in_progress, what)
        is_verified = verification is not None and self._verifications.get(owner) is verification
        if not is_verified and not self.coordinator.is_in_transaction(owner):
            what = "the transaction ended while its offsets were on their way"
            raise KafkaError(ErrorCode.invalid_txn_state, what)
        self.transactional_log.check_owner(owner)

    def end_verification(self, owner: ProducerIdAndEpoch, verification: Verification) -> None:
        """Called when the transaction's coordinator has refused."""
        if self._verifications.get(owner) is verification:
            del self._verifications[owner]

    def end_transaction(self, marker: EndMarker) -> bool:
        """Returns False if the marker was written before. Raises if it is stale."""
        is_new = self.transactional_log.check_marker(marker)
        if is_new:
            producer_id, last_epoch = marker.owner.producer_id, marker.last_epoch
            over = [o for o in self._verifications if o.producer_id == producer_id and o.epoch <= last_epoch]
            for owner in over:
                del self._verifications[owner]
        return is_new

    def close(self, error: KafkaError) -> None:
        super().close(error)
        parked, self.parked = self.parked, {}
        for future in parked.values():
            fail(future, error)


class GroupService(CoordinatorService[GroupsPartition]):
    topic = OFFSETS_TOPIC
    invalid_name = ErrorCode.invalid_group_id
    _host: GroupHost

    def __init__(
        self,
        host: GroupHost,
        settings: GroupSettings,
        topics: Topics,
    ) -> None:
        """`topics` must show every change that the host has caught up with."""
        super().__init__(host)
        self.settings = settings
        self._topics = topics

    def reconfigure(self, settings: GroupSettings) -> None:
        self.settings = settings
        for led in self.led.values():
            led.coordinator.reconfigure(settings)

    def load(self, partition: int, log: TransactionalLog) -> asyncio.Task[None]:
        return self._load_into(self._new_partition(partition, log))

    def topics_deleted(self, names: Collection[str]) -> None:
        """Deletes the offsets of deleted topics. Must be called as soon as `topics` shows the deletion."""
        for led in self.led.values() if names else ():
            led.topics_deleted(names)
            self._begin_to_forget(led)

    def _begin_to_forget(self, led: GroupsPartition) -> None:
        """One task, however many deletions wait for it."""
        if led.deleted_ms and not led.is_forgetting:
            led.is_forgetting = True
            self.supervisor.work(self._forget_deleted(led), "forgetting deleted topics", led.partition)

    async def _forget_deleted(self, led: GroupsPartition) -> None:
        try:
            loading = self._loading.get(led.partition)
            if loading is not None:
                await asyncio.wait([loading])
            await led.until_writable()
            while led.deleted_ms and led.is_loaded and not led.is_closed:
                names = dict(led.deleted_ms)
                while not led.is_closed and self._carry_out(led, partial(self._forget_some, led, names)):
                    await asyncio.sleep(0)
                    await led.until_writable()
                if led.is_closed:
                    return  # what it still writes would come behind what is written by now, and nobody would be told
                with suppress(KafkaError):
                    await led.committed()  # else the log is loaded again, and with it what is still to be deleted
                    led.are_forgotten(names)
        finally:
            led.is_forgetting = False

    def _forget_some(self, led: GroupsPartition, names: Collection[str]) -> tuple[bool, Effects]:
        effects = led.coordinator.forget_deleted(names, self.now())
        return bool(effects.records), effects

    def check_invariants(self) -> None:
        for led in self.led.values():
            if led.is_loaded and not led.is_closed:
                led.coordinator.check_invariants()

    def _commit_timeout_ms(self) -> int:
        return self.settings.offsets_commit_timeout_ms

    def _empty(self, led: GroupsPartition) -> None:
        led.coordinator = self._new_coordinator()

    def _load_again(self, led: GroupsPartition) -> None:
        again = self._new_partition(led.partition, led.transactional_log)
        again.has_caught_up = led.has_caught_up
        again.deleted_ms = led.deleted_ms
        self._load_into(again)
        self._begin_to_forget(again)

    def _new_partition(self, partition: int, log: TransactionalLog) -> GroupsPartition:
        coordinator = self._new_coordinator()
        return GroupsPartition(partition, log, coordinator, self, self._host)

    def _new_coordinator(self) -> GroupCoordinator:
        return GroupCoordinator(self.settings, self._topics, self._host.rng, self._host.group_config)

    # Requests

    async def join(self, request: JoinRequest) -> JoinAnswer:
        led = self._find_to_write(request.group)
        token, future = led.park()
        self._carry_out(led, lambda: (None, led.coordinator.join(request, token, self.now())))
        answer = await future
        assert isinstance(answer, JoinAnswer)
        return answer

    async def sync(self, request: SyncRequest) -> SyncAnswer:
        led = self._find_to_write(request.group)
        token, future = led.park()
        self._carry_out(led, lambda: (None, led.coordinator.sync(request, token, self.now())))
        answer = await future
        assert isinstance(answer, SyncAnswer)
        return answer

    async def heartbeat(self, request: HeartbeatRequest) -> None:
        """The response carries nothing that could be lost, so it does not wait for a commit: members stay while a
        replica is slow."""
        led = self._find(request.group)
        self._carry_out(led, lambda: (None, led.coordinator.heartbeat(request, self.now())))

    async def leave(self, group: str, members: Sequence[LeavingMember]) -> LeaveAnswer:
        led = self._find_to_write(group)
        return await self._run(led, lambda: led.coordinator.leave(group, members, self.now()))

    async def consumer_heartbeat(self, request: ConsumerHeartbeatRequest) -> ConsumerHeartbeatAnswer:
        # A member may go on while the log cannot be written. What is to be written then waits: an append that failed
        # would have all groups of the partition loaded again.
        is_member = request.member_epoch > JOIN_EPOCH
        led = self._find(request.group) if is_member else self._find_to_write(request.group)
        heartbeat, can_write = led.coordinator.consumer_heartbeat, not is_member or led.is_writable
        answer = self._carry_out(led, lambda: heartbeat(request, self.now(), can_write=can_write))
        if answer.member_epoch != request.member_epoch or answer.assignment is not None:
            await self._committed(led)
        return answer

    async def commit_offsets(self, request: OffsetCommitRequest) -> OffsetResults:
        led = self._find_to_write(request.group)
        return await self._run(led, lambda: led.coordinator.commit_offsets(request, self.now()))

    def is_in_transaction(self, group: str, owner: ProducerIdAndEpoch) -> bool:
        """Whether the group's coordinator already holds offsets of the producer's open transaction."""
        return self._find(group).coordinator.is_in_transaction(owner)

    def begin_verification(self, group: str, owner: ProducerIdAndEpoch) -> Verification:
        """The result must be kept while the transaction's coordinator is asked, and passed to
        `commit_in_transaction`."""
        return self._find(group).begin_verification(owner)

    def end_verification(self, group: str, owner: ProducerIdAndEpoch, verification: Verification) -> None:
        self._find(group).end_verification(owner, verification)

    def commit_in_transaction(
        self, request: OffsetCommitRequest, owner: ProducerIdAndEpoch, verification: Verification | None
    ) -> Coroutine[Any, Any, OffsetResults]:
        """The offsets take effect with the transaction's COMMIT marker. Commits are made in the order of the calls,
        whenever their results are awaited."""
        led = self._find_to_write(request.group)
        led.check_owner(owner, verification)
        commit = led.coordinator.commit_in_transaction
        results = self._carry_out(led, lambda: commit(request, owner, self.now()))
        return self._results(led, results)

    async def _results(self, led: GroupsPartition, results: OffsetResults) -> OffsetResults:
        await self._committed(led)
        return results

    async def end_transaction(self, partition: int, marker: EndMarker) -> None:
        """Writes the marker. Raises as an append does."""
        led = self.led.get(partition)
        if led is None or not led.is_loaded:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"__consumer_offsets-{partition} is not led here")
        led.log.check_writable()
        try:
            if led.end_transaction(marker):
                producer_id, is_commit = marker.owner.producer_id, marker.is_commit
                effects = led.coordinator.end_transaction(producer_id, is_commit, self.now())
                led.carry_out(effects, marker)
            await led.committed()
        except KafkaError as error:
            if error.code is ErrorCode.not_coordinator:
                raise KafkaError(ErrorCode.not_leader_or_follower, error.message) from error
            raise

    async def fetch_offsets(self, request: OffsetFetchRequest) -> list[tuple[str, list[FetchedOffset]]]:
        led = self._find(request.group)
        return await self._run(led, lambda: (led.coordinator.fetch_offsets(request), NOTHING))

    async def delete_offsets(self, group: str, topics: Sequence[tuple[str, Sequence[int]]]) -> OffsetResults:
        led = self._find_to_write(group)
        return await self._run(led, lambda: led.coordinator.delete_offsets(group, topics, self.now()))

    async def delete_group(self, group: str) -> None:
        led = self._find_to_write(group)
        await self._run(led, lambda: (None, led.coordinator.delete_group(group, self.now())))

    async def describe_classic(self, group: str) -> DescribedClassicGroup | None:
        led = self._find(group)
        return await self._run(led, lambda: (led.coordinator.describe_classic(group), NOTHING))

    async def describe_consumer(self, group: str) -> DescribedConsumerGroup | None:
        led = self._find(group)
        return await self._run(led, lambda: (led.coordinator.describe_consumer(group), NOTHING))

    async def list_groups(self, states: Collection[str], types: Collection[str]) -> list[ListedGroup]:
        """Lists the groups of all partitions that this broker leads. While one is loading its groups are unknown, so
        this raises."""
        listed: list[ListedGroup] = []
        for partition in self.partitions():
            led = self.led.get(partition)
            if led is None:
                continue
            if not led.is_loaded:
                raise KafkaError(ErrorCode.coordinator_load_in_progress)
            listed += await self._list_one(led, states, types)
        return listed

    async def _list_one(
        self, led: GroupsPartition, states: Collection[str], types: Collection[str]
    ) -> list[ListedGroup]:
        return await self._run(led, lambda: (led.coordinator.list_groups(states, types), NOTHING))
