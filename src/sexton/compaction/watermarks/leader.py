"""What a leader computes from its replicas' reports: MTRO and MXRO.

| what happens to the leader                 | effect                                                                |
|--------------------------------------------|-----------------------------------------------------------------------|
| it takes over                              | it starts from the values it last received, without any report        |
| a replica reports                          | its value rises, if the report is of its present incarnation          |
| a replica reports after a restart          | the new report counts, even if lower: its disk may be an old one      |
| a replica is silent                        | it counts at its last report                                          |
| a replica has never reported               | it counts at the present MTRO/MXRO (docs/decisions, 22)               |
| a replica is added, or a new incarnation   | as if it had never reported                                           |
| a replica is removed                       | it no longer counts, and the values may rise                          |
| a replica fetches                          | the fetch fence: `fence.may_copy`                                     |

The leader's own progress counts like any other's.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from sexton.compaction.watermarks.replica import Pair, ReplicaWatermarks


@dataclass(frozen=True, slots=True)
class Report:
    """A follower's progress, durable on its side before it is sent."""

    incarnation: uuid.UUID
    generation: int
    compacted: Pair
    process: int = 0
    """Broker epoch of the sender. A new process may report less than its predecessor: a broker that starts with an old
    image of its disk has the same incarnation and has compacted less."""


class LeaderWatermarks:
    def __init__(self, broker_id: int, own: ReplicaWatermarks, incarnations: Mapping[int, uuid.UUID]) -> None:
        """`incarnations` are those of all replicas, the leader's included, as in the metastore."""
        self._broker_id = broker_id
        self._incarnations = dict(incarnations)
        self.last_known: dict[int, Pair] = {}
        self._processes: dict[int, int] = {}
        self.own = own

    def set_replicas(self, incarnations: Mapping[int, uuid.UUID]) -> None:
        """Drops the reports of replicas that were removed or have another incarnation now."""
        self.last_known = {
            broker: pair
            for broker, pair in self.last_known.items()
            if incarnations.get(broker) == self._incarnations.get(broker)
        }
        self._incarnations = dict(incarnations)

    def take_report(self, broker_id: int, report: Report) -> bool:
        """Returns False if the report does not count: it is late, or of a replica that is to be wiped."""
        if report.generation != self.own.generation or self._incarnations.get(broker_id) != report.incarnation:
            return False
        heard = self._processes.get(broker_id, report.process)
        if report.process < heard:
            return False
        known = self.last_known.get(broker_id, report.compacted)
        self.last_known[broker_id] = report.compacted if report.process > heard else known.join(report.compacted)
        self._processes[broker_id] = report.process
        return True

    def computed(self) -> Pair:
        """The smallest progress of all replicas, and never less than the present MTRO and MXRO. The result must be
        durable here (`own.told`) before it is sent or acted on."""
        smallest = self.own.compacted
        for broker in self._incarnations:
            if broker != self._broker_id:
                smallest = smallest.meet(self.last_known.get(broker, self.own.removable))
        return smallest.join(self.own.removable)

    def holding_back(self) -> dict[int, Pair | None]:
        """Replicas that keep the values from rising to the leader's own progress, each with its last report (None:
        never reported)."""
        return {
            broker: self.last_known.get(broker)
            for broker in self._incarnations
            if broker != self._broker_id
            and not self.last_known.get(broker, self.own.removable).covers(self.own.compacted)
        }

    def check_invariants(self) -> None:
        """Rules 5 to 7: what is removable was reported by present replicas, for the logs that they have now."""
        assert self._broker_id in self._incarnations, "rule 7: the leader is no replica"
        assert self.last_known.keys() <= self._incarnations.keys(), "rule 7: a report of one that is gone counts"
        assert self.computed().covers(self.own.removable), "rule 7: MTRO, MXRO would go back"
        self.own.check_invariants()
