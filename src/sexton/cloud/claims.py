"""Leaders take partitions over, many in one transaction: a broker that starts claims all its partitions at once. A
broker that cannot use the store claims nothing."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from sexton.cloud.host import CloudHost
from sexton.cloud.patience import until_known
from sexton.ports.cloud import CLAIMS_MAX, Claimed, Outcome
from sexton.ports.metastore import LeaseLostError
from sexton.ports.objects import StoreRefusedError, StoreUnavailableError
from sexton.ports.retrying import pause_ms
from sexton.types import LeaderEpoch, PartitionId

logger = logging.getLogger(__name__)

AGAIN_MS: Final = 200
"""After a claim was refused because the broker is fenced: it registers again by itself."""

_Wanted = tuple[PartitionId, LeaderEpoch]


class Claims:
    def __init__(self, host: CloudHost) -> None:
        self._host = host
        self._wanted: dict[_Wanted, asyncio.Future[Claimed | Outcome]] = {}
        """Until each is answered: whoever asks for what is being claimed already gets the same answer."""
        self._claiming: asyncio.Task[None] | None = None

    async def claim(self, key: PartitionId, leader_epoch: LeaderEpoch) -> Claimed | Outcome:
        """Asked again until the metastore answers. Whoever must stop sooner cancels."""
        wanted = key, leader_epoch
        future = self._wanted.get(wanted)
        if future is None:
            future = self._wanted[wanted] = asyncio.get_running_loop().create_future()
        if self._claiming is None:
            self._claiming = self._host.supervisor.work(self._claim_all(), "a claim")
        return await asyncio.shield(future)

    async def _claim_all(self) -> None:
        try:
            await asyncio.sleep(0)  # those who ask in the same turn of the loop go together
            await self._until_not_refused()
            while self._wanted:
                some: dict[PartitionId, _Wanted] = {}
                for wanted in self._wanted:  # each partition once, in its latest epoch
                    if wanted[0] in some or len(some) < CLAIMS_MAX:
                        some[wanted[0]] = max(wanted, some.get(wanted[0], wanted))
                await self._claim_some(list(some.values()))
        finally:
            self._claiming = None

    async def _until_not_refused(self) -> None:
        """A store that does not answer holds nobody up: what is needed of a partition is in the metastore."""
        attempts_count = 0
        while True:
            try:
                await self._host.check_store()
            except StoreUnavailableError:
                return
            except StoreRefusedError as error:
                attempts_count += 1
                logger.error("%d cloud partitions are left to other brokers: %s", len(self._wanted), error)
                await asyncio.sleep(pause_ms(error, attempts_count, self._host.rng) / 1000)
            else:
                return

    async def _claim_some(self, wanted: list[_Wanted]) -> None:
        host = self._host
        try:
            told = await until_known(lambda: host.metastore.claim_partitions(*host.identity, wanted), host.rng)
            for one, outcome in zip(wanted, told, strict=True):
                self._wanted.pop(one).set_result(outcome)
        except LeaseLostError:
            await asyncio.sleep(AGAIN_MS / 1000)
        except BaseException as error:
            for one in wanted:
                future = self._wanted.pop(one)
                future.set_exception(error if isinstance(error, Exception) else asyncio.CancelledError())
                future.exception()  # looked at: whoever waits gets it, and perhaps nobody does
            raise

    async def stop(self) -> None:
        if self._claiming is not None:
            self._claiming.cancel()
            await asyncio.gather(self._claiming, return_exceptions=True)
