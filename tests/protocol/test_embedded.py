"""The consumer protocol that members send each other: round trips, all versions, what is cut off, Kafka's bytes."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.protocol.embedded import (
    MalformedProtocolError,
    Subscription,
    read_assignment,
    read_subscription,
    read_topics,
    write_assignment,
    write_subscription,
)

names = st.text(st.characters(codec="utf-8"), max_size=8)
parts = st.dictionaries(names, st.lists(st.integers(0, 1000), max_size=4), max_size=4)


@st.composite
def subscriptions(draw: st.DrawFn) -> Subscription:
    version = draw(st.integers(0, 3))
    return Subscription(
        tuple(draw(st.lists(names))),
        version,
        {topic: sorted(numbers) for topic, numbers in draw(parts).items()} if version >= 1 else {},
        draw(st.integers(-1, 2**31 - 1)) if version >= 2 else -1,
        draw(st.none() | names) if version >= 3 else None,
    )


@given(subscriptions())
def test_subscriptions_survive_the_wire(subscription: Subscription) -> None:
    data = write_subscription(subscription)
    assert read_subscription(data) == subscription
    assert read_topics(data) == subscription.topics


@given(subscriptions(), st.data())
def test_a_subscription_that_is_cut_off_is_malformed(subscription: Subscription, data: st.DataObject) -> None:
    written = write_subscription(subscription)
    with pytest.raises(MalformedProtocolError):
        read_subscription(written[: data.draw(st.integers(0, len(written) - 1))])


@given(parts, st.integers(-1, 9))
def test_assignments_survive_the_wire(partitions: dict[str, list[int]], version: int) -> None:
    data = write_assignment(partitions, version)
    assert 0 <= struct.unpack_from(">h", data)[0] <= 3
    assert read_assignment(data) == {topic: sorted(numbers) for topic, numbers in partitions.items()}


def test_a_later_version_is_read_as_the_newest_known_one() -> None:
    subscription = Subscription(("t",), 3, {"t": [1]}, 7, "r")
    data = struct.pack(">h", 9) + write_subscription(subscription)[2:] + b"more"
    assert read_subscription(data) == Subscription(("t",), 9, {"t": [1]}, 7, "r")


def test_a_negative_version_is_malformed() -> None:
    with pytest.raises(MalformedProtocolError):
        read_subscription(struct.pack(">h", -1) + write_subscription(Subscription(("t",)))[2:])


def test_long_user_data_is_read_over() -> None:
    start = struct.pack(">hih", 1, 1, 1) + b"t"
    data = start + struct.pack(">i", 440_000) + bytes(440_000) + struct.pack(">i", 0)
    assert read_subscription(data) == Subscription(("t",), 1)


def test_an_assignment_is_read_without_its_user_data() -> None:
    assert read_assignment(b"") == {}
    assert read_assignment(write_assignment({"t": [0]}, 1)[:-4]) == {"t": [0]}


def test_a_topic_that_is_listed_twice_has_the_partitions_of_both() -> None:
    one = struct.pack(">h", 1) + b"t" + struct.pack(">i", 1)
    data = struct.pack(">hi", 0, 2) + one + struct.pack(">i", 4) + one + struct.pack(">i", 2) + struct.pack(">i", -1)
    assert read_assignment(data) == {"t": [4, 2]}


def test_the_bytes_are_kafkas() -> None:
    t = struct.pack(">h", 1) + b"t"
    owned = struct.pack(">i", 1) + t + struct.pack(">iii", 2, 0, 3)
    expected = struct.pack(">hi", 3, 1) + t + struct.pack(">i", -1) + owned + struct.pack(">ih", 5, 1) + b"r"
    assert write_subscription(Subscription(("t",), 3, {"t": [3, 0]}, 5, "r")) == expected
    assert write_assignment({"t": [3, 0]}, 1) == struct.pack(">h", 1) + owned + struct.pack(">i", -1)
