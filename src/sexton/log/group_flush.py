"""One flush for all who wait: one runs at a time, and the next covers all callers that came since it began."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from sexton.protocol.errors import KafkaError


class GroupFlush:
    def __init__(self, flush: Callable[[], Awaitable[KafkaError | None]]) -> None:
        """`flush` returns the error that all who wait for it are to get."""
        self._flush = flush
        self._waiting: list[asyncio.Future[None]] = []
        self._flusher: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Returns when a flush that began after this call has ended."""
        loop = asyncio.get_running_loop()
        flushed: asyncio.Future[None] = loop.create_future()
        self._waiting.append(flushed)
        if self._flusher is None:
            self._flusher = loop.create_task(self._flush_for_all())
        await flushed

    async def _flush_for_all(self) -> None:
        """A task of its own, so that a cancelled caller does not cancel the flush of the others."""
        waiting: list[asyncio.Future[None]] = []
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                error = await self._flush()
                for flushed in waiting:
                    if not flushed.done():
                        if error is None:
                            flushed.set_result(None)
                        else:
                            flushed.set_exception(error)
        except Exception as bug:
            for flushed in waiting:
                if not flushed.done():
                    flushed.set_exception(bug)
            raise
        finally:
            self._flusher = None
            for flushed in (*waiting, *self._waiting):
                flushed.cancel()
