"""Replication throttles: a replica that is being added costs no more than it may, and nobody else is held up."""

from __future__ import annotations

import random

import pytest

from sexton.client.admin import Resource
from sexton.replication.throttle import PAUSE_MS, Throttle, is_throttled
from tests.simulated import TOPIC, Story

RATE = 50_000
VALUE_BYTES = 10_000
RECORDS = 60
SIZE_BYTES = RECORDS * VALUE_BYTES
LEADER, FOLLOWER = "leader", "follower"


class Clock:
    def __init__(self) -> None:
        self.ms = 5

    def now_ms(self) -> int:
        return self.ms

    def monotonic_ms(self) -> int:
        return self.ms


def seconds_until_added(throttle: dict[str, str], rates: dict[str, str]) -> float:
    """Of a third replica, of half a megabyte that cannot be compressed or compacted."""
    story = Story(3)
    took: list[float] = []

    async def body() -> None:
        await story.start()
        await story.create_topic([1, 2], throttle)
        await story.client_does(story.admin.change_settings(Resource.BROKER, "", rates))
        before = story.loop.time()
        await story.write(*((b"k%d" % n, random.Random(n).randbytes(VALUE_BYTES)) for n in range(RECORDS)))
        assert story.loop.time() - before < SIZE_BYTES / RATE / 2, "replicas that are in sync are not throttled"
        added_at = story.loop.time()
        await story.client_does(story.admin.reassign({(TOPIC, 0): [1, 2, 3]}))
        await story.in_sync(1, 2, 3, seconds=600)
        took.append(story.loop.time() - added_at)

    story.run(body())
    return took[0]


@pytest.mark.parametrize("side", [LEADER, FOLLOWER])
@pytest.mark.parametrize("replicas", ["*", "own"])
def test_a_throttled_replica_is_added_no_faster_than_it_may(side: str, replicas: str) -> None:
    """Under virtual time. A second's worth may come at once, and the last batch whole."""
    own = {LEADER: "0:1", FOLLOWER: "0:3"}[side] if replicas == "own" else replicas
    took_s = seconds_until_added(
        {f"{side}.replication.throttled.replicas": own}, {f"{side}.replication.throttled.rate": str(RATE)}
    )
    assert SIZE_BYTES / RATE - 2 <= took_s <= 2 * SIZE_BYTES / RATE


@pytest.mark.parametrize("side", [LEADER, FOLLOWER])
def test_a_replica_that_no_list_names_is_not_throttled(side: str) -> None:
    other = {LEADER: "0:2", FOLLOWER: "0:2"}[side]
    took_s = seconds_until_added(
        {f"{side}.replication.throttled.replicas": other}, {f"{side}.replication.throttled.rate": str(RATE)}
    )
    assert took_s < SIZE_BYTES / RATE / 2


def test_a_list_names_partitions_and_brokers() -> None:
    assert is_throttled(("*",), 7, 3)
    assert is_throttled(("1:2", "7:3"), 7, 3)
    assert not is_throttled(("7:33", "3:7"), 7, 3)
    assert not is_throttled((), 7, 3)


def test_a_rate_holds_over_time_however_large_what_is_sent() -> None:
    clock = Clock()
    throttle = Throttle(lambda: 1000, clock)
    sent_bytes = 0
    while clock.ms < 100_000:
        if throttle.allowed_bytes():
            throttle.count(7000)
            sent_bytes += 7000
        pause_ms = throttle.pause_ms()
        assert PAUSE_MS[0] <= pause_ms <= PAUSE_MS[1], "it is in debt"
        clock.ms += pause_ms
    assert 100_000 <= sent_bytes <= 108_000


def test_a_rate_that_is_raised_counts_at_once_and_none_sends_nothing() -> None:
    clock, rate = Clock(), [0]
    throttle = Throttle(lambda: rate[0], clock)
    clock.ms += 1_000_000
    assert (throttle.allowed_bytes(), throttle.pause_ms()) == (0, PAUSE_MS[1])
    rate[0] = 2**63 - 1
    clock.ms += 1
    assert throttle.allowed_bytes() > 1 << 40
    assert throttle.pause_ms() == 0
