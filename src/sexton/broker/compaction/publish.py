"""Publishes which replicas here are due for compaction, for compactors to lease as work."""

from __future__ import annotations

import logging

from sexton.broker.compaction.host import Host
from sexton.broker.compaction.lookout import Lookout
from sexton.broker.compaction.memory import Memory
from sexton.compaction.due import Due, is_due, must_close_active
from sexton.ports.metastore import LeaseLostError, MetastoreUnavailableError
from sexton.ports.work_queue import WorkKey, WorkRow
from sexton.protocol.errors import KafkaError
from sexton.replication.local_replica import LocalReplica, Role
from sexton.supervision import Pauses

logger = logging.getLogger(__name__)


class Publisher:
    def __init__(self, memory: Memory, host: Host) -> None:
        self._memory = memory
        self._host = host
        self._clock = host.clock
        self._pauses = Pauses()
        self._lookout = Lookout(host.clock)
        self._published: list[WorkRow] = []

    def has_news(self) -> bool:
        return self._lookout.has_news(self._host.replicas.all())

    async def look(self) -> None:
        """Closes active segments whose records have waited too long, and publishes what is due."""
        self._lookout.keep_only({one.coordination.watermarks.incarnation for one in self._host.replicas.all()})
        rows = []
        for replica in self._host.replicas.all():
            if not replica.config.compacts or replica.log.failure is not None:
                self._memory.no_longer_due((replica.topic_id, replica.partition))
                continue
            log, now_ms = replica.coordination.kept.value.incarnation, self._clock.monotonic_ms()
            if self._pauses.last(log, now_ms):
                continue
            try:
                self._close_active(replica)
                self._note_held_back(replica)
                row = self._work_row(replica)
                self._lookout.looked(replica, self.due(replica), self._memory.leftovers.of(replica))
            except (OSError, KafkaError) as error:
                logger.error("%r: cannot determine whether it is due for compaction: %s", replica, error)
                continue
            except Exception as bug:
                self._host.supervisor.survived(bug, "what is due", replica)
                self._pauses.failed(log, now_ms)
                continue
            self._pauses.succeeded(log)
            if row is not None:
                rows.append(row)
        await self._publish(rows)

    async def _publish(self, rows: list[WorkRow]) -> None:
        """Also publishes unchanged rows, because a compactor may have ended work that it could not do. Skipped when
        there is nothing to publish and nothing was."""
        if not rows and not self._published:
            return
        try:
            await self._host.metastore.publish_work(*self._host.identity, rows)
            self._published = rows
        except (MetastoreUnavailableError, LeaseLostError) as error:
            logger.debug("what is due cannot be published: %s", error)

    def _close_active(self, replica: LocalReplica) -> None:
        active = replica.log.summaries()[-1]
        if must_close_active(active, self._clock.now_ms(), replica.config):
            replica.log.close_active(self._clock.now_ms())
            replica.flush_and_commit()

    def _note_held_back(self, replica: LocalReplica) -> None:
        key, leader = (replica.topic_id, replica.partition), replica.coordination.leader
        if leader is not None and leader.holding_back():
            self._memory.held_back_since_ms.setdefault(key, self._clock.now_ms())
        else:
            self._memory.held_back_since_ms.pop(key, None)

    def _work_row(self, replica: LocalReplica) -> WorkRow | None:
        key = replica.topic_id, replica.partition
        due = self.due(replica)
        if not due.is_due or self.is_barred(replica):
            self._memory.no_longer_due(key)
            return None
        if self._follows_compactions(replica) and self._memory.patience.waits(key, self._clock.monotonic_ms()):
            return None
        found = due.eligibility
        return WorkRow(
            key=WorkKey(self._host.identity[0], *key),
            topic=replica.topic,
            why=due.why,
            dirty_ratio_ppm=int(found.dirty_ratio * 1_000_000),
            dirty_bytes=found.dirty_bytes,
            total_bytes=found.clean_bytes + found.dirty_bytes,
            overdue_ms=found.overdue_ms,
            is_requested=key in self._memory.requested,
            since_ms=self._memory.due_since_ms.setdefault(key, self._clock.now_ms()),
        )

    def longest_due_ms(self) -> int:
        return max((self._clock.now_ms() - since_ms for since_ms in self._memory.due_since_ms.values()), default=0)

    def request(self, topic: str, partition: int | None) -> list[int]:
        """Everything of these partitions is due now, the active segment included. Returns the topic's partitions on
        this broker."""
        wanted = [
            one
            for one in self._host.replicas.all()
            if one.topic == topic and partition in (None, one.partition) and one.config.compacts
        ]
        for replica in wanted:
            self._memory.requested[replica.topic_id, replica.partition] = None
            self._memory.uncleanable.requested(replica.coordination.watermarks.incarnation)
            replica.log.close_active(self._clock.now_ms())
            replica.flush_and_commit()
        return [replica.partition for replica in wanted]

    # One replica

    def due(self, replica: LocalReplica, high_watermark: int | None = None) -> Due:
        log, watermarks = replica.log, replica.coordination.watermarks
        high_watermark = replica.high_watermark if high_watermark is None else high_watermark
        return is_due(
            log.summaries(),
            watermarks,
            self._memory.leftovers.of(replica),
            log_start=log.start_offset,
            log_end=log.end_offset,
            last_stable_offset=log.last_stable_offset(high_watermark),
            high_watermark=high_watermark,
            now_ms=self._clock.now_ms(),
            config=replica.config,
            is_requested=(replica.topic_id, replica.partition) in self._memory.requested,
        )

    def is_barred(self, replica: LocalReplica) -> bool:
        """Whether no compaction can read it, as far as known."""
        log = replica.coordination.watermarks.incarnation
        sizes = frozenset((one.base_offset, one.size_bytes) for one in replica.log.summaries()[:-1])
        return self._memory.uncleanable.bars(log, sizes, replica.config, self._clock.monotonic_ms())

    def takes_offers(self, replica: LocalReplica) -> bool:
        """Whether this replica adopts its leader's compactions now."""
        return self._follows_compactions(replica) and self._host.identity[0] in replica.row.isr

    def _follows_compactions(self, replica: LocalReplica) -> bool:
        """Whether this follower gets its leader's compactions: now, or as soon as it is in sync."""
        return (
            replica.role is Role.FOLLOWER
            and replica.config.compacts
            and self._host.adopts_compactions()
            and not replica.coordination.is_independent
            and replica.log.failure is None
        )
