"""What a leader makes of its replicas' reports: MTRO and MXRO, and who may go on copying its log.

| what happens to the leader                | what follows                                                          |
|--------------------------------------------|-----------------------------------------------------------------------|
| it takes over                              | it starts from what it was last told, and has heard of nobody         |
| a replica reports                          | its value rises, if the report is its present incarnation's           |
| a replica reports after a restart          | what it says now counts, be it less: its disk may be an old one       |
| a replica is silent                        | it counts at its last report                                          |
| a replica was never heard of               | it counts at the present MTRO/MXRO: nothing rises past it             |
| a replica is added, or a new incarnation   | as never heard of                                                     |
| a replica is removed                       | it counts no more, and the values may rise                            |
| a replica asks for the log                 | `may_copy`, the fetch fence                                           |

The leader's own progress counts like any other's.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from sexton.watermarks.replica import Pair, ReplicaWatermarks


@dataclass(frozen=True, slots=True)
class Report:
    """What a follower says of itself: durable on its side before it is said."""

    incarnation: uuid.UUID
    generation: int
    compacted: Pair
    process: int = 0
    """The broker epoch of who says it. What one process said, the next may have to take back: a broker that starts with
    an old image of its disk has the same incarnation and has done less."""


class LeaderWatermarks:
    def __init__(self, broker_id: int, own: ReplicaWatermarks, incarnations: Mapping[int, uuid.UUID]) -> None:
        """`incarnations` are those of all replicas, its own among them, as the metastore has them."""
        self._broker_id = broker_id
        self._incarnations = dict(incarnations)
        self._last_known: dict[int, Pair] = {}
        self._processes: dict[int, int] = {}
        self.own = own

    def set_replicas(self, incarnations: Mapping[int, uuid.UUID]) -> None:
        """Reports of replicas that are gone, or have another log now, are forgotten."""
        self._last_known = {
            broker: pair
            for broker, pair in self._last_known.items()
            if incarnations.get(broker) == self._incarnations.get(broker)
        }
        self._incarnations = dict(incarnations)

    def take_report(self, broker_id: int, report: Report) -> bool:
        """False if it is not about the log that counts: too late, or of a replica that is to be wiped."""
        if report.generation != self.own.generation or self._incarnations.get(broker_id) != report.incarnation:
            return False
        heard = self._processes.get(broker_id, report.process)
        if report.process < heard:
            return False
        known = self._last_known.get(broker_id, report.compacted)
        self._last_known[broker_id] = report.compacted if report.process > heard else known.join(report.compacted)
        self._processes[broker_id] = report.process
        return True

    def last_known(self, broker_id: int) -> Pair | None:
        """None if it was never heard of, as the replica that it is now."""
        return self._last_known.get(broker_id)

    def computed(self) -> Pair:
        """The smallest progress of all replicas, and never less than what holds already. What comes out must be durable
        here (`own.told`) before it is sent or acted on."""
        smallest = self.own.compacted
        for broker in self._incarnations:
            if broker != self._broker_id:
                smallest = smallest.meet(self._last_known.get(broker, self.own.removable))
        return smallest.join(self.own.removable)

    def holding_back(self) -> dict[int, Pair | None]:
        """Who keeps the values from rising to the leader's own progress, at what (None: never heard of)."""
        return {
            broker: self._last_known.get(broker)
            for broker in self._incarnations
            if broker != self._broker_id
            and not self._last_known.get(broker, self.own.removable).covers(self.own.compacted)
        }

    def check_invariants(self) -> None:
        """Rules 5 to 7: what is removable was reported by replicas that there are, of the logs that they have now."""
        assert self._broker_id in self._incarnations, "rule 7: the leader is no replica"
        assert self._last_known.keys() <= self._incarnations.keys(), "rule 7: a report of one that is gone counts"
        assert self.computed().covers(self.own.removable), "rule 7: MTRO, MXRO would go back"
        self.own.check_invariants()

    def may_copy(self, end_offset: int, report: Report, *, in_sync: bool) -> bool:
        """The fetch fence. `end_offset` is the follower's end after truncation by epoch.

        A follower whose log ends at or above everything that was removed lacks nothing but what is still there to be
        copied. One that ends below must itself have compacted that far, or its past may hold what everyone else has
        forgotten: it must be wiped.

        One that is not in sync must in any case have compacted up to MTRO and MXRO, as every replica has that is what
        it was: a disk that went back in time still holds values whose tombstones are about to go, and would serve them
        to consumers that then miss the tombstone.

        Nor may one that has lost the end of what it has compacted, for it would get that back less compacted than it
        says: only what all replicas have compacted comes as it was."""
        if report.generation != self.own.generation:
            return False
        removable = self.own.removable
        if not in_sync and (not report.compacted.covers(removable) or self._has_lost_its_end(end_offset, report)):
            return False
        gone = removable.join(Pair(self.own.fence_below, self.own.fence_below))
        return end_offset >= gone.highest or report.compacted.covers(gone)

    def _has_lost_its_end(self, end_offset: int, report: Report) -> bool:
        """A new one is on its way to what all have compacted."""
        return end_offset < report.compacted.highest and not self.own.removable.covers(report.compacted)
