"""The ids of replicas' logs, and the mark of one that is missing.

The last in-sync replica of a partition may come back without its log: the disk was replaced, or is not mounted. It must
stay in the ISR (nobody else has what it had) and must not lead (it would lose everything in silence). So its id in the
partition's row is *marked as missing*. The mark keeps the id: when the log turns up again, it is recognized and all is
well.

An id is a random (version 4) UUID; the mark is another digit in the place of the version. Compared with what is on a
disk, a marked id equals nothing.
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
    """For topics and logs alike."""
    return uuid.UUID(int=rng.getrandbits(128), version=4)


def known_incarnation(row: PartitionRow, broker_id: int) -> uuid.UUID | None:
    """Of the log that this broker should have, missing or not; None if it has never been told."""
    found = row.incarnations.get(broker_id)
    return None if found is None else uuid.UUID(int=found.int & ~_VERSION_MASK | _RANDOM)


def is_missing(row: PartitionRow, broker_id: int) -> bool:
    found = row.incarnations.get(broker_id)
    return found is not None and found.int & _VERSION_MASK == _MISSING


def marked_as_missing(incarnation: uuid.UUID) -> uuid.UUID:
    return uuid.UUID(int=incarnation.int & ~_VERSION_MASK | _MISSING)
