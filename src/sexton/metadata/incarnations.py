"""Incarnations, the ids of replicas' logs, and the mark of a log that is missing.

The last in-sync replica of a partition may come back without its log: the disk was replaced, or is not mounted. It must
stay in the ISR (no other replica has what it had) and must not lead (it would silently lose everything). So its
incarnation in the partition's row is *marked as missing*. The mark keeps the id: when the log turns up again, it is
recognized and the mark is removed.

An incarnation is a random (version 4) UUID; the mark replaces the digit of the version. A marked id never equals an id
on a disk.
"""

from __future__ import annotations

import random
import uuid

from sexton.ports.metastore import PartitionRow

_VERSION_SHIFT = 76
_VERSION_MASK = 0xF << _VERSION_SHIFT
_MISSING = 0xF << _VERSION_SHIFT
_RANDOM = 4 << _VERSION_SHIFT


def new_id(rng: random.Random) -> uuid.UUID:
    """A random id, for topics and logs."""
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def known_incarnation(row: PartitionRow, broker_id: int) -> uuid.UUID | None:
    """The incarnation of the log that this broker should have, missing or not; None if it was never given one."""
    found = row.incarnations.get(broker_id)
    return None if found is None else uuid.UUID(int=found.int & ~_VERSION_MASK | _RANDOM)


def is_missing(row: PartitionRow, broker_id: int) -> bool:
    found = row.incarnations.get(broker_id)
    return found is not None and found.int & _VERSION_MASK == _MISSING


def is_another_log(row: PartitionRow, broker_id: int, incarnation: uuid.UUID | None) -> bool:
    """Whether the row names another log of this broker, missing or not, than the one of this incarnation (None: there
    is no log). If so, what this broker has is not the replica's log: that one is lost, or was never here. False if the
    row names none."""
    named = known_incarnation(row, broker_id)
    return named is not None and incarnation != named


def is_added_again(row: PartitionRow, since: PartitionRow, broker_id: int) -> bool:
    """Whether this broker's replica was removed and added again since that earlier row: then its log is not the new
    replica's, and the leader waits for a fetch of an empty one."""
    before, now = known_incarnation(since, broker_id), known_incarnation(row, broker_id)
    return row.partition_epoch > since.partition_epoch and None not in (before, now) and before != now


def marked_as_missing(incarnation: uuid.UUID) -> uuid.UUID:
    return uuid.UUID(int=incarnation.int & ~_VERSION_MASK | _MISSING)
