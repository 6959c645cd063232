"""The leader's changes of its in-sync sets, written by compare-and-set.

A replica that is to join is *counted* before the metastore is asked, and stays counted until the row is seen to have
moved on, whatever the answer was (leadership.py says why). So a lost answer delays, and never endangers.
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace

from sexton.cluster.incarnations import new_id
from sexton.cluster.isr import expand, shrink
from sexton.cluster.view import ClusterView
from sexton.ports.clock import Clock
from sexton.ports.metastore import BrokerStatus, Metastore, MetastoreUnavailableError, PartitionRow, StaleError
from sexton.replication.leadership import Leadership
from sexton.replication.replica import Replica

logger = logging.getLogger(__name__)

TICK_MS = 500
"""How often followers are looked at that lag, or that have caught up before their broker was known to be active."""

BATCH_ROWS_MAX = 500
"""Rows in one transaction of the metastore."""


class Membership:
    def __init__(
        self,
        replicas: Callable[[], Sequence[Replica]],
        view: ClusterView,
        metastore: Metastore,
        clock: Clock,
        identity: Callable[[], tuple[int, int]],
        written: Callable[[Sequence[PartitionRow]], None],
        lag_max_ms: int,
        rng: random.Random,
    ) -> None:
        self._replicas = replicas
        self._view = view
        self._metastore = metastore
        self._clock = clock
        self._identity = identity
        self._written = written
        self._lag_max_ms = lag_max_ms
        self._rng = rng
        self._fenced: dict[tuple[uuid.UUID, int], dict[int, uuid.UUID]] = {}
        """Followers that may not go on, by partition, with the id of the log that each of them was turned away with."""
        self._wake = asyncio.Event()
        self.shrinks_count = 0
        self.expands_count = 0
        self.fenced_count = 0

    def may_join(self) -> None:
        """A hint: who may join is looked for at every turn, because a follower that has nothing new to say is silent,
        and what kept it from joining (its status, or our view of it) may change meanwhile."""
        self._wake.set()

    def fence(self, replica: Replica, follower: int) -> None:
        """The fetch fence turned it away (DESIGN): it leaves the ISR and gets a new id, in one compare-and-set, so that
        only a leader that is still the leader can order it. When it sees the new id, it throws its log away."""
        turned_away = replica.row.incarnations.get(follower)
        if turned_away is not None:
            self._fenced.setdefault((replica.topic_id, replica.partition), {})[follower] = turned_away
            self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(TICK_MS / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            changed = self._changes()
            for start in range(0, len(changed), BATCH_ROWS_MAX):
                await self._write(changed[start : start + BATCH_ROWS_MAX])

    def _changes(self) -> list[tuple[Replica, PartitionRow]]:
        """A change whose answer was lost is asked for again, as it was: nothing else is decided until it is known."""
        now_ms = self._clock.monotonic_ms()
        changes = []
        for replica in self._replicas():
            leadership = replica.leadership
            if leadership is None:
                continue
            if leadership.pending_isr is None:
                changed = self._changed(replica, leadership, now_ms)
                if changed is None:
                    continue
                leadership.pending_isr = changed.isr
                leadership.pending_incarnations = {
                    b: id_ for b, id_ in changed.incarnations.items() if replica.row.incarnations.get(b) != id_
                }
            incarnations = {**replica.row.incarnations, **leadership.pending_incarnations}
            changes.append((replica, replace(replica.row, isr=leadership.pending_isr, incarnations=incarnations)))
        return changes

    def _changed(self, replica: Replica, leadership: Leadership, now_ms: int) -> PartitionRow | None:
        row = replica.row
        fenced = self._fenced.pop((replica.topic_id, replica.partition), {}) if self._fenced else {}
        fenced = {b: id_ for b, id_ in fenced.items() if row.incarnations.get(b) == id_ and b != row.leader}
        if fenced:
            logger.warning(
                "%s-%d: the logs of brokers %s may hold what all others have forgotten: they start anew",
                replica.topic,
                replica.partition,
                list(fenced),
            )
            self.fenced_count += len(fenced)
            new_ids = {b: new_id(self._rng) for b in fenced}
            return replace(shrink(row, fenced) or row, incarnations={**row.incarnations, **new_ids})
        if len(row.isr) < len(row.replicas):
            joining = [
                b
                for b in row.replicas
                if leadership.caught_up(b, replica.high_watermark) and self._is_the_process(leadership, b)
            ]
            if joining:
                return expand(row, joining)
        lagging = leadership.lagging(replica.log.end_offset, now_ms, self._lag_max_ms)
        return shrink(row, lagging) if lagging else None

    def _is_the_process(self, leadership: Leadership, follower: int) -> bool:
        broker = self._view.broker(follower)
        progress = leadership.progress_of(follower)
        return (
            broker is not None
            and progress is not None
            and broker.status is BrokerStatus.ACTIVE
            and broker.epoch == progress.broker_epoch
        )

    async def _write(self, changes: Sequence[tuple[Replica, PartitionRow]]) -> None:
        own_id, own_epoch = self._identity()
        live = {own_id: own_epoch}
        for replica, row in changes:
            for follower in row.isr:
                if follower not in replica.row.isr:
                    broker = self._view.broker(follower)
                    live[follower] = broker.epoch if broker is not None else -1
        try:
            stored = await self._metastore.update_partitions([row for _, row in changes], live)
        except MetastoreUnavailableError as error:
            logger.warning("in-sync sets of %d partitions could not be written: %s", len(changes), error)
            return
        except StaleError:
            # Nothing was written: one of the brokers named is no longer that process. The next fetch tries again.
            for replica, row in changes:
                if replica.leadership is not None and replica.leadership.pending_isr == row.isr:
                    replica.leadership.pending_isr = None
                    replica.leadership.pending_incarnations = {}
            return
        for written, (replica, _) in zip(stored, changes, strict=True):
            if written is not None:
                self.shrinks_count += len(written.isr) < len(replica.row.isr)
                self.expands_count += len(written.isr) > len(replica.row.isr)
                logger.info("%s-%d: in sync are now %s", replica.topic, replica.partition, list(written.isr))
        self._written([written for written in stored if written is not None])
