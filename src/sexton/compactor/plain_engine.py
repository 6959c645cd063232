"""An engine without Spark, on a disk that it can see: for the simulator and for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sexton.compaction.contract import Plan
from sexton.compactor.engine import Outcome
from sexton.compactor.plain_pass import carry_out
from sexton.ports.disk import Disk


class PlainEngine:
    def __init__(self, disk_of: Callable[[int], Disk]) -> None:
        """`disk_of` gives a broker's disk by its id."""
        self._disk_of = disk_of

    async def run(self, plans: Sequence[Plan]) -> list[Outcome]:
        return [self._run(plan) for plan in plans]

    def _run(self, plan: Plan) -> Outcome:
        try:
            return Outcome(plan, carry_out(self._disk_of(plan.broker_id), plan))
        except Exception as error:
            return Outcome.failed(plan, error)

    async def warm(self) -> None:
        """There is nothing to start."""

    async def rest(self) -> None:
        """It holds nothing."""

    async def close(self) -> None:
        """Nor did it open anything."""
