"""What a leader knows of its followers, and what follows from it. Pure.

The *counted* replicas decide the high watermark: the ISR that the metastore holds, and every replica that an ISR
change in flight would add. A change whose outcome is unknown stays in flight until the row is seen to have moved on.
So the counted replicas always include every replica that anyone could elect, and what they all hold can be lost by no
election.

What is known of a follower is about one log: it ends with the incarnation that it was told of.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from sexton.cluster.incarnations import known_incarnation
from sexton.ports.metastore import PartitionRow

UNKNOWN_OFFSET = -1


@dataclass(slots=True)
class Progress:
    """A follower as the leader sees it."""

    end_offset: int = UNKNOWN_OFFSET
    """Everything below is on the follower's disk and lies on the leader's history."""
    broker_epoch: int = -1
    fetched_ms: int = 0
    caught_up_ms: int = 0
    """The last time at which the follower held everything that the leader had at its fetch before."""
    leader_end_at_fetch: int = UNKNOWN_OFFSET
    joins_at: int = 0
    """The high watermark at which what it copied was compacted, by this leader or an earlier one (rule 4)."""
    incarnation: uuid.UUID | None = None
    """Of the log that all this is about; None until it was heard of."""


@dataclass(frozen=True, slots=True)
class IsrChange:
    """A change of the row that the leader asks for: one value from the decision until a newer row is seen, so that it
    is repeated exactly as it was."""

    isr: tuple[int, ...]
    incarnations: Mapping[int, uuid.UUID] = field(default_factory=dict)
    """New ids, in the same change, of replicas that are to throw their logs away."""
    processes: Mapping[int, int] = field(default_factory=dict)
    """Of those that join, the broker epoch of the very process that caught up (KIP-903). Its successor on the same
    broker may hold less."""
    is_unsure: bool = False
    """The answer to an attempt was lost. It may have been carried out, or be carried out yet: a refusal of a later one
    says nothing about it."""
    is_withdrawn: bool = False
    """Asked for no more. What it would have added counts all the same, until the row has moved on: then no earlier
    attempt can be carried out any more."""

    def applied_to(self, row: PartitionRow) -> PartitionRow:
        """What to write. One that is withdrawn writes the row as it is, for its next partition epoch alone."""
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
        """Followers that the fetch fence stopped, with the id of the log that each of them came with."""
        self._progress = {b: Progress(caught_up_ms=now_ms) for b in row.replicas if b != broker_id}

    def follow_row(self, row: PartitionRow, now_ms: int) -> None:
        """The row changed, the leader and its epoch did not."""
        assert row.leader_epoch == self.leader_epoch
        if row.partition_epoch > self.row.partition_epoch:
            self.pending = None
        self.row = row
        self._progress = {
            b: self._kept_progress(b) or Progress(caught_up_ms=now_ms) for b in row.replicas if b != self.broker_id
        }

    def _kept_progress(self, follower: int) -> Progress | None:
        """A replica that was removed and added again, seen as one change, has another log: what the former one held is
        no reason to count the new one in."""
        progress = self._progress.get(follower)
        meant = known_incarnation(self.row, follower)
        if progress is None or None in (meant, progress.incarnation) or meant == progress.incarnation:
            return progress
        return None

    # Changes of the ISR under way

    def answer_lost(self, change: IsrChange) -> None:
        if self.pending is change:
            self.pending = replace(change, is_unsure=True)

    def refused(self, change: IsrChange) -> None:
        """The last attempt wrote nothing, for one of the processes that it named is gone. If it was the only one, that
        is the end of it. Otherwise an earlier one may have been carried out."""
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
        """A follower holds everything below `end_offset`, on disk, and asks for more."""
        progress = self._progress.get(follower)
        if progress is None or broker_epoch < progress.broker_epoch:
            return  # not a replica any more, or the last words of a process that has been replaced
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

    def left(self, follower: int, broker_epoch: int) -> None:
        """It follows no more. Until it does again, nothing is known of what it holds."""
        progress = self._progress.get(follower)
        if progress is not None and broker_epoch >= progress.broker_epoch:
            progress.end_offset = progress.leader_end_at_fetch = UNKNOWN_OFFSET

    def counted(self) -> Iterator[int]:
        """Followers whose copy a record must be on before it is committed."""
        for broker in self.row.isr:
            if broker != self.broker_id:
                yield broker
        for broker in self._asked_for():
            if broker != self.broker_id and broker not in self.row.isr:
                yield broker

    def committed_end(self, own_end: int) -> int:
        """The smallest end among the counted replicas; UNKNOWN_OFFSET while one of them has not been heard of."""
        smallest = own_end
        for broker in self.counted():
            progress = self._progress.get(broker)
            end = UNKNOWN_OFFSET if progress is None else progress.end_offset
            if end < smallest:
                smallest = end
        return smallest

    def lagging(self, leader_end: int, now_ms: int, lag_max_ms: int) -> list[int]:
        """In the ISR, but behind for too long."""
        return [
            b
            for b, progress in self._progress.items()
            if b in self.row.isr and progress.end_offset < leader_end and now_ms - progress.caught_up_ms > lag_max_ms
        ]

    def caught_up(self, follower: int, high_watermark: int) -> bool:
        """Whether a follower outside the ISR may join: it holds everything committed, everything at which what it
        copied was compacted, and its log reaches into this leader's epoch (so that it has taken over the whole
        history)."""
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

    # What must hold

    def check_invariants(self) -> None:
        """Rule 1: whoever may be in the ISR counts, progress is known of replicas alone, and nobody counts with what
        another log or another process held."""
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
