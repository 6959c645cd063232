"""The leader's ISR changes, written to the metastore by compare-and-set.

A replica that is to join is *counted* before the request is sent to the metastore, and stays counted until a newer row
is seen, whatever the response was (leadership.py says why). So a lost response delays commits, and never endangers
them.

**How an unknown outcome is resolved.** An attempt whose response was lost may be applied much later, after other
attempts were refused and after reads that show the old row: requests of one broker overtake each other. So such a
change is repeated unchanged, with the broker epochs that it named. When that is refused because one of them is gone,
the change is *withdrawn*: the row is written as it is. Each of these is a compare-and-set on the same partition epoch.
Once one of them is applied, none of the others ever will be; and one that finds the row changed proves the same. Either
way there is a newer row, and it is the truth.

**Batching.** The metastore refuses a whole call if one of the broker epochs in it is gone. So changes share a
transaction only if they name the same broker epochs: a broker that restarts does not block the changes of others.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from sexton.metadata.incarnations import new_id
from sexton.metadata.isr import expand, shrink
from sexton.ports.metastore import BrokerStatus, MetastoreUnavailableError, PartitionRow, StaleError
from sexton.replication.host import Host
from sexton.replication.leadership import IsrChange, Leadership
from sexton.replication.local_replica import LocalReplica
from sexton.supervision import Pauses

logger = logging.getLogger(__name__)

TICK_MS = 500
"""How often the leader looks for followers that lag, or that caught up before their broker was known to be active."""

BATCH_ROWS_MAX = 500
"""Rows per metastore transaction."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One partition's ISR change as it is sent."""

    replica: LocalReplica
    leadership: Leadership
    change: IsrChange
    before: PartitionRow

    @property
    def row(self) -> PartitionRow:
        return self.change.applied_to(self.before)


class AllReplicas(Protocol):
    def all(self) -> Sequence[LocalReplica]: ...

    def rows_written(self, rows: Sequence[PartitionRow]) -> None:
        """Takes rows that this broker has just written successfully."""
        ...


class Membership:
    def __init__(self, host: Host, replicas: AllReplicas, lag_max_ms: int) -> None:
        self._host = host
        self._supervisor = host.supervisor
        self._clock = host.clock
        self._pauses = Pauses()
        self._replicas = replicas
        self._lag_max_ms = lag_max_ms
        self._wake = asyncio.Event()
        self.shrinks_count = 0
        self.expands_count = 0
        self.fenced_count = 0

    def may_join(self) -> None:
        """A hint to look now. Followers that may join are also looked for at every tick: a follower with nothing new
        to report is silent, and what kept it from joining (its broker's status, or our view of it) may change
        meanwhile."""
        self._wake.set()

    def fence(self, replica: LocalReplica, follower: int) -> None:
        """The fetch fence refused this follower (docs/rules.md): it leaves the ISR and gets a new incarnation, in one
        compare-and-set, so that only the current leader can order it. When it sees the new incarnation, it discards its
        log."""
        turned_away = replica.row.incarnations.get(follower)
        if turned_away is not None and replica.leadership is not None:
            replica.leadership.turned_away[follower] = turned_away
            self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(TICK_MS / 1000):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self.step()

    async def step(self) -> None:
        """Writes every change that is due now."""
        for batch in _batches(self._changes()):
            await self._write(batch)

    def _changes(self) -> list[Asked]:
        """Changes to send now. One whose response was lost is sent again unchanged: nothing else is decided for its
        partition until the outcome is known."""
        now_ms = self._clock.monotonic_ms()
        changes = []
        for replica in self._replicas.all():
            leadership = replica.leadership
            if leadership is None:
                continue
            if leadership.pending is None:
                leadership.pending = self._decided_calmly(replica, leadership, now_ms)
            if leadership.pending is not None:
                changes.append(Asked(replica, leadership, leadership.pending, leadership.row))
        return changes

    def _decided_calmly(self, replica: LocalReplica, leadership: Leadership, now_ms: int) -> IsrChange | None:
        """A bug in the decision about one partition does not affect the others."""
        if self._pauses.last(leadership, now_ms):
            return None
        try:
            decided = self._decided(replica, leadership, now_ms)
        except Exception as bug:
            self._supervisor.survived(bug, "an in-sync set", replica)
            self._pauses.failed(leadership, now_ms)
            return None
        self._pauses.succeeded(leadership)
        return decided

    def _decided(self, replica: LocalReplica, leadership: Leadership, now_ms: int) -> IsrChange | None:
        row = leadership.row
        changed = self._changed(replica, leadership, now_ms)
        if changed is None:
            return None
        processes = {b: p.broker_epoch for b in changed.isr if b not in row.isr and (p := leadership.progress_of(b))}
        new_ids = {b: id_ for b, id_ in changed.incarnations.items() if row.incarnations.get(b) != id_}
        return IsrChange(changed.isr, new_ids, processes)

    def _changed(self, replica: LocalReplica, leadership: Leadership, now_ms: int) -> PartitionRow | None:
        row = leadership.row
        turned_away, leadership.turned_away = leadership.turned_away, {}
        fenced = {b: id_ for b, id_ in turned_away.items() if row.incarnations.get(b) == id_ and b != row.leader}
        if fenced:
            logger.warning(
                "%s-%d: the logs of brokers %s may hold what compaction has removed everywhere else: they are rebuilt",
                replica.topic,
                replica.partition,
                list(fenced),
            )
            self.fenced_count += len(fenced)
            new_ids = {b: new_id(self._host.rng) for b in fenced}
            return replace(shrink(row, fenced) or row, incarnations={**row.incarnations, **new_ids})
        if len(row.isr) < len(row.replicas):
            joining = [
                b
                for b in row.replicas
                if leadership.caught_up(b, replica.high_watermark) and self._is_the_process(leadership, b)
            ]
            if joining:
                return expand(row, joining)
        if replica.log.failure is not None:
            return None  # a leader whose disk has failed lets others join, but must not be left alone in the ISR
        lagging = leadership.lagging(replica.log.end_offset, now_ms, self._lag_max_ms)
        return shrink(row, lagging) if lagging else None

    def _is_the_process(self, leadership: Leadership, follower: int) -> bool:
        broker = self._host.view.broker(follower)
        progress = leadership.progress_of(follower)
        return (
            broker is not None
            and progress is not None
            and broker.status is BrokerStatus.ACTIVE
            and broker.epoch == progress.broker_epoch
        )

    async def _write(self, asked: Sequence[Asked]) -> None:
        own_id, own_epoch = self._host.identity
        live = {own_id: own_epoch}
        for one in asked:
            live.update(self._named(one))
        try:
            stored = await self._host.metastore.update_partitions([one.row for one in asked], live)
        except MetastoreUnavailableError as error:
            logger.warning("cannot write the ISR of %d partitions: %s", len(asked), error)
            for one in asked:
                one.leadership.answer_lost(one.change)
            return
        except StaleError as error:
            self._refused(asked, error)
            return
        for written, one in zip(stored, asked, strict=True):
            if written is not None and written.isr != one.before.isr:
                self.shrinks_count += len(written.isr) < len(one.before.isr)
                self.expands_count += len(written.isr) > len(one.before.isr)
                logger.info("%s-%d: the ISR is now %s", one.replica.topic, one.replica.partition, list(written.isr))
        self._replicas.rows_written([written for written in stored if written is not None])

    def _named(self, asked: Asked) -> Mapping[int, int]:
        """Broker epochs, by broker id, that must still be the registered ones."""
        return asked.change.processes

    def _refused(self, asked: Sequence[Asked], error: StaleError) -> None:
        logger.info("the metastore refused ISR changes of %d partitions: %s", len(asked), error)
        for one in asked:
            one.leadership.refused(one.change)
            if one.replica.leadership is one.leadership:
                one.replica.flush_and_commit()  # a replica that does not join need not hold what waits to be committed
            if not one.change.is_withdrawn and one.leadership.pending is not None:
                self._wake.set()  # withdrawn now: the sooner its outcome is known, the sooner commits go on


def _batches(asked: Sequence[Asked]) -> Iterator[Sequence[Asked]]:
    """Groups changes that name the same broker epochs, at most BATCH_ROWS_MAX at a time."""
    by_processes: dict[frozenset[tuple[int, int]], list[Asked]] = {}
    for one in asked:
        by_processes.setdefault(frozenset(one.change.processes.items()), []).append(one)
    for same in by_processes.values():
        for start in range(0, len(same), BATCH_ROWS_MAX):
            yield same[start : start + BATCH_ROWS_MAX]
