"""What the scenarios share: fresh names, waiting, and the table of scenarios of a module."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

WAIT_S: Final = 30
"""For what takes a moment; only a broken broker lets anyone wait so long."""

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
LARGE_BYTES: Final = 900_000
TOO_LARGE_BYTES: Final = 1_500_000
PAST_MS: Final = 1_600_000_000_000
"""A timestamp that nobody takes for now."""

KEPT: Final = {"retention.ms": "-1"}
"""For topics with records of the past, which retention would take away within minutes."""


@dataclass
class Cluster:
    """Where the brokers are, and names that no other scenario uses."""

    bootstrap: str
    brokers: int = 3
    log_dirs: list[str] = field(default_factory=list)
    """Of each broker; none if the brokers run elsewhere."""
    _random: random.Random = field(default_factory=random.Random)

    def name(self, what: str) -> str:
        return f"{what}-{self._random.randbytes(4).hex()}"

    @property
    def replication(self) -> int:
        return min(3, self.brokers)


Scenario = Callable[[Cluster], Any]


class Scenarios:
    """The scenarios of one client, by feature."""

    def __init__(self) -> None:
        self.by_feature: dict[str, Scenario] = {}

    def __call__(self, feature: str) -> Callable[[Scenario], Scenario]:
        def add(scenario: Scenario) -> Scenario:
            assert feature not in self.by_feature, feature
            self.by_feature[feature] = scenario
            return scenario

        return add


def wait_until(reached: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline_s, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.05)


def text_of(codec: str, count: int = 20) -> list[bytes]:
    """Values that compress well, so that a codec that is not applied would show on the broker's disk."""
    return [f"{codec} {number} ".encode() * 20 for number in range(count)]


def numbers(count: int, start: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(start, start + count)]


def covers(assignments: Iterable[Iterable[int]], partitions: int) -> bool:
    """Whether each partition belongs to exactly one member, and no member idles."""
    parts = [sorted(assignment) for assignment in assignments]
    return all(parts) and sorted(number for part in parts for number in part) == list(range(partitions))


Failure = TypeVar("Failure", bound=Exception)


def raised_by(action: Callable[[], object], kind: type[Failure]) -> Failure:
    """The error that it must raise. (pytest is not at hand in a client's own environment.)"""
    try:
        done = action()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__} was raised; it returned {done!r}")
