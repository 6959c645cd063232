"""OffsetCommit, OffsetFetch, OffsetDelete, and the expiry of offsets.

**An offset belongs to a topic, not to its name.** It is recorded with the topic's id, and returned only as long as the
name belongs to that very topic: after a topic was deleted and created again, the former one's offsets are never used,
whatever the coordinator has missed meanwhile. The offsets of deleted topics are deleted too (`forget_deleted`), as in
Kafka; what is returned does not depend on that.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from sexton.coordinators.bounds import is_too_long
from sexton.coordinators.groups import records as r
from sexton.coordinators.groups.classic import ClassicGroup
from sexton.coordinators.groups.classic_protocol import ClassicProtocol
from sexton.coordinators.groups.consumer import OFFSET_COMMIT_VERSION_MIN, ConsumerGroup
from sexton.coordinators.groups.core import Core
from sexton.coordinators.groups.door import check_commit
from sexton.coordinators.groups.messages import (
    FetchedOffset,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetResults,
)
from sexton.coordinators.groups.offsets import is_expired
from sexton.coordinators.groups.states import ClassicState
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.types import NO_TIMESTAMP, ProducerIdAndEpoch

GONE: Final = uuid.UUID(int=0)
"""The id of no topic: in memory, that of an offset without one whose topic was deleted."""

TIME_MS_MAX = 2**63 - 1
EXPIRED_COUNT_MAX = 500
"""Maximum number of tombstones in one turn of the event loop."""

EXAMINED_COUNT_MAX = 5_000
"""Maximum number of offsets examined in one turn, besides those of the last group."""


class OffsetOperations:
    def __init__(self, core: Core, classic: ClassicProtocol, delete_group: Callable[[str], None]) -> None:
        self._core = core
        self._classic = classic
        self._delete_group = delete_group
        self._unexamined: list[str] = []
        """Groups that the search for expired offsets has still to examine."""

    def commit(self, request: OffsetCommitRequest) -> OffsetResults:
        core = self._core
        check_commit(request)
        self._check_commit(request)
        return self._commit_each(request, core.write)

    def commit_in_transaction(self, request: OffsetCommitRequest, owner: ProducerIdAndEpoch) -> OffsetResults:
        core = self._core
        check_commit(request)
        self._check_commit_in_transaction(request)
        return self._commit_each(request, lambda key, value: core.write_pending(owner, key, value))

    def _commit_each(
        self, request: OffsetCommitRequest, write: Callable[[r.OffsetKey, r.OffsetValue], None]
    ) -> OffsetResults:
        core = self._core
        now_ms = core.now.wall_ms
        expire_ms = NO_TIMESTAMP if request.retention_ms < 0 else min(now_ms + request.retention_ms, TIME_MS_MAX)
        former = self._held_of_deleted_topics(request)
        results: OffsetResults = []
        for topic, partitions in request.topics:
            topic_id = core.topics.topic_id(topic)
            codes: list[tuple[int, ErrorCode]] = []
            for committed in partitions:
                number, metadata = committed.partition, committed.metadata or ""
                if topic_id is None or (number in former and not self._is_holder(request, topic_id, number)):
                    codes.append((number, ErrorCode.unknown_topic_or_partition))
                    continue
                if self._is_too_large(metadata):
                    codes.append((number, ErrorCode.offset_metadata_too_large))
                    continue
                recorded_id = topic_id if expire_ms == NO_TIMESTAMP else None
                value = r.OffsetValue(
                    offset=committed.offset,
                    metadata=metadata,
                    commit_timestamp_ms=now_ms,
                    leader_epoch=committed.leader_epoch,
                    expire_timestamp_ms=expire_ms,
                    topic_id=recorded_id,
                )
                write(r.OffsetKey(request.group, topic, number), value)
                codes.append((number, ErrorCode.none))
            results.append((topic, codes))
        return results

    def _held_of_deleted_topics(self, request: OffsetCommitRequest) -> frozenset[int]:
        """Returns the partitions assigned to the member that belong to deleted topics. Clients commit by name, and
        before they revoke (KIP-848): a position in the deleted topic would be taken for one in the topic that has its
        name now. Members of classic groups are assigned names, so for them this cannot be known."""
        group = self._core.groups.get(request.group)
        member = group.members.get(request.member_id) if isinstance(group, ConsumerGroup) else None
        if member is None:
            return frozenset()
        topic_name = self._core.topics.topic_name
        held = (*member.assigned.items(), *member.revoking.items())
        return frozenset().union(*(numbers for topic_id, numbers in held if topic_name(topic_id) is None))

    def _is_holder(self, request: OffsetCommitRequest, topic_id: uuid.UUID, number: int) -> bool:
        group = self._core.groups.get(request.group)
        return isinstance(group, ConsumerGroup) and group.holders.get((topic_id, number)) == request.member_id

    def _is_too_large(self, metadata: str) -> bool:
        return len(metadata) > self._core.settings.offset_metadata_max_bytes or is_too_long(metadata)

    def _check_commit_in_transaction(self, request: OffsetCommitRequest) -> None:
        """The member is not checked if the producer does not name one (TxnOffsetCommit before version 3)."""
        group = self._core.groups.get(request.group)
        if group is None:
            if request.generation_or_epoch >= 0:
                raise KafkaError(ErrorCode.illegal_generation, f"Group {request.group} not found.")
            return
        if request.generation_or_epoch < 0 and not request.member_id and request.instance_id is None:
            return
        if isinstance(group, ConsumerGroup):
            try:
                group.check_offset_commit(request.member_id, request.generation_or_epoch, OFFSET_COMMIT_VERSION_MIN)
            except KafkaError as error:
                if error.code is not ErrorCode.stale_member_epoch:
                    raise
                raise KafkaError(ErrorCode.illegal_generation, error.message) from error
        else:
            group.check_transactional_commit(request.member_id, request.instance_id, request.generation_or_epoch)
            self._classic.keep_session(group, request.member_id)

    def _check_commit(self, request: OffsetCommitRequest) -> None:
        group = self._core.groups.get(request.group)
        if group is None:
            if request.generation_or_epoch >= 0:
                is_new = request.version >= OFFSET_COMMIT_VERSION_MIN
                raise KafkaError(
                    ErrorCode.group_id_not_found if is_new else ErrorCode.illegal_generation,
                    f"Group {request.group} not found.",
                )
            return  # a consumer that assigns its partitions itself: the group begins with its first offset
        if isinstance(group, ConsumerGroup):
            group.check_offset_commit(request.member_id, request.generation_or_epoch, request.version)
        else:
            group.check_offset_commit(request.member_id, request.instance_id, request.generation_or_epoch)
            self._classic.keep_session(group, request.member_id)

    def fetch(self, request: OffsetFetchRequest) -> list[tuple[str, list[FetchedOffset]]]:
        """A partition without an offset gets -1; so do all partitions of a group that does not exist."""
        group = self._core.groups.get(request.group)
        if isinstance(group, ConsumerGroup):
            group.check_offset_fetch(request.member_id, request.member_epoch)
        if request.topics is None:
            every = self._core.offsets.topics_of(request.group)
            return [(topic, fetched) for topic in every if (fetched := self._fetch_topic(request, topic, None))]
        return [(topic, self._fetch_topic(request, topic, numbers)) for topic, numbers in request.topics]

    def _fetch_topic(
        self, request: OffsetFetchRequest, topic: str, numbers: Sequence[int] | None
    ) -> list[FetchedOffset]:
        """Looks the topic up once, for a group may have thousands of offsets in it."""
        core, group = self._core, request.group
        topic_id = core.topics.topic_id(topic)
        found: Iterable[tuple[int, r.OffsetValue | None]] = core.offsets.partitions_of(group, topic)
        if numbers is not None:
            found = [(number, core.offsets.get(group, topic, number)) for number in numbers]
        may_be_unstable = request.require_stable and core.pending.has_any(group)
        fetched: list[FetchedOffset] = []
        for number, value in found:
            is_returned = value is not None and _is_of(value, topic_id)
            if not is_returned and numbers is None:
                continue
            if may_be_unstable and core.pending.is_pending(r.OffsetKey(group, topic, number)):
                fetched.append(FetchedOffset(number, error=ErrorCode.unstable_offset_commit))
            else:
                fetched.append(_fetched(number, value if is_returned else None))
        return fetched

    def _is_told(self, topic: str, value: r.OffsetValue) -> bool:
        return _is_of(value, self._core.topics.topic_id(topic))

    def delete(self, name: str, topics: Sequence[tuple[str, Sequence[int]]]) -> OffsetResults:
        core = self._core
        group = core.groups.get(name)
        if group is None:
            raise KafkaError(ErrorCode.group_id_not_found, f"Group {name} not found.")
        if isinstance(group, ClassicGroup) and not group.is_empty and not group.uses_consumer_protocol:
            raise KafkaError(ErrorCode.non_empty_group, f"Group {name} has members whose topics are not known.")
        results: OffsetResults = []
        for topic, numbers in topics:
            if group.is_subscribed(topic):
                results.append((topic, [(number, ErrorCode.group_subscribed_to_topic) for number in numbers]))
                continue
            for number in numbers:
                key = r.OffsetKey(name, topic, number)
                if core.offsets.get(name, topic, number) is not None or core.pending.is_pending(key):
                    core.write(key, None)
            results.append((topic, [(number, ErrorCode.none) for number in numbers]))
        return results

    def delete_all(self, name: str) -> None:
        for topic, number, _ in self._core.offsets.all_of(name):
            self._core.write(r.OffsetKey(name, topic, number), None)
        for key in self._core.pending.keys_of(name):
            self._core.write(key, None)

    def topics_deleted(self, until_ms: Mapping[str, int]) -> None:
        """Offsets of these topics that name no id and were committed until then count as those of a topic that is gone,
        before they can be deleted: the next topic of the name must not be told them, and those that it gets must
        stay."""
        offsets = self._core.offsets
        for topic, topic_ms in until_ms.items():
            for group in offsets.groups_of(topic):
                for number, value in list(offsets.partitions_of(group, topic)):
                    if value.topic_id is None and value.commit_timestamp_ms <= topic_ms:
                        offsets.put(group, topic, number, replace(value, topic_id=GONE))

    def forget_deleted(self, names: Collection[str] | None) -> None:
        """Deletes offsets of deleted topics with these names; without names (after loading), of any topic that is known
        to be deleted. Writes at most EXPIRED_COUNT_MAX records: call it until it writes none."""
        core = self._core
        for key in self._of_deleted(names):
            if len(core.effects.records) >= EXPIRED_COUNT_MAX:
                return
            core.write(key, None)

    def with_offsets(self, topics: Collection[str]) -> list[str]:
        core = self._core
        pending = {key.topic for key, _ in core.pending.all()}
        return [topic for topic in topics if topic in pending or core.offsets.groups_of(topic)]

    def _of_deleted(self, names: Collection[str] | None) -> Iterator[r.OffsetKey]:
        """Yields the keys to delete. A pending offset without a topic id is deleted only when its topic is named. If a
        transaction has a pending offset for the topic that has the name now, a tombstone would delete that too: then
        the old offset stays, without being returned, until the pending one replaces it."""
        core = self._core
        pending = {key: values for key, values in core.pending.all() if names is None or key.topic in names}

        def are_gone(topic: str, values: Iterable[r.OffsetValue]) -> bool:
            return all(names is not None if v.topic_id is None else not self._is_told(topic, v) for v in values)

        for topic in core.offsets.topics() if names is None else names:
            for group in core.offsets.groups_of(topic):
                for number, value in list(core.offsets.partitions_of(group, topic)):
                    key = r.OffsetKey(group, topic, number)
                    are_pending_gone = are_gone(topic, pending.pop(key, ()))
                    if are_pending_gone and not self._is_told(topic, value):
                        yield key
        for key, values in pending.items():
            if are_gone(key.topic, values):
                yield key

    def expire(self) -> bool:
        """Deletes expired offsets, and groups that have nothing left. Returns True if there is more to do: it goes
        through the groups in pieces, for a partition may hold a million offsets."""
        core = self._core
        if not self._unexamined:
            self._unexamined = list(core.groups)
        examined_count = 0
        while self._unexamined:
            if examined_count >= EXAMINED_COUNT_MAX:
                return True
            name = self._unexamined[-1]
            examined_count += 1 + core.offsets.count_of(name)
            if name in core.groups and not self._expire_group(name):
                return True
            self._unexamined.pop()
        return False

    def _expire_group(self, name: str) -> bool:
        """Returns False if the group is not finished."""
        core = self._core
        group = core.groups[name]
        for topic, number in self._expired(group, name):
            if len(core.effects.records) >= EXPIRED_COUNT_MAX:
                return False
            core.write(r.OffsetKey(name, topic, number), None)
        has_offsets = core.offsets.has_any(name) or core.pending.has_any(name)
        if group.is_empty and not has_offsets and not _is_forming(group):
            self._delete_group(name)
        return True

    def _expired(self, group: ClassicGroup | ConsumerGroup, name: str) -> list[tuple[str, int]]:
        core = self._core
        if isinstance(group, ClassicGroup) and not _may_expire(group):
            return []
        # An empty group's offsets are kept from the moment it became empty, however old they were then.
        since_ms = NO_TIMESTAMP
        if isinstance(group, ClassicGroup) and group.is_empty and group.protocol_type is not None:
            since_ms = group.state_timestamp_ms
        return [
            (topic, number)
            for topic in core.offsets.topics_of(name)
            if not group.is_subscribed(topic)
            for number, value in core.offsets.partitions_of(name, topic)
            if not core.pending.is_pending(r.OffsetKey(name, topic, number))
            and is_expired(
                value,
                value.commit_timestamp_ms if since_ms == NO_TIMESTAMP else since_ms,
                core.now.wall_ms,
                core.settings.offsets_retention_ms,
            )
        ]


def _may_expire(group: ClassicGroup) -> bool:
    """While a group has members, only offsets of topics that they are known not to read may expire."""
    if group.protocol_type is None or group.is_empty:
        return True
    return group.state is ClassicState.STABLE and group.uses_consumer_protocol and group.subscribed_topics is not None


def _is_forming(group: ClassicGroup | ConsumerGroup) -> bool:
    return isinstance(group, ClassicGroup) and bool(group.pending_members)


def _is_of(value: r.OffsetValue, topic_id: uuid.UUID | None) -> bool:
    """Whether the offset belongs to the topic that has the name now. The view is never older than an offset: a
    coordinator serves only when its view has caught up with what other brokers wrote to its log."""
    return value.topic_id is None or value.topic_id == topic_id


def _fetched(number: int, value: r.OffsetValue | None) -> FetchedOffset:
    if value is None:
        return FetchedOffset(number)
    return FetchedOffset(number, value.offset, value.leader_epoch, value.metadata)
