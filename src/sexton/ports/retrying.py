"""Calls of an object store that are made again until they are answered.

Each attempt has its own bound (the adapter's timeout); their number has none. Whoever must stop sooner cancels: a
broker that is fenced, a fetch whose time is up. An answer is an answer, also that an object is missing or damaged.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sexton.ports.objects import StoreRefusedError, StoreUnavailableError

T = TypeVar("T")

PAUSE_MS_MIN: Final = 50
PAUSE_MS_MAX: Final = 2_000
"""A store that is back is used within two seconds; one that is busy is asked less and less until then."""

REFUSED_PAUSE_MS: Final = 5_000
"""Until a person has acted; new credentials are found that soon."""

OnFailure = Callable[[StoreUnavailableError | StoreRefusedError, int], None]
"""Called after each attempt that failed, with its number: for logs and metrics."""


def pause_ms(error: StoreUnavailableError | StoreRefusedError, attempts_count: int, rng: random.Random) -> float:
    """How long to wait after so many attempts, the last of which failed so. Drawn, so that many who failed at one
    moment do not all come back at another."""
    if isinstance(error, StoreRefusedError):
        return REFUSED_PAUSE_MS * (0.5 + rng.random() / 2)
    longest = min(PAUSE_MS_MAX, PAUSE_MS_MIN * 2.0 ** min(attempts_count, 10))
    return longest * (0.5 + rng.random() / 2)


async def until_answered(call: Callable[[], Awaitable[T]], rng: random.Random, on_failure: OnFailure) -> T:
    """Makes the same call again for as long as its outcome is unknown or it is refused."""
    attempts_count = 0
    while True:
        try:
            return await call()
        except (StoreUnavailableError, StoreRefusedError) as error:
            attempts_count += 1
            on_failure(error, attempts_count)
            await asyncio.sleep(pause_ms(error, attempts_count, rng) / 1000)
