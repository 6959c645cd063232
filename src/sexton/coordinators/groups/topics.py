"""What a coordinator must know of the cluster's topics, and nothing more."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from typing import Protocol


class Topics(Protocol):
    """A picture of the topics at one moment; the same object may show a later one at the next call."""

    @property
    def revision(self) -> int:
        """Changes whenever a topic is made, deleted or given partitions (it may change more often)."""
        ...

    def names(self) -> Iterable[str]: ...

    def topic_id(self, name: str) -> uuid.UUID | None: ...

    def topic_name(self, topic_id: uuid.UUID) -> str | None: ...

    def partitions_count(self, topic_id: uuid.UUID) -> int:
        """0 if there is no such topic."""
        ...


def metadata_hash(topics: Topics, names: Iterable[str]) -> int:
    """One number that is different when any of these topics is (KIP-1101). Kept with the group's epoch, so that a
    coordinator that has just loaded it can tell whether the group must be assigned anew. Kafka computes another number
    from the same facts: a group that moves from Kafka to here is rebalanced once."""
    digest = hashlib.blake2b(digest_size=8)
    found = False
    for name in sorted(set(names)):
        topic_id = topics.topic_id(name)
        if topic_id is None:
            continue
        found = True
        digest.update(name.encode() + b"\0" + topic_id.bytes + topics.partitions_count(topic_id).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0
