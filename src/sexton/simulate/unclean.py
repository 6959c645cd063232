"""Who may lead without being in sync.

`unclean.leader.election.enable` lets the controller make such a replica lead; what is lost then is for `losses` to say.
On a topic that does not allow it nobody does, and on a compacted one only in a new generation, which an operator asks
for (docs/rules.md, traps): whatever else the settings say.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from sexton.ports.metastore import PartitionRow
from sexton.simulate.errors import SimulationFailure
from sexton.types import NO_LEADER, PartitionId


@dataclass(slots=True)
class UncleanElections:
    allowed: Collection[str]
    """Topics. No compacted ones."""
    _before: dict[PartitionId, PartitionRow] = field(default_factory=dict)

    def removes_in_sync(self, row: PartitionRow) -> bool:
        """Whether somebody has taken an in-sync replica away. To be asked before `is_one`."""
        before = self._before.get((row.topic_id, row.partition), row)
        return any(member not in row.replicas for member in before.isr)

    def is_one(self, topic: str, row: PartitionRow) -> bool:
        """Whether this row makes somebody lead who was not in sync by the one before."""
        key = (row.topic_id, row.partition)
        before = self._before.get(key, row)
        self._before[key] = row
        if row.leader in (NO_LEADER, before.leader, *before.isr) or row.generation > before.generation:
            return False
        if topic not in self.allowed:
            in_sync = f"in sync were {list(before.isr)}"
            raise SimulationFailure("rule 1", f"{row.leader} leads {topic}-{row.partition}, {in_sync}")
        return True
