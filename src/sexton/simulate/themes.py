"""Runs that are about one thing.

Swarm testing draws which kinds of faults a seed has, and how often. Some mistakes need three or four of them within a
second, in one order: by chance that happens once in thousands of seeds. So half of the seeds have a *theme*: a place
where a cluster decides something, and what makes deciding hard there, again and again. When, how long, how strong and
to whom is drawn as ever, and the judge knows nothing of it.

A theme is drawn from random numbers of its own, so that seeds without one are what they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum

from sexton.simulate.faults import FIRST_FAULT_MS, FORCING_S, Fault, Kind
from sexton.simulate.lives import LifePlan
from sexton.simulate.nemesis import FULL_PARTS
from sexton.simulate.plan import UNCLEAN, Action, AdminPlan, Item, Plan, TopicPlan

THEME_PROBABILITY = 0.5

ALONE_PROBABILITY = 0.7
"""How many themes come without the faults and the moves in haste that the seed had drawn before."""


class Theme(StrEnum):
    JOINS = "joins"
    """Replicas leave and come back, as one process after the other, while leaders are not told what the metastore has
    carried out."""
    MOVES = "moves"
    """Replicas are removed and added again, over links on which answers take long."""
    STOPS = "stops"
    """Brokers are stopped in good order right after others have lost power, or killed right before, and topics
    acknowledge before the flush."""
    LIVES = "lives"
    """Topics and replicas are deleted and made again at once, while disks are slow and segments short."""
    TEARS = "tears"
    """Machines lose power with pages of what was not flushed in any order, while disks are slow."""
    STARTS = "starts"
    """Log starts move, up to where segments begin, while leaders come and go."""
    FORCED = "forced"
    """Leaders are forced where there is no room for their watermarks."""
    CANCELS = "cancels"
    """Reassignments are cancelled while those who held the partition before are away."""
    ZOMBIES = "zombies"
    """Of cloud topics: leaders stand still for longer than their lease while the store is slow, and then go on."""
    SILENCE = "silence"
    """Of cloud topics: most requests to the store and the metastore are carried out, and not answered."""
    HANDS = "hands"
    """Of cloud topics: partitions go from hand to hand while commits are late."""


OF_COMPACTION = (Theme.STARTS, Theme.FORCED, Theme.CANCELS)
OF_CLOUD = (Theme.ZOMBIES, Theme.SILENCE, Theme.HANDS)
"""All others are about replicas' logs."""


def theme_of(seed: int, *, is_compacting: bool, is_cloud: bool = False) -> Theme | None:
    rng = random.Random(f"{seed}:theme")
    if rng.random() >= THEME_PROBABILITY:
        return None
    if is_cloud:
        return rng.choice(OF_CLOUD)
    left_out = OF_CLOUD if is_compacting else (*OF_COMPACTION, *OF_CLOUD)
    return rng.choice([theme for theme in Theme if theme not in left_out])


def themed(plan: Plan) -> Plan:
    theme = theme_of(plan.seed, is_compacting=bool(plan.compactors), is_cloud=plan.store is not None)
    if theme is None:
        return plan
    rng = random.Random(f"{plan.seed}:theme:{theme}")
    kept = plan.items
    if rng.random() < ALONE_PROBABILITY:
        kept = tuple(item for item in plan.items if not isinstance(item, Fault) and item not in plan.moves)
    changed, more = _MAKERS[theme](rng, plan)
    return replace(changed, items=tuple(_in_order([*kept, *more])))


def _in_order(items: list[Item]) -> list[Item]:
    """As plans have them: faults, administration, people; the first two by time."""
    faults = sorted((item for item in items if isinstance(item, Fault)), key=lambda fault: fault.at_ms)
    admin = sorted((item for item in items if isinstance(item, AdminPlan)), key=lambda each: each.at_ms)
    return [*faults, *admin, *(item for item in items if not isinstance(item, Fault | AdminPlan))]


Made = tuple[Plan, list[Item]]
"""What becomes of a plan, and what else happens."""


def _brokers(plan: Plan) -> list[str]:
    return [f"broker-{number}" for number in range(1, plan.brokers_count + 1)]


def _times(rng: random.Random, plan: Plan, every_ms: int) -> Iterator[int]:
    at_ms = FIRST_FAULT_MS + rng.randrange(every_ms)
    while at_ms < plan.until_ms:
        yield at_ms
        at_ms += every_ms // 2 + rng.randrange(every_ms)


def _is_in_time(item: Item, plan: Plan) -> bool:
    return not isinstance(item, Fault | AdminPlan) or item.at_ms < plan.until_ms


def _often(
    rng: random.Random, plan: Plan, kind: Kind, broker: str, amounts: Sequence[int], every_ms: int
) -> list[Fault]:
    """More often than not."""
    return [
        Fault(at_ms, rng.randrange(every_ms // 4, 2 * every_ms), kind, (broker,), rng.choice(amounts))
        for at_ms in _times(rng, plan, every_ms)
    ]


def _set(topics: tuple[TopicPlan, ...], settings: dict[str, str]) -> tuple[TopicPlan, ...]:
    return tuple(replace(topic, settings=topic.settings | settings) for topic in topics)


def _copied(topics: tuple[TopicPlan, ...]) -> tuple[TopicPlan, ...]:
    """Nothing joins where there is one replica."""
    return tuple(replace(topic, replicas_count=max(2, topic.replicas_count)) for topic in topics)


def _moves(rng: random.Random, plan: Plan, actions: tuple[Action, ...], every_ms: int) -> list[Item]:
    return [
        AdminPlan(at_ms, rng.choice(actions), rng.choice(plan.topics).name, rng.getrandbits(32))
        for at_ms in _times(rng, plan, every_ms)
    ]


def _joins(rng: random.Random, plan: Plan) -> Made:
    """One broker dies again and again. It is away for so long that it leaves the ISR, or for a moment, so that the one
    that caught up is gone; the others' requests break all the time, or all of them for a moment, or find the metastore
    locked and are made again and again. Some of its processes take long to copy what they lack: what the one before had
    copied says nothing of them."""
    brokers = _brokers(plan)
    dying = rng.choice(brokers)
    flushes = rng.choice(("true", "false"))
    kind = rng.choice((Kind.KILL, Kind.POWER)) if flushes == "true" else Kind.POWER
    lag_max_ms, up_ms = rng.choice((300, 300, 1_000)), rng.choice((300, 600))
    items: list[Fault] = []
    at_ms = FIRST_FAULT_MS
    while at_ms < plan.until_ms:
        for lasts_ms in (lag_max_ms + rng.randrange(200, 1_000), rng.randrange(20, 120)):
            items.append(Fault(at_ms, lasts_ms, kind, (dying,), 0))
            at_ms += lasts_ms + 100 + rng.randrange(up_ms)
    breaks, is_cut_off = rng.choice((40, 60, 80)), rng.random() < 0.4
    for broker in brokers:
        if broker != dying and is_cut_off:
            items += [
                Fault(at_ms, rng.randrange(50, 600), Kind.NO_METASTORE, (broker,), 0)
                for at_ms in _times(rng, plan, 2_000)
            ]
        elif broker != dying:
            items += _often(rng, plan, Kind.METASTORE_BREAKS, broker, (breaks,), 3_000)
    locks = random.Random(f"{plan.seed}:theme:locks")
    if locks.random() < 0.5:
        items = [item for item in items if item.targets == (dying,)]
        for broker in brokers:
            if broker != dying:
                items += _often(locks, plan, Kind.METASTORE_LOCKED, broker, (50, 70), 3_000)
                items += [
                    Fault(at_ms, locks.randrange(100, 1_000), Kind.CUT, (dying, broker), 0)
                    for at_ms in _times(locks, plan, 1_500)
                ]
    elif locks.random() < 0.6:
        flushes = "true"
        items = [replace(item, kind=Kind.KILL) for item in items if item.targets == (dying,)]
        items += _deaf_spells(locks, plan, [broker for broker in brokers if broker != dying])
    if rng.random() < 0.6:
        items += _often(rng, plan, Kind.THIN_NETWORK, dying, (15, 40, 150, 600), 4_000)
    topics = _set(_copied(plan.topics), {"flush.before.ack": flushes, "min.insync.replicas": "1"})
    times = replace(plan.times, lag_max_ms=lag_max_ms)
    return replace(plan, topics=topics, times=times), [item for item in items if _is_in_time(item, plan)]


def _deaf_spells(rng: random.Random, plan: Plan, brokers: Sequence[str]) -> list[Fault]:
    """For a moment, shorter than a lease, almost nothing that a broker asks the metastore for is answered, and much of
    it is carried out: it neither learns what became of a join nor reads the row that has it."""
    return [
        Fault(at_ms, rng.randrange(300, 1_500), Kind.METASTORE_BREAKS, (broker,), rng.choice((80, 90, 95)))
        for broker in brokers
        for at_ms in _times(rng, plan, 1_500)
    ]


def _hasty(rng: random.Random, plan: Plan) -> Made:
    items = _moves(rng, plan, rng.choice(((Action.FLAP,), (Action.BURST,), (Action.FLAP, Action.BURST))), 500)
    for broker in _brokers(plan):
        items += _often(rng, plan, Kind.THIN_NETWORK, broker, (50, 200, 1_000), 6_000)
    return replace(plan, topics=_copied(plan.topics)), items


def _stops(rng: random.Random, plan: Plan) -> Made:
    """Within the time for which one that is dead still counts as alive. In half of the runs the other one is killed
    before, not stopped: whoever is elected for it then may be the one that is dead."""
    items: list[Item] = []
    is_killed = random.Random(f"{plan.seed}:theme:killed").random() < 0.5
    for at_ms in _times(rng, plan, rng.choice((4_000, 8_000))):
        dead, stopped = rng.sample(_brokers(plan), 2)
        dead_ms, stopped_ms = rng.randrange(500, 8_000), rng.randrange(plan.times.lease_ms)
        lasts_ms = rng.randrange(500, 6_000)
        if is_killed:
            items.append(Fault(at_ms, plan.times.lease_ms + lasts_ms, Kind.KILL, (stopped,), 0))
            items.append(Fault(at_ms + stopped_ms, dead_ms, Kind.POWER, (dead,), 0))
        else:
            items.append(Fault(at_ms, dead_ms, Kind.POWER, (dead,), 0))
            items.append(Fault(at_ms + stopped_ms, lasts_ms, Kind.RESTART, (stopped,), 0))
    topics = _set(_copied(plan.topics), {"flush.before.ack": "false"})
    return replace(plan, topics=topics), [item for item in items if _is_in_time(item, plan)]


def _lives(rng: random.Random, plan: Plan) -> Made:
    """Those who make and delete topics, or remove and add replicas, are quicker than disks, and some brokers hear of
    both at once."""
    items = _moves(rng, plan, (Action.FLAP,), 250)
    for broker in _brokers(plan):
        items += _often(rng, plan, Kind.SLOW_DISK, broker, (10, 50, 200), 4_000)
        items += [
            Fault(at_ms, rng.randrange(50, 800), Kind.NO_METASTORE, (broker,), 0) for at_ms in _times(rng, plan, 4_000)
        ]
    life = LifePlan(
        "phoenix-2",
        "reborn-2",
        {"segment.bytes": "2000"},
        (min(2, plan.brokers_count), min(3, plan.brokers_count)),
        lasts_ms=rng.choice((300, 1_000, 2_500)),
        apart_ms=rng.choice((0, 0, 20)),
        interval_ms=rng.choice((10, 20, 50)),
    )
    topics = tuple(
        topic if topic.is_compacted else replace(topic, settings=topic.settings | {"segment.bytes": "20000"})
        for topic in _copied(plan.topics)
    )
    return replace(plan, topics=topics), [*items, life]


def _tears(rng: random.Random, plan: Plan) -> Made:
    items: list[Item] = [
        Fault(at_ms, rng.randrange(300, 4_000), Kind.SCATTER, (rng.choice(_brokers(plan)),), rng.randrange(2))
        for at_ms in _times(rng, plan, rng.choice((1_500, 4_000)))
    ]
    for broker in _brokers(plan):
        items += _often(rng, plan, Kind.SLOW_DISK, broker, (10, 100), 4_000)
    return replace(plan, topics=_set(_copied(plan.topics), {"flush.before.ack": rng.choice(("true", "false"))})), items


def _starts(rng: random.Random, plan: Plan) -> Made:
    """A leader is cut off from its followers, its log start moves, mostly to where compaction has come to, and it dies:
    who leads next starts where it did. In between there is time to compact, or there would be nothing but starts."""
    deleting = {
        "cleanup.policy": "compact,delete",
        "segment.bytes": rng.choice(("2000", "6000", "20000")),
        "segment.ms": rng.choice(("2000", "600000")),
        "min.cleanable.dirty.ratio": rng.choice(("0.0", "0.2", "0.5")),
        "max.compaction.lag.ms": rng.choice(("2000", "5000", "10000")),
    }
    topics = tuple(
        replace(topic, settings=topic.settings | deleting) if topic.is_compacted else topic
        for topic in _copied(plan.topics)
    )
    names = [topic.name for topic in topics if topic.is_compacted]
    items: list[Item] = []
    for at_ms in _times(rng, plan, rng.choice((5_000, 8_000))):
        dying, *others = rng.sample(_brokers(plan), plan.brokers_count)
        cut_ms = rng.randrange(300, 2_000)
        items += [Fault(at_ms, cut_ms + 500, Kind.CUT, (dying, other), 0) for other in others]
        items += [
            AdminPlan(
                at_ms + rng.randrange(cut_ms),
                rng.choice((Action.DELETE_RECORDS, *[Action.DELETE_COMPACTED] * 3)),
                rng.choice(names),
                rng.getrandbits(32),
            )
            for _ in range(rng.choice((1, 2, 4)))
        ]
        items.append(Fault(at_ms + cut_ms, rng.randrange(200, 4_000), Kind.KILL, (dying,), 0))
    times = replace(plan.times, adopts=True, lease_ms=2_000)
    return replace(plan, topics=topics, times=times), [item for item in items if _is_in_time(item, plan)]


def _forced(rng: random.Random, plan: Plan) -> Made:
    brokers = _brokers(plan)
    items: list[Item] = []
    part = FULL_PARTS.index("compaction-watermarks")
    every_ms = 1000 * FORCING_S + 8_000
    for at_ms in range(FIRST_FAULT_MS, max(FIRST_FAULT_MS + 1, plan.until_ms - 1000 * FORCING_S), every_ms):
        alone, away_ms = rng.choice(brokers), rng.randrange(1_000, 6_000)
        items.append(Fault(at_ms, away_ms, Kind.FORCING, (alone,), 0))
        for number in rng.sample(range(16), 8):
            full_ms = at_ms + away_ms + rng.randrange(4_000)
            amount = part + number * len(FULL_PARTS)
            items.append(Fault(full_ms, rng.randrange(500, 6_000), Kind.FULL_PLACE, (alone,), amount))
    return replace(plan, topics=_copied(plan.topics)), [item for item in items if _is_in_time(item, plan)]


def _cancels(rng: random.Random, plan: Plan) -> Made:
    """Two brokers are away at once, of which one went before the other: whoever was added in between is alone. Moves
    begin at any time, and some of them there."""
    topics = tuple(replace(topic, replicas_count=2) for topic in plan.topics)
    items = _moves(rng, plan, (Action.CANCEL,), rng.choice((1_500, 3_000)))
    times = replace(plan.times, lease_ms=2_000)
    for at_ms in _times(rng, plan, 12_000):
        first, second = rng.sample(_brokers(plan), 2)
        apart_ms = times.lease_ms + rng.randrange(500, 4_000)
        second_ms = times.lease_ms + rng.randrange(1_000, 8_000)
        items.append(Fault(at_ms, apart_ms + second_ms + rng.randrange(2_000), Kind.KILL, (first,), 0))
        items.append(Fault(at_ms + apart_ms, second_ms, Kind.KILL, (second,), 0))
        items += [
            AdminPlan(at_ms + rng.randrange(apart_ms), Action.CANCEL, rng.choice(topics).name, rng.getrandbits(32))
            for _ in range(rng.randrange(1, 5))
        ]
    settings = {"min.insync.replicas": "1", UNCLEAN: rng.choice(("true", "true", "false"))}
    changed = replace(plan, topics=_set(topics, settings), times=times)
    return changed, [item for item in items if _is_in_time(item, plan)]


def _zombies(rng: random.Random, plan: Plan) -> Made:
    """What a leader had on its way is answered, and sent on, when another has led for a while."""
    times = replace(plan.times, lease_ms=2_000)
    items: list[Item] = [
        Fault(at_ms, rng.randrange(times.lease_ms, 4 * times.lease_ms), Kind.PAUSE, (rng.choice(_brokers(plan)),), 0)
        for at_ms in _times(rng, plan, rng.choice((3_000, 6_000)))
    ]
    kind, amounts = rng.choice(
        ((Kind.STORE_SLOW, (10, 40)), (Kind.METASTORE_STRAGGLES, (30, 60)), (Kind.STORE_LATE, (10, 30)))
    )
    items += [
        Fault(at_ms, rng.randrange(1_000, 8_000), kind, (), rng.choice(amounts)) for at_ms in _times(rng, plan, 5_000)
    ]
    return replace(plan, times=times), items


def _silence(rng: random.Random, plan: Plan) -> Made:
    items: list[Item] = []
    for kind in rng.choice(
        ((Kind.STORE_BREAKS,), (Kind.METASTORE_BREAKS,), (Kind.STORE_BREAKS, Kind.METASTORE_BREAKS))
    ):
        for broker in _brokers(plan):
            items += _often(rng, plan, kind, broker, (40, 60, 80), 3_000)
    if rng.random() < 0.5:
        items += [
            Fault(at_ms, rng.randrange(200, 4_000), Kind.KILL, (rng.choice(_brokers(plan)),), 0)
            for at_ms in _times(rng, plan, 5_000)
        ]
    return plan, items


def _hands(rng: random.Random, plan: Plan) -> Made:
    items = _moves(rng, plan, rng.choice(((Action.FLAP,), (Action.BURST,), (Action.FLAP, Action.BURST))), 700)
    items += [
        Fault(at_ms, rng.randrange(500, 5_000), Kind.METASTORE_STRAGGLES, (), rng.choice((20, 50)))
        for at_ms in _times(rng, plan, 5_000)
    ]
    return replace(plan, topics=_copied(plan.topics)), items


_MAKERS: dict[Theme, Callable[[random.Random, Plan], Made]] = {
    Theme.JOINS: _joins,
    Theme.MOVES: _hasty,
    Theme.STOPS: _stops,
    Theme.LIVES: _lives,
    Theme.TEARS: _tears,
    Theme.STARTS: _starts,
    Theme.FORCED: _forced,
    Theme.CANCELS: _cancels,
    Theme.ZOMBIES: _zombies,
    Theme.SILENCE: _silence,
    Theme.HANDS: _hands,
}
