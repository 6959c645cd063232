"""The state of the model of in-sync sets: the metastore, what is on its way to it, and three brokers.

Everything is a tuple of integers and tuples. A record is the leader epoch it was written in: with its offset that
tells it from every other. Logs are whole (nothing is compacted here): what they hold in common is a common prefix.
"""

from __future__ import annotations

from typing import Any, NamedTuple

BROKERS = (0, 1, 2)
STARTING, ACTIVE, FENCED = range(3)
NO_LOG, LOST_LOG = 0, -1
"""In the place of an incarnation: no replica here; the disk is gone, and with it what the metastore counts on."""

Records = tuple[int, ...]


class Row(NamedTuple):
    """A `PartitionRow`."""

    epoch: int = 0
    """The partition epoch."""
    leader: int = 0
    leader_epoch: int = 0
    isr: tuple[int, ...] = BROKERS
    replicas: tuple[int, ...] = BROKERS
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    logs: tuple[int, ...] = (1, 1, 1)
    """Incarnations by broker. Of one that is marked as missing, negative."""


class Process(NamedTuple):
    """A broker's registration."""

    epoch: int = 1
    status: int = ACTIVE


Processes = tuple[Process, ...]
Live = tuple[tuple[int, int], ...]


class Request(NamedTuple):
    """`update_partitions` on its way: carried out at any time, or never."""

    row: Row
    """With the partition epoch that it is based on."""
    live: Live
    """Processes that must be registered and not fenced."""
    waiting: int = -1
    """Which broker waits for the answer; -1 for nobody."""
    is_last_word: bool = False
    """Whoever sent it is gone."""


class Store(NamedTuple):
    row: Row = Row()
    processes: Processes = (Process(), Process(), Process())
    made: tuple[int, ...] = (1, 1, 1)
    """The newest incarnation that anyone has thought of, by broker."""
    requests: tuple[Request, ...] = ()
    truth: Records = ()
    """What was acknowledged."""
    written: int = 0
    is_excused: bool = False
    """All that were in sync have lost power at once: on a topic that acknowledges before the flush, that may cost
    records."""


class Pending(NamedTuple):
    """An `IsrChange`: what a leader has asked for and not yet seen."""

    isr: tuple[int, ...]
    logs: tuple[int, ...]
    live: Live
    """The followers that are to join, as the processes that have caught up."""
    is_unsure: bool = False
    is_withdrawn: bool = False


class Progress(NamedTuple):
    end: int
    process: int
    incarnation: int


class Lead(NamedTuple):
    """What a leader knows."""

    row: Row
    processes: Processes
    start: int
    """Where its epoch begins."""
    high_watermark: int = 0
    progress: tuple[Progress | tuple[()], ...] = ((), (), ())
    pending: Pending | tuple[()] = ()


class Held(NamedTuple):
    """A fetch on its way."""

    process: int
    incarnation: int
    leader_epoch: int
    log: Records


class Image(NamedTuple):
    process: int
    incarnation: int
    log: Records


class Broker(NamedTuple):
    process: int = 1
    """0 while it is down."""
    is_reconciled: bool = True
    following: int = 0
    """The leader epoch of the newest row that it has acted on."""
    lead: Lead | tuple[()] = ()
    # On its disk
    incarnation: int = 1
    log: Records = ()
    flushed: int = 0
    is_old: bool = False
    """It was started with an old image of its disk."""
    has_lost: bool = False
    """Its last process ended without having flushed everything: what it acknowledged may be gone."""
    is_last_copy: bool = False
    """When it stopped in good order, all others in sync had lost power."""
    # Elsewhere
    late: Held | tuple[()] = ()
    image: Image | tuple[()] = ()


State = tuple[Any, ...]
"""A Store and three Brokers."""
Action = tuple[Any, ...]


class World:
    """A state that can be changed."""

    __slots__ = ("brokers", "store")

    def __init__(self, state: State) -> None:
        self.store: Store = state[0]
        self.brokers: list[Broker] = list(state[1:])

    def frozen(self) -> State:
        return (self.store, *self.brokers)

    def set(self, index: int, **changes: Any) -> Broker:
        changed = self.brokers[index] = self.brokers[index]._replace(**changes)
        return changed

    def put(self, **changes: Any) -> None:
        self.store = self.store._replace(**changes)

    def lead(self, index: int, **changes: Any) -> Lead:
        """Changes what a leader knows."""
        lead = self.brokers[index].lead
        assert isinstance(lead, Lead)
        lead = lead._replace(**changes)
        self.set(index, lead=lead)
        return lead

    def set_process(self, index: int, process: Process) -> None:
        processes = self.store.processes
        self.put(processes=(*processes[:index], process, *processes[index + 1 :]))


def shared_end(one: Records, other: Records) -> int:
    """Up to where two logs are the same."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count


def canonical(state: State) -> State:
    """Partition epochs count from the oldest that anyone still knows; a request that can never be carried out, and
    that nobody waits for, is gone."""
    store: Store = state[0]
    row, processes = store.row, store.processes
    requests = tuple(sorted(one for one in store.requests if one.waiting >= 0 or is_possible(one, row, processes)))
    known = [row.epoch, *(one.row.epoch for one in requests), *(one.lead.row.epoch for one in state[1:] if one.lead)]
    base = min(known)
    if base == 0 and requests == store.requests:
        return state
    moved = store._replace(row=_moved(row, base), requests=tuple(r._replace(row=_moved(r.row, base)) for r in requests))
    brokers = (
        one._replace(lead=one.lead._replace(row=_moved(one.lead.row, base))) if one.lead else one for one in state[1:]
    )
    return (moved, *brokers)


def _moved(row: Row, base: int) -> Row:
    return row._replace(epoch=row.epoch - base)


def is_possible(request: Request, row: Row, processes: Processes) -> bool:
    """Whether it could be carried out now. If not, then never: partition epochs and processes only move on."""
    return request.row.epoch == row.epoch and all(
        processes[broker].epoch == epoch and processes[broker].status != FENCED for broker, epoch in request.live
    )


def show(state: State) -> str:
    """For people who read a trace."""
    store: Store = state[0]
    lines = [f"{store.row}, acknowledged {store.truth}, processes {[tuple(one) for one in store.processes]}"]
    lines += [f"  under way: {request}" for request in store.requests]
    for index, broker in enumerate(state[1:]):
        what = f"process {broker.process}" if broker.process else "down"
        lines.append(
            f"  {index} {what}, log {broker.incarnation} {broker.log}, flushed {broker.flushed}, "
            f"follows epoch {broker.following}" + (f", leads: {broker.lead}" if broker.lead else "")
        )
    return "\n".join(lines)
