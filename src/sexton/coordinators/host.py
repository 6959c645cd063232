"""What coordinators need of the broker that they run in."""

from __future__ import annotations

import random
from typing import Protocol

from sexton.ports.clock import Clock
from sexton.settings.group import GroupConfig
from sexton.supervision import Supervisor


class Host(Protocol):
    @property
    def clock(self) -> Clock: ...

    @property
    def supervisor(self) -> Supervisor: ...

    def lease_is_valid(self) -> bool:
        """If it is not, another broker may be the coordinator by now, and even reads must be refused: a partition that
        is verified for a transaction that has ended would get a hanging transaction."""
        ...

    def is_elected(self, topic: str, partition: int) -> bool:
        """Whether this broker is the leader of a partition by its view, also before the coordinator is loaded."""
        ...

    def partitions_count(self, topic: str) -> int:
        """0 while the topic does not exist."""
        ...


class GroupHost(Host, Protocol):
    @property
    def rng(self) -> random.Random: ...

    def group_config(self, group: str) -> GroupConfig | None:
        """A group's own configs; None if it has none."""
        ...

    async def catch_up(self) -> None:
        """When this returns, the broker's view shows every change that was made before the call."""
        ...
