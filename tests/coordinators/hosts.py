"""A broker as coordinators see it: its lease is valid, its view is never behind, and it is elected to nothing."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sexton.settings.group import GroupConfig
from sexton.supervision import Supervisor


async def up_to_date() -> None:
    """For a view that always is."""


class LoopClock:
    """The loop's own time, so that deadlines and sleeps agree. It may jump: the process stood still."""

    def __init__(self, start_ms: int = 1_700_000_000_000) -> None:
        self.start_ms = start_ms
        self.jumped_ms = 0

    def now_ms(self) -> int:
        return self.start_ms + self.monotonic_ms()

    def monotonic_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000) + self.jumped_ms


@dataclass(kw_only=True)
class FakeHost:
    topic_size: int
    """How many partitions the coordinator's topic has."""
    clock: LoopClock = field(default_factory=LoopClock)
    rng: random.Random = field(default_factory=lambda: random.Random(1))
    supervisor: Supervisor = field(default_factory=Supervisor)
    may_serve: bool = True
    elected: set[tuple[str, int]] = field(default_factory=set)
    on_catch_up: Callable[[], Awaitable[None]] = up_to_date

    def lease_is_valid(self) -> bool:
        return self.may_serve

    def is_elected(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self.elected

    def partitions_count(self, topic: str) -> int:
        return self.topic_size

    def group_config(self, group: str) -> GroupConfig | None:
        return None

    async def catch_up(self) -> None:
        await self.on_catch_up()
