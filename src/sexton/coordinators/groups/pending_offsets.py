"""Offsets that transactions have committed, as long as the transactions are open (KIP-447).

They become the group's offsets with the COMMIT marker and are dropped with the ABORT marker. An offset that comes later
in the log for the same partition, in another transaction or in none, wins over earlier ones, in whatever order the
markers come: the log's order decides, so that replaying a compacted log gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sexton.coordinators.groups.records import OffsetKey, OffsetValue
from sexton.types import ProducerIdAndEpoch


@dataclass(slots=True)
class _Open:
    epoch: int
    offsets: dict[OffsetKey, tuple[int, OffsetValue]] = field(default_factory=dict)
    """Each offset with its position in the order of all writes."""


@dataclass(slots=True)
class PendingOffsets:
    _open: dict[int, _Open] = field(default_factory=dict)
    """Open transactions by producer id."""
    _producers: dict[OffsetKey, dict[int, None]] = field(default_factory=dict)
    """Producers that have a pending offset for a key."""
    _groups: dict[str, int] = field(default_factory=dict)
    """Number of pending keys of each group."""
    _written_count: int = 0

    def is_open(self, owner: ProducerIdAndEpoch) -> bool:
        """Whether the producer has an open transaction here, in this very epoch."""
        found = self._open.get(owner.producer_id)
        return found is not None and found.epoch == owner.epoch

    def has_any(self, group: str) -> bool:
        return group in self._groups

    def is_pending(self, key: OffsetKey) -> bool:
        return key in self._producers

    def keys_of(self, group: str) -> list[OffsetKey]:
        return [key for key in self._producers if key.group == group] if group in self._groups else []

    def all(self) -> Iterator[tuple[OffsetKey, list[OffsetValue]]]:
        """Yields each key with the offsets that transactions have pending for it."""
        for key, producers in self._producers.items():
            yield key, [self._open[producer_id].offsets[key][1] for producer_id in producers]

    def put(self, owner: ProducerIdAndEpoch, key: OffsetKey, value: OffsetValue) -> None:
        self._written_count += 1
        transaction = self._open.setdefault(owner.producer_id, _Open(owner.epoch))
        transaction.epoch = owner.epoch
        transaction.offsets[key] = self._written_count, value
        producers = self._producers.get(key)
        if producers is None:
            producers = self._producers[key] = {}
            self._groups[key.group] = self._groups.get(key.group, 0) + 1
        producers[owner.producer_id] = None

    def end(self, producer_id: int) -> list[tuple[OffsetKey, OffsetValue]]:
        """Removes and returns the pending offsets of a committed transaction that no later write has superseded; the
        caller applies them. They supersede offsets that were written before them."""
        transaction = self._open.pop(producer_id, None)
        if transaction is None:
            return []
        for key in transaction.offsets:
            self._drop(key, producer_id)
        ordered = sorted(transaction.offsets.items(), key=lambda item: item[1][0])
        for key, (order, _) in ordered:
            self._supersede(key, order)
        return [(key, value) for key, (_, value) in ordered]

    def forget(self, producer_id: int) -> None:
        """Drops the pending offsets of an aborted transaction."""
        transaction = self._open.pop(producer_id, None)
        for key in transaction.offsets if transaction is not None else ():
            self._drop(key, producer_id)

    def supersede(self, key: OffsetKey) -> None:
        """Drops the pending offsets of a key that was committed later outside transactions, or deleted."""
        if key in self._producers:
            self._supersede(key, self._written_count + 1)

    def _supersede(self, key: OffsetKey, order: int) -> None:
        for producer_id in list(self._producers.get(key, {})):
            offsets = self._open[producer_id].offsets
            if offsets[key][0] < order:
                del offsets[key]
                self._drop(key, producer_id)

    def _drop(self, key: OffsetKey, producer_id: int) -> None:
        producers = self._producers[key]
        del producers[producer_id]
        if not producers:
            del self._producers[key]
            left = self._groups[key.group] - 1
            if left:
                self._groups[key.group] = left
            else:
                del self._groups[key.group]
