"""Who should read what: the server-side assignors of KIP-848.

`range` gives each member a run of every topic's partitions, in the order of the members, so that partition *n* of two
topics with equally many partitions ends at the same member (joins need that). It forgets the last assignment.

`uniform` gives everybody equally many partitions, or one more, and moves as few as it can. Where members read
different topics, equally many may be impossible; then no partition could move to a member that has at least two fewer
than its owner. Kafka's assignor of this name promises the same; which of the equally good assignments is chosen may
differ, and this one never takes an extra partition from a member only because of the members' order.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from sexton.coordinators.groups.records import Partitions

Assignment: TypeAlias = dict[str, dict[uuid.UUID, frozenset[int]]]
Load: TypeAlias = dict[uuid.UUID, set[int]]


@dataclass(frozen=True, slots=True)
class AssignedMember:
    instance_id: str | None
    topic_ids: frozenset[uuid.UUID]
    """Existing topics that it subscribes to."""
    target: Partitions
    """What it should have had until now."""


def assign_range(members: Mapping[str, AssignedMember], partitions_count: Mapping[uuid.UUID, int]) -> Assignment:
    result: Assignment = {member_id: {} for member_id in members}
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
    return result


def assign_uniform(members: Mapping[str, AssignedMember], partitions_count: Mapping[uuid.UUID, int]) -> Assignment:
    if not members:
        return {}
    order = _in_order(members)
    load, unassigned = _what_stays(members, order, partitions_count)
    subscriptions = {member.topic_ids for member in members.values()}
    if len(subscriptions) == 1:
        _spread_evenly(order, load, unassigned, sum(partitions_count[t] for t in subscriptions.pop()))
    else:
        _spread_by_subscription(members, order, load, unassigned)
    return {
        member_id: {topic_id: frozenset(load[member_id][topic_id]) for topic_id in sorted(load[member_id])}
        for member_id in order
    }


ASSIGNORS: Mapping[str, Callable[[Mapping[str, AssignedMember], Mapping[uuid.UUID, int]], Assignment]] = {
    "uniform": assign_uniform,
    "range": assign_range,
}


def _in_order(members: Mapping[str, AssignedMember]) -> list[str]:
    """Static members first and by instance id: their place must not change with their member id."""
    return sorted(members, key=lambda member_id: (*_static_first(members[member_id]), member_id))


def _static_first(member: AssignedMember) -> tuple[bool, str]:
    return (member.instance_id is None, member.instance_id or "")


def _what_stays(
    members: Mapping[str, AssignedMember], order: list[str], partitions_count: Mapping[uuid.UUID, int]
) -> tuple[dict[str, Load], list[tuple[uuid.UUID, int]]]:
    """What each member may keep, and what then belongs to nobody."""
    load: dict[str, Load] = {member_id: {} for member_id in order}
    taken: dict[uuid.UUID, set[int]] = {}
    for member_id in order:
        member = members[member_id]
        for topic_id in sorted(member.target.keys() & member.topic_ids):
            exist = range(partitions_count[topic_id])
            kept = {n for n in member.target[topic_id] if n in exist} - taken.get(topic_id, set())
            if kept:
                load[member_id][topic_id] = kept
                taken.setdefault(topic_id, set()).update(kept)
    read = {topic_id for member in members.values() for topic_id in member.topic_ids}
    unassigned = [
        (topic_id, number)
        for topic_id in sorted(read)
        for number in range(partitions_count[topic_id])
        if number not in taken.get(topic_id, ())
    ]
    return load, unassigned


def _size(load: Load) -> int:
    return sum(len(numbers) for numbers in load.values())


def _spread_evenly(
    order: list[str], load: dict[str, Load], unassigned: list[tuple[uuid.UUID, int]], partitions_count: int
) -> None:
    """All read the same topics: each gets `quota`, and `extra` of them one more, first those who have it already."""
    quota, extra = divmod(partitions_count, len(order))
    by_size = sorted(order, key=lambda member_id: -_size(load[member_id]))  # stable: ties stay in order
    quotas = {member_id: quota + (index < extra) for index, member_id in enumerate(by_size)}
    for member_id in order:
        for _ in range(_size(load[member_id]) - quotas[member_id]):
            unassigned.append(_take_last(load[member_id]))
    free = iter(unassigned)
    for member_id in order:
        for _ in range(quotas[member_id] - _size(load[member_id])):
            topic_id, number = next(free)
            load[member_id].setdefault(topic_id, set()).add(number)


def _take_last(load: Load) -> tuple[uuid.UUID, int]:
    topic_id = max(load, key=lambda candidate: (len(load[candidate]), candidate))
    number = max(load[topic_id])
    load[topic_id].discard(number)
    if not load[topic_id]:
        del load[topic_id]
    return topic_id, number


def _spread_by_subscription(
    members: Mapping[str, AssignedMember],
    order: list[str],
    load: dict[str, Load],
    unassigned: list[tuple[uuid.UUID, int]],
) -> None:
    """Free partitions go to the least loaded reader of their topic, topics with the fewest readers first; then
    partitions move from fuller to emptier members for as long as that helps."""
    readers: dict[uuid.UUID, list[str]] = {}
    for member_id in order:
        for topic_id in sorted(members[member_id].topic_ids):
            readers.setdefault(topic_id, []).append(member_id)
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
