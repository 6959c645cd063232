"""Interface of what executes plans: an engine takes many plans at once and stages their results. It decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sexton.compaction.contract import PassResult, Plan
from sexton.errors import EnvironmentFailure, SextonError


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """The outcome of one plan: what was staged, or what went wrong. A failure affects no other plan."""

    plan: Plan
    result: PassResult | None
    error: str = ""
    is_lasting: bool = False
    """Whether it failed because of the log's bytes, so that it would fail again."""

    @staticmethod
    def failed(plan: Plan, error: Exception) -> PlanOutcome:
        environment = isinstance(error, EnvironmentFailure | OSError | MemoryError)
        return PlanOutcome(plan, None, str(error) or type(error).__name__, not environment)


class EngineUnavailableError(SextonError):
    """The engine cannot even be started. No plan is to blame."""


class Engine(Protocol):
    async def run(self, plans: Sequence[Plan]) -> list[PlanOutcome]:
        """Returns the outcomes in the order of the plans."""
        ...

    async def warm(self) -> None:
        """Called when work may come any moment: starts what takes long to start. Raises EngineUnavailableError."""
        ...

    async def rest(self) -> None:
        """Called when there has been no work for a while: releases what can be started again."""
        ...

    async def close(self) -> None: ...
