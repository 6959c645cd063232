"""Random lives of groups whose members change the protocol one at a time: cooperative classic consumers beside those of
KIP-848, so that groups are upgraded, live mixed, and are downgraded again.

A classic consumer here behaves as Java's with the cooperative assignor: it reads on while it joins, says then what it
has, lets go of what it is not assigned any more (which takes a while), and then joins again. It stops reading
everything when it is not known any more, or nobody has answered for a whole session.

Whatever the schedule: no partition is read by two, and when the trouble ends each is read by one.
"""

from __future__ import annotations

import random
import uuid
from dataclasses import dataclass, field

import pytest

from sexton.coordinators.groups.messages import LEAVE_EPOCH, JoinAnswer, SyncAnswer
from sexton.protocol import embedded
from sexton.protocol.errors import ErrorCode, KafkaError
from tests.coordinators.groups.harness import GROUP
from tests.coordinators.groups.test_schedules import BEAT_MS, EXPECTED, REBALANCE_MS, SESSION_MS, FakeClient, World

ASSIGNOR = "cooperative-sticky"
WEIGHTS = (1, 1, 2, 2, 2, 2, 2, 2, 2, 1, 3, 1, 1)
"""Of the actions in `MixedWorld.step`: many departures and failovers."""
FAIL_OVER = 10
Reading = dict[str, frozenset[int]]


@dataclass
class FakeClassic:
    name: str
    topics: tuple[str, ...]
    member_id: str = ""
    generation: int = -1
    reading: Reading = field(default_factory=dict)
    next_reading: Reading | None = None
    """Its callback for what it lets go of is under way."""
    join_token: int | None = None
    joined: JoinAnswer | None = None
    sync_token: int | None = None
    is_stable: bool = False
    answered_ms: int = 0

    def rejoin(self) -> None:
        self.join_token = self.sync_token = self.joined = None
        self.is_stable = False

    def lose(self, *, forgets_id: bool) -> None:
        """Others may have what was its own."""
        self.rejoin()
        self.reading, self.next_reading, self.generation = {}, None, -1
        if forgets_id:
            self.member_id = ""

    def refused(self, code: ErrorCode) -> None:
        if code in (ErrorCode.rebalance_in_progress, ErrorCode.coordinator_not_available):
            self.rejoin()
        else:
            assert code in (ErrorCode.illegal_generation, ErrorCode.unknown_member_id), code
            self.lose(forgets_id=code is ErrorCode.unknown_member_id)

    def protocols(self) -> tuple[tuple[str, bytes], ...]:
        owned = {topic: sorted(numbers) for topic, numbers in self.reading.items()}
        subscription = embedded.Subscription(self.topics, 2, owned, self.generation)
        return ((ASSIGNOR, embedded.write_subscription(subscription)),)

    def finish_revoking(self) -> None:
        """And then it joins again, so that others get it."""
        if self.next_reading is not None:
            self.reading, self.next_reading = self.next_reading, None
            self.rejoin()

    def hear(self, assigned: Reading) -> None:
        if any(numbers - assigned.get(topic, frozenset()) for topic, numbers in self.reading.items()):
            self.next_reading = assigned
        else:
            self.reading = assigned


def assign(members: dict[str, embedded.Subscription], counts: dict[str, int]) -> dict[str, bytes]:
    """As a cooperative assignor: what another has to let go of first is given to nobody."""
    owners: dict[tuple[str, int], str] = {}
    for member_id in sorted(members, key=lambda one: members[one].generation):
        for topic, numbers in members[member_id].owned.items():
            owners.update({(topic, number): member_id for number in numbers})
    given: dict[str, dict[str, list[int]]] = {member_id: {} for member_id in members}
    load = dict.fromkeys(members, 0)
    for place in [(topic, number) for topic, count in sorted(counts.items()) for number in range(count)]:
        able = sorted((load[one], owners.get(place) != one, one) for one in members if place[0] in members[one].topics)
        if able:
            chosen = able[0][2]
            load[chosen] += 1
            if owners.get(place, chosen) == chosen:
                given[chosen].setdefault(place[0], []).append(place[1])
    return {member_id: embedded.write_assignment(parts, 2) for member_id, parts in given.items()}


class MixedWorld(World):
    def __init__(self, seed: int) -> None:
        super().__init__(seed, "uniform")
        self.clients = [FakeClient("c", ("t", "u")), FakeClient("d", ("t", "u"), finishes_first=True)]
        self.classics = [FakeClassic("a", ("t", "u")), FakeClassic("b", ("t", "u"))]

    def check(self) -> None:
        seen: dict[tuple[uuid.UUID | None, int], str] = {}
        readers = [(one.name, one.reading) for one in self.clients]
        topic_id = self.h.topics.topic_id
        readers += [(one.name, {topic_id(t): n for t, n in one.reading.items()}) for one in self.classics]  # type: ignore[misc]
        for name, reading in readers:
            for topic, numbers in reading.items():
                for number in numbers:
                    assert (topic, number) not in seen, f"{name} and {seen[topic, number]} both read {number}"
                    seen[topic, number] = name

    def look_at_the_clock(self) -> None:
        for client in self.clients:
            client.look_at_the_clock(self.h.now_ms)
        for classic in self.classics:
            if classic.reading and self.h.now_ms - classic.answered_ms >= SESSION_MS:
                classic.lose(forgets_id=False)

    def go_on(self, one: FakeClassic, *, is_lost: bool = False, is_lazy: bool = False) -> None:
        """Its next request, or what follows from an answer. `is_lost`: it asks and never hears."""
        h = self.h
        if one.next_reading is not None:
            if is_lazy:
                self.heartbeat(one)
                return
            one.finish_revoking()
        if one.join_token is not None:
            self.take_join(one)
        elif one.sync_token is not None:
            self.take_sync(one)
        elif one.joined is not None:
            self.sync(one, is_lost)
        elif one.is_stable:
            self.heartbeat(one)
        else:
            token = h.join_parked(
                one.member_id,
                protocols=one.protocols(),
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=REBALANCE_MS,
                requires_member_id=True,
            )
            one.join_token = None if is_lost else token

    def take_join(self, one: FakeClassic) -> None:
        assert one.join_token is not None
        answer = self.h.join_answer(one.join_token)
        if answer is None:
            return  # parked
        one.join_token, one.answered_ms = None, self.h.now_ms
        if answer.error is ErrorCode.member_id_required:
            one.member_id = answer.member_id
        elif answer.error is not ErrorCode.none:
            one.refused(answer.error)
        else:
            one.member_id, one.generation, one.joined = answer.member_id, answer.generation, answer

    def sync(self, one: FakeClassic, is_lost: bool) -> None:
        joined, assignments = one.joined, {}
        assert joined is not None
        if joined.leader == one.member_id:
            members = {each.member_id: embedded.read_subscription(each.metadata) for each in joined.members}
            assignments = assign(members, self.h.topics.counts)
        token = self.h.sync_parked(one.member_id, one.generation, assignments)
        one.rejoin()
        one.sync_token = None if is_lost else token

    def take_sync(self, one: FakeClassic) -> None:
        assert one.sync_token is not None
        answer = self.h.answers.get(one.sync_token)
        if answer is None:
            return
        assert isinstance(answer, SyncAnswer)
        one.sync_token, one.answered_ms = None, self.h.now_ms
        if answer.error is not ErrorCode.none:
            one.refused(answer.error)
            return
        one.is_stable = True
        assigned = embedded.read_assignment(answer.assignment)
        one.hear({topic: frozenset(numbers) for topic, numbers in assigned.items() if numbers})

    def heartbeat(self, one: FakeClassic) -> None:
        code = self.h.heartbeat(one.member_id, one.generation)
        one.answered_ms = self.h.now_ms
        if code is not ErrorCode.none and (code is not ErrorCode.rebalance_in_progress or one.next_reading is None):
            one.refused(code)

    def leave(self, client: FakeClient) -> None:
        member_id, is_in = client.member_id, client.is_in
        client.stop()
        if is_in:
            try:
                self.h.beat(member_id, LEAVE_EPOCH)
            except KafkaError as error:
                if error.code not in EXPECTED:
                    raise

    def step(self, action: int, client: FakeClient) -> None:
        h, rng = self.h, self.rng
        classic = self.classics[self.clients.index(client)]
        match action:
            case 0 | 1:
                self.beat(client)
            case 2:
                self.beat(client, is_lost=rng.random() < 0.5, is_lazy=rng.random() < 0.5)
            case 3 | 4 | 5 | 6:
                self.go_on(classic)
            case 7:
                self.go_on(classic, is_lost=rng.random() < 0.3, is_lazy=rng.random() < 0.5)
            case 8:
                self.leave(client)
            case 9 if classic.member_id:
                member_id = classic.member_id
                classic.lose(forgets_id=True)
                if GROUP in h.coordinator.core.groups:
                    h.leave((member_id, None))
            case 10:  # FAIL_OVER
                h.fail_over()
                for one in self.classics:  # what was parked is gone with the coordinator
                    if one.join_token is not None or one.sync_token is not None:
                        one.rejoin()
            case 11:
                self.pass_time(rng.choice([100, 5_000, 19_999, 46_000]))
            case 12 if rng.random() < 0.3:
                client.stop()  # a crash

    def pass_time(self, delay_ms: int) -> None:
        for one in self.classics:  # no answer takes that long
            if one.join_token is not None:
                self.take_join(one)
            elif one.sync_token is not None:
                self.take_sync(one)
        self.h.advance(delay_ms)
        self.look_at_the_clock()

    def settle_mixed(self, keeps_new: bool) -> None:
        if not keeps_new:
            for client in self.clients:
                self.leave(client)
            self.step(FAIL_OVER, self.clients[0])
        for _ in range(SESSION_MS // BEAT_MS + 20):
            for client in self.clients if keeps_new else ():
                self.beat(client)
                self.check()
            for classic in self.classics:
                for _ in range(3):
                    self.go_on(classic)
                    self.check()
            self.pass_time(BEAT_MS)


def live(seed: int) -> None:
    rng = random.Random(seed)
    world = MixedWorld(seed)
    for _ in range(rng.randint(20, 80)):
        (action,) = rng.choices(range(len(WEIGHTS)), WEIGHTS)
        world.step(action, rng.choice(world.clients))
        world.check()
    world.settle_mixed(keeps_new=rng.random() < 0.2)
    wanted = {(topic, number) for topic, count in world.h.topics.counts.items() for number in range(count)}
    names = world.h.topics.topic_name
    read = {(names(topic), n) for one in world.clients for topic, numbers in one.reading.items() for n in numbers}
    read |= {(topic, n) for one in world.classics for topic, numbers in one.reading.items() for n in numbers}
    assert read == wanted


NO_READER = (116, 124, 216, 293, 409, 571)
TWO_READERS = (246, 350)
"""What once went wrong: a downgraded group forgot that it had to rebalance; an upgrade did not know who had what."""


@pytest.mark.parametrize("seed", [*range(30), *NO_READER, *TWO_READERS])
def test_no_partition_is_read_by_two_and_in_the_end_each_is_read_by_one(seed: int) -> None:
    live(seed)
