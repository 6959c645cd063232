"""Everything that a seed decides before anything runs: topics, clients, administration, faults.

A plan is a list of items, so that a failing run can be cut down by leaving some of them out. Each client and each
machine draws from random numbers of its own, named after it: leaving one out does not change what the others do.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import StrEnum

from sexton.simulate import faults
from sexton.simulate.cluster import BrokerTimes
from sexton.simulate.faults import Fault
from sexton.simulate.history import Place
from sexton.simulate.loop import MS
from sexton.simulate.network import Weather
from sexton.simulate.writers import ACKS_ALL, WriterPlan


@dataclass(frozen=True, slots=True)
class TopicPlan:
    name: str
    partitions_count: int
    replicas_count: int
    settings: dict[str, str]

    @property
    def places(self) -> tuple[Place, ...]:
        return tuple((self.name, partition) for partition in range(self.partitions_count))


@dataclass(frozen=True, slots=True)
class ReaderPlan:
    name: str
    group: str | None


class Action(StrEnum):
    CREATE_TOPIC = "create topic"
    DELETE_TOPIC = "delete topic"
    ADD_PARTITIONS = "add partitions"
    CHANGE_SETTINGS = "change settings"
    REASSIGN = "reassign"
    ELECT = "elect preferred leaders"
    DELETE_RECORDS = "delete records"


@dataclass(frozen=True, slots=True)
class AdminPlan:
    at_ms: int
    action: Action
    topic: str
    draw: int
    """What the details are drawn from when its time comes."""


Item = Fault | AdminPlan | WriterPlan | ReaderPlan


@dataclass(frozen=True, slots=True)
class Plan:
    seed: int
    brokers_count: int
    until_ms: int
    times: BrokerTimes
    weather: Weather
    topics: tuple[TopicPlan, ...]
    items: tuple[Item, ...]

    def without(self, left_out: Collection[int]) -> Plan:
        return replace(self, items=tuple(item for index, item in enumerate(self.items) if index not in left_out))

    @property
    def faults(self) -> list[Fault]:
        return [item for item in self.items if isinstance(item, Fault)]

    @property
    def admin(self) -> list[AdminPlan]:
        return [item for item in self.items if isinstance(item, AdminPlan)]

    @property
    def writers(self) -> list[WriterPlan]:
        return [item for item in self.items if isinstance(item, WriterPlan)]

    @property
    def readers(self) -> list[ReaderPlan]:
        return [item for item in self.items if isinstance(item, ReaderPlan)]


def make_plan(seed: int, brokers_count: int, minutes: float) -> Plan:
    rng = random.Random(f"{seed}:plan")
    until_ms = int(minutes * 60_000)
    topics = _topics(rng, brokers_count)
    writers = _writers(rng, topics)
    readers = _readers(rng)
    clients = [each.name for each in writers] + [each.name for each in readers]
    brokers = [f"broker-{number}" for number in range(1, brokers_count + 1)]
    schedule = faults.schedule(random.Random(f"{seed}:faults"), brokers, clients, until_ms)
    admin = _admin(random.Random(f"{seed}:admin"), topics, until_ms)
    weather = Weather(
        latency_ns=rng.choice((100_000, 500_000, 2 * MS)),
        jitter_ns=rng.choice((100_000, 1 * MS, 5 * MS)),
        straggler_probability=rng.choice((0.0, 0.01, 0.03)),
        split_probability=rng.choice((0.0, 0.05, 0.3)),
    )
    items: tuple[Item, ...] = (*schedule, *admin, *writers, *readers)
    return Plan(seed, brokers_count, until_ms, BrokerTimes.draw(rng), weather, topics, items)


def _topics(rng: random.Random, brokers_count: int) -> tuple[TopicPlan, ...]:
    topics = []
    for number in range(rng.randint(1, 3)):
        replicas_count = min(brokers_count, rng.choice((2, 3, 3, 3)))
        settings = {
            "min.insync.replicas": str(rng.randint(1, min(2, replicas_count))),
            "segment.bytes": str(rng.choice((20_000, 100_000, 1 << 20))),
            "unclean.leader.election.enable": "false",
        }
        topics.append(TopicPlan(f"topic-{number}", rng.randint(1, 3), replicas_count, settings))
    return tuple(topics)


def _writers(rng: random.Random, topics: tuple[TopicPlan, ...]) -> list[WriterPlan]:
    places = [place for topic in topics for place in topic.places]
    writers = []
    for number in range(rng.randint(1, 3)):
        kind = rng.choice(("idempotent", "idempotent", "idempotent", "plain", "one")) if number else "idempotent"
        writers.append(
            WriterPlan(
                f"writer-{number}",
                tuple(rng.sample(places, rng.randint(1, len(places)))),
                1 if kind == "one" else ACKS_ALL,
                kind == "idempotent",
                rng.choice((30, 150, 600)),
                rng.choice((1, 3, 10)),
                rng.choice((5, 100, 1_000)),
                rng.choice((1, 1, 3, 5)),
            )
        )
    return writers


def _readers(rng: random.Random) -> list[ReaderPlan]:
    readers = [ReaderPlan(f"reader-{number}", None) for number in range(rng.randint(1, 2))]
    for number in range(rng.choice((0, 0, 1, 2, 3))):
        readers.append(ReaderPlan(f"member-{number}", "group"))
    return readers


def _admin(rng: random.Random, topics: tuple[TopicPlan, ...], until_ms: int) -> list[AdminPlan]:
    actions = [action for action in Action if rng.random() < 0.3]
    if not actions:
        return []
    admin = []
    at_ms = 2_000
    pause_ms = rng.choice((2_000, 5_000, 15_000))
    while at_ms < until_ms:
        action = rng.choice(actions)
        at_ms += rng.randrange(2 * pause_ms)
        topic = rng.choice(topics).name
        if action in (Action.CREATE_TOPIC, Action.DELETE_TOPIC):
            topic = f"scratch-{rng.randrange(3)}"
        admin.append(AdminPlan(at_ms, action, topic, rng.getrandbits(32)))
    return admin
