"""What the scenarios share: fresh names, waiting, and the table of scenarios of a module."""

from __future__ import annotations

import random
import socket
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, TypeVar

WAIT_S: Final = 60
"""For what takes a moment; only a broken broker lets anyone wait so long."""

CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")
TOPIC_CODECS: Final = ("uncompressed", "gzip", "snappy", "lz4", "zstd")
"""What a topic may ask for; leaders compress anew what comes otherwise."""

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


Scenario = Callable[[Cluster], None]


class Scenarios:
    """The scenarios of one client, by feature: a feature is shown when all of its scenarios succeed."""

    def __init__(self) -> None:
        self.by_feature: dict[str, list[Scenario]] = {}

    def __call__(self, feature: str) -> Callable[[Scenario], Scenario]:
        def add(scenario: Scenario) -> Scenario:
            self.by_feature.setdefault(feature, []).append(scenario)
            return scenario

        return add


def wait_until(reached: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not reached():
        assert time.monotonic() < deadline_s, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.05)


def wait_for_topic(cluster: Cluster, topic: str, partitions: int) -> None:
    """Until every broker knows it, with all its leaders. Neither Kafka nor Sexton promises that the broker which a
    client happens to ask next has heard of a change already, and not every client asks twice."""
    for address in cluster.bootstrap.split(","):
        wait_until(lambda address=address: _leaders_count(address, topic) == partitions, f"{address} to know {topic}")  # type: ignore[misc]


def _leaders_count(address: str, topic: str) -> int:
    """How many partitions of it have a leader, as this broker has it: Metadata in version 1, by hand."""
    host, port = address.rsplit(":", 1)
    name = topic.encode()
    body = struct.pack(">hhihih", 3, 1, 1, -1, 1, len(name)) + name
    with socket.create_connection((host, int(port)), timeout=WAIT_S) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        with connection.makefile("rb") as answer:
            (size,) = struct.unpack(">i", answer.read(4))
            return _count_leaders(answer.read(size))


def _count_leaders(answer: bytes) -> int:
    position = 4  # behind the correlation id

    def take(shape: str) -> int:
        nonlocal position
        (value,) = struct.unpack_from(f">{shape}", answer, position)
        position += struct.calcsize(shape)
        return int(value)

    def skip_text() -> None:
        nonlocal position
        length = take("h")  # first: taking it moves the position too
        position += max(0, length)

    for _ in range(take("i")):  # brokers: id, host, port, rack
        take("i")
        skip_text()
        take("i")
        skip_text()
    take("i")  # controller
    assert take("i") == 1
    error = take("h")
    skip_text()
    take("b")  # is it internal
    leaders = 0
    for _ in range(take("i")):
        wrong = take("h")
        take("i")
        leaders += take("i") > 0 and wrong == 0
        for _ in range(2):  # replicas, and those in sync
            for _ in range(take("i")):
                take("i")
    return leaders if error == 0 else 0


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
