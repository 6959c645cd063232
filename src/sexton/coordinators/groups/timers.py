"""What has a deadline in a group coordinator."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TimerKind(StrEnum):
    CLASSIC_SESSION = "classic session"
    CLASSIC_JOIN = "classic join"
    """Of a group: the members have until then to rejoin."""
    CLASSIC_SYNC = "classic sync"
    CONSUMER_SESSION = "consumer session"
    CONSUMER_REBALANCE = "consumer rebalance"
    """Of a KIP-848 member that must let go of partitions."""
    CONSUMER_JOIN = "consumer join"
    """Of a classic member in a consumer group that was told to rejoin."""
    CONSUMER_SYNC = "consumer sync"
    OFFSETS = "offsets"
    """The next search for offsets that nobody needs any more."""


@dataclass(frozen=True, slots=True, order=True)
class Timer:
    kind: TimerKind
    group: str = ""
    member_id: str = ""
