"""What clients did and saw. The judge reads this; nothing of it comes from the brokers' own state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from sexton.simulate.errors import SimulationFailure

Place = tuple[str, int]
"""Topic and partition."""


class Outcome(StrEnum):
    PENDING = "pending"
    OK = "ok"
    FAILED = "failed"
    """For sure: the records are not in the log and will not get there."""
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Write:
    """One batch of one writer to one partition. Its values are unique in the whole simulation."""

    writer: str
    place: Place
    acks: int
    is_idempotent: bool
    values: tuple[bytes, ...]
    started_ns: int
    outcome: Outcome = Outcome.PENDING
    base_offset: int = -1
    ended_ns: int = -1

    @property
    def is_acknowledged(self) -> bool:
        return self.outcome is Outcome.OK


@dataclass(slots=True)
class History:
    writes: list[Write] = field(default_factory=list)
    reads: dict[Place, dict[int, bytes]] = field(default_factory=dict)
    """Every record that any consumer was ever given."""
    start_bounds: dict[Place, int] = field(default_factory=dict)
    """Up to where somebody has asked for records to be deleted: what is below may be gone."""
    dropped_topics: set[str] = field(default_factory=set)
    """Somebody has asked for them to be deleted."""
    written: dict[bytes, Write] = field(default_factory=dict)
    reads_count: int = 0
    acknowledged_count: int = 0

    def begin(self, write: Write) -> Write:
        self.writes.append(write)
        for value in write.values:
            self.written[value] = write
        return write

    def saw(self, reader: str, place: Place, offset: int, value: bytes | None) -> None:
        """A consumer was given a record. Rule 2: an offset has one value for life, whoever reads it and when."""
        self.reads_count += 1
        if value is None or value not in self.written:
            raise SimulationFailure("rule 2", f"{reader} read {value!r} at {_at(place, offset)}: nobody wrote that")
        write = self.written[value]
        if write.place != place:
            raise SimulationFailure("rule 2", f"{reader} read {value!r} at {_at(place, offset)}: it is {write.place}'s")
        if write.outcome is Outcome.FAILED:
            raise SimulationFailure(
                "rule 9", f"{reader} read {value!r} at {_at(place, offset)}: its producer was told that it failed"
            )
        seen = self.reads.setdefault(place, {})
        before = seen.setdefault(offset, value)
        if before != value:
            raise SimulationFailure(
                "rule 2", f"{reader} read {value!r} at {_at(place, offset)}, where {before!r} was read before"
            )

    def deleting_records(self, place: Place, before_offset: int) -> None:
        self.start_bounds[place] = max(self.start_bounds.get(place, 0), before_offset)

    def acknowledged(self, place: Place) -> Iterator[Write]:
        return (write for write in self.writes if write.place == place and write.is_acknowledged)


def _at(place: Place, offset: int) -> str:
    return f"{place[0]}-{place[1]}@{offset}"
