"""The state of the model: what the cluster agrees on, what is in flight, and three brokers.

Everything is a tuple of integers and tuples, so a state can be hashed, compared and sorted. Nothing in it names a
broker by number: whatever concerns one is in its own tuple (that it leads, what the leader knows of it, a report of
it that is under way). So two states that differ only in which broker plays which part become one by sorting, and an
exploration looks at one of them alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from sexton.compaction.watermarks.replica import Pair
from tests.model.logs import NO_LOG, Log, Records, show_log, show_record
from tests.model.real import UNKNOWN, History, Marks

NOT_HEARD = -1


class Offer(NamedTuple):
    """A finished compaction, as its maker had committed it."""

    generation: int
    bound: int
    start: int
    records: Records
    removable: Pair
    fence: int
    planned: int
    history: History


class Plan(NamedTuple):
    """A compaction that has been worked out and not been committed."""

    incarnation: int
    generation: int
    start: int
    bound: int
    inputs: Records
    outputs: Records


class Consumer(NamedTuple):
    """One that started at offset 0 and has taken less than `delete.retention.ms` since."""

    position: int
    complete_from: int
    """The highest high watermark at which anything it has read was compacted: up to there it may lack values whose
    successors it has not reached yet."""
    fold: tuple[int, ...]


class Image(NamedTuple):
    incarnation: int
    log: Log
    history: History
    marks: Marks


class Snapshot(NamedTuple):
    """What a replica knew of the producer when its log ended at this offset."""

    offset: int
    first_open: int
    """Of the transaction that was open, -1 for none."""
    batches: tuple[int, ...]


class Broker(NamedTuple):
    # What the metastore says of it
    leads: bool = False
    in_sync: bool = True
    member: bool = True
    registered: int = 1
    """The incarnation that the metastore knows."""
    # What is on its disk
    incarnation: int = 1
    log: Log = NO_LOG
    flushed: int = 0
    history: History = ()
    durable: Marks = Marks(1)
    snapshots: tuple[Snapshot, ...] = ()
    # What is in its memory
    high_watermark: int = 0
    marks: Marks = Marks(1)
    phantom: int = -1
    """First offset of a transaction that recovery found open and the log does not have."""
    batches: tuple[int, ...] = ()
    """The producer's last batches, by offset: a repeated one is recognised by them. (In arenas with snapshots.)"""
    # What the leader knows of it
    known: Pair = UNKNOWN
    progress: int = NOT_HEARD
    heard: bool = False
    """That `known` is what the present process said, not the one before its last restart."""
    # What is under way
    late: tuple[int, int, Pair] | tuple[()] = ()
    late_is_old: bool = False
    """That the process which sent it is gone."""
    plan: Plan | tuple[()] = ()
    image: Image | tuple[()] = ()
    reading: tuple[Records, int, int] | tuple[()] = ()
    """A consumer's fetch that has its records and not yet its list of aborted transactions."""


class Shared(NamedTuple):
    epoch: int = 0
    generation: int = 0
    independent: bool = False
    written: int = 0
    """How many records clients have written so far."""
    truth: Records = ()
    """Everything that was ever committed, uncompacted."""
    truth_end: int = 0
    telling: Marks | tuple[()] = ()
    """A leader's MTRO and MXRO that were sent and have not arrived."""
    offers: tuple[Offer, ...] = ()
    consumer: Consumer | tuple[()] = ()


State = tuple[Shared, Broker, Broker, Broker]
Action = tuple[Any, ...]
"""A name and arguments; brokers by their index in the state that it is applied to."""


class World:
    """A state that can be changed."""

    __slots__ = ("brokers", "shared")

    def __init__(self, state: State) -> None:
        self.shared = state[0]
        self.brokers = list(state[1:])

    def frozen(self) -> State:
        return (self.shared, *self.brokers)  # type: ignore[return-value]

    def set(self, index: int, **changes: Any) -> Broker:
        changed = self.brokers[index] = self.brokers[index]._replace(**changes)
        return changed

    def share(self, **changes: Any) -> None:
        self.shared = self.shared._replace(**changes)

    @property
    def leader(self) -> int:
        """-1 if nobody leads."""
        for index, broker in enumerate(self.brokers):
            if broker.leads:
                return index
        return -1


def canonical(state: State) -> State:
    first, second, third = state[1:]
    if first <= second <= third:
        return state
    return (state[0], *sorted(state[1:]))  # type: ignore[return-value]


def show(state: State) -> str:
    """For people who read a trace."""
    shared = state[0]
    lines = [
        f"epoch {shared.epoch}, generation {shared.generation}, committed below {shared.truth_end}: "
        + ", ".join(show_record(one) for one in shared.truth)
    ]
    if shared.consumer:
        lines.append(f"  consumer {shared.consumer}")
    for index, broker in enumerate(state[1:]):
        roles = [
            *(["leads"] if broker.leads else []),
            *(["in sync"] if broker.in_sync else []),
            *([] if broker.member else ["no replica"]),
        ]
        marks = broker.marks
        lines.append(
            f"  {index} {' '.join(roles)}, incarnation {broker.incarnation}/{broker.registered}, "
            f"hw {broker.high_watermark}, mcco {marks.mcco} mxfo {marks.mxfo} mtro {marks.mtro} mxro {marks.mxro} "
            f"planned {marks.planned}, known {tuple(broker.known)}, {show_log(broker.log)}"
        )
    return "\n".join(lines)
