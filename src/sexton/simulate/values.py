"""Records that can be told apart, whoever reads them and whenever: every value is unique, and so is every tombstone."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace

from sexton.records.batch import Header, Record, encode, make_batch
from sexton.simulate.history import IDENTITY
from sexton.types import TopicPartition

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

    def is_compacted(self, place: TopicPartition) -> bool:
        return place[0] in self._compacted

    def records(self, place: TopicPartition, count: int, now_ms: int) -> tuple[list[Record], tuple[bytes, ...]]:
        """With offsets from 0 on, and what each of them is known by."""
        records, identities = [], []
        for index in range(count):
            identity = self._identity(place) + bytes(self._rng.randrange(self._bytes_max))
            identities.append(identity)
            records.append(self._record(place, index, now_ms, identity))
        return records, tuple(identities)

    def sized(self, place: TopicPartition, batch_bytes: int, now_ms: int) -> tuple[list[Record], tuple[bytes, ...]]:
        """One record, whose batch has so many bytes if it is not compressed: a byte or two less where a length grows
        by more than it counts."""
        name = self._identity(place)
        record = self._record(place, 0, now_ms, name)
        spare = batch_bytes - len(encode(make_batch([record])))
        while spare > 0:
            identity = name + bytes(spare)
            padded = replace(record, value=identity) if record.value else _tombstone(0, now_ms, record.key, identity)
            excess = len(encode(make_batch([padded]))) - batch_bytes
            if excess <= 0:
                return [padded], (identity,)
            spare -= excess
        return [record], (name,)

    def _identity(self, place: TopicPartition) -> bytes:
        self._count += 1
        return f"{self._name}:{place[1]}:{self._count}:".encode()

    def _record(self, place: TopicPartition, index: int, now_ms: int, identity: bytes) -> Record:
        rng = self._rng
        is_compacted = self.is_compacted(place)
        number = int(KEYS_OF_COMPACTED_COUNT * rng.random() ** 3) if is_compacted else rng.randrange(KEYS_COUNT)
        key = f"key-{number}".encode()
        if is_compacted and rng.random() < TOMBSTONE_PROBABILITY:
            return _tombstone(index, now_ms, key, identity)
        return Record(index, now_ms, key, identity)


def _tombstone(index: int, now_ms: int, key: bytes | None, identity: bytes) -> Record:
    return Record(index, now_ms, key, None, (Header(IDENTITY, identity),))
