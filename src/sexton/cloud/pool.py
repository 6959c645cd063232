"""Ids of objects that are registered before they are needed (C1), so that no batch waits for that, and those that
nobody will commit, which are given back."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from sexton.cloud.host import CloudHost
from sexton.cloud.patience import until_known
from sexton.ports.cloud import Level, ObjectId, Owner
from sexton.ports.metastore import LeaseLostError, MetastoreUnavailableError
from sexton.ports.object_names import new_object_id

logger = logging.getLogger(__name__)

AHEAD_COUNT: Final = 32
"""Ids in one registration: three seconds of objects at the most that a broker sends."""
AGAIN_MS: Final = 200
"""After the registration was refused because the broker is fenced: it registers again by itself."""


class Pool:
    def __init__(self, host: CloudHost) -> None:
        self._host = host
        self._ready: deque[tuple[Owner, ObjectId]] = deque()
        self._filling = asyncio.Lock()
        self._asked: tuple[Owner, list[ObjectId]] | None = None
        """What is being registered. If whoever waits for that is cancelled, the next one asks for the same again:
        nobody else would ever use those ids."""
        self._unwanted: defaultdict[Owner, list[ObjectId]] = defaultdict(list)
        """No more than were registered by the time that the metastore went away: without it nobody gets new ones."""
        self._releasing: asyncio.Task[None] | None = None

    async def take(self) -> tuple[Owner, ObjectId]:
        """An id that is pending in the name of this broker's present registration."""
        while True:
            found = self._take_ready()
            if found is not None:
                return found
            async with self._filling:
                if not self._ready:
                    await self._fill()

    def _take_ready(self) -> tuple[Owner, ObjectId] | None:
        """Ids of a former registration expire: they are left to the collector."""
        owner = Owner.broker(*self._host.identity)
        while self._ready:
            one = self._ready.popleft()
            if one[0] == owner:
                return one
        return None

    async def _fill(self) -> None:
        host = self._host
        owner = Owner.broker(*host.identity)
        if self._asked is None or self._asked[0] != owner:
            now_ms = host.clock.now_ms()
            self._asked = owner, [new_object_id(now_ms, host.rng) for _ in range(AHEAD_COUNT)]
        ids = self._asked[1]
        try:
            await until_known(lambda: host.metastore.register_objects(owner, Level.L0, ids), host.rng)
        except LeaseLostError:
            self._asked = None
            await asyncio.sleep(AGAIN_MS / 1000)
            return
        self._asked = None
        self._ready.extend((owner, object_id) for object_id in ids)

    def drain(self) -> tuple[Owner, list[ObjectId]]:
        """What is left of the present registration, to be released by a broker that stops."""
        owner = Owner.broker(*self._host.identity)
        ids = [object_id for its_owner, object_id in self._ready if its_owner == owner]
        if self._asked is not None and self._asked[0] == owner:
            ids += self._asked[1]
        self._ready.clear()
        self._asked = None
        return owner, ids

    def give_back(self, owner: Owner, ids: Sequence[ObjectId]) -> None:
        """Nobody commits them any more. They are garbage as soon as the metastore answers: the registration, with which
        they would expire, may be kept for months."""
        self._unwanted[owner] += ids
        if self._releasing is None:
            self._releasing = self._host.supervisor.work(self._release(), "an upload")

    async def _release(self) -> None:
        host = self._host
        try:
            while self._unwanted:
                owner = next(iter(self._unwanted))
                ids = list(self._unwanted[owner])
                await until_known(partial(host.metastore.release_objects, owner, ids), host.rng)
                del self._unwanted[owner][: len(ids)]
                if not self._unwanted[owner]:
                    del self._unwanted[owner]
        finally:
            self._releasing = None

    def stop(self) -> None:
        if self._releasing is not None:
            self._releasing.cancel()

    async def close(self) -> None:
        """What is left is given back, if the metastore answers at once. If not, it goes when the registration ends."""
        self.stop()
        owner, ids = self.drain()
        self._unwanted[owner] += ids
        try:
            for owner, ids in self._unwanted.items():
                if ids:
                    await self._host.metastore.release_objects(owner, ids)
        except MetastoreUnavailableError as error:
            logger.debug("%d objects are released later: %s", sum(map(len, self._unwanted.values())), error)
