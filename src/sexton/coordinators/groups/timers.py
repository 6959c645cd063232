"""The timers of a group coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TimerKind(StrEnum):
    CLASSIC_SESSION = "classic session"
    CLASSIC_JOIN = "classic join"
    """Rebalance timeout of a classic group: until then its members must rejoin."""
    CLASSIC_SYNC = "classic sync"
    CONSUMER_SESSION = "consumer session"
    CONSUMER_REBALANCE = "consumer rebalance"
    """Until then a KIP-848 member must have revoked partitions."""
    CONSUMER_JOIN = "consumer join"
    """Until then a classic member of a consumer group that was asked to rejoin must have done so."""
    CONSUMER_SYNC = "consumer sync"
    OFFSETS = "offsets"
    """The next search for expired offsets."""


@dataclass(frozen=True, slots=True, order=True)
class Timer:
    kind: TimerKind
    group: str = ""
    member_id: str = ""
