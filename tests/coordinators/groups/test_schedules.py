"""Random lives of consumer groups: clients that join, lose answers, crash, leave, and coordinators that fail over.

A client here behaves as KIP-848 asks: it stops reading what is not in its assignment before it says so, starts reading
what is new, and stops reading everything when it is fenced, has not been answered for a whole session, or has not let
go of what it should for a whole rebalance timeout (counted from the first answer that it missed).

Whatever the schedule: no partition is read by two clients at once, a replayed coordinator stands where the live one
stands, and when the trouble ends every partition has a reader.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.coordinators.groups.consumer import NO_REVISION, ConsumerGroup
from sexton.coordinators.groups.coordinator import GroupCoordinator
from sexton.coordinators.groups.messages import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from sexton.coordinators.groups.records import Partitions
from sexton.coordinators.groups.settings import GroupSettings
from sexton.coordinators.groups.states import ConsumerState
from sexton.protocol.errors import ErrorCode, KafkaError
from tests.coordinators.groups.harness import GROUP, Harness, topic_id

SESSION_MS = 45_000
REBALANCE_MS = 60_000
TOPICS = ("t", "u", "v")
EXPECTED = {
    ErrorCode.fenced_member_epoch,
    ErrorCode.unknown_member_id,
    ErrorCode.unreleased_instance_id,
    ErrorCode.fenced_instance_id,
    ErrorCode.group_id_not_found,
}
"""What a client must be ready for."""
Reading = dict[uuid.UUID, frozenset[int]]


@dataclass
class FakeClient:
    name: str
    topics: tuple[str, ...]
    instance_id: str | None = None
    joined_topics: tuple[str, ...] = ()
    lives_count: int = 0
    epoch: int = 0
    is_in: bool = False
    reading: Reading = field(default_factory=dict)
    told: Reading = field(default_factory=dict)
    must_ask_again: bool = False
    """An answer was lost: the next heartbeat is a full one, so that its answer says everything."""
    answered_ms: int = 0
    lost_since_ms: int | None = None
    revoking_since_ms: int | None = None

    @property
    def member_id(self) -> str:
        return f"{self.name}-{self.lives_count}"

    def stop(self) -> None:
        self.epoch, self.is_in, self.reading, self.told = 0, False, {}, {}
        self.lost_since_ms = self.revoking_since_ms = None

    def look_at_the_clock(self, now_ms: int) -> None:
        """Nobody answered for so long that the coordinator may have given its partitions away."""
        is_late = self.revoking_since_ms is not None and now_ms - self.revoking_since_ms >= REBALANCE_MS
        if self.is_in and (now_ms - self.answered_ms >= SESSION_MS or is_late):
            self.stop()

    def hear(self, told: Partitions, now_ms: int) -> None:
        self.told = dict(told)
        too_much = any(numbers - told.get(topic, frozenset()) for topic, numbers in self.reading.items())
        if too_much and self.revoking_since_ms is None:
            self.revoking_since_ms = now_ms if self.lost_since_ms is None else self.lost_since_ms

    def revoke(self) -> None:
        kept = {topic: numbers & self.told.get(topic, frozenset()) for topic, numbers in self.reading.items()}
        self.reading = {topic: numbers for topic, numbers in kept.items() if numbers}
        self.revoking_since_ms = None

    def take(self) -> None:
        self.revoke()
        self.reading = {topic: numbers for topic, numbers in self.told.items() if numbers}


class World:
    def __init__(self, seed: int, assignor: str) -> None:
        self.rng = random.Random(seed)
        self.h = Harness(GroupSettings(consumer_assignors=(assignor, "range", "uniform")), t=3, u=2)
        self.clients = [
            FakeClient("a", ("t",)),
            FakeClient("b", ("t", "u")),
            FakeClient("c", ("t", "u"), "instance-c"),
            FakeClient("d", ("u", "v"), "instance-d"),
        ]

    def check(self) -> None:
        seen: dict[tuple[uuid.UUID, int], str] = {}
        for client in self.clients:
            for topic, numbers in client.reading.items():
                for number in numbers:
                    assert (topic, number) not in seen, f"{client.name} and {seen[topic, number]} both read {number}"
                    seen[topic, number] = client.name

    def beat(self, client: FakeClient, is_lost: bool = False, is_lazy: bool = False) -> None:
        """`is_lost`: the answer never arrives. `is_lazy`: the client does not act on it yet."""
        h = self.h
        client.look_at_the_clock(h.now_ms)
        owned: Partitions = client.reading
        try:
            if not client.is_in:
                if client.epoch == 0:
                    client.lives_count += 1
                    client.epoch = -9  # joining: a lost answer is asked for again under the same id
                    client.joined_topics = client.topics
                answer = h.beat(
                    client.member_id,
                    0,
                    topics=client.joined_topics,
                    owned={},
                    rebalance_timeout_ms=REBALANCE_MS,
                    instance_id=client.instance_id,
                )
            elif client.must_ask_again:
                answer = h.beat(
                    client.member_id,
                    client.epoch,
                    topics=client.joined_topics,
                    owned=owned,
                    rebalance_timeout_ms=REBALANCE_MS,
                    instance_id=client.instance_id,
                )
            else:
                answer = h.beat(client.member_id, client.epoch, owned=owned, instance_id=client.instance_id)
        except KafkaError as error:
            if error.code not in EXPECTED:
                raise
            client.must_ask_again = is_lost
            if not is_lost:
                client.stop()
            return
        client.must_ask_again = is_lost
        if is_lost:
            if client.lost_since_ms is None:
                client.lost_since_ms = h.now_ms
            return
        client.is_in, client.epoch, client.answered_ms = True, answer.member_epoch, h.now_ms
        if answer.assignment is not None:
            client.hear(answer.assignment, h.now_ms)
        client.lost_since_ms = None
        if not is_lazy:
            client.take()

    def step(self, action: int, client: FakeClient) -> None:
        h = self.h
        match action:
            case 0 | 1 | 2 | 3:
                self.beat(client)
            case 4:
                self.beat(client, is_lost=True)
            case 5:
                self.beat(client, is_lazy=True)
            case 6:
                client.take()
            case 7:
                h.advance(self.rng.choice([100, 5_000, 19_999, 46_000]))
                for one in self.clients:
                    one.look_at_the_clock(h.now_ms)
            case 8:
                client.stop()  # a crash: it is just gone
            case 9 if client.is_in:
                epoch = LEAVE_EPOCH if client.instance_id is None or self.rng.random() < 0.5 else LEAVE_STATIC_EPOCH
                member_id, client.reading = client.member_id, {}
                client.stop()
                try:
                    h.beat(member_id, epoch, instance_id=client.instance_id)
                except KafkaError as error:
                    if error.code not in EXPECTED:
                        raise
            case 10:
                h.fail_over()
                for one in self.clients:  # everybody has a fresh session there
                    one.look_at_the_clock(h.now_ms)
            case 11:
                h.topics.set("v", min(h.topics.counts.get("v", 0) + 1, 4))
            case 12:
                client.topics = tuple(sorted(self.rng.sample(TOPICS, self.rng.randint(1, 3))))

    def settle(self) -> None:
        """No more trouble: everybody sends heartbeats and does what it is told."""
        self.h.advance(2 * SESSION_MS)
        for client in self.clients:
            client.look_at_the_clock(self.h.now_ms)
        for _ in range(8):
            for client in self.clients:
                self.beat(client)
                self.check()
            self.h.advance(1_000)


def standing(coordinator: GroupCoordinator) -> ConsumerGroup | None:
    group = coordinator._core.groups.get(GROUP)
    assert group is None or isinstance(group, ConsumerGroup)
    return None if group is None else replace(group, seen_revision=NO_REVISION)


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32),
    assignor=st.sampled_from(["uniform", "range"]),
    steps=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 3)), min_size=40, max_size=120),
)
def test_no_partition_is_ever_read_by_two_and_in_the_end_each_is_read_by_one(
    seed: int, assignor: str, steps: list[tuple[int, int]]
) -> None:
    world = World(seed, assignor)
    for action, index in steps:
        world.step(action, world.clients[index])
        world.check()
    assert standing(world.h.replayed()) == standing(world.h.coordinator)
    world.settle()
    assert world.h.consumer().state is ConsumerState.STABLE
    subscribed = {topic for client in world.clients for topic in client.joined_topics}
    wanted = {
        (topic_id(topic), number)
        for topic in subscribed & world.h.topics.counts.keys()
        for number in range(world.h.topics.counts[topic])
    }
    read = {
        (topic, number) for client in world.clients for topic, numbers in client.reading.items() for number in numbers
    }
    assert read == wanted
    assert standing(world.h.replayed()) == standing(world.h.coordinator)
