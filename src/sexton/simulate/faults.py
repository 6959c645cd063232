"""What goes wrong, when and for how long: a schedule drawn from the seed before anything runs.

Swarm testing: every seed allows only some kinds of faults, each at its own rate, because a run in which everything
fails all the time never gets to the states in which a single fault hurts. The schedule is a plain list, so that a
failing run can be shrunk by leaving entries out; nothing else of the run is drawn from the same random numbers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum


class Kind(StrEnum):
    KILL = "kill"
    """kill -9: unflushed bytes survive in the page cache, peers are told by the kernel."""
    POWER = "power loss"
    """Unflushed bytes are lost, nobody is told."""
    ABSENCE = "absence"
    """A power loss from which the machine does not come back for long."""
    RESTART = "restart"
    """An orderly stop and a new start."""
    PAUSE = "pause"
    """SIGSTOP and SIGCONT."""
    WIPE = "wipe"
    """The disk is replaced by an empty one. Only while others hold everything that was acknowledged."""
    OLD_IMAGE = "old image"
    """The machine is stopped for a moment, in good order or not, and an image is taken of its disk; later it loses
    power and comes back with the image. It still has the ids of its folder and its replicas, and lacks what it
    acknowledged since.

    What is promised then: nothing is lost as long as every partition has another member in the ISR. So it happens at
    once only if that is so and the other brokers run; all other faults are taken back then, and none begins until the
    broker has started, except that the others may lose power with it and come back later: what it then leads it should
    not. Or else it happens when the broker has left the ISR of all its partitions, whatever happens to
    the others. The broker has started at least once since
    the image was taken: an image of the very process that ran last cannot be told from what that process left
    (docs/decisions, 8)."""
    FORCING = "forced election"
    """One broker is away, then all others lose power and it comes back alone; an operator forces it to lead the
    compacted topics, and the others return. What it lacks is lost; its replicas begin a new generation. A
    transaction whose marker is lost stays open, until the operator ends it by hand."""
    CUT = "cut"
    """Two hosts cannot reach each other."""
    CUT_ONE_WAY = "one-way cut"
    ISOLATION = "isolation"
    """A broker reaches neither the other brokers nor the clients, and the metastore only if the amount is odd."""
    BLIP = "blip"
    """An isolation so short that nobody takes the broker for dead."""
    NO_METASTORE = "no metastore"
    """One broker cannot reach the metastore."""
    DEAF_METASTORE = "answers lost"
    """One broker's requests reach the metastore, the answers do not come back."""
    METASTORE_DOWN = "metastore down"
    METASTORE_HANGS = "metastore hangs"
    METASTORE_BREAKS = "broken requests"
    """So many of a hundred requests of one broker, or of everybody, meet a connection that breaks: they are carried out
    or not, and their callers are not told which."""
    METASTORE_LOCKED = "locked metastore"
    """So many of a hundred changes that one broker asks for are refused, as somebody else holds the database's lock for
    longer than they wait. Reads go on: the broker hears of everything, and gets nothing written."""
    METASTORE_STRAGGLES = "late requests"
    """So many of a hundred requests take long, up to longer than their callers wait: later ones overtake them."""
    METASTORE_FAILS_OVER = "metastore fails over"
    """All connections break, requests under way are carried out or not, and nothing answers until the next one has
    taken over."""
    CLOCK_JUMP = "clock jump"
    """By less than message.timestamp.after.max.ms between any two, or producers would rightly be refused."""
    SLOW_DISK = "slow disk"
    FULL_DISK = "full disk"
    FAILING_DISK = "failing disk"
    """Flushes fail now and then: a broker must stop trusting what it flushed."""
    SCATTER = "scattered power loss"
    """A power loss that keeps pages of what was not flushed in any order: 4 KiB each, or a sector's 512 bytes. What is
    missing between them reads as zeros, noise, or what the blocks held before. Nothing more is lost than in any power
    loss, and the replica comes back by itself."""
    FULL_PLACE = "full place"
    """There is no room for some files of one partition: its records, an index, a history, its watermarks, what is
    staged for it; or for the folder's checkpoints. Other partitions go on, and this one when there is room again; the
    broker has no reason to end."""
    FAILING_READS = "failing reads"
    """Files of one partition cannot be read for a while. Other partitions go on, others in sync lead this one, and the
    broker has no reason to end. A log that gave up stays away until somebody starts the broker again."""
    BIT_ROT = "bit rot"
    """A bit of a closed segment that was flushed reads wrong, on a machine without which everything acknowledged is
    there, too. Nobody takes the damaged batch for whole: neither consumers nor other replicas nor compactors; the
    replica is rebuilt from another, or stays as it is until somebody has repaired it and started the broker again. The
    judge reads what was once written, so that it sees the damage wherever it is copied to."""
    SLOW_NETWORK = "slow network"
    THIN_NETWORK = "thin network"
    """So many kilobytes a second: what our logs hold then takes as long as gigabytes elsewhere."""
    BREAKING_NETWORK = "breaking network"
    STORE_DOWN = "store down"
    STORE_HANGS = "store hangs"
    STORE_BUSY = "store busy"
    """503 SlowDown."""
    STORE_REFUSES = "store refuses"
    """403, until somebody has put the credentials right."""
    STORE_BREAKS = "store's answers lost"
    """So many of a hundred requests of one broker, or of everybody, are carried out, and their connection breaks."""
    STORE_LATE = "late stores"
    """So many of a hundred PUTs and DELETEs get no answer, and are carried out up to minutes later."""
    STORE_SLOW = "slow store"
    STORE_DAMAGES = "damaging store"
    """So many of a hundred reads end too soon or have a wrong bit. What is stored is as it was."""
    STORE_WIPES = "store wiped"
    """Of everything that is garbage or unknown by the metastore: nobody may rely on it."""
    NO_STORE = "no store"
    """One broker cannot reach it."""
    DEAF_STORE = "store's answers do not come back"


@dataclass(frozen=True, slots=True)
class Shape:
    """How a kind of fault looks: how long it lasts, how long between two, how strong it is."""

    lasts_ms: tuple[int, int]
    every_ms: tuple[int, int]
    amount: tuple[int, int] = (0, 0)
    weight: float = 0.4
    """How likely a seed has this kind at all."""


SHAPES: dict[Kind, Shape] = {
    Kind.KILL: Shape((200, 15_000), (8_000, 40_000)),
    Kind.POWER: Shape((500, 15_000), (8_000, 40_000), weight=0.6),
    Kind.ABSENCE: Shape((40_000, 120_000), (60_000, 200_000), weight=0.2),
    Kind.RESTART: Shape((100, 10_000), (15_000, 60_000), weight=0.3),
    Kind.PAUSE: Shape((100, 20_000), (6_000, 40_000)),
    Kind.WIPE: Shape((500, 15_000), (30_000, 90_000), weight=0.15),
    Kind.OLD_IMAGE: Shape((5_000, 40_000), (20_000, 60_000), (0, 3), weight=0.2),
    Kind.CUT: Shape((200, 25_000), (6_000, 40_000)),
    Kind.CUT_ONE_WAY: Shape((200, 25_000), (6_000, 40_000)),
    Kind.ISOLATION: Shape((500, 25_000), (8_000, 40_000), (0, 1), weight=0.3),
    Kind.NO_METASTORE: Shape((200, 20_000), (8_000, 40_000), weight=0.3),
    Kind.DEAF_METASTORE: Shape((200, 15_000), (8_000, 40_000), weight=0.3),
    Kind.METASTORE_DOWN: Shape((500, 30_000), (15_000, 60_000), weight=0.3),
    Kind.METASTORE_HANGS: Shape((500, 20_000), (15_000, 60_000), weight=0.3),
    Kind.CLOCK_JUMP: Shape((0, 0), (5_000, 40_000), (-1_500_000, 1_500_000), weight=0.3),
    Kind.SLOW_DISK: Shape((1_000, 20_000), (10_000, 60_000), (10, 400), weight=0.3),
    Kind.FULL_DISK: Shape((1_000, 15_000), (20_000, 60_000), weight=0.15),
    Kind.FAILING_DISK: Shape((500, 5_000), (20_000, 60_000), (1, 30), weight=0.15),
    Kind.SLOW_NETWORK: Shape((1_000, 20_000), (10_000, 60_000), (10, 500), weight=0.3),
    Kind.BREAKING_NETWORK: Shape((1_000, 30_000), (10_000, 60_000), (1, 60), weight=0.3),
    Kind.BLIP: Shape((20, 1_500), (1_500, 20_000), (0, 1), weight=0.3),
    Kind.THIN_NETWORK: Shape((1_000, 30_000), (6_000, 40_000), (20, 1_000), weight=0.3),
    Kind.METASTORE_BREAKS: Shape((200, 10_000), (3_000, 30_000), (5, 90), weight=0.4),
    Kind.METASTORE_STRAGGLES: Shape((500, 15_000), (4_000, 40_000), (1, 40), weight=0.3),
    Kind.METASTORE_FAILS_OVER: Shape((50, 5_000), (6_000, 40_000), weight=0.25),
    Kind.SCATTER: Shape((500, 15_000), (8_000, 40_000), (0, 1), weight=0.4),
    Kind.FULL_PLACE: Shape((500, 15_000), (5_000, 30_000), (0, 1 << 20), weight=0.25),
    Kind.BIT_ROT: Shape((2_000, 30_000), (5_000, 40_000), (0, 1 << 30), weight=0.2),
    Kind.FAILING_READS: Shape((500, 10_000), (15_000, 60_000), (0, 1 << 20), weight=0.15),
}

STORE_SHAPES: dict[Kind, Shape] = {
    Kind.STORE_DOWN: Shape((300, 25_000), (6_000, 40_000)),
    Kind.STORE_HANGS: Shape((300, 20_000), (8_000, 40_000), weight=0.3),
    Kind.STORE_BUSY: Shape((300, 12_000), (6_000, 40_000), weight=0.3),
    Kind.STORE_REFUSES: Shape((500, 12_000), (10_000, 60_000), weight=0.2),
    Kind.STORE_BREAKS: Shape((500, 20_000), (4_000, 30_000), (5, 80), weight=0.5),
    Kind.STORE_LATE: Shape((500, 20_000), (5_000, 40_000), (2, 40), weight=0.4),
    Kind.STORE_SLOW: Shape((500, 20_000), (6_000, 40_000), (5, 60), weight=0.4),
    Kind.STORE_DAMAGES: Shape((1_000, 20_000), (6_000, 40_000), (2, 60), weight=0.4),
    Kind.STORE_WIPES: Shape((0, 0), (2_000, 20_000), weight=0.4),
    Kind.NO_STORE: Shape((300, 20_000), (6_000, 40_000), weight=0.4),
    Kind.DEAF_STORE: Shape((300, 15_000), (8_000, 40_000), weight=0.3),
}
"""Drawn only where there are cloud topics, from random numbers of their own: other runs are what they were."""

OF_EVERYBODY = (
    Kind.STORE_DOWN,
    Kind.STORE_HANGS,
    Kind.STORE_BUSY,
    Kind.STORE_REFUSES,
    Kind.STORE_LATE,
    Kind.STORE_SLOW,
    Kind.STORE_DAMAGES,
    Kind.STORE_WIPES,
    Kind.METASTORE_DOWN,
    Kind.METASTORE_HANGS,
    Kind.METASTORE_STRAGGLES,
    Kind.METASTORE_FAILS_OVER,
    Kind.BREAKING_NETWORK,
)

OF_SOMEBODY = (Kind.METASTORE_BREAKS, Kind.STORE_BREAKS)
"""Of one broker, or of everybody."""

FOLLOWING = (Kind.METASTORE_BREAKS, Kind.METASTORE_STRAGGLES, Kind.METASTORE_FAILS_OVER)
BREAKING_PROCESSES = (Kind.KILL, Kind.POWER, Kind.RESTART, Kind.PAUSE, Kind.ISOLATION, Kind.CUT)

CRASH_LOOPS_WEIGHT = 0.25

FORCING_S = 15
"""How long an operator has: leases run out, and a broker starts."""

FIRST_FAULT_MS = 3_000
"""The cluster has come up by then, more or less: starting is worth disturbing, too."""


@dataclass(frozen=True, slots=True)
class Fault:
    at_ms: int
    lasts_ms: int
    kind: Kind
    targets: tuple[str, ...]
    amount: int

    def __str__(self) -> str:
        extent = f" by {self.amount}" if self.amount else ""
        duration = f" for {self.lasts_ms} ms" if self.lasts_ms else ""
        return f"{self.kind} {' -> '.join(self.targets)}{extent}{duration}"


def schedule(rng: random.Random, brokers: Sequence[str], clients: Sequence[str], until_ms: int) -> list[Fault]:
    """Draws all faults of a run, in the order of their times."""
    faults = _drawn(rng, SHAPES, brokers, clients, until_ms)
    if rng.random() < CRASH_LOOPS_WEIGHT:
        faults += _crash_loops(rng, brokers, until_ms)
    faults = [_after_another(rng, fault, faults, until_ms) for fault in faults]
    faults.sort(key=lambda fault: fault.at_ms)
    return faults


def store_schedule(rng: random.Random, brokers: Sequence[str], until_ms: int) -> list[Fault]:
    """What goes wrong with the store of cloud topics."""
    return sorted(_drawn(rng, STORE_SHAPES, brokers, (), until_ms), key=lambda fault: fault.at_ms)


def _drawn(
    rng: random.Random, shapes: Mapping[Kind, Shape], brokers: Sequence[str], clients: Sequence[str], until_ms: int
) -> list[Fault]:
    faults: list[Fault] = []
    pace = rng.choice((1, 1, 2, 4))
    for kind, shape in shapes.items():
        is_enabled = rng.random() < shape.weight
        pause_ms = rng.randint(*shape.every_ms) // pace
        if not is_enabled:
            continue
        at_ms = FIRST_FAULT_MS + rng.randrange(pause_ms + 1)
        while at_ms < until_ms:
            lasts_ms = _skewed(rng, *shape.lasts_ms)
            targets = _targets(rng, kind, brokers, clients)
            faults.append(Fault(at_ms, lasts_ms, kind, targets, rng.randint(*shape.amount)))
            at_ms += lasts_ms // 2 + pause_ms // 2 + rng.randrange(pause_ms + 1)
    return faults


def _crash_loops(rng: random.Random, brokers: Sequence[str], until_ms: int) -> list[Fault]:
    """A broker that starts and dies again, a few times within seconds: each time another process is what others have to
    deal with, and what they had decided was about the one before."""
    faults = []
    kind = rng.choice((Kind.KILL, Kind.POWER))
    for _ in range(rng.randint(1, 4)):
        target, at_ms = rng.choice(brokers), rng.randrange(FIRST_FAULT_MS, max(FIRST_FAULT_MS + 1, until_ms))
        for _ in range(rng.randint(2, 5)):
            lasts_ms = _skewed(rng, 100, 6_000)
            faults.append(Fault(at_ms, lasts_ms, kind, (target,), 0))
            at_ms += lasts_ms + _skewed(rng, 300, 5_000)
    return [fault for fault in faults if fault.at_ms < until_ms]


def _after_another(rng: random.Random, fault: Fault, others: Sequence[Fault], until_ms: int) -> Fault:
    """Many requests to the metastore are made when something else is over: replicas join again, leaders change."""
    if fault.kind not in FOLLOWING or rng.random() < 0.5:
        return fault
    ends = [other.at_ms + other.lasts_ms for other in others if other.kind in BREAKING_PROCESSES]
    if not ends:
        return fault
    at_ms = rng.choice(ends) + rng.randrange(-1_000, 3_000)
    return replace(fault, at_ms=min(max(at_ms, FIRST_FAULT_MS), until_ms - 1))


def forcing(rng: random.Random, brokers: Sequence[str], until_ms: int) -> Fault:
    """Early enough that the operator comes before everything is healed."""
    lasts_ms = rng.randrange(5_000, 12_000)
    latest_ms = max(FIRST_FAULT_MS + 1, until_ms - lasts_ms - 1000 * FORCING_S)
    return Fault(rng.randrange(FIRST_FAULT_MS, latest_ms), lasts_ms, Kind.FORCING, (rng.choice(brokers),), 0)


def _skewed(rng: random.Random, low: int, high: int) -> int:
    """Short ones are more frequent than long ones."""
    return low + int((high - low) * rng.random() * rng.random())


def _targets(rng: random.Random, kind: Kind, brokers: Sequence[str], clients: Sequence[str]) -> tuple[str, ...]:
    if kind in (Kind.CUT, Kind.CUT_ONE_WAY):
        if rng.random() < 0.2:
            return rng.choice(brokers), rng.choice(clients)
        return tuple(rng.sample(brokers, 2)) if len(brokers) > 1 else (brokers[0], rng.choice(clients))
    if kind in OF_EVERYBODY or (kind in OF_SOMEBODY and rng.random() < 0.3):
        return ()
    return (rng.choice(brokers),)
