"""Calls of the metastore that are made again until their outcome is known (C10)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sexton.ports.metastore import MetastoreUnavailableError

T = TypeVar("T")

PAUSE_MS_MIN: Final = 25
PAUSE_MS_MAX: Final = 1_000
"""A metastore that is back is used within a second."""


async def until_known(
    call: Callable[[], Awaitable[T]], rng: random.Random, on_failure: Callable[[], None] = lambda: None
) -> T:
    """Makes the same call again for as long as nobody knows whether it was carried out. Whoever must stop sooner
    cancels."""
    attempts_count = 0
    while True:
        try:
            return await call()
        except MetastoreUnavailableError:
            attempts_count += 1
            on_failure()
            longest = min(PAUSE_MS_MAX, PAUSE_MS_MIN * 2.0 ** min(attempts_count, 10))
            await asyncio.sleep(longest * (0.5 + rng.random() / 2) / 1000)
