"""Records that can be told apart, whoever reads them and whenever: every value is unique, and so is every tombstone."""

from __future__ import annotations

import random
from collections.abc import Collection

from sexton.records.batch import Header, Record
from sexton.simulate.history import IDENTITY, Place

KEYS_COUNT = 50
KEYS_OF_COMPACTED_COUNT = 24
"""Few, so that most records are superseded soon. Some are written often, and some so rarely that a tombstone stays the
newest record of its key for long."""

TOMBSTONE_PROBABILITY = 0.3


class Values:
    def __init__(self, name: str, rng: random.Random, bytes_max: int, compacted: Collection[str]) -> None:
        """`compacted` are the topics in which keys are deleted, too."""
        self._name = name
        self._rng = rng
        self._bytes_max = bytes_max
        self._compacted = compacted
        self._count = 0

    def is_compacted(self, place: Place) -> bool:
        return place[0] in self._compacted

    def records(self, place: Place, count: int, now_ms: int) -> tuple[list[Record], tuple[bytes, ...]]:
        """With offsets from 0 on, and what each of them is known by."""
        rng = self._rng
        is_compacted = self.is_compacted(place)
        records, identities = [], []
        for index in range(count):
            self._count += 1
            padding = bytes(rng.randrange(self._bytes_max))
            identity = f"{self._name}:{place[1]}:{self._count}:".encode() + padding
            identities.append(identity)
            number = int(KEYS_OF_COMPACTED_COUNT * rng.random() ** 3) if is_compacted else rng.randrange(KEYS_COUNT)
            key = f"key-{number}".encode()
            if is_compacted and rng.random() < TOMBSTONE_PROBABILITY:
                records.append(Record(index, now_ms, key, None, (Header(IDENTITY, identity),)))
            else:
                records.append(Record(index, now_ms, key, identity))
        return records, tuple(identities)
