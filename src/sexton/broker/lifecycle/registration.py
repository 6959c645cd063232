"""This broker's registration: its row in the metastore, and its lease.

A broker id belongs to one process at a time. A registration with the same log directory replaces the former one at
once, for the directory's lock proves that the former process is gone. With another directory, the broker must first
have watched the former lease until it expired without being renewed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from sexton.errors import SextonError
from sexton.metadata.leases import LeaseWatch, OwnLease
from sexton.ports.clock import Clock
from sexton.ports.metastore import (
    BrokerRow,
    BrokerStatus,
    LeaseLostError,
    Metastore,
    MetastoreUnavailableError,
    StaleError,
)
from sexton.types import NO_EPOCH

logger = logging.getLogger(__name__)

WATCH_MS = 250
"""Interval at which a lease that another process may hold is read; a quarter of a short one: who looks less often sees
none expire (`metadata.leases.BLIND_SHARE`)."""

LOOKS_PER_LEASE = 400
"""At most: a watch remembers a thousand looks, which must span the lease that it watches."""


Announce = Callable[[BrokerRow | None], Awaitable[str | None]]
"""Called with the row that another process has left. Writes an id into the log directory and returns it, or None if it
cannot."""


class DuplicateBrokerError(SextonError):
    """Two processes claim one broker id."""

    exit_code = 78


class Registration:
    def __init__(self, broker_id: int, metastore: Metastore, clock: Clock, *, lease_ms: int, renew_ms: int) -> None:
        self._broker_id = broker_id
        self._row: BrokerRow | None = None
        self._metastore = metastore
        self._clock = clock
        self._renew_ms = renew_ms
        self._lease = OwnLease(lease_ms)
        self._found: list[BrokerRow | None] = []
        """The row from before this process, once it has been read (a list of one). If the response to a registration is
        lost the registration is retried, and the row that it then replaces is its own."""
        self._start_id: str | None = None
        """Id of the registration that is being tried; the same in every retry."""
        self._renewals_count = 0
        """How often the metastore says that this registration was renewed."""

    @property
    def row(self) -> BrokerRow:
        """This broker's row in the metastore. There is none before `register`."""
        assert self._row is not None, f"broker {self._broker_id} is not registered yet"
        return self._row

    @property
    def identity(self) -> tuple[int, int]:
        """Broker id and broker epoch; the epoch is -1 before `register`."""
        return self._broker_id, NO_EPOCH if self._row is None else self._row.epoch

    def is_valid(self) -> bool:
        """Whether this broker may serve, by its own clock."""
        return self._lease.is_valid(self._clock.monotonic_ms())

    async def register(self, proposed: BrokerRow, announce: Announce) -> BrokerRow | None:
        """Registers the broker, as STARTING, with the proposed address, rack and log directory. Returns the row that
        another process has left."""
        self._lease.lost()
        while True:
            former = await self._former()
            if not self._found:
                self._found.append(former)
            if former is not None and former.is_live and former.data_id != proposed.data_id:
                await self._watch_until_expired(former)
            if self._start_id is None:
                self._start_id = await announce(self._found[0])
            sent_ms = self._clock.monotonic_ms()
            try:
                row = replace(proposed, start_id=self._start_id)
                self._row = await self._metastore.register_broker(row, former)
            except StaleError:
                continue
            self._renewals_count = self._row.renewals_count
            self._start_id = None
            self._lease.renewed(sent_ms)
            logger.info("registered as broker %d, epoch %d", *self.identity)
            return self._found[0]

    async def set_status(self, status: BrokerStatus) -> None:
        self._row = await self._metastore.set_broker_status(*self.identity, status)

    async def renew(self) -> None:
        """Raises LeaseLostError, or MetastoreUnavailableError: then the lease still lasts until it expires.

        A metastore that counts fewer renewals than it did is an older one than before (a backup, a standby that
        lagged). Its revision need not show that, for others may have raised it since. What this process knows is of
        another metastore then: it registers anew, and reads everything again."""
        sent_ms = self._clock.monotonic_ms()
        count = await self._metastore.renew_lease(*self.identity)
        if count <= self._renewals_count:
            known = self._renewals_count
            what = f"this is an older metastore: it counts {count} renewals, and {known} were counted before"
            raise LeaseLostError(what, remedy="Register the broker anew")
        self._renewals_count = count
        self._lease.renewed(sent_ms)

    async def keep_renewing(self) -> None:
        """Renews until the lease is lost: ends with LeaseLostError."""
        was_away = False
        while True:
            await asyncio.sleep(self._renew_ms / 1000)
            try:
                await self.renew()
            except MetastoreUnavailableError as error:
                if not was_away:
                    logger.warning("cannot renew the lease: %s", error)
                was_away = True
                continue
            if was_away:
                logger.info("the metastore is reachable again, the lease is renewed")
                was_away = False

    def lose(self) -> None:
        """Called when the metastore has answered that this process is fenced."""
        self._lease.lost()

    async def _former(self) -> BrokerRow | None:
        return await self._metastore.read_broker(self._broker_id)

    async def _watch_until_expired(self, former: BrokerRow) -> None:
        logger.info(
            "broker %d is registered with another data directory; checking whether that broker is alive",
            former.broker_id,
        )
        watch = LeaseWatch()
        pause_ms = max(min(WATCH_MS, former.lease_ms / 4), former.lease_ms / LOOKS_PER_LEASE)
        while not watch.stands_still(former.broker_id, former.lease_ms):
            await asyncio.sleep(pause_ms / 1000)
            leases = await self._metastore.read_leases()
            if leases.get(former.broker_id) != (former.epoch, former.renewals_count):
                if former.broker_id in leases:
                    raise DuplicateBrokerError(
                        f"broker {former.broker_id} is already running at {former.host}:{former.port}",
                        "node.id",
                        "Give this broker another node.id, or stop the other one first.",
                    )
                return
            watch.observe(leases, self._clock.monotonic_ms())
