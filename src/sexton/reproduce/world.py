"""What a script needs of a cluster, whichever it is. Topics have one partition and three replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from sexton.records.batch import Batch

BROKERS: Final = (1, 2, 3)
FIRST_LEADER: Final = 1
AWAY: Final = 3
"""The broker that every scenario takes down and brings back."""

FILLER_KEY: Final = "filler"
"""One record of this key is written every second, so that segments close and there is something to compact."""


@dataclass(frozen=True, slots=True)
class Sight:
    """What a `read_committed` consumer got from the leader, reading all there is, and what that broker claims."""

    leader: int
    fold: Mapping[str, str]
    """The latest value of each key that was read, without filler."""
    high_watermark: int
    last_stable_offset: int
    """Consumers with `read_committed` are shown nothing from here on."""
    aborted_offsets: tuple[int, ...] = ()
    """Where transactions of the script's producer begin that the broker lists as aborted."""
    open_offset: int | None = None
    """Where a transaction of the script's producer begins that the broker holds to be open."""
    second_fold: Mapping[str, str] | None = None
    """What librdkafka read of the same, just after; None where it is not installed."""


class World(Protocol):
    async def make_topic(self, topic: str) -> None:
        """Led by FIRST_LEADER, all replicas in sync, with filler coming in from now on."""

    async def write(self, topic: str, key: str, value: str | None) -> int:
        """A plain record, acknowledged by all in-sync replicas; None deletes. Its offset."""

    async def write_in_transaction(self, topic: str, key: str, value: str | None) -> int:
        """In the transaction of the topic's one transactional producer; the first one begins it."""

    async def end_transaction(self, topic: str, *, is_committed: bool) -> None:
        """Returns when the marker is in the log."""

    async def kill(self, broker_id: int) -> None: ...

    async def bring_back(self, broker_id: int) -> None: ...

    async def in_sync(self, topic: str) -> frozenset[int]: ...

    async def leader(self, topic: str) -> int: ...

    async def move_leadership(self, topic: str, broker_id: int) -> None:
        """Returns when it leads."""

    async def log(self, topic: str) -> Sequence[Batch]:
        """Everything in the leader's log up to its high watermark."""

    async def producer_id(self, topic: str) -> int:
        """Of the topic's transactional producer; -1 if it has none."""

    async def read(self, topic: str, until_key: str, until_value: str, patience_s: float) -> Sight:
        """Reads until that record has come and there is no more, or patience is over."""
