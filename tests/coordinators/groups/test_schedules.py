"""Random lives of consumer groups: clients that join, lose answers, crash, leave, and coordinators that fail over.

A client here behaves as Java's and librdkafka do. It stops reading what is not in its assignment before it says so,
starts reading what is new, and stops reading everything when it is fenced, has not been answered for a whole session,
or has not let go of what it should for a whole rebalance timeout (counted from the first answer that it missed). What
it owns it says when it joins, after a request that failed, and when it has taken on another assignment; never
otherwise. An assignment that it has, or is taking on, is no news to it. While it takes one on, librdkafka keeps the
next one for later, and Java turns to the next one at once. franz-go repeats everything when it says what it owns, and
always says that it owns nothing. After a request that timed out librdkafka goes on as if it had been answered, but says
again what it wanted to say.

Whatever the schedule: no partition is read by two clients at once, a replayed coordinator stands where the live one
stands, and when the trouble ends every partition has a reader.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.coordinators.groups.consumer import NO_REVISION, ConsumerGroup
from sexton.coordinators.groups.coordinator import GroupCoordinator
from sexton.coordinators.groups.messages import LEAVE_EPOCH, LEAVE_STATIC_EPOCH
from sexton.coordinators.groups.records import Partitions
from sexton.coordinators.groups.states import ConsumerState
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.broker import GroupSettings
from tests.coordinators.groups.harness import GROUP, Harness, partitions, topic_id

SESSION_MS = 45_000
REBALANCE_MS = 300_000
"""max.poll.interval.ms: far longer than it takes to settle, so that whatever waits for it to run out is found."""
BEAT_MS = 5_000
ACTIONS_COUNT = 13
LOSE = 4
"""See `World.step`."""
REJOINING = -9
"""Epoch of a client whose join is asked for again under the same id, because an answer was lost or it was fenced."""
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
    """What it is to read: taken on, or being taken on."""
    told_next: Reading | None = None
    finishes_first: bool = False
    """As librdkafka: what came while it was busy is looked at afterwards."""
    goes_on: bool = False
    """As librdkafka, all of whose requests that fail time out."""
    says_everything: bool = False
    """As franz-go: what it owns it says in full requests."""
    is_news: bool = False
    """It has taken on another assignment since it last said what it owns."""
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
        self.told_next, self.is_news, self.must_ask_again = None, False, False
        self.lost_since_ms = self.revoking_since_ms = None

    def look_at_the_clock(self, now_ms: int) -> None:
        """Nobody answered for so long that the coordinator may have given its partitions away."""
        is_late = self.revoking_since_ms is not None and now_ms - self.revoking_since_ms >= REBALANCE_MS
        if self.is_in and (now_ms - self.answered_ms >= SESSION_MS or is_late):
            self.stop()

    @property
    def is_busy(self) -> bool:
        return self.told != self.reading

    @property
    def is_full(self) -> bool:
        """Whether its next heartbeat is to have all fields."""
        has_word = (self.is_news or not self.reading) and not self.is_busy
        return self.must_ask_again or (self.says_everything and has_word)

    def says(self) -> Partitions | None:
        return self.says_again() if self.is_news and not self.is_busy else None

    def says_again(self) -> Partitions:
        self.is_news = self.is_news and self.is_busy
        return self.reading

    def lose_answer(self, is_lost: bool, asked_again: bool, had_news: bool) -> None:
        """Or receive it."""
        if is_lost and self.goes_on and self.is_in:
            self.must_ask_again, self.is_news = asked_again, had_news
        else:
            self.must_ask_again = is_lost

    def hear(self, told: Partitions, now_ms: int) -> None:
        if self.finishes_first and self.is_busy:
            self.told_next = dict(told)
        elif told != self.told:
            self.told, self.is_news = dict(told), True
        too_much = any(numbers - told.get(topic, frozenset()) for topic, numbers in self.reading.items())
        if too_much and self.revoking_since_ms is None:
            self.revoking_since_ms = now_ms if self.lost_since_ms is None else self.lost_since_ms

    def revoke(self) -> None:
        kept = {topic: numbers & self.told.get(topic, frozenset()) for topic, numbers in self.reading.items()}
        self.reading = {topic: numbers for topic, numbers in kept.items() if numbers}
        self.revoking_since_ms = None

    def take(self) -> None:
        """One assignment; what was kept for later comes with the next call."""
        self.revoke()
        self.reading = {topic: numbers for topic, numbers in self.told.items() if numbers}
        if self.told_next is not None and self.told_next != self.told:
            self.told, self.is_news = self.told_next, True
        self.told_next = None


class World:
    def __init__(self, seed: int, assignor: str, is_franz_go: bool = False, goes_on: bool = False) -> None:
        self.rng = random.Random(seed)
        self.h = Harness(GroupSettings(group_consumer_assignors=(assignor, "range", "uniform")), t=3, u=2)
        self.clients = [
            FakeClient("a", ("t",)),
            FakeClient("b", ("t", "u"), finishes_first=True),
            FakeClient("c", ("t", "u"), "instance-c"),
            FakeClient("d", ("u", "v"), "instance-d", finishes_first=True),
        ]
        for client in self.clients[1:] if is_franz_go else ():
            client.says_everything, client.finishes_first = True, False
        for client in self.clients:
            client.goes_on = goes_on and client.finishes_first

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
        asked_again, had_news = client.must_ask_again, client.is_news
        try:
            if not client.is_in:
                if client.epoch == 0:
                    client.lives_count += 1
                    client.epoch = REJOINING
                    client.joined_topics = client.topics
                answer = h.beat(
                    client.member_id,
                    0,
                    topics=client.joined_topics,
                    owned={},
                    rebalance_timeout_ms=REBALANCE_MS,
                    instance_id=client.instance_id,
                )
            elif client.is_full:
                answer = h.beat(
                    client.member_id,
                    client.epoch,
                    topics=client.joined_topics,
                    owned=client.says_again(),
                    rebalance_timeout_ms=REBALANCE_MS,
                    instance_id=client.instance_id,
                )
            else:
                answer = h.beat(client.member_id, client.epoch, owned=client.says(), instance_id=client.instance_id)
        except KafkaError as error:
            if error.code not in EXPECTED:
                raise
            client.lose_answer(is_lost, asked_again, had_news)
            if not is_lost:
                client.stop()
                client.epoch, client.joined_topics = REJOINING, client.topics
            return
        client.lose_answer(is_lost, asked_again, had_news)
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
            case 4:  # LOSE
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
        """No more trouble: everybody sends heartbeats and does what it is told, until those who crashed have been
        missed for a whole session, and a little longer. Nobody who is there may be thrown out."""
        for beat in range(SESSION_MS // BEAT_MS + 8):
            for client in self.clients:
                was_in = client.is_in
                self.beat(client)
                self.check()
                assert client.is_in or not was_in or beat == 0, f"{client.name} was thrown out"
            self.h.advance(BEAT_MS)


def standing(coordinator: GroupCoordinator) -> ConsumerGroup | None:
    group = coordinator.core.groups.get(GROUP)
    assert group is None or isinstance(group, ConsumerGroup)
    return None if group is None else replace(group, seen_revision=NO_REVISION)


NO_READER = (169, 190, 283, 641, 764)
TWO_READERS = (14, 160, 365, 595, 757, 782)
NEVER_HEARD = (11, 34, 64, 129, 169, 184, 215, 230)
"""What once went wrong: a member that had never heard of a partition was to let go of it; what a member did not name
after a failed request was given away while it was busy taking it on; a client that goes on after a request that timed
out never heard of a partition, before or after a failover."""


def a_schedule(seed: int) -> tuple[str, list[tuple[int, int]]]:
    """With many lost answers."""
    rng = random.Random(seed)
    weights = [4 if action == LOSE else 1 for action in range(ACTIONS_COUNT)]
    actions = rng.choices(range(ACTIONS_COUNT), weights, k=rng.randint(40, 120))
    return rng.choice(["uniform", "range"]), [(action, rng.randint(0, 3)) for action in actions]


@settings(max_examples=100)
@given(
    seed=st.integers(0, 2**32),
    assignor=st.sampled_from(["uniform", "range"]),
    steps=st.lists(st.tuples(st.integers(0, ACTIONS_COUNT - 1), st.integers(0, 3)), min_size=40, max_size=120),
    is_franz_go=st.booleans(),
)
def test_no_partition_is_ever_read_by_two_and_in_the_end_each_is_read_by_one(
    seed: int, assignor: str, steps: list[tuple[int, int]], is_franz_go: bool
) -> None:
    live(seed, assignor, steps, is_franz_go)


@pytest.mark.parametrize("is_franz_go", [False, True])
@pytest.mark.parametrize("seed", [*range(10), *NO_READER, *TWO_READERS])
def test_the_same_where_many_answers_are_lost(seed: int, is_franz_go: bool) -> None:
    live(seed, *a_schedule(seed), is_franz_go)


@pytest.mark.parametrize("seed", [*range(10), *NEVER_HEARD])
def test_the_same_where_answers_are_lost_and_clients_go_on(seed: int) -> None:
    live(seed, *a_schedule(seed), is_franz_go=False, goes_on=True)


def live(seed: int, assignor: str, steps: list[tuple[int, int]], is_franz_go: bool, goes_on: bool = False) -> None:
    world = World(seed, assignor, is_franz_go, goes_on)
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


def test_who_is_told_again_what_it_lets_go_of_has_not_received_it_by_naming_it() -> None:
    """It names a partition while it is busy letting go of it, hears of all that it holds again, for it lacks another,
    and will take it on anew. Meanwhile it names what it has, without it: that is no word about the second time."""
    world = World(1, "range")
    world.h = Harness(GroupSettings(group_consumer_assignors=("range", "uniform")), t=2)
    a, b = FakeClient("a", ("t", "u", "v"), finishes_first=True), FakeClient("b", ("t",))
    world.clients = [a, b]
    world.beat(a)
    world.beat(a)
    world.h.topics.set("u", 1)
    world.beat(a, is_lazy=True)
    world.h.topics.set("v", 1)
    world.beat(a, is_lazy=True)
    world.beat(b)
    world.beat(a, is_lazy=True)
    assert a.told_next == partitions(t=[0], u=[0], v=[0]), "it is to let go of one, and another is new to it"
    a.take()
    world.beat(a, is_lost=True)
    world.beat(a, is_lazy=True)
    assert a.told_next == partitions(t=[0, 1], u=[0], v=[0]), "it was told everything again"
    world.beat(a, is_lost=True)
    a.take()
    assert a.reading == partitions(t=[0], u=[0], v=[0])
    world.beat(a, is_lazy=True)
    world.beat(b)
    a.take()
    world.check()
