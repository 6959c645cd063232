"""The two locks of a log, and the order in which they are taken.

`flushing` is held by each flush, and by whatever changes more than the end of the log: while one waits for the device,
no other does. Appends and reads take no lock: they return at once, and each operation that holds one reads the state
that it needs before it waits, and changes the state in memory without waiting in between.

`shape` is held by whatever removes or replaces segments. A swap takes minutes, so it holds `shape` alone, and appends
are flushed and acknowledged meanwhile; for its own flushes it takes `flushing` for as long as they last. Everything
else that removes segments (a truncation, a move of the log start, closing, deleting) waits for the swap, and then
holds both.

So `shape` comes first, always: nobody who holds `flushing` waits for `shape`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Locks:
    def __init__(self) -> None:
        self.shape = asyncio.Lock()
        self.flushing = asyncio.Lock()

    @asynccontextmanager
    async def both(self) -> AsyncIterator[None]:
        async with self.shape, self.flushing:
            yield
