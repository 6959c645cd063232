"""Which part of the world an exploration looks at.

An arena bounds what clients write, how often leaders change and disks are lost, and which kinds of event happen at all.
Within it everything may happen at any moment and in any order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.model.logs import ABORT, COMMIT, T_TOMBSTONE, T_VALUE, TOMBSTONE, VALUE

Write = tuple[int, int]
"""Kind and key."""

A, B = 0, 1
PUT_A, PUT_B = (VALUE, A), (VALUE, B)
DELETE_A, DELETE_B = (TOMBSTONE, A), (TOMBSTONE, B)
T_PUT_A, T_PUT_B, T_DELETE_A = (T_VALUE, A), (T_VALUE, B), (T_TOMBSTONE, A)
COMMITS, ABORTS = (COMMIT, 0), (ABORT, 0)

Script = tuple[tuple[Write, ...], ...]
"""What may be written, record by record."""


def script(*writes: Write) -> Script:
    return tuple((write,) for write in writes)


class Arena(NamedTuple):
    script: Script
    epochs_max: int = 1
    """Leader epochs start at 0: how often leadership may change."""
    incarnations_max: int = 1
    """Per broker; they start at 1."""
    generations_max: int = 0
    crashes: bool = True
    lazy_flush: bool = False
    """Leaders append first and flush later."""
    partial_fetches: bool = False
    """A fetch may bring one record where there are more."""
    every_bound: bool = False
    """A compaction may end anywhere, not only at the last stable offset."""
    late_messages: bool = False
    membership: bool = False
    lost_disks: bool = False
    images: bool = False
    retention: bool = False
    consumer: bool = False
    plans: bool = False
    adopts: bool = False
    offers_max: int = 1
    live_producer: bool = False
    snapshots: int = 0
    """How many producer snapshots a replica keeps."""
    swap_crashes: bool = False
    starts_independent: bool = False
    defers: bool = False
    """A pass may leave superseded records of the clean section where they are (`deferral.py`)."""
    coarse: bool = False
    """A follower's conversation with its leader is one step (`sync`), not many."""
    without: tuple[str, ...] = ()
    """Actions that do not happen."""
    prefix: tuple[tuple[Any, ...], ...] = ()
    """What has happened before the exploration begins. Broker 0 leads at first."""
