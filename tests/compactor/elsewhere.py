"""A compactor on a machine that has none of the brokers' paths: a process of its own, for a process has one Spark.

python -m tests.compactor.elsewhere METASTORE_URL SPARK_MASTER A_DIRECTORY_THAT_DOES_NOT_EXIST
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from sexton.compaction.contract import Plan
from sexton.compactor.engine import Engine, PlanOutcome
from sexton.compactor.engines.spark import SparkEngine
from tests.compactor.live import compact


class Elsewhere:
    """An engine that is told of paths under a directory that does not exist."""

    def __init__(self, engine: Engine, nowhere: Path) -> None:
        self._engine = engine
        self._nowhere = nowhere

    async def run(self, plans: Sequence[Plan]) -> list[PlanOutcome]:
        hidden = [
            replace(plan, directory=self._hide(plan.directory), staging=self._hide(plan.staging)) for plan in plans
        ]
        return await self._engine.run(hidden)

    def _hide(self, path: str) -> str:
        assert not self._nowhere.exists()
        return f"{self._nowhere}{path}"

    async def warm(self) -> None:
        await self._engine.warm()

    async def rest(self) -> None:
        await self._engine.rest()

    async def close(self) -> None:
        await self._engine.close()


if __name__ == "__main__":
    url, master, nowhere = sys.argv[1:]
    asyncio.run(compact(url, lambda: Elsewhere(SparkEngine(master), Path(nowhere))))
