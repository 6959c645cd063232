"""What a coordinator must know of the cluster's topics, and nothing more."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable
from typing import Protocol


class Topics(Protocol):
    """The topics at the time of the call; a later call may show later changes."""

    @property
    def revision(self) -> int:
        """Changes whenever a topic is created, deleted or gets partitions (it may change more often)."""
        ...

    def names(self) -> Iterable[str]: ...

    def topic_id(self, name: str) -> uuid.UUID | None: ...

    def topic_name(self, topic_id: uuid.UUID) -> str | None: ...

    def partitions_count(self, topic_id: uuid.UUID) -> int:
        """Returns 0 if there is no such topic."""
        ...


def metadata_hash(topics: Topics, names: Iterable[str]) -> int:
    """Hash of these topics' metadata (KIP-1101). It is recorded with the group epoch, so that a coordinator that has
    just loaded the group can tell whether it must be assigned again. Kafka computes another hash of the same metadata:
    a group that moves from Kafka to here is rebalanced once."""
    digest = hashlib.blake2b(digest_size=8)
    found = False
    for name in sorted(set(names)):
        topic_id = topics.topic_id(name)
        if topic_id is None:
            continue
        found = True
        digest.update(name.encode() + b"\0" + topic_id.bytes + topics.partitions_count(topic_id).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0
