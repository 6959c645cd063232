"""Roles of replicas: a partition's row says who leads it, and this broker's replica becomes leader or follower.

A replica changes its role under its lock, one change at a time. A follower is followed up by a fetcher, one for each
broker that leads some of our partitions.
"""

from __future__ import annotations

import asyncio
import logging

from sexton.ports.metastore import PartitionRow
from sexton.protocol.errors import KafkaError
from sexton.replication.fetcher import Fetcher, FetchLimits
from sexton.replication.host import Host
from sexton.replication.local_replica import LocalReplica, Role
from sexton.replication.throttle import Throttle
from sexton.types import NO_LEADER

logger = logging.getLogger(__name__)


class Roles:
    def __init__(self, host: Host, limits: FetchLimits, throttle: Throttle | None) -> None:
        self._host = host
        self._limits = limits
        self._throttle = throttle
        self._fetchers: dict[int, Fetcher] = {}
        """Fetchers by the id of the leading broker."""

    async def take(self, replica: LocalReplica, row: PartitionRow) -> None:
        """Gives the replica the role that the row says. A bug leaves it idle; `Replicas.apply_failed` tries again."""
        async with replica.lock:
            try:
                await self._change(replica, row)
            except Exception as bug:
                self._host.supervisor.survived(bug, "a change of role", replica)
                self.stop_following(replica)
                replica.stop()

    async def _change(self, replica: LocalReplica, row: PartitionRow) -> None:
        is_first = replica.role is Role.IDLE
        if not is_first and row.partition_epoch <= replica.row.partition_epoch:
            return
        if not is_first and (row.leader, row.leader_epoch) == (replica.row.leader, replica.row.leader_epoch):
            replica.follow_row(row)
            return
        self.stop_following(replica)
        if row.leader == self._host.identity[0]:
            await self._lead(replica, row)
        else:
            replica.become_follower(row)
            if replica.log.failure is not None:
                replica.role = Role.IDLE
            elif row.leader != NO_LEADER:
                self._fetcher(row.leader).follow(replica)
        await self._host.role_changed(replica)

    async def _lead(self, replica: LocalReplica, row: PartitionRow) -> None:
        if replica.was_led_in(row.leader_epoch):
            # Led by our former process, which may have sent more than what is on our disk. Or by this one, before it
            # met a bug, and then its requests may still be carried out. Only a new epoch may go on.
            logger.info("%r waits for a leader epoch after %d before it leads", replica, row.leader_epoch)
            replica.become_follower(row)
            replica.role = Role.IDLE
            return
        if replica.outlives_its_log(row):
            logger.warning("%r ends below its own compaction watermarks: it cannot lead", replica)
            replica.become_follower(row)
            replica.role = Role.IDLE
            return
        try:
            await replica.become_leader(row)
        except (OSError, KafkaError) as error:
            logger.error("%r cannot lead: %s", replica, error)

    async def leave(self, replica: LocalReplica) -> None:
        """The replica is idle until it gets a role by any row, whatever its partition epoch."""
        async with replica.lock:
            self.stop_following(replica)
            replica.stop()
            await self._host.role_changed(replica)

    def stop_following(self, replica: LocalReplica) -> None:
        for fetcher in self._fetchers.values():
            fetcher.forget(replica)

    def report(self, replica: LocalReplica) -> None:
        """The next request to the replica's leader reports what the replica holds, if it follows one."""
        fetcher = self._fetchers.get(replica.row.leader)
        if fetcher is not None:
            fetcher.report(replica)

    async def stop(self) -> None:
        """Stops all fetchers."""
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))

    def _fetcher(self, leader_id: int) -> Fetcher:
        fetcher = self._fetchers.get(leader_id)
        if fetcher is None:
            fetcher = self._fetchers[leader_id] = Fetcher(leader_id, self._host, self._limits, self._throttle)
        return fetcher
