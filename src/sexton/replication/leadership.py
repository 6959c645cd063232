"""A leader's view of its followers, and the decisions that depend on it alone: high watermark and ISR. Pure.

The *counted* replicas decide the high watermark: the ISR in the metastore, plus every replica that an ISR change in
flight would add. A change whose outcome is unknown stays in flight until a newer partition row is seen. So the counted
replicas always include every replica that could be elected, and no election can lose a record that all of them hold.

What is known of a follower belongs to one log: it is dropped when the follower's incarnation changes.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sexton.metadata.incarnations import known_incarnation
from sexton.ports.metastore import PartitionRow

UNKNOWN_OFFSET = -1


@dataclass(slots=True)
class Progress:
    """A follower as its leader knows it."""

    end_offset: int = UNKNOWN_OFFSET
    """The follower's durable log end: everything below is on its disk and on the leader's history."""
    broker_epoch: int = -1
    fetched_ms: int = 0
    caught_up_ms: int = 0
    """The latest time of which it is known that the follower held all that the leader had then (Kafka's
    lastCaughtUpTimeMs)."""
    leader_end_at_fetch: int = UNKNOWN_OFFSET
    joins_at: int = 0
    """The follower may join the ISR only from this offset on: the high watermark at which the records that it copied
    were compacted, by this leader or an earlier one (rule 4)."""
    incarnation: uuid.UUID | None = None
    """Incarnation of the follower's log that these values describe; None until the first fetch."""


@dataclass(frozen=True, slots=True)
class IsrChange:
    """An ISR change that the leader sends to the metastore. It stays the same value from the decision until a newer row
    is seen, so that every retry is identical."""

    isr: tuple[int, ...]
    incarnations: Mapping[int, uuid.UUID] = field(default_factory=dict)
    """New incarnations, written in the same change, for replicas that must discard their logs."""
    processes: Mapping[int, int] = field(default_factory=dict)
    """Broker epochs, by broker id, of the joining replicas: the epoch of the very process that caught up (KIP-903). The
    next process of the same broker may hold less."""
    is_unsure: bool = False
    """True once the response to an attempt was lost. That attempt may have been applied, or may be applied later, so a
    refusal of a later attempt says nothing about it."""
    is_withdrawn: bool = False
    """True once the change is no longer wanted. The replicas that it would have added still count until a newer row is
    seen: only then can no earlier attempt be applied any more."""

    def applied_to(self, row: PartitionRow) -> PartitionRow:
        """The row to write. A withdrawn change writes the row unchanged, only to raise its partition epoch."""
        if self.is_withdrawn:
            return row
        return replace(row, isr=self.isr, incarnations={**row.incarnations, **self.incarnations})


class Leadership:
    def __init__(self, row: PartitionRow, broker_id: int, start_offset: int, now_ms: int) -> None:
        self.broker_id = broker_id
        self.leader_epoch = row.leader_epoch
        self.epoch_start_offset = start_offset
        self.row = row
        self.pending: IsrChange | None = None
        self.turned_away: dict[int, uuid.UUID] = {}
        """Followers that the fetch fence refused, with the incarnation of the log that each of them reported."""
        self._progress = {b: Progress(caught_up_ms=now_ms) for b in row.replicas if b != broker_id}

    def follow_row(self, row: PartitionRow, now_ms: int) -> None:
        """Takes a newer row with the same leader and leader epoch."""
        assert row.leader_epoch == self.leader_epoch
        if row.partition_epoch > self.row.partition_epoch:
            self.pending = None
        self.row = row
        self._progress = {
            b: self._kept_progress(b) or Progress(caught_up_ms=now_ms) for b in row.replicas if b != self.broker_id
        }

    def _kept_progress(self, follower: int) -> Progress | None:
        """Progress of a follower, or None if it belongs to another log. A replica that was removed and added again,
        seen as one change of the row, has a new log: what the old log held must not count for the new one."""
        progress = self._progress.get(follower)
        meant = known_incarnation(self.row, follower)
        if progress is None or None in (meant, progress.incarnation) or meant == progress.incarnation:
            return progress
        return None

    # ISR changes in flight

    def answer_lost(self, change: IsrChange) -> None:
        if self.pending is change:
            self.pending = replace(change, is_unsure=True)

    def refused(self, change: IsrChange) -> None:
        """The metastore refused the last attempt and wrote nothing, because a broker process that it named is gone. If
        it was the only attempt, the change is dropped. Otherwise an earlier attempt may still be applied, so the change
        is withdrawn."""
        if self.pending is change:
            self.pending = replace(change, processes={}, is_withdrawn=True) if change.is_unsure else None

    # What followers hold

    def fetched(
        self,
        follower: int,
        broker_epoch: int,
        end_offset: int,
        leader_end: int,
        now_ms: int,
        joins_at: int = 0,
        incarnation: uuid.UUID | None = None,
    ) -> None:
        """Called for each fetch: the follower holds everything below `end_offset`, on disk, and asks for more."""
        progress = self._progress.get(follower)
        if progress is None or broker_epoch < progress.broker_epoch:
            return  # no longer a replica, or a late request of a process that was replaced
        if end_offset >= leader_end:
            progress.caught_up_ms = now_ms
        elif end_offset >= progress.leader_end_at_fetch != UNKNOWN_OFFSET:
            progress.caught_up_ms = max(progress.caught_up_ms, progress.fetched_ms)
        progress.end_offset = end_offset
        progress.broker_epoch = broker_epoch
        progress.fetched_ms = now_ms
        progress.leader_end_at_fetch = leader_end
        progress.joins_at = joins_at
        progress.incarnation = incarnation

    def held_all(self, follower: int, broker_epoch: int, at_ms: int) -> None:
        """A follower reports changes alone. While nothing changes, its session tells when it last asked for more: it
        held all that the leader had then."""
        progress = self._progress.get(follower)
        if progress is not None and broker_epoch == progress.broker_epoch:
            progress.caught_up_ms = max(progress.caught_up_ms, at_ms)

    def left(self, follower: int, broker_epoch: int) -> None:
        """The follower stopped following. Until it fetches again, its log end is unknown."""
        progress = self._progress.get(follower)
        if progress is not None and broker_epoch >= progress.broker_epoch:
            progress.end_offset = progress.leader_end_at_fetch = UNKNOWN_OFFSET

    def counted(self) -> Iterator[int]:
        """Followers that must hold a record before it is committed."""
        for broker in self.row.isr:
            if broker != self.broker_id:
                yield broker
        for broker in self._asked_for():
            if broker != self.broker_id and broker not in self.row.isr:
                yield broker

    def committed_end(self, own_end: int) -> int:
        """The smallest log end of the counted replicas; UNKNOWN_OFFSET while one of them has not fetched yet."""
        smallest = own_end
        for broker in self.counted():
            progress = self._progress.get(broker)
            end = UNKNOWN_OFFSET if progress is None else progress.end_offset
            if end < smallest:
                smallest = end
        return smallest

    def lagging(self, leader_end: int, now_ms: int, lag_max_ms: int) -> list[int]:
        """Members of the ISR that have been behind the leader for more than `lag_max_ms`."""
        return [
            b
            for b, progress in self._progress.items()
            if b in self.row.isr and progress.end_offset < leader_end and now_ms - progress.caught_up_ms > lag_max_ms
        ]

    def caught_up(self, follower: int, high_watermark: int) -> bool:
        """Whether a follower outside the ISR may join it: it holds everything that is committed, has reached the high
        watermark at which the records that it copied were compacted, and its log reaches into this leader's epoch (so
        that it has taken over the whole epoch history)."""
        progress = self._progress.get(follower)
        return (
            progress is not None
            and follower not in self.row.isr
            and follower not in self._asked_for()
            and progress.end_offset >= max(high_watermark, self.epoch_start_offset, progress.joins_at)
        )

    def _asked_for(self) -> tuple[int, ...]:
        return () if self.pending is None else self.pending.isr

    def progress_of(self, follower: int) -> Progress | None:
        return self._progress.get(follower)

    # Invariants

    def check_invariants(self) -> None:
        """Rule 1: every replica that may be in the ISR counts, progress is kept for replicas alone, and no replica
        counts with what another log or another process held."""
        row = self.row
        assert row.leader == self.broker_id, f"rule 1: {self.broker_id} leads what {row.leader} should"
        assert self.broker_id in row.isr, f"rule 1: {self.broker_id} leads, and is not in sync: {row.isr}"
        assert {*self._progress, self.broker_id} == {*row.replicas, self.broker_id}, "rule 1: progress of no replica"
        for follower, progress in self._progress.items():
            meant, about = known_incarnation(row, follower), progress.incarnation
            assert None in (meant, about) or meant == about, f"rule 1: what {about} held counts for {meant}"
        if self.pending is not None and not self.pending.is_withdrawn:
            joining = {b for b in self.pending.isr if b not in row.isr}
            assert joining <= self.pending.processes.keys(), "rule 1: somebody joins as whichever process is there"
