"""The event loop of a process that reads from brokers, in a thread of its own: it goes on receiving while a task works
on what has come. One for the driver, one for each of Spark's workers, which keep their connections from task to task.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

import uvloop

from sexton.audit.live.connecting import Connecting
from sexton.client.client import Client

T = TypeVar("T")


class LoopThread:
    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="sexton-audit", daemon=True)
        self._thread.start()
        self._clients: dict[Connecting, Client] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Called from another thread: runs the coroutine in the worker's loop and returns its result."""
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def client(self, connecting: Connecting) -> Client:
        """The one of this loop: its connections stay open."""
        known = self._clients.get(connecting)
        if known is None:
            known = self._clients[connecting] = connecting.client()
        return known

    def close(self) -> None:
        async def close_all() -> None:
            for client in self._clients.values():
                client.close()

        self.run(close_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@cache
def of_this_process() -> LoopThread:
    return LoopThread()
