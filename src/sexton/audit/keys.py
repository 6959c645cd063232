"""A key on which replicas differ, as the pass found it, and what looking at the records again added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sexton.types import NO_EPOCH, NO_OFFSET, NO_PRODUCER_ID, NO_SEQUENCE


@dataclass(frozen=True, slots=True)
class Sight:
    """A record, and what its batch says. Of folds that travelled only what their entries tell."""

    offset: int
    is_tombstone: bool = False
    is_transactional: bool = False
    key: bytes | None = None
    value: bytes | None = None
    timestamp_ms: int = -1
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = -1
    sequence: int = NO_SEQUENCE
    leader_epoch: int = NO_EPOCH
    was_looked_up: bool = False


@dataclass(frozen=True, slots=True)
class OnReplica:
    """What a replica has of a key."""

    newest: Sight | None = None
    """Its newest visible record, which may be a tombstone."""
    content: int = 0
    """A hash of it, without the key."""
    hidden: Sight | None = None
    """Its newest record that consumers do not see: of an aborted or open transaction."""

    @property
    def shown(self) -> Sight | None:
        return None if self.newest is None or self.newest.is_tombstone else self.newest

    @property
    def value(self) -> tuple[int, int] | None:
        """What consumers get, for comparing."""
        return None if self.shown is None else (self.shown.offset, self.content)


@dataclass(frozen=True, slots=True)
class DifferingKey:
    first: int
    second: int
    """Its hash."""
    replicas: Mapping[int, OnReplica]
    is_pinned: bool = False
    """It differs only because one of the replicas does not show what lies above its last stable offset."""

    @property
    def name(self) -> str:
        return f"{self.first:016x}{self.second:016x}"

    @property
    def key(self) -> bytes | None:
        for each in self.replicas.values():
            for sight in (each.newest, each.hidden):
                if sight is not None and sight.key is not None:
                    return sight.key
        return None

    @property
    def newest_offset(self) -> int:
        found = (each.newest.offset for each in self.replicas.values() if each.newest is not None)
        return max(found, default=NO_OFFSET)

    def groups(self) -> dict[tuple[int, int] | None, list[int]]:
        """Replicas by what they show."""
        groups: dict[tuple[int, int] | None, list[int]] = {}
        for number, each in self.replicas.items():
            groups.setdefault(each.value, []).append(number)
        return groups


@dataclass(frozen=True, slots=True)
class Explained:
    """Which class a difference is, and why we think so."""

    is_class: int
    is_sure: bool
    because: str
    accused: tuple[int, ...] = ()
    """Replicas that are wrong."""
    right: tuple[int, ...] = ()
    why_right: str = ""
    alternatives: tuple[int, ...] = ()
    """Classes that it may be instead, where it is not sure."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Offsets, epochs, producer, marker, for programs."""
