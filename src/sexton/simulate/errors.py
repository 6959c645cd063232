"""How a simulation ends badly."""

from __future__ import annotations


class SimulationFailure(Exception):  # noqa: N818 - the simulation found a failure; it made none
    """A rule of docs/rules.md does not hold, or a process crashed. `rule` is what a shrunk run must break again."""

    def __init__(self, rule: str, evidence: str) -> None:
        super().__init__(rule, evidence)
        self.rule = rule
        self.evidence = evidence

    def __str__(self) -> str:
        return f"{self.rule}: {self.evidence}"
