"""The server-side assignors of KIP-848: which member reads which partitions.

`range` gives each member a run of every topic's partitions, in the order of the members, so that partition *n* of two
topics with equally many partitions goes to the same member (joins need that). It ignores the last assignment.

`uniform` gives all members equally many partitions, or one more, and moves as few as it can. Where members read
different topics, equally many may be impossible; then the result is such that no partition could move to a member that
has at least two fewer than its owner. Kafka's assignor of this name promises the same; which of the equally good
assignments is chosen may differ, and this one never takes an extra partition from a member only because of the members'
order.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TypeAlias

from sexton.coordinators.groups.records import Partitions
from sexton.types import PartitionId

Assignment: TypeAlias = dict[str, Partitions]
Load: TypeAlias = dict[uuid.UUID, set[int]]


@dataclass(frozen=True, slots=True)
class AssignedMember:
    instance_id: str | None
    topic_ids: frozenset[uuid.UUID]
    """Existing topics that the member subscribes to."""
    target: Partitions
    """The member's target assignment until now."""


def assign_range(members: Mapping[str, AssignedMember], partitions_count: Mapping[uuid.UUID, int]) -> Assignment:
    result: dict[str, dict[uuid.UUID, frozenset[int]]] = {member_id: {} for member_id in members}
    order = _in_order(members)
    for topic_id in sorted(partitions_count):
        readers = [member_id for member_id in order if topic_id in members[member_id].topic_ids]
        if not readers:
            continue
        quota, extra = divmod(partitions_count[topic_id], len(readers))
        start = 0
        for index, member_id in enumerate(readers):
            end = start + quota + (index < extra)
            if end > start:
                result[member_id][topic_id] = frozenset(range(start, end))
            start = end
    return dict(result)


def assign_uniform(members: Mapping[str, AssignedMember], partitions_count: Mapping[uuid.UUID, int]) -> Assignment:
    """Members whose assignment does not change get the very object that they had: most members, and groups are
    large."""
    if not members:
        return {}
    order = _in_order(members)
    kept, unassigned = _what_stays(members, order, partitions_count)
    subscriptions = {member.topic_ids for member in members.values()}
    if len(subscriptions) == 1:
        return _spread_evenly(order, kept, unassigned, sum(partitions_count[t] for t in subscriptions.pop()))
    return _spread_by_subscription(members, order, kept, unassigned)


ASSIGNORS: Mapping[str, Callable[[Mapping[str, AssignedMember], Mapping[uuid.UUID, int]], Assignment]] = {
    "uniform": assign_uniform,
    "range": assign_range,
}


def _in_order(members: Mapping[str, AssignedMember]) -> list[str]:
    """Static members first and by instance id: their position must not change with their member id."""
    return sorted(members, key=lambda member_id: (*_static_first(members[member_id]), member_id))


def _static_first(member: AssignedMember) -> tuple[bool, str]:
    return (member.instance_id is None, member.instance_id or "")


def _what_stays(
    members: Mapping[str, AssignedMember], order: list[str], partitions_count: Mapping[uuid.UUID, int]
) -> tuple[dict[str, Partitions], list[PartitionId]]:
    """Returns the partitions that each member may keep, and the partitions that then have no owner."""
    kept: dict[str, Partitions] = {}
    read = {topic_id for topic_ids in {member.topic_ids for member in members.values()} for topic_id in topic_ids}
    free: dict[uuid.UUID, set[int]] = {topic_id: set(range(partitions_count[topic_id])) for topic_id in read}
    for member_id in order:
        member = members[member_id]
        is_whole = True
        mine: dict[uuid.UUID, frozenset[int]] = {}
        for topic_id, numbers in member.target.items():
            left = free[topic_id] if topic_id in member.topic_ids else set()
            valid = numbers if numbers <= left else numbers & left
            is_whole = is_whole and len(valid) == len(numbers)
            if valid:
                mine[topic_id] = valid
                left -= valid
        kept[member_id] = member.target if is_whole else mine
    return kept, [(topic_id, number) for topic_id in sorted(free) for number in sorted(free[topic_id])]


def _size(partitions: Mapping[uuid.UUID, Collection[int]]) -> int:
    return sum(map(len, partitions.values()))


def _spread_evenly(
    order: list[str], kept: dict[str, Partitions], unassigned: list[PartitionId], partitions_count: int
) -> Assignment:
    """For members with equal subscriptions: each gets `quota` partitions, and `extra` of them one more, those with the
    most partitions first."""
    quota, extra = divmod(partitions_count, len(order))
    sizes = {member_id: _size(kept[member_id]) for member_id in order}
    by_size = sorted(order, key=lambda member_id: -sizes[member_id])  # stable: ties stay in order
    quotas = {member_id: quota + (index < extra) for index, member_id in enumerate(by_size)}
    result: Assignment = dict(kept)
    for member_id in order:
        if sizes[member_id] > quotas[member_id]:
            load = _mutable(kept[member_id])
            unassigned += _take(load, sizes[member_id] - quotas[member_id])
            result[member_id] = _frozen(load)
    free = iter(unassigned)
    for member_id in order:
        if sizes[member_id] < quotas[member_id]:
            load = _mutable(kept[member_id])
            for topic_id, number in islice(free, quotas[member_id] - sizes[member_id]):
                load.setdefault(topic_id, set()).add(number)
            result[member_id] = _frozen(load)
    return result


def _mutable(partitions: Partitions) -> Load:
    return {topic_id: set(numbers) for topic_id, numbers in partitions.items()}


def _frozen(load: Load) -> Partitions:
    return {topic_id: frozenset(load[topic_id]) for topic_id in sorted(load)}


def _take(load: Load, count: int) -> list[PartitionId]:
    """Takes the last partitions, from the topics with the most partitions first."""
    taken: list[PartitionId] = []
    for topic_id in sorted(load, key=lambda candidate: (-len(load[candidate]), candidate)):
        numbers = sorted(load[topic_id])
        kept = max(len(numbers) - (count - len(taken)), 0)
        taken += [(topic_id, number) for number in numbers[kept:]]
        if kept:
            load[topic_id] = set(numbers[:kept])
            break
        del load[topic_id]
    return taken


def _spread_by_subscription(
    members: Mapping[str, AssignedMember],
    order: list[str],
    kept: dict[str, Partitions],
    unassigned: list[PartitionId],
) -> Assignment:
    """Gives free partitions to the least loaded reader of their topic, topics with the fewest readers first; then moves
    partitions from fuller to emptier members for as long as that balances the load."""
    readers: dict[uuid.UUID, list[str]] = {}
    for member_id in order:
        for topic_id in sorted(members[member_id].topic_ids):
            readers.setdefault(topic_id, []).append(member_id)
    load = {member_id: _mutable(kept[member_id]) for member_id in order}
    sizes = {member_id: _size(load[member_id]) for member_id in order}
    rank = {member_id: index for index, member_id in enumerate(order)}

    def emptiest(topic_id: uuid.UUID) -> str:
        return min(readers[topic_id], key=lambda member_id: (sizes[member_id], rank[member_id]))

    for topic_id, number in sorted(unassigned, key=lambda item: (len(readers[item[0]]), item)):
        member_id = emptiest(topic_id)
        load[member_id].setdefault(topic_id, set()).add(number)
        sizes[member_id] += 1
    moved = True
    while moved:  # each move makes the sum of squared sizes smaller
        moved = False
        for topic_id in sorted(readers):
            while _move_one(topic_id, readers[topic_id], load, sizes, emptiest(topic_id)):
                moved = True
    return {member_id: _frozen(load[member_id]) for member_id in order}


def _move_one(topic_id: uuid.UUID, readers: list[str], load: dict[str, Load], sizes: dict[str, int], to: str) -> bool:
    owners = [member_id for member_id in readers if load[member_id].get(topic_id)]
    fullest = max(owners, key=lambda member_id: sizes[member_id], default=to)
    if sizes[fullest] - sizes[to] < 2:
        return False
    number = max(load[fullest][topic_id])
    load[fullest][topic_id].discard(number)
    if not load[fullest][topic_id]:
        del load[fullest][topic_id]
    load[to].setdefault(topic_id, set()).add(number)
    sizes[fullest] -= 1
    sizes[to] += 1
    return True
