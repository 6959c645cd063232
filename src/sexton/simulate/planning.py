"""Draws a plan from a seed: the same seed is the same plan."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

from sexton.client.fetching import READ_COMMITTED
from sexton.ports.cloud import CLOUD, STORAGE_MODE
from sexton.simulate import faults
from sexton.simulate.cluster import BrokerTimes, StorePlan
from sexton.simulate.compactors import CompactorPlan
from sexton.simulate.faults import Fault
from sexton.simulate.formats import CODECS, topic_format, writer_format
from sexton.simulate.lives import LifePlan
from sexton.simulate.loop import MS
from sexton.simulate.network import Weather
from sexton.simulate.plan import (
    HASTY,
    LONG_RETENTION_MS,
    UNCLEAN,
    Action,
    AdminPlan,
    Plan,
    Profile,
    ReaderPlan,
    TopicPlan,
)
from sexton.simulate.transactors import TransactorPlan
from sexton.simulate.writers import ACKS_ALL, WriterPlan

DELETING_PROBABILITY = 0.35
"""How many compacted topics have cleanup.policy=compact,delete. Not most: a log of which little is left shows little
of what was compacted."""


FORCING_PROBABILITY = 0.4


CLOUD_SETTINGS = ("message.timestamp.type", "max.message.bytes")
"""Of what a plan sets, what a cloud topic takes."""


RACKS = ("", "rack-0", "rack-1")
"""Of readers; brokers stand in one or the other."""


READER_PAUSES_MS = (0, 200, 500, 1_500)


SMALL = (Profile.TRANSACTIONS, Profile.COMPACTION)
"""Profiles with small records."""


IN_CLOUD = (Profile.CLOUD, Profile.LEVELED)


OF_THEMES = (Action.DELETE_COMPACTED, Action.SWITCH)
"""What is done only where a run is about it."""


SWITCH_PROBABILITY = 0.4
"""Of each cloud topic: it is local when it is made."""


def make_plan(
    seed: int,
    brokers_count: int,
    minutes: float,
    profile: Profile | None = None,
    is_independent: bool = False,
) -> Plan:
    rng = random.Random(f"{seed}:plan")
    drawn = rng.choice((Profile.PLAIN, Profile.TRANSACTIONS, Profile.COMPACTION))
    profile = profile or drawn
    until_ms = int(minutes * 60_000)
    formats = random.Random(f"{seed}:formats")
    topics = _varied(formats, _topics(rng, brokers_count, profile, is_independent), is_independent)
    topics = _unclean(random.Random(f"{seed}:unclean"), topics)
    is_cloud = profile in IN_CLOUD
    switches: list[AdminPlan] = []
    if is_cloud:
        topics = _in_cloud(random.Random(f"{seed}:cloud"), topics)
    if profile is Profile.CLOUD:
        topics, switches = _switched(random.Random(f"{seed}:switches"), topics, until_ms)
    if profile is Profile.LEVELED:
        topics = _compacted_in_cloud(random.Random(f"{seed}:leveled"), topics)
    writers = [writer_format(formats, writer) for writer in _writers(rng, topics, profile)]
    transactors = _transactors(random.Random(f"{seed}:transactors"), topics, profile)
    compactors = _compactors(random.Random(f"{seed}:compactors"), profile)
    readers = _readers(rng, profile)
    lives = _lives(random.Random(f"{seed}:lives"), brokers_count, profile)
    people: tuple[WriterPlan | TransactorPlan | CompactorPlan | ReaderPlan | LifePlan, ...]
    people = (*writers, *transactors, *compactors, *readers, *lives)
    clients = [each.name for each in people]
    brokers = [f"broker-{number}" for number in range(1, brokers_count + 1)]
    schedule = faults.schedule(random.Random(f"{seed}:faults"), brokers, clients, until_ms)
    if any(topic.is_compacted and not topic.flushes for topic in topics):
        schedule = _with_blackouts(random.Random(f"{seed}:blackouts"), schedule, brokers, until_ms)
    if is_cloud:
        schedule += faults.store_schedule(random.Random(f"{seed}:store faults"), brokers, until_ms)
        schedule.sort(key=lambda fault: fault.at_ms)
    if is_independent:
        schedule.append(_absence(rng, brokers, until_ms))
    elif profile is Profile.COMPACTION:
        forcing = random.Random(f"{seed}:forcing")
        if forcing.random() < FORCING_PROBABILITY:
            schedule.append(faults.forcing(forcing, brokers, until_ms))
    admin = _admin(random.Random(f"{seed}:admin"), topics, until_ms)
    admin += _deletions(random.Random(f"{seed}:deletions"), topics, until_ms)
    admin += _moves(random.Random(f"{seed}:moves"), topics, until_ms, schedule)
    admin += switches
    single = {topic.name for topic in topics if topic.replicas_count == 1}
    admin = [each for each in admin if each.action is not Action.CHANGE_SETTINGS or each.topic not in single]
    admin.sort(key=lambda each: each.at_ms)
    topics = _writable(topics, admin)
    weather = Weather(
        latency_ns=rng.choice((100_000, 500_000, 2 * MS)),
        jitter_ns=rng.choice((100_000, 1 * MS, 5 * MS)),
        straggler_probability=rng.choice((0.0, 0.01, 0.03)),
        split_probability=rng.choice((0.0, 0.05, 0.3)),
    )
    return Plan(
        seed=seed,
        brokers_count=brokers_count,
        until_ms=until_ms,
        times=BrokerTimes.draw(rng),
        weather=weather,
        topics=topics,
        items=(*schedule, *admin, *people),
        store=_store(seed, profile),
    )


def _topics(rng: random.Random, brokers_count: int, profile: Profile, is_independent: bool) -> tuple[TopicPlan, ...]:
    topics = []
    for number in range(rng.randint(1, 3)):
        replicas_count = min(brokers_count, rng.choice((2, 3, 3, 3)))
        settings = {
            "min.insync.replicas": str(rng.randint(1, min(2, replicas_count))),
            "segment.bytes": str(rng.choice((20_000, 100_000, 1 << 20))),
            "unclean.leader.election.enable": "false",
        }
        draw = rng.random()
        if profile is Profile.COMPACTION and (number == 0 or draw < 0.7):
            settings |= _compacted(rng, is_independent)
            if not is_independent and rng.random() < DELETING_PROBABILITY:
                settings |= _deleting(rng)
        topics.append(TopicPlan(f"topic-{number}", rng.randint(1, 3), replicas_count, settings))
    return tuple(topics)


def _varied(rng: random.Random, topics: tuple[TopicPlan, ...], is_independent: bool) -> tuple[TopicPlan, ...]:
    if is_independent:
        return topics  # which it is about, and nothing else
    varied = []
    for topic in topics:
        replicas_count, settings = topic_format(rng, topic.replicas_count, topic.settings)
        varied.append(replace(topic, replicas_count=replicas_count, settings=settings))
    return tuple(varied)


def _store(seed: int, profile: Profile) -> StorePlan | None:
    if profile not in IN_CLOUD:
        return None
    store = StorePlan.draw(random.Random(f"{seed}:store"))
    if profile is Profile.LEVELED:
        rng = random.Random(f"{seed}:leveling")
        leveling = {
            "cloud.level.ms": rng.choice((100, 1_000, 5_000)),
            "cloud.l1.bytes": rng.choice((1_024, 20_000, 64 << 20)),
        }
        store = replace(store, leveling=leveling)
    return store


def _compacted_in_cloud(rng: random.Random, topics: tuple[TopicPlan, ...]) -> tuple[TopicPlan, ...]:
    """Two of three cloud topics; some of those can be cut at their start, too."""
    changed = []
    for topic in topics:
        if topic.is_cloud and rng.random() < 0.7:
            policy = {
                "cleanup.policy": rng.choice(("compact", "compact", "compact,delete")),
                "min.cleanable.dirty.ratio": rng.choice(("0.0", "0.2", "0.5")),
                "max.compaction.lag.ms": str(rng.choice((2_000, 10_000, 600_000))),
                "delete.retention.ms": rng.choice(("0", "0", "25000", LONG_RETENTION_MS)),
            }
            topic = replace(topic, settings=topic.settings | policy)
        changed.append(topic)
    return tuple(changed)


def _in_cloud(rng: random.Random, topics: tuple[TopicPlan, ...]) -> tuple[TopicPlan, ...]:
    """All or some, one at least. What has no meaning there is left out."""
    share = rng.choice((0.5, 1.0))
    changed = []
    for number, topic in enumerate(topics):
        if number and rng.random() >= share:
            changed.append(topic)
            continue
        kept = {name: value for name, value in topic.settings.items() if name in CLOUD_SETTINGS}
        changed.append(replace(topic, settings=kept | {STORAGE_MODE: CLOUD}))
    return tuple(changed)


def _switched(
    rng: random.Random, topics: tuple[TopicPlan, ...], until_ms: int
) -> tuple[tuple[TopicPlan, ...], list[AdminPlan]]:
    """Some cloud topics are local first, with what a cloud topic may have, and become cloud topics while they are
    used."""
    changed, switches = [], []
    for topic in topics:
        if topic.is_cloud and rng.random() < SWITCH_PROBABILITY:
            local = {name: text for name, text in topic.settings.items() if name != STORAGE_MODE}
            local["segment.bytes"] = str(rng.choice((20_000, 1 << 20)))  # batches that are larger are no cloud topic's
            at_ms = rng.randrange(1_000, max(2_000, until_ms * 3 // 4))
            switches.append(AdminPlan(at_ms, Action.SWITCH, topic.name, rng.getrandbits(32)))
            topic = replace(topic, settings=local)
        changed.append(topic)
    return tuple(changed), switches


def _writable(topics: tuple[TopicPlan, ...], admin: Collection[AdminPlan]) -> tuple[TopicPlan, ...]:
    """The administrator may leave a partition two replicas, and asks for two in sync at most."""
    moved = {each.topic for each in admin if each.action is Action.REASSIGN}
    return tuple(
        replace(topic, settings=topic.settings | {"min.insync.replicas": "2"})
        if topic.name in moved and topic.settings.get("min.insync.replicas", "1") > "2"
        else topic
        for topic in topics
    )


def _with_blackouts(rng: random.Random, schedule: list[Fault], brokers: list[str], until_ms: int) -> list[Fault]:
    """What topics that acknowledge before the flush are not made for: all brokers lose power at about the same time. By
    chance that happens too rarely to show what compaction makes of what is left."""
    return schedule + [
        Fault(at_ms + rng.choice((0, 0, 30, 300, 3_000)), rng.randrange(500, 6_000), faults.Kind.POWER, (broker,), 0)
        for _ in range(rng.choice((0, 1, 2)))
        for at_ms in (rng.randrange(until_ms // 8, until_ms),)
        for broker in rng.sample(brokers, len(brokers))
    ]


def _absence(rng: random.Random, brokers: list[str], until_ms: int) -> Fault:
    """What it takes for replicas that compact by time alone to diverge: one is away while the others forget."""
    return Fault(until_ms // 4, until_ms // 2, faults.Kind.KILL, (rng.choice(brokers),), 0)


def _compacted(rng: random.Random, is_independent: bool) -> dict[str, str]:
    if is_independent:
        return {
            "cleanup.policy": "compact",
            "compaction.coordination": "independent",
            "segment.bytes": "2000",
            "segment.ms": "1000",
            "min.cleanable.dirty.ratio": "0.0",
            "delete.retention.ms": "0",
        }
    return {
        "cleanup.policy": "compact",
        "segment.bytes": str(rng.choice((2_000, 6_000, 20_000))),
        "segment.ms": str(rng.choice((1_000, 3_000, 600_000))),
        "min.cleanable.dirty.ratio": rng.choice(("0.0", "0.2", "0.5")),
        "max.compaction.lag.ms": str(rng.choice((2_000, 10_000, 600_000))),
        "delete.retention.ms": rng.choice(("0", "0", "2000", LONG_RETENTION_MS)),
    }


def _deleting(rng: random.Random) -> dict[str, str]:
    """Compacted, and cut at its start as well: by retention, or only when somebody asks."""
    by_time = {"retention.ms": str(rng.choice((5_000, 15_000, 40_000)))}
    by_size = {"retention.bytes": str(rng.choice((3_000, 10_000, 30_000)))}
    return {"cleanup.policy": "compact,delete"} | rng.choice(({}, by_time, by_size, by_time | by_size))


def _writers(rng: random.Random, topics: tuple[TopicPlan, ...], profile: Profile) -> list[WriterPlan]:
    """Where there is more to look at than plain records, there are fewer of these."""
    is_plain = profile is Profile.PLAIN
    places = [place for topic in topics for place in topic.places]
    writers = []
    for number in range(rng.randint(1, 3)):
        kind = rng.choice(("idempotent", "idempotent", "idempotent", "plain", "one")) if number else "idempotent"
        writers.append(
            WriterPlan(
                name=f"writer-{number}",
                places=tuple(rng.sample(places, rng.randint(1, len(places)))),
                acks=1 if kind == "one" else ACKS_ALL,
                is_idempotent=kind == "idempotent",
                interval_ms=rng.choice((30, 150, 600) if is_plain else (150, 400, 1_500)),
                records_max=rng.choice((1, 3, 10)),
                value_bytes_max=rng.choice((5, 100) if profile in SMALL else (5, 100, 1_000)),
                window_count=rng.choice((1, 1, 3, 5)),
            )
        )
    return writers


def _transactors(rng: random.Random, topics: tuple[TopicPlan, ...], profile: Profile) -> list[TransactorPlan]:
    if profile is Profile.PLAIN or (profile in (Profile.COMPACTION, *IN_CLOUD) and rng.random() < 0.5):
        return []
    places = [place for topic in topics for place in topic.places]
    return [
        TransactorPlan(
            f"txn-{number}",
            tuple(rng.sample(places, rng.randint(1, min(4, len(places))))),
            version=rng.choice((1, 2)),
            timeout_ms=rng.choice((2_000, 8_000, 20_000)),
            interval_ms=rng.choice((100, 400, 1_500)),
            batches_max=rng.choice((1, 4, 12)),
            records_max=rng.choice((1, 3)),
            value_bytes_max=rng.choice((5, 100)),
            patience_s=rng.choice((3, 10, 30)),
            abort_probability=rng.choice((0.0, 0.2, 0.5)),
            linger_probability=rng.choice((0.0, 0.03, 0.2)),
            change_probability=rng.choice((0.0, 0.3, 0.8)),
            sends_offsets=rng.random() < 0.5,
            codec=rng.choice(CODECS),
        )
        for number in range(rng.randint(1, 3))
    ]


def _compactors(rng: random.Random, profile: Profile) -> list[CompactorPlan]:
    if profile not in (Profile.COMPACTION, Profile.LEVELED):
        return []
    return [
        CompactorPlan(
            f"compactor-{number}",
            job_ms_max=rng.choice((10, 500, 5_000) if profile is Profile.COMPACTION else (10, 2_000, 40_000)),
            repeat_probability=rng.choice((0.0, 0.1)),
            change_probability=rng.choice((0.0, 0.2, 0.6)),
        )
        for number in range(rng.choice((1, 1, 2)))
    ]


def _readers(rng: random.Random, profile: Profile) -> list[ReaderPlan]:
    readers = [ReaderPlan(f"reader-{number}", None) for number in range(rng.randint(1, 2))]
    if profile is not Profile.PLAIN:
        readers.append(ReaderPlan("committed-reader", None, READ_COMMITTED))
    for number in range(rng.choice((0, 0, 1, 2, 3))):
        readers.append(ReaderPlan(f"member-{number}", "group"))
    for number in range(rng.choice((0, 0, 1, 2, 3))):
        readers.append(ReaderPlan(f"consumer-{number}", "consumers", is_consumer_protocol=True))
    return [replace(reader, pause_ms=rng.choice(READER_PAUSES_MS), rack=rng.choice(RACKS)) for reader in readers]


def _admin(rng: random.Random, topics: tuple[TopicPlan, ...], until_ms: int) -> list[AdminPlan]:
    actions = [action for action in Action if action not in (*HASTY, *OF_THEMES) and rng.random() < 0.3]
    if not actions:
        return []
    admin = []
    at_ms = 2_000
    pause_ms = rng.choice((2_000, 5_000, 15_000))
    while at_ms < until_ms:
        action = rng.choice(actions)
        at_ms += rng.randrange(2 * pause_ms)
        chosen = rng.choice(topics)
        topic = chosen.name
        if action is Action.DELETE_RECORDS and not chosen.deletes:
            continue  # it would be refused
        if action in (Action.CREATE_TOPIC, Action.DELETE_TOPIC):
            topic = f"scratch-{rng.randrange(3)}"
        admin.append(AdminPlan(at_ms, action, topic, rng.getrandbits(32)))
    return admin


def _unclean(rng: random.Random, topics: tuple[TopicPlan, ...]) -> tuple[TopicPlan, ...]:
    """Some topics allow unclean elections. To compacted ones that makes no difference, others lose records by them."""
    changed = []
    for topic in topics:
        is_one = rng.random() < (0.5 if topic.is_compacted else 0.15)
        changed.append(replace(topic, settings=topic.settings | {UNCLEAN: "true"}) if is_one else topic)
    return tuple(changed)


def _lives(rng: random.Random, brokers_count: int, profile: Profile) -> list[LifePlan]:
    """Two replicas at least: the only one could be placed on a machine whose disk is gone before its lease is."""
    if rng.random() < 0.65:
        return []
    lives = []
    for number in range(rng.choice((1, 1, 2))):
        settings = {"segment.bytes": str(rng.choice((2_000, 20_000, 1 << 20)))}
        if profile is Profile.COMPACTION and rng.random() < 0.6:
            settings |= _compacted(rng, is_independent=False)
        if profile in IN_CLOUD and rng.random() < 0.8:
            settings = {STORAGE_MODE: CLOUD}
        replicas_counts = rng.choice(((2,), (3,), (2, 3)))
        lives.append(
            LifePlan(
                f"phoenix-{number}",
                f"reborn-{number}",
                settings,
                tuple(min(brokers_count, count) for count in replicas_counts),
                lasts_ms=rng.choice((500, 3_000, 12_000)),
                apart_ms=rng.choice((0, 20, 500)),
                interval_ms=rng.choice((20, 100, 400)),
            )
        )
    return lives


def _moves(
    rng: random.Random, topics: tuple[TopicPlan, ...], until_ms: int, schedule: Collection[Fault]
) -> list[AdminPlan]:
    """In some runs often: what a replica knew of its former log must be forgotten however short it was away. And while
    something is wrong, as that is when operators move replicas."""
    if rng.random() < 0.5:
        return []
    actions = rng.choice(((Action.FLAP,), (Action.CANCEL,), (Action.BURST,), HASTY))
    pause_ms = rng.choice((600, 2_000, 6_000))
    times = [at_ms + rng.randrange(pause_ms) for at_ms in range(2_000, until_ms, pause_ms)]
    if rng.random() < 0.7:
        wrong = [fault for fault in schedule if fault.lasts_ms]
        times = [each.at_ms + rng.randrange(each.lasts_ms) for each in wrong for _ in range(rng.choice((1, 1, 3)))]
    return [
        AdminPlan(at_ms, rng.choice(actions), rng.choice(topics).name, rng.getrandbits(32))
        for at_ms in sorted(times)
        if at_ms < until_ms
    ]


def _deletions(rng: random.Random, topics: tuple[TopicPlan, ...], until_ms: int) -> list[AdminPlan]:
    """Of records in compacted topics: rarely enough that most of a log is compacted before it goes."""
    return [
        AdminPlan(rng.randrange(2_000, max(2_001, until_ms)), Action.DELETE_RECORDS, topic.name, rng.getrandbits(32))
        for topic in topics
        if topic.is_compacted and topic.deletes
        for _ in range(rng.choice((0, 2, 5)))
    ]
