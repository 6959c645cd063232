"""Which part of the world an exploration looks at, as in the model of compaction."""

from __future__ import annotations

from typing import Any, NamedTuple

Prefix = tuple[tuple[Any, ...], ...]


class Arena(NamedTuple):
    records_max: int = 1
    epochs_max: int = 1
    """Leader epochs start at 0."""
    processes_max: int = 1
    """Per broker; they start at 1."""
    incarnations_max: int = 1
    """Per broker; they start at 1."""
    requests_max: int = 1
    """Changes of the row that are under way at a time."""
    lazy_flush: bool = False
    """The topic acknowledges before the flush (`flush.before.ack=false`)."""
    partial_fetches: bool = False
    late_fetches: bool = False
    wipes: bool = False
    """The fetch fence turns followers away."""
    lost_disks: bool = False
    images: bool = False
    poisoned: bool = False
    """An attempt may be refused because of a broker of another partition that is in the same batch."""
    stops: bool = False
    """Brokers are stopped in good order."""
    targets: tuple[tuple[int, ...], ...] = ()
    """What an operator may reassign the partition to."""
    late_controller: bool = False
    """A controller's change may be under way for long."""
    late_starts: bool = False
    """What a starting broker writes may be under way for long, and be written again."""
    without: tuple[str, ...] = ()
    """Actions that do not happen."""
    prefix: Prefix = ()
    """What has happened before the exploration begins. Broker 0 leads at first."""


CLEAN = {
    "answers are lost, requests late": Arena(records_max=2, epochs_max=0, requests_max=2, poisoned=True),
    "a change of leader": Arena(records_max=2, epochs_max=1, requests_max=2, poisoned=True),
    "processes are replaced": Arena(records_max=1, epochs_max=1, processes_max=2, requests_max=2),
    "power is lost, and unflushed records with it": Arena(
        records_max=1, epochs_max=1, processes_max=2, requests_max=2, lazy_flush=True
    ),
    "replicas are removed and added again": Arena(
        records_max=1, epochs_max=1, incarnations_max=2, requests_max=2, targets=((0, 1), (0, 1, 2), (1, 2))
    ),
    "replicas are wiped, fetches late": Arena(
        records_max=1, epochs_max=1, incarnations_max=2, requests_max=2, wipes=True, late_fetches=True
    ),
    "disks are lost and put back": Arena(
        records_max=1, epochs_max=1, processes_max=3, incarnations_max=2, lost_disks=True, images=True
    ),
    "brokers are stopped in good order": Arena(
        records_max=1, epochs_max=2, processes_max=2, lazy_flush=True, stops=True, without=("flush",)
    ),
    "controllers and starting brokers are late": Arena(
        records_max=1,
        epochs_max=2,
        processes_max=2,
        requests_max=2,
        late_controller=True,
        late_starts=True,
        lazy_flush=True,
    ),
}
"""Explored with all rules on, as far as there is time."""

EVERYTHING = Arena(
    records_max=6,
    epochs_max=8,
    processes_max=6,
    incarnations_max=6,
    requests_max=3,
    partial_fetches=True,
    late_fetches=True,
    wipes=True,
    lost_disks=True,
    images=True,
    poisoned=True,
    stops=True,
    late_controller=True,
    late_starts=True,
    targets=((0, 1), (0, 1, 2), (1, 2), (0,), (2, 0)),
)
"""For random walks: all that can happen, for long."""

WALKS = {
    "with everything": EVERYTHING,
    "with unflushed records": EVERYTHING._replace(lazy_flush=True, images=False),
    "with unflushed records on disks that last": EVERYTHING._replace(
        lazy_flush=True, images=False, lost_disks=False, targets=()
    ),
    "with processes that come and go": EVERYTHING._replace(images=False, lost_disks=False, wipes=False, targets=()),
}
