"""What can be planted, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from sexton.checker.edit import Edit
from sexton.history.op import UNKNOWN


@dataclass(frozen=True, slots=True)
class Place:
    """Where an anomaly was planted. A cycle is in no log; a commit has no value."""

    log: int = UNKNOWN
    value: int = UNKNOWN


@dataclass(frozen=True, slots=True)
class Plan:
    plant: Callable[[Edit], Place]
    implied: frozenset[str] = field(default_factory=frozenset)


SKIPS: Final = ("poll-skip", "int-poll-skip", "fractured-read", "reappeared")
TABLE: Final = (*SKIPS, "lost-record", "table-drift", "replicas-disagree")


class Plants(dict[str, Plan]):
    """By the name of the anomaly."""

    def named(
        self, *names: str, implied: Iterable[str] = ()
    ) -> Callable[[Callable[[Edit], Place]], Callable[[Edit], Place]]:
        """What is planted under several names implies each of them."""

        def register(plant: Callable[[Edit], Place]) -> Callable[[Edit], Place]:
            for name in names:
                self[name] = Plan(plant, frozenset({*names, *implied} - {name}))
            return plant

        return register
