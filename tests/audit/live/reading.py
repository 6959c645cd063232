"""Reads replicas as the audit's job does, without Spark."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sexton.audit.live.connecting import Connecting
from sexton.audit.live.discovery import Scope
from sexton.audit.live.source import LiveSource
from sexton.audit.replica import Replica
from sexton.client.fetching import whole_batches
from sexton.client.security.properties import OPEN, Security
from sexton.records.batch import Batch, decode


@dataclass
class Content:
    """What was read of a replica."""

    batches: list[Batch] = field(default_factory=list)
    aborted: set[tuple[int, int]] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def records(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(each.offset, each.key, each.value) for batch in self.batches for each in batch.records]


@contextmanager
def source_at(bootstrap: str, pattern: str = "", security: Security = OPEN) -> Iterator[LiveSource]:
    addresses = tuple((host, int(port)) for host, port in (part.split(":") for part in bootstrap.split(",")))
    source = LiveSource(Connecting(addresses, security), Scope(pattern), tasks_count=1, rate_bytes_per_s=math.inf)
    try:
        yield source
    finally:
        source.close()


def read(source: LiveSource, replica: Replica, from_offset: int | None = None) -> Content:
    start = replica.log_start_offset if from_offset is None else from_offset
    content = Content()
    for stretch in source.stretches(replica, 0, start, None):
        for piece in pickle.loads(pickle.dumps(stretch)).pieces():  # as it comes to a task
            data = piece.data.tobytes()
            content.batches += [decode(data, position, piece.place) for position in whole_batches(data)]
            content.aborted |= set(piece.aborted)
            content.notes += [piece.note] if piece.note else []
    return content
