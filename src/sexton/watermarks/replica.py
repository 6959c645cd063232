"""What one replica knows: its own progress, and what the leader has told it.

All offsets are exclusive upper bounds and never move back within a generation (rule 7). Every pass both deduplicates
and settles, so keys and transactions are one pair of values; they keep two names because users know them:

|              | keys | transactions |                                                             |
|--------------|------|--------------|-------------------------------------------------------------|
| `compacted`  | MCCO | MXFO         | this replica's own progress                                 |
| `removable`  | MTRO | MXRO         | the smallest of all replicas', as the leader computed it    |

| what happens to the replica          | what follows                                                              |
|---------------------------------------|---------------------------------------------------------------------------|
| it begins with an empty log           | compacted = removable: what it will copy has been compacted that far      |
| a compaction commits, own or adopted  | compacted rises to its bound; removable to what it carries                |
| the leader tells MTRO and MXRO        | removable rises to them; an older generation is ignored                   |
| the log start moves                   | compacted rises to it: nothing is left below that could be uncompacted    |
| a compaction is planned               | the high watermark it is planned at is kept                               |
| an unclean election is forced         | a new generation: everything is cut to the new leader's log end           |
| it copies what was compacted at a HW  | that high watermark counts as planned: it joins the ISR only above it     |
| it throws its log away and goes on    | as with an empty log                                                      |
| it compacts without coordination      | only MCCO rises, and the fence with it                                    |
| what it knew is lost                  | it knows nothing, and the fence is where its log ends                     |
| the records they speak of are lost    | they are about another log (`Claim`): wiped, or a new generation          |
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import NamedTuple


class Pair(NamedTuple):
    """MCCO and MXFO, or MTRO and MXRO."""

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
UNKNOWN_EPOCH = -1


class Claim(NamedTuple):
    """What a replica's watermarks say of the partition's log, whoever leads: up to `end_offset` it had been committed
    when `epoch` was its latest leader epoch. Where that is not so (any more), they are about a log that is gone, and so
    is whatever was compacted by them: a value may be missing because of a newer one that nobody has."""

    end_offset: int
    epoch: int


NO_CLAIM = Claim(0, UNKNOWN_EPOCH)


@dataclass(frozen=True, slots=True)
class ReplicaWatermarks:
    incarnation: uuid.UUID
    """Of the log that these values are about. With another log they mean nothing."""
    generation: int = 0
    """Grows when an unclean election is forced on a compacted topic: values of different generations do not compare."""
    compacted: Pair = NOTHING
    removable: Pair = NOTHING
    planned_high_watermark: int = 0
    """The highest at which a compaction was planned whose result is, or may be, in this log, made here or copied: this
    replica's high watermark never starts below it again, and it joins the ISR only when it has reached it."""
    fence_below: int = 0
    """Below it something may be gone that MTRO and MXRO do not account for: removed without coordination, or by values
    that were lost. For the fetch fence it counts like them; it allows nothing to be removed."""
    epoch: int = UNKNOWN_EPOCH
    """The latest leader epoch in the log's history when these values were last changed."""

    @property
    def highest(self) -> int:
        """A log that ends below this has lost something that these values speak of, or has not copied it yet."""
        return max(*self.compacted, *self.removable, self.planned_high_watermark, self.fence_below)

    @staticmethod
    def of_empty_log(incarnation: uuid.UUID, generation: int, removable: Pair) -> ReplicaWatermarks:
        """A new incarnation. Only an *empty* log may start like this: one with a past may hold what all others have
        compacted away."""
        return ReplicaWatermarks(incarnation, generation, removable, removable)

    def with_compaction(self, bound: int, carried: Pair = NOTHING, carried_fence_below: int = 0) -> ReplicaWatermarks:
        """A compaction up to `bound` is committed. An adopted one carries the MTRO and MXRO that it was made with, and
        the fence of its maker: what they allowed to remove, or what was removed without them, is not in it.

        A replica's own may end where the one before it did: it then takes away what has become removable since."""
        if bound < self.compacted.keys:
            raise ValueError(f"a compaction up to {bound} was committed on a log compacted up to {self.compacted}")
        return self._next(
            compacted=self.compacted.join(Pair(bound, bound)),
            removable=self.removable.join(carried),
            fence_below=max(self.fence_below, carried_fence_below),
        )

    def may_commit(self, generation: int, bound: int, last_stable_offset: int) -> bool:
        """Whether a compaction of this replica's own log may be swapped in, judged at the moment of the swap. That it
        was made of exactly the segments that are there is for the log to check."""
        return generation == self.generation and self.compacted.keys <= bound <= last_stable_offset

    def may_adopt(
        self, generation: int, bound: int, planned_high_watermark: int, last_stable_offset: int, high_watermark: int
    ) -> bool:
        """Whether another replica's finished compaction may be swapped in. One that ends where the own one does may be
        a later pass, with which tombstones or markers have gone.

        The own high watermark must have reached that up to which the *maker's log* had been compacted, which may be
        more than this compaction: it may have copied its log from one that was compacted further, or have crashed
        between a swap and the MCCO that speaks of it. What is missing from its log below the bound may be superseded
        above it. And a high watermark at the bound is not enough for transactions: the marker of one that was settled
        may lie above both."""
        return (
            generation == self.generation
            and self.compacted.keys <= bound <= last_stable_offset
            and high_watermark >= planned_high_watermark
        )

    def told(
        self, generation: int, removable: Pair, fence_below: int = 0, planned_high_watermark: int = 0
    ) -> ReplicaWatermarks:
        """From any leader, however late: within a generation every value that was ever computed stays true. Durable
        before the records that come with it are taken: they may lack what these values allowed to remove."""
        if generation != self.generation:
            return self
        return self._next(
            removable=self.removable.join(removable),
            fence_below=max(self.fence_below, fence_below),
            planned_high_watermark=max(self.planned_high_watermark, planned_high_watermark),
        )

    def told_while_empty(
        self, generation: int, removable: Pair, fence_below: int = 0, planned_high_watermark: int = 0
    ) -> ReplicaWatermarks:
        """The same for a log in which there is nothing: what it will copy has been compacted that far. An older
        generation is ignored, a newer one is taken."""
        if generation < self.generation:
            return self
        if generation > self.generation:
            empty = ReplicaWatermarks.of_empty_log(self.incarnation, generation, removable)
            return replace(empty, fence_below=fence_below, planned_high_watermark=planned_high_watermark)
        told = self.told(generation, removable, fence_below, planned_high_watermark)
        return told._next(compacted=told.compacted.join(told.removable))

    def with_independent_compaction(self, bound: int) -> ReplicaWatermarks:
        """Nobody was asked, and nothing was settled: what is gone is known to the fence alone."""
        return self._next(
            compacted=self.compacted.join(Pair(bound, 0)),
            fence_below=max(self.fence_below, bound),
        )

    @staticmethod
    def of_unknown_past(incarnation: uuid.UUID, log_end_offset: int) -> ReplicaWatermarks:
        """A log with content whose values are missing or damaged. It has compacted nothing that it could vouch for, and
        may have removed anything that it holds no more."""
        return ReplicaWatermarks(incarnation, fence_below=log_end_offset)

    def with_log_start(self, offset: int) -> ReplicaWatermarks:
        return self._next(compacted=self.compacted.join(Pair(offset, offset)))

    def with_plan(self, high_watermark: int) -> ReplicaWatermarks:
        return self._next(planned_high_watermark=max(self.planned_high_watermark, high_watermark))

    def with_forced_election(self, generation: int, log_end_offset: int) -> ReplicaWatermarks:
        """On the new leader. The others are wiped, and start anew in the same generation."""
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
        """Rule 7: a value that was cut with its log, or was never heard of, is 0 and not less."""
        assert min(*self.compacted, *self.removable, self.planned_high_watermark, self.fence_below) >= 0, f"{self}"

    def check_follows(self, before: ReplicaWatermarks) -> None:
        """Rule 7."""
        assert (self.incarnation, self.generation) == (before.incarnation, before.generation)
        assert self.compacted.covers(before.compacted), f"rule 7: {before.compacted} -> {self.compacted}"
        assert self.removable.covers(before.removable), f"rule 7: {before.removable} -> {self.removable}"
        assert self.planned_high_watermark >= before.planned_high_watermark, "rule 7: the planned high watermark"
        assert self.fence_below >= before.fence_below, "rule 7: the fence"
