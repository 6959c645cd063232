"""An engine without Spark, on disks that it can see: for the simulator and for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sexton.compaction.contract import Plan
from sexton.compactor.engine import Outcome
from sexton.compactor.plain_pass import carry_out
from sexton.ports.disk import Disk


class PlainEngine:
    def __init__(self, disk_of: Callable[[int], Disk]) -> None:
        """`disk_of` returns a broker's disk by broker id."""
        self._disk_of = disk_of

    async def run(self, plans: Sequence[Plan]) -> list[Outcome]:
        return [self._run(plan) for plan in plans]

    def _run(self, plan: Plan) -> Outcome:
        try:
            return Outcome(plan, carry_out(self._disk_of(plan.broker_id), plan))
        except Exception as error:
            return Outcome.failed(plan, error)

    async def warm(self) -> None:
        """Does nothing: there is nothing to start."""

    async def rest(self) -> None:
        """Does nothing: it holds nothing."""

    async def close(self) -> None:
        """Does nothing: it has opened nothing."""
