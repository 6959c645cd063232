from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable


class Rendezvous:
    """A deed that is done once, when all parties have come; then all go on. Whoever leaves is not waited for.

    Each party arrives once, and may leave at any time, before or after."""

    def __init__(self, parties: Iterable[str], deed: Callable[[], Awaitable[None]]) -> None:
        self._missing = set(parties)
        self._is_wanted = False
        self._deed = deed
        self._all_here = asyncio.Event()
        self._done: asyncio.Future[None] | None = None

    async def arrive(self, party: str) -> None:
        self._is_wanted = True
        self.leave(party)
        await self._all_here.wait()
        assert self._done is not None
        await asyncio.shield(self._done)

    def leave(self, party: str) -> None:
        """Instead of `arrive`, or after it."""
        self._missing.discard(party)
        if self._missing or self._all_here.is_set():
            return
        if self._is_wanted:
            self._done = asyncio.ensure_future(self._deed())
        self._all_here.set()
