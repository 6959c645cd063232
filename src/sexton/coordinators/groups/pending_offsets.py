"""Offsets that transactions have committed, as long as the transactions are under way (KIP-447).

They become the group's offsets with the COMMIT marker and vanish with the ABORT marker. What was committed to the same
partition later in the log, in another transaction or in none, wins over what was there before, whenever the markers
come: the log's order decides, so that a compacted log tells the same story.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sexton.coordinators.groups.records import OffsetKey, OffsetValue
from sexton.coordinators.shard import Owner


@dataclass(slots=True)
class _Open:
    epoch: int
    offsets: dict[OffsetKey, tuple[int, OffsetValue]] = field(default_factory=dict)
    """With its place in the order of all that was written."""


@dataclass(slots=True)
class PendingOffsets:
    _open: dict[int, _Open] = field(default_factory=dict)
    """By producer id."""
    _producers: dict[OffsetKey, dict[int, None]] = field(default_factory=dict)
    """Who has something pending for it."""
    _groups: dict[str, int] = field(default_factory=dict)
    """How many keys of a group are pending."""
    _written_count: int = 0

    def is_open(self, owner: Owner) -> bool:
        """Whether the producer has a transaction under way here, in this very epoch."""
        found = self._open.get(owner.producer_id)
        return found is not None and found.epoch == owner.epoch

    def has_any(self, group: str) -> bool:
        return group in self._groups

    def is_pending(self, key: OffsetKey) -> bool:
        return key in self._producers

    def keys_of(self, group: str) -> list[OffsetKey]:
        return [key for key in self._producers if key.group == group] if group in self._groups else []

    def all(self) -> Iterator[tuple[OffsetKey, list[OffsetValue]]]:
        """With what each transaction has committed to it."""
        for key, producers in self._producers.items():
            yield key, [self._open[producer_id].offsets[key][1] for producer_id in producers]

    def put(self, owner: Owner, key: OffsetKey, value: OffsetValue) -> None:
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
        """Takes out what the transaction had pending. What its newer rivals supersede is for the caller to write, and
        whoever wrote before it is superseded by that."""
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
        """Aborted."""
        transaction = self._open.pop(producer_id, None)
        for key in transaction.offsets if transaction is not None else ():
            self._drop(key, producer_id)

    def supersede(self, key: OffsetKey) -> None:
        """Something newer was committed, or it was deleted: what is pending for it has come too late."""
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
