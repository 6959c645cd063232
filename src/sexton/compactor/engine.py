"""What carries plans out: an engine takes many at once and stages their results. It decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sexton.compaction.contract import PassResult, Plan
from sexton.errors import EnvironmentFailure, SextonError


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of one plan: what was staged, or what went wrong. One plan's failure is no other's."""

    plan: Plan
    result: PassResult | None
    error: str = ""
    is_lasting: bool = False
    """It failed for what is in the log's bytes: it will again."""

    @staticmethod
    def failed(plan: Plan, error: Exception) -> Outcome:
        environment = isinstance(error, EnvironmentFailure | OSError | MemoryError)
        return Outcome(plan, None, str(error) or type(error).__name__, not environment)


class EngineUnavailableError(SextonError):
    """It cannot even be started. No plan is to blame."""


class Engine(Protocol):
    async def run(self, plans: Sequence[Plan]) -> list[Outcome]:
        """In the order of the plans."""
        ...

    async def warm(self) -> None:
        """Work may come any moment: start what takes long to start. Raises EngineUnavailableError."""
        ...

    async def rest(self) -> None:
        """There has been nothing to do for a while: give back what can be had again."""
        ...

    async def close(self) -> None: ...
