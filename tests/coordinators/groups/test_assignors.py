"""Server-side assignors: complete, balanced, sticky, each partition once."""

from __future__ import annotations

import uuid
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.coordinators.groups.assignors import (
    ASSIGNORS,
    AssignedMember,
    Assignment,
    assign_range,
    assign_uniform,
)
from tests.coordinators.groups.harness import partitions, topic_id

TOPICS = [topic_id(name) for name in "abcd"]
Members = dict[str, AssignedMember]
Counts = dict[uuid.UUID, int]


def member(
    *topics: str, instance_id: str | None = None, target: Mapping[uuid.UUID, frozenset[int]] = {}
) -> AssignedMember:
    return AssignedMember(instance_id, frozenset(topic_id(name) for name in topics), target)


def counts(**topics: int) -> Counts:
    return {topic_id(name): count for name, count in topics.items()}


def sizes(assignment: Assignment) -> dict[str, int]:
    return {member_id: sum(map(len, topics.values())) for member_id, topics in assignment.items()}


@st.composite
def groups(draw: st.DrawFn, same_topics: bool = False) -> tuple[Members, Counts]:
    """Members with subscriptions and whatever target they had before, wrong ones too."""
    sizes_of = {topic: draw(st.integers(1, 8)) for topic in TOPICS}
    subsets = st.frozensets(st.sampled_from(TOPICS))
    shared = draw(subsets)
    old = st.dictionaries(st.sampled_from(TOPICS), st.frozensets(st.integers(0, 9), min_size=1, max_size=5), max_size=4)
    members = {
        f"m{index}": AssignedMember(
            draw(st.none() | st.just(f"i{index}")), shared if same_topics else draw(subsets), draw(old)
        )
        for index in range(draw(st.integers(1, 6)))
    }
    return members, sizes_of


def check_complete(members: Members, sizes_of: Counts, assignment: Assignment) -> None:
    owners: dict[tuple[uuid.UUID, int], str] = {}
    assert assignment.keys() == members.keys()
    for member_id, topics in assignment.items():
        for topic, numbers in topics.items():
            assert numbers, "no topic without partitions"
            assert topic in members[member_id].topic_ids, "only what it subscribes to"
            for number in numbers:
                assert (topic, number) not in owners, "each partition once"
                owners[topic, number] = member_id
    read = {topic for one in members.values() for topic in one.topic_ids}
    assert owners.keys() == {(topic, number) for topic in read for number in range(sizes_of[topic])}, "and every one"


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(group=groups())
def test_every_partition_that_somebody_reads_has_one_reader(name: str, group: tuple[Members, Counts]) -> None:
    members, sizes_of = group
    check_complete(members, sizes_of, ASSIGNORS[name](members, sizes_of))


@given(group=groups(same_topics=True))
def test_uniform_gives_everybody_equally_many_or_one_more(group: tuple[Members, Counts]) -> None:
    found = sizes(assign_uniform(*group)).values()
    assert max(found) - min(found) <= 1


@given(group=groups())
def test_uniform_leaves_no_partition_that_could_move_to_a_much_emptier_member(group: tuple[Members, Counts]) -> None:
    members, sizes_of = group
    assignment = assign_uniform(members, sizes_of)
    size_of = sizes(assignment)
    for owner, topics in assignment.items():
        for topic in topics:
            for other, one in members.items():
                if topic in one.topic_ids:
                    assert size_of[owner] - size_of[other] <= 1


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(group=groups())
def test_assigning_again_changes_nothing(name: str, group: tuple[Members, Counts]) -> None:
    members, sizes_of = group
    first = ASSIGNORS[name](members, sizes_of)
    settled = {
        member_id: AssignedMember(one.instance_id, one.topic_ids, first[member_id])
        for member_id, one in members.items()
    }
    assert ASSIGNORS[name](settled, sizes_of) == first


@given(group=groups(same_topics=True))
def test_uniform_moves_only_what_the_newcomer_must_get(group: tuple[Members, Counts]) -> None:
    members, sizes_of = group
    before = assign_uniform(members, sizes_of)
    grown = {
        member_id: AssignedMember(one.instance_id, one.topic_ids, before[member_id])
        for member_id, one in members.items()
    }
    topics = next(iter(members.values())).topic_ids
    after = assign_uniform({**grown, "new": AssignedMember(None, topics, {})}, sizes_of)
    for member_id, had in before.items():
        for topic, numbers in after[member_id].items():
            assert numbers <= had.get(topic, frozenset()), "those who were there get nothing new"


@given(group=groups(same_topics=True), data=st.data())
def test_uniform_leaves_the_others_what_they_have_when_one_goes(
    group: tuple[Members, Counts], data: st.DataObject
) -> None:
    members, sizes_of = group
    before = assign_uniform(members, sizes_of)
    gone = data.draw(st.sampled_from(sorted(members)))
    left = {
        member_id: AssignedMember(one.instance_id, one.topic_ids, before[member_id])
        for member_id, one in members.items()
        if member_id != gone
    }
    after = assign_uniform(left, sizes_of)
    for member_id in left:
        for topic, numbers in before[member_id].items():
            assert numbers <= after[member_id].get(topic, frozenset())


def test_range_keeps_equal_numbers_of_topics_together() -> None:
    members = {"x": member("a", "b"), "y": member("a", "b")}
    assignment = assign_range(members, counts(a=3, b=3))
    assert assignment["x"] == partitions(a=[0, 1], b=[0, 1])
    assert assignment["y"] == partitions(a=[2], b=[2])


def test_range_with_more_members_than_partitions_leaves_the_last_without() -> None:
    members = {name: member("a") for name in "xyz"}
    assert sizes(assign_range(members, counts(a=2))) == {"x": 1, "y": 1, "z": 0}


def test_range_orders_static_members_by_instance_id() -> None:
    members = {"z": member("a", instance_id="1"), "b": member("a", instance_id="2"), "a": member("a")}
    assignment = assign_range(members, counts(a=3))
    assert [sorted(assignment[name][topic_id("a")]) for name in ("z", "b", "a")] == [[0], [1], [2]]


def test_uniform_takes_no_extra_partition_from_who_has_it() -> None:
    members = {
        "a": member("t", target=partitions(t=[0])),
        "b": member("t", target=partitions(t=[1, 2])),
    }
    assignment = assign_uniform(members, counts(t=3))
    assert assignment == {"a": partitions(t=[0]), "b": partitions(t=[1, 2])}
