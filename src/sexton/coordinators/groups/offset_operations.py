"""OffsetCommit, OffsetFetch, OffsetDelete, and the end of offsets that nobody needs any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sexton.coordinators.groups import records as r
from sexton.coordinators.groups.classic import ClassicGroup
from sexton.coordinators.groups.classic_protocol import ClassicProtocol
from sexton.coordinators.groups.consumer import OFFSET_COMMIT_VERSION_MIN, ConsumerGroup
from sexton.coordinators.groups.core import Core
from sexton.coordinators.groups.messages import (
    FetchedOffset,
    OffsetCommitRequest,
    OffsetFetchRequest,
    OffsetResults,
)
from sexton.coordinators.groups.offsets import is_expired
from sexton.coordinators.groups.states import ClassicState
from sexton.coordinators.shard import Owner
from sexton.protocol.errors import ErrorCode, KafkaError

EXPIRED_COUNT_MAX = 1_000
"""Tombstones in one append: a few hundred kilobytes at most."""


class OffsetOperations:
    def __init__(self, core: Core, classic: ClassicProtocol, delete_group: Callable[[str], None]) -> None:
        self._core = core
        self._classic = classic
        self._delete_group = delete_group

    def commit(self, request: OffsetCommitRequest) -> OffsetResults:
        core = self._core
        self._check_commit(request)
        now_ms = core.now.wall_ms
        expire_ms = r.NO_TIMESTAMP if request.retention_ms < 0 else now_ms + request.retention_ms
        results: OffsetResults = []
        for topic, partitions in request.topics:
            codes: list[tuple[int, ErrorCode]] = []
            for committed in partitions:
                metadata = committed.metadata or ""
                if len(metadata) > core.settings.offset_metadata_bytes_max:
                    codes.append((committed.partition, ErrorCode.offset_metadata_too_large))
                    continue
                value = r.OffsetValue(committed.offset, metadata, now_ms, committed.leader_epoch, expire_ms)
                core.write(r.OffsetKey(request.group, topic, committed.partition), value)
                codes.append((committed.partition, ErrorCode.none))
            results.append((topic, codes))
        return results

    def commit_in_transaction(self, request: OffsetCommitRequest, owner: Owner) -> OffsetResults:
        core = self._core
        self._check_commit_in_transaction(request)
        results: OffsetResults = []
        for topic, partitions in request.topics:
            codes: list[tuple[int, ErrorCode]] = []
            for committed in partitions:
                metadata = committed.metadata or ""
                if len(metadata) > core.settings.offset_metadata_bytes_max:
                    codes.append((committed.partition, ErrorCode.offset_metadata_too_large))
                    continue
                value = r.OffsetValue(committed.offset, metadata, core.now.wall_ms, committed.leader_epoch)
                core.write_pending(owner, r.OffsetKey(request.group, topic, committed.partition), value)
                codes.append((committed.partition, ErrorCode.none))
            results.append((topic, codes))
        return results

    def _check_commit_in_transaction(self, request: OffsetCommitRequest) -> None:
        """A producer that does not say for which member it commits is not asked (TxnOffsetCommit before version 3)."""
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
        """A partition without an offset is answered with -1; a group that is not there has none."""
        group = self._core.groups.get(request.group)
        if isinstance(group, ConsumerGroup):
            group.check_offset_fetch(request.member_id, request.member_epoch)
        offsets = self._core.offsets
        if request.topics is None:
            return [
                (
                    topic,
                    [self._one(request, topic, number) for number, _ in offsets.partitions_of(request.group, topic)],
                )
                for topic in offsets.topics_of(request.group)
            ]
        return [(topic, [self._one(request, topic, number) for number in numbers]) for topic, numbers in request.topics]

    def _one(self, request: OffsetFetchRequest, topic: str, number: int) -> FetchedOffset:
        key = r.OffsetKey(request.group, topic, number)
        if request.require_stable and self._core.pending.is_pending(key):
            return FetchedOffset(number, error=ErrorCode.unstable_offset_commit)
        return _fetched(number, self._core.offsets.get(request.group, topic, number))

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

    def expire(self) -> bool:
        """Removes what has outlived its retention, and groups that have nothing left. True if there is more to do."""
        core = self._core
        for name in list(core.groups):
            if len(core.effects.records) >= EXPIRED_COUNT_MAX:
                return True
            group = core.groups[name]
            for topic, number in self._expired(group, name):
                if len(core.effects.records) >= EXPIRED_COUNT_MAX:
                    return True
                core.write(r.OffsetKey(name, topic, number), None)
            has_offsets = core.offsets.has_any(name) or core.pending.has_any(name)
            if group.is_empty and not has_offsets and not _is_forming(group):
                self._delete_group(name)
        return False

    def _expired(self, group: ClassicGroup | ConsumerGroup, name: str) -> list[tuple[str, int]]:
        core = self._core
        if isinstance(group, ClassicGroup) and not _may_expire(group):
            return []
        # An empty group's offsets are kept from the moment it became empty, however old they were then.
        since_ms = r.NO_TIMESTAMP
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
                value.commit_timestamp_ms if since_ms == r.NO_TIMESTAMP else since_ms,
                core.now.wall_ms,
                core.settings.offsets_retention_ms,
            )
        ]


def _may_expire(group: ClassicGroup) -> bool:
    """While members are there, only offsets of topics that they are known not to read."""
    if group.protocol_type is None or group.is_empty:
        return True
    return group.state is ClassicState.STABLE and group.uses_consumer_protocol and group.subscribed_topics is not None


def _is_forming(group: ClassicGroup | ConsumerGroup) -> bool:
    return isinstance(group, ClassicGroup) and bool(group.pending_members)


def _fetched(number: int, value: r.OffsetValue | None) -> FetchedOffset:
    if value is None:
        return FetchedOffset(number)
    return FetchedOffset(number, value.offset, value.leader_epoch, value.metadata)
