"""The watermarks of one replica: its own progress, and what it has received from leaders.

All offsets are exclusive upper bounds and never move back within a generation (rule 7). Every compaction both
deduplicates and settles, so keys and transactions are one pair of values; they keep two names because users know them:

|              | keys | transactions |                                                             |
|--------------|------|--------------|-------------------------------------------------------------|
| `compacted`  | MCCO | MXFO         | this replica's own progress                                 |
| `removable`  | MTRO | MXRO         | the smallest of all replicas', as the leader computed it    |

| what happens to the replica           | effect                                                                    |
|---------------------------------------|---------------------------------------------------------------------------|
| it begins with an empty log           | compacted = removable: what it will copy has been compacted that far      |
| a compaction commits, own or adopted  | compacted rises to its bound; removable to what it carries                |
| the leader sends MTRO and MXRO        | removable rises to them; an older generation is ignored                   |
| the log start moves                   | compacted rises to it: nothing is left below that could be uncompacted    |
| a compaction is planned               | the high watermark it is planned at is kept                               |
| an unclean election is forced         | a new generation: everything is lowered to the new leader's log end       |
| it copies what was compacted at a HW  | that high watermark counts as planned: it joins the ISR only above it     |
| it discards its log and goes on       | as with an empty log                                                      |
| it compacts without coordination      | only MCCO rises, and the fence with it                                    |
| its watermarks are lost               | all values are 0, and the fence is at its log end                         |
| the records they cover are lost       | they are about another log (`Claim`): wiped, or a new generation          |
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import NamedTuple

from sexton.types import LeaderEpoch


class Pair(NamedTuple):
    """A pair of watermarks: MCCO and MXFO, or MTRO and MXRO."""

    keys: int
    transactions: int

    def join(self, other: Pair) -> Pair:
        return Pair(max(self.keys, other.keys), max(self.transactions, other.transactions))

    def meet(self, other: Pair) -> Pair:
        return Pair(min(self.keys, other.keys), min(self.transactions, other.transactions))

    def covers(self, other: Pair) -> bool:
        return self.keys >= other.keys and self.transactions >= other.transactions

    @property
    def highest(self) -> int:
        return max(self)


NOTHING = Pair(0, 0)
UNKNOWN_EPOCH = LeaderEpoch(-1)


class Claim(NamedTuple):
    """What a replica's watermarks say about the partition's log, whichever replica leads: it was committed up to
    `end_offset` when `epoch` was its latest leader epoch. If a log does not satisfy that (any more), the watermarks are
    about a log that is gone, and so is whatever was compacted by them: a value may be missing because of a newer one
    that no replica has."""

    end_offset: int
    epoch: LeaderEpoch


NO_CLAIM = Claim(0, UNKNOWN_EPOCH)


@dataclass(frozen=True, slots=True)
class ReplicaWatermarks:
    incarnation: uuid.UUID
    """Incarnation of the log that these values are about. For another log they mean nothing."""
    generation: int = 0
    """Rises when an unclean election is forced on a compacted topic. Values of different generations cannot be
    compared."""
    compacted: Pair = NOTHING
    removable: Pair = NOTHING
    planned_high_watermark: int = 0
    """The highest high watermark at which a compaction was planned whose result is, or may be, in this log, made here
    or copied. This replica's high watermark never starts below it again, and it joins the ISR only when it has reached
    it."""
    fence_below: int = 0
    """Below it something may be gone that MTRO and MXRO do not cover: removed without coordination, or by values that
    were lost. The fetch fence treats it like them; it allows nothing to be removed."""
    epoch: LeaderEpoch = UNKNOWN_EPOCH
    """The latest leader epoch in the log's history when these values were last changed."""

    @property
    def highest(self) -> int:
        """A log that ends below this has lost something that these values cover, or has not copied it yet."""
        return max(*self.compacted, *self.removable, self.planned_high_watermark, self.fence_below)

    @staticmethod
    def of_empty_log(incarnation: uuid.UUID, generation: int, removable: Pair) -> ReplicaWatermarks:
        """Values of a new incarnation. Only an *empty* log may start like this: one with records may hold what all
        others have compacted away."""
        return ReplicaWatermarks(incarnation, generation, removable, removable)

    def with_compaction(self, bound: int, carried: Pair = NOTHING, carried_fence_below: int = 0) -> ReplicaWatermarks:
        """A compaction up to `bound` was committed. An adopted one carries the MTRO and MXRO that it was made with, and
        the fence of the replica that made it: what they allowed to remove, or what was removed without them, is not in
        it.

        A replica's own compaction may end where its last one did: it then removes what has become removable since.
        """
        if bound < self.compacted.keys:
            raise ValueError(f"a compaction up to {bound} was committed on a log compacted up to {self.compacted}")
        return self._next(
            compacted=self.compacted.join(Pair(bound, bound)),
            removable=self.removable.join(carried),
            fence_below=max(self.fence_below, carried_fence_below),
        )

    def with_received(
        self, generation: int, removable: Pair, fence_below: int = 0, planned_high_watermark: int = 0
    ) -> ReplicaWatermarks:
        """Takes values from any leader, however late: within a generation every value that was ever computed stays
        true. To be made durable before the records that come with them are appended: they may lack what these values
        allowed to remove."""
        if generation != self.generation:
            return self
        return self._next(
            removable=self.removable.join(removable),
            fence_below=max(self.fence_below, fence_below),
            planned_high_watermark=max(self.planned_high_watermark, planned_high_watermark),
        )

    def with_received_while_empty(
        self, generation: int, removable: Pair, fence_below: int = 0, planned_high_watermark: int = 0
    ) -> ReplicaWatermarks:
        """The same for an empty log: what it will copy has been compacted that far. An older generation is ignored, a
        newer one is taken over."""
        if generation < self.generation:
            return self
        if generation > self.generation:
            empty = ReplicaWatermarks.of_empty_log(self.incarnation, generation, removable)
            return replace(empty, fence_below=fence_below, planned_high_watermark=planned_high_watermark)
        received = self.with_received(generation, removable, fence_below, planned_high_watermark)
        return received._next(compacted=received.compacted.join(received.removable))

    def with_independent_compaction(self, bound: int) -> ReplicaWatermarks:
        """A compaction without coordination, which settles nothing: only the fence covers what it removed."""
        return self._next(
            compacted=self.compacted.join(Pair(bound, 0)),
            fence_below=max(self.fence_below, bound),
        )

    @staticmethod
    def of_unknown_past(incarnation: uuid.UUID, log_end_offset: int) -> ReplicaWatermarks:
        """For a log with records whose watermarks are missing or damaged. It cannot vouch for any compaction, and may
        have removed anything that it no longer holds."""
        return ReplicaWatermarks(incarnation, fence_below=log_end_offset)

    def with_log_start(self, offset: int) -> ReplicaWatermarks:
        return self._next(compacted=self.compacted.join(Pair(offset, offset)))

    def with_plan(self, high_watermark: int) -> ReplicaWatermarks:
        return self._next(planned_high_watermark=max(self.planned_high_watermark, high_watermark))

    def with_forced_election(self, generation: int, log_end_offset: int) -> ReplicaWatermarks:
        """Called on the new leader. The other replicas are wiped, and start empty in the same generation."""
        if generation <= self.generation:
            raise ValueError(f"generation {generation} does not follow {self.generation}")
        end = Pair(log_end_offset, log_end_offset)
        return replace(
            self,
            generation=generation,
            compacted=self.compacted.meet(end),
            removable=self.removable.meet(end),
            planned_high_watermark=min(self.planned_high_watermark, log_end_offset),
            fence_below=min(self.fence_below, log_end_offset),
        )

    def _next(self, **changes: object) -> ReplicaWatermarks:
        changed = replace(self, **changes)  # type: ignore[arg-type]
        changed.check_follows(self)
        return self if changed == self else changed

    def check_invariants(self) -> None:
        """Rule 7: no value is negative."""
        assert min(*self.compacted, *self.removable, self.planned_high_watermark, self.fence_below) >= 0, f"{self}"

    def check_follows(self, before: ReplicaWatermarks) -> None:
        """Rule 7: no value goes back."""
        assert (self.incarnation, self.generation) == (before.incarnation, before.generation)
        assert self.compacted.covers(before.compacted), f"rule 7: {before.compacted} -> {self.compacted}"
        assert self.removable.covers(before.removable), f"rule 7: {before.removable} -> {self.removable}"
        assert self.planned_high_watermark >= before.planned_high_watermark, "rule 7: the planned high watermark"
        assert self.fence_below >= before.fence_below, "rule 7: the fence"
