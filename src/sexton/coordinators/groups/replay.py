"""Applies records to the state. This is the only code that changes a consumer group or an offset: records that are
written live pass through here too, so a coordinator that loads a log has the same state as the one that wrote it.

Records of a kind of group that another record has replaced are ignored, and so are tombstones for what does not exist:
compaction may have removed the records they refer to.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from sexton.coordinators.groups import records as r
from sexton.coordinators.groups.classic import ClassicGroup
from sexton.coordinators.groups.consumer import ConsumerGroup, ConsumerMember
from sexton.coordinators.groups.messages import LEAVE_EPOCH, Client
from sexton.types import ProducerIdAndEpoch

if TYPE_CHECKING:
    from sexton.coordinators.groups.core import Core


def apply(core: Core, key: r.Key, value: r.Value | None) -> None:
    match key, value:
        case r.OffsetKey(), r.OffsetValue():
            core.pending.supersede(key)
            core.offsets.put(key.group, key.topic, key.partition, value)
            core.groups.setdefault(key.group, ClassicGroup(key.group))
        case r.OffsetKey(), None:
            core.pending.supersede(key)
            core.offsets.remove(key.group, key.topic, key.partition)
            _forget_if_nothing_is_left(core, key.group)
        case r.ClassicGroupKey(), r.ClassicGroupValue():
            core.groups[key.group] = ClassicGroup.from_value(key.group, value)
        case r.ClassicGroupKey(), None:
            _remove(core, key.group, ClassicGroup)
        case r.EpochKey(), None:
            _remove(core, key.group, ConsumerGroup)
        case _:
            _apply_to_consumer_group(core, key, value)


def apply_pending(core: Core, owner: ProducerIdAndEpoch, key: r.OffsetKey, value: r.OffsetValue) -> None:
    """Applies an offset of an open transaction."""
    core.pending.put(owner, key, value)
    core.groups.setdefault(key.group, ClassicGroup(key.group))


def apply_end(core: Core, producer_id: int, is_commit: bool) -> None:
    """Applies a transaction's marker: its pending offsets take effect, or are dropped."""
    if not is_commit:
        core.pending.forget(producer_id)
        return
    for key, value in core.pending.end(producer_id):
        core.offsets.put(key.group, key.topic, key.partition, value)
        core.groups.setdefault(key.group, ClassicGroup(key.group))


def _remove(core: Core, name: str, kind: type) -> None:
    """A group that still has offsets stays, as a classic group without members."""
    if isinstance(core.groups.get(name), kind):
        del core.groups[name]
        if core.offsets.has_any(name) or core.pending.has_any(name):
            core.groups[name] = ClassicGroup(name)


def _forget_if_nothing_is_left(core: Core, name: str) -> None:
    """A group that exists only because of its offsets is deleted with the last of them: it has no record of its own."""
    group = core.groups.get(name)
    has_offsets = core.offsets.has_any(name) or core.pending.has_any(name)
    if isinstance(group, ClassicGroup) and group.is_simple and not has_offsets:
        del core.groups[name]


def _apply_to_consumer_group(core: Core, key: r.Key, value: r.Value | None) -> None:
    found = core.groups.get(key.group)
    if not isinstance(found, ConsumerGroup):
        if value is None:
            return
        found = core.groups[key.group] = ConsumerGroup(key.group)
    group = found
    match key, value:
        case r.EpochKey(), r.EpochValue():
            group.epoch, group.metadata_hash = value.epoch, value.metadata_hash
        case r.MemberKey(), r.MemberValue():
            group.set_member(_with_metadata(_member(group, key.member_id), value))
        case r.MemberKey(), None:
            group.remove_member(key.member_id)
        case r.TargetEpochKey(), r.TargetEpochValue():
            group.assignment_epoch = value.epoch
        case r.TargetEpochKey(), None:
            group.assignment_epoch = 0
        case r.TargetKey(), r.TargetValue():
            group.target[key.member_id] = value.partitions
        case r.TargetKey(), None:
            group.target.pop(key.member_id, None)
        case r.CurrentKey(), r.CurrentValue():
            group.set_member(_with_assignment(_member(group, key.member_id), value))
        case r.CurrentKey(), None:
            if key.member_id in group.members:
                gone = r.CurrentValue(LEAVE_EPOCH, LEAVE_EPOCH, r.MemberState.STABLE, {}, {})
                group.set_member(_with_assignment(group.members[key.member_id], gone))
        case r.RegexKey(), r.RegexValue():
            group.regexes[key.regex] = value
        case r.RegexKey(), None:
            group.regexes.pop(key.regex, None)
        case _:
            raise AssertionError(f"a {type(value).__name__} cannot follow a {type(key).__name__}")


def _member(group: ConsumerGroup, member_id: str) -> ConsumerMember:
    return group.members.get(member_id) or ConsumerMember(member_id)


def _with_metadata(member: ConsumerMember, value: r.MemberValue) -> ConsumerMember:
    return replace(
        member,
        instance_id=value.instance_id,
        rack_id=value.rack_id,
        client=Client(value.client_id, value.client_host),
        topics=tuple(sorted(value.topics)),
        regex=value.regex,
        rebalance_timeout_ms=value.rebalance_timeout_ms,
        server_assignor=value.server_assignor,
        classic=value.classic,
    )


def _with_assignment(member: ConsumerMember, value: r.CurrentValue) -> ConsumerMember:
    return replace(
        member,
        epoch=value.member_epoch,
        previous_epoch=value.previous_epoch,
        state=value.state,
        assigned=value.assigned,
        revoking=value.revoking,
    )
