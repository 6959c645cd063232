"""All replicas on this broker.

`apply` takes partition rows as the broker receives them: it opens logs (log_folder.py), removes those that are no
longer placed here, and gives replicas their roles (roles.py), in the order of the rows' partition epochs.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass

from sexton.cloud.replicas import CloudReplicas
from sexton.errors import SextonError
from sexton.metadata.incarnations import is_added_again, is_missing
from sexton.ports.metastore import PartitionRow
from sexton.ports.network import Part
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.protocol.messages import MalformedMessageError
from sexton.replication import messages
from sexton.replication.fetcher import FetchLimits
from sexton.replication.host import Host
from sexton.replication.local_replica import LocalReplica, Role
from sexton.replication.log_folder import HIGH_WATERMARKS_FILE, LogFolder, Unopened, some_at_once
from sexton.replication.membership import Membership
from sexton.replication.replica import Replica
from sexton.replication.roles import Roles
from sexton.replication.session import FollowerSession
from sexton.replication.throttle import UNTHROTTLED, Throttles
from sexton.types import NO_EPOCH, NO_LEADER, LeaderEpoch, PartitionId, TopicPartition

logger = logging.getLogger(__name__)


OPEN_AT_ONCE = 64
"""Number of logs opened or closed concurrently: they wait for flushes, not for memory or CPU."""

HIGH_WATERMARK_CHECKPOINT_MS = 5000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    folder: str
    """The log directory."""
    limits: FetchLimits
    lag_max_ms: int
    producer_expiry_ms: int
    throttles: Throttles = UNTHROTTLED


class Replicas:
    def __init__(self, host: Host, settings: ReplicationSettings, cloud: CloudReplicas | None = None) -> None:
        self._host = host
        self._supervisor = host.supervisor
        self._view = host.view
        self._throttles = settings.throttles
        self.folder = LogFolder(host.disk, settings.folder, host.clock, settings.producer_expiry_ms)
        self.membership = Membership(host, self, settings.lag_max_ms)
        self._roles = Roles(host, settings.limits, settings.throttles.follower)
        self._by_key: dict[PartitionId, LocalReplica] = {}
        self._by_name: dict[TopicPartition, LocalReplica] = {}
        self._unopened: dict[PartitionId, Unopened] = {}
        self._sessions: dict[Hashable, FollowerSession] = {}
        self.cloud = cloud
        """None on a broker without a store: it leads no partition of a cloud topic."""

    # Lookup

    def local(self, topic: str, partition: int) -> Replica:
        replica = self._by_name.get((topic, partition))
        if replica is not None:
            return replica
        if self.cloud is not None and (led := self.cloud.get(topic, partition)) is not None:
            return led
        row = self._view.partition(topic, partition)
        if row is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition, f"there is no {topic}-{partition}")
        if row.leader == self._host.identity[0] and (row.topic_id, partition) in self._unopened:
            raise KafkaError(
                ErrorCode.kafka_storage_error, f"{topic}-{partition} cannot be opened: see the broker's log"
            )
        raise KafkaError(ErrorCode.not_leader_or_follower, f"{topic}-{partition} is not on this broker")

    def leader(self, topic: str, partition: int) -> Replica:
        replica = self.local(topic, partition)
        replica.check_serving_as_leader()
        return replica

    def by_id(self, topic_id: uuid.UUID, partition: int) -> LocalReplica:
        replica = self._by_key.get((topic_id, partition))
        if replica is None:
            raise KafkaError(ErrorCode.not_leader_or_follower, f"{topic_id}-{partition} is not on this broker")
        return replica

    def all(self) -> list[LocalReplica]:
        return list(self._by_key.values())

    # Checkpoints and stray directories

    async def write_high_watermarks(self) -> None:
        await self.folder.write_high_watermarks(self._present_high_watermarks)

    def _present_high_watermarks(self) -> dict[TopicPartition, int]:
        """Includes logs that could not be opened, so that it is known that there was one (`was_lost`) when it is
        gone."""
        written = self.folder.high_watermarks
        watermarks = {}
        for (_, partition), unopened in self._unopened.items():
            name = unopened.topic, partition
            if unopened.is_damaged or name in written:
                watermarks[name] = written.get(name, 0)
        watermarks.update(((r.topic, r.partition), r.high_watermark) for r in self._by_key.values())
        return watermarks

    async def write_flushed_points(self) -> None:
        """Writes the points that recovery never truncates below. Points of logs that could not be opened are kept
        unchanged."""
        written = self.folder.flushed_points
        points = {
            (unopened.topic, partition): point
            for (_, partition), unopened in self._unopened.items()
            if (point := written.get((unopened.topic, partition))) is not None
        }
        points.update(((r.topic, r.partition), r.flushed_point()) for r in self._by_key.values())
        await self.folder.write_flushed_points(points)

    async def write_checkpoints(self) -> None:
        await self.write_high_watermarks()
        await self.write_flushed_points()

    def set_strays_aside(self) -> None:
        self.folder.set_strays_aside(self._is_placed_here, self._was_moved)

    def _is_placed_here(self, topic: str, partition: int) -> bool:
        """Whether the partition is placed on this broker, even if its log could not be opened."""
        row = self._view.partition(topic, partition)
        return row is not None and self._host.identity[0] in row.replicas and not row.is_cloud

    def _was_moved(self, topic: str, partition: int) -> bool:
        """Whether the log of this very topic's partition is in the store by now."""
        row = self._view.partition(topic, partition)
        return row is not None and row.is_cloud and not self.folder.holds_a_former_topic(topic, row)

    # Following the cluster

    async def apply(self, rows: Sequence[PartitionRow], deleted_topics: Sequence[uuid.UUID] = ()) -> None:
        if not rows and not deleted_topics:
            return
        own_id = self._host.identity[0]
        gone = [key for key in (*self._by_key, *self._unopened) if key[0] in deleted_topics]
        gone += [(r.topic_id, r.partition) for r in rows if own_id not in r.replicas]
        await self._remove([*gone, *((row.topic_id, row.partition) for row in rows if row.is_cloud)])
        self._apply_cloud(rows, [*deleted_topics], gone)
        here = [row for row in rows if own_id in row.replicas and not row.is_cloud]
        if not here:
            return
        await some_at_once(OPEN_AT_ONCE, (self._make_sure_it_is_open(row) for row in here))
        try:
            opened = (self._by_key.get((row.topic_id, row.partition)) for row in here)
            await self._lower_checkpoint(*(one for one in opened if one is not None))
        except OSError as error:
            logger.error("cannot write %s: %s", HIGH_WATERMARKS_FILE, error)
        await asyncio.gather(*(self._take_role(row) for row in here))

    def _apply_cloud(
        self, rows: Sequence[PartitionRow], deleted_topics: Sequence[uuid.UUID], gone: Sequence[PartitionId]
    ) -> None:
        own_id = self._host.identity[0]
        here = [row for row in rows if own_id in row.replicas and row.is_cloud]
        if self.cloud is None:
            return
        self.cloud.remove_topics(deleted_topics)
        self.cloud.remove(gone)
        topics = ((self._view.topic_by_id(row.topic_id), row) for row in here)
        self.cloud.apply((topic.name, row) for topic, row in topics if topic is not None)

    async def remove_unplaced(self) -> None:
        """Removes replicas that are no longer placed here: the topic was deleted or the replica moved while no change
        was received. Or the metastore is an older one, which does not know of them, and others may have raised its
        revision since. So their logs are set aside, as they are where a broker finds them when it starts. What was led
        in the cloud is claimed anew: its offsets, its map of L1 and its row may be of what an older metastore does not
        know. For the same reason replicas whose row is not the metastore's await a new role."""
        own_id = self._host.identity[0]
        in_cloud = [] if self.cloud is None else self.cloud.keys()
        rows = {key: self._view.partition_by_id(*key) for key in (*self._by_key, *self._unopened, *in_cloud)}
        gone = [key for key, row in rows.items() if row is None or own_id not in row.replicas]
        await self._remove(gone, sets_aside=True)
        await self._remove([key for key, row in rows.items() if row is not None and row.is_cloud])
        if self.cloud is not None:
            self.cloud.remove(in_cloud)
        for key, replica in list(self._by_key.items()):
            row = rows.get(key)
            if row is not None and row != replica.row and row.partition_epoch <= replica.row.partition_epoch:
                await self._roles.leave(replica)

    async def apply_failed(self) -> None:
        """Tries again what could not be opened or led: a full disk, or a lack of descriptors, may be over."""
        await self.apply([row for row in self._view.replicas_on(self._host.identity[0]) if self._has_failed(row)])

    def _has_failed(self, row: PartitionRow) -> bool:
        key = row.topic_id, row.partition
        replica = self._by_key.get(key)
        if replica is None:
            return not (key in self._unopened and self._unopened[key].is_damaged)
        return replica.log.failure is None and replica.role is Role.IDLE and row.leader != NO_LEADER

    def unkept(self) -> list[tuple[PartitionId, bool]]:
        """Partitions that this broker should host and cannot, each with whether its log can still be read: the disk
        failed under the log (readable), or the log is damaged. The former stop following: their reports to the leader
        would not be trustworthy."""
        failed = [(key, replica) for key, replica in self._by_key.items() if replica.log.failure is not None]
        for _, replica in failed:
            if replica.role is Role.FOLLOWER:
                self._roles.stop_following(replica)
        return [(key, True) for key, _ in failed] + [(key, False) for key in self.refused()]

    def refused(self) -> dict[PartitionId, Unopened]:
        """Damaged logs, which are not opened again until an operator has looked at them."""
        return {key: unopened for key, unopened in self._unopened.items() if unopened.is_damaged}

    def unserved(self) -> list[PartitionId]:
        """Partitions that this broker should host and cannot serve, possibly only for now."""
        return [*self._unopened, *(key for key, replica in self._by_key.items() if replica.log.failure is not None)]

    def outlived(self) -> list[PartitionId]:
        """Partitions in the ISR whose log ends below its own watermarks, except those led here: that was checked when
        they became leader."""
        own_id = self._host.identity[0]
        return [
            key
            for key, replica in self._by_key.items()
            if own_id in replica.row.isr and not replica.is_leader and replica.outlives_its_log(replica.row)
        ]

    def damaged(self) -> list[LocalReplica]:
        """Replicas whose log no longer holds what was once flushed."""
        return [replica for replica in self._by_key.values() if replica.log.damage is not None]

    def doubtful(self) -> list[LocalReplica]:
        """Replicas whose log was truncated at recovery where it is not known whether the rest had been flushed."""
        return [replica for replica in self._by_key.values() if replica.log.is_doubtful]

    def reconfigure(self, topic: str) -> None:
        config = self._host.topic_config(topic)
        for replica in self._by_key.values():
            if replica.topic == topic:
                replica.log.reconfigure(config)
                replica.flush_and_commit()
        if self.cloud is not None:
            self.cloud.reconfigure(topic)

    async def _make_sure_it_is_open(self, row: PartitionRow) -> None:
        replica = self._by_key.get((row.topic_id, row.partition))
        if replica is not None and is_added_again(row, replica.row, self._host.identity[0]):
            await self._remove([(row.topic_id, row.partition)])
            replica = None
        if replica is None:
            topic, known = self._view.topic_by_id(row.topic_id), self._view.partition_by_id(row.topic_id, row.partition)
            if topic is None or (known is not None and known.is_cloud):
                return  # the row is an old one: the topic was deleted since, or the log was moved to the store
            if is_missing(row, self._host.identity[0]):
                return  # the last copy of its log was lost: an empty log must not take its place
            replica = await self._try_to_open(topic.name, row)
            if replica is None:
                return
            self._by_key[row.topic_id, row.partition] = replica
            self._by_name[topic.name, row.partition] = replica

    async def _take_role(self, row: PartitionRow) -> None:
        replica = self._by_key.get((row.topic_id, row.partition))
        if replica is not None:
            await self._roles.take(replica, row)

    async def _try_to_open(self, topic: str, row: PartitionRow) -> LocalReplica | None:
        """A log that cannot be opened makes one partition unavailable here; it does not stop the broker."""
        key = row.topic_id, row.partition
        incarnation = row.incarnations.get(self._host.identity[0])
        before = self._unopened.get(key)
        if before is not None and before.is_damaged and before.incarnation == incarnation:
            return None
        try:
            replica = await self._open(topic, row)
        except (OSError, KafkaError, SextonError) as error:
            self._unopened[key] = Unopened(topic, incarnation, error)
            if before is None or str(before.error) != str(error):
                logger.error("%s-%d is not served by this broker: %s", topic, row.partition, error)
            return None
        except Exception as bug:
            self._unopened[key] = Unopened(topic, incarnation, bug)
            self._supervisor.survived(bug, "opening a log", f"{topic}-{row.partition}")
            return None
        if self._unopened.pop(key, None) is not None:
            logger.info("%s-%d was opened on a retry", topic, row.partition)
        return replica

    async def _open(self, topic: str, row: PartitionRow) -> LocalReplica:
        config = self._host.topic_config(topic)
        log, kept, high_watermark, is_made_here = await self.folder.open_log(topic, row, self._host.identity[0], config)
        return LocalReplica(
            row,
            log,
            host=self._host,
            listener=self,
            high_watermark=high_watermark,
            kept=kept,
            is_made_here=is_made_here,
        )

    def stranded(self) -> dict[PartitionId, LeaderEpoch]:
        """Partitions that this broker should lead in an epoch that was led before, each with the latest epoch that its
        log knows. It may not, and no other broker will start a new epoch."""
        local = {
            key: replica.log.epochs.latest_epoch
            for key, replica in self._by_key.items()
            if replica.role is Role.IDLE
            and replica.log.failure is None
            and replica.row.leader == self._host.identity[0]
            and replica.was_led_in(replica.row.leader_epoch)
        }
        return local | ({} if self.cloud is None else dict.fromkeys(self.cloud.stranded(), NO_EPOCH))

    async def _remove(self, keys: Sequence[PartitionId], *, sets_aside: bool = False) -> None:
        removed = []
        for key in keys:
            replica = self._by_key.pop(key, None)
            self._unopened.pop(key, None)
            if replica is not None:
                self._by_name.pop((replica.topic, replica.partition), None)
                self._roles.stop_following(replica)
                removed.append(replica)
        await self._forget_high_watermarks(removed)
        for replica in removed:
            async with replica.lock:
                try:
                    replica.stop()
                    await self._host.role_changed(replica)
                    await replica.coordination.kept.close()
                    if sets_aside:
                        await replica.log.set_aside(self.folder.path_aside(replica.topic, replica.partition))
                    else:
                        await replica.log.delete()
                except (OSError, KafkaError) as error:
                    logger.error("cannot remove %s: %s", replica.log.directory, error)
                except Exception as bug:
                    self._supervisor.survived(bug, "a change of role", f"{replica!r}, which is to go")

    async def _lower_checkpoint(self, *replicas: LocalReplica) -> None:
        """Called before a replica appends behind a high watermark that was lowered, or that its log did not reach when
        it was opened: after a crash, records that were never committed would lie below the one in the checkpoint."""
        written = self.folder.high_watermarks
        if any(one.high_watermark < written.get((one.topic, one.partition), 0) for one in replicas):
            await self.write_high_watermarks()

    async def _forget_high_watermarks(self, removed: Sequence[LocalReplica]) -> None:
        """Called before the logs are removed: a partition created again under the same name must not look as if its log
        had been lost (`was_lost`)."""
        if any((replica.topic, replica.partition) in self.folder.high_watermarks for replica in removed):
            try:
                await self.write_high_watermarks()
            except OSError as error:
                logger.error("cannot write %s: %s", HIGH_WATERMARKS_FILE, error)

    def rows_written(self, rows: Sequence[PartitionRow]) -> None:
        """Takes rows that this broker has just written, without waiting for the next poll."""
        self._view.apply_rows(rows)
        for row in rows:
            replica = self._by_key.get((row.topic_id, row.partition))
            if replica is not None and _is_newer_row_of_the_same_reign(row, replica.row):
                replica.follow_row(row)

    # What replicas tell (ReplicaListener)

    def follower_caught_up(self) -> None:
        self.membership.may_join()

    def follower_fenced(self, replica: LocalReplica, follower: int) -> None:
        self.membership.fence(replica, follower)

    async def high_watermark_lowered(self, replica: LocalReplica) -> None:
        await self._lower_checkpoint(replica)

    def has_news_for_leader(self, replica: LocalReplica) -> None:
        self._roles.report(replica)

    # Requests of other brokers

    def replica_fetch(self, connection: Hashable, payload: memoryview) -> list[Part] | Awaitable[list[Part]]:
        try:
            request = messages.decode_request(payload)
        except ValueError as error:
            raise MalformedMessageError(str(error)) from error
        session = self._sessions.get(connection)
        if session is None:
            session = FollowerSession(self, self._host.clock, self._supervisor, self._throttles.leader)
            self._sessions[connection] = session
        return session.fetch(request)

    def connection_closed(self, connection: Hashable) -> None:
        session = self._sessions.pop(connection, None)
        if session is not None:
            session.close()

    # Housekeeping

    async def run_retention(self) -> None:
        """Leaders move log starts as retention allows; followers take them over. Each replica expires idle producers by
        itself."""
        now_ms = self._host.clock.now_ms()
        for replica in self.all():
            try:
                await self._retain(replica, now_ms)
            except (OSError, KafkaError) as error:
                logger.error("%r: retention failed: %s", replica, error)
            except Exception as bug:
                self._supervisor.survived(bug, "retention", replica)
        if self.cloud is not None:
            await self.cloud.run_retention(now_ms)

    async def _retain(self, replica: LocalReplica, now_ms: int) -> None:
        replica.log.producers.expire(now_ms)
        if replica.is_leader and replica.config.deletes and not replica.is_sealed:
            start = replica.log.retention_start(replica.high_watermark, now_ms)
            if start > replica.log.start_offset:
                logger.info("%s-%d: retention moves the log start to %d", replica.topic, replica.partition, start)
                await replica.advance_start(start)

    async def stop(self) -> bool:
        """Closes all logs. Returns whether everything that was appended is on disk; if not, the next start runs
        recovery."""
        await self._roles.stop()
        if self.cloud is not None:
            await self.cloud.stop()
        for session in self._sessions.values():
            session.close()
        for replica in self.all():
            async with replica.lock:
                replica.stop()
        is_clean = not self._unopened and all(replica.log.failure is None for replica in self.all())
        errors: list[Exception] = []

        async def attempt(step: Callable[[], Awaitable[None]]) -> None:
            try:
                await step()
            except (OSError, KafkaError) as error:
                logger.error("stopping: %s. The next start recovers the logs", error)
                errors.append(error)

        await attempt(self.write_checkpoints)
        await some_at_once(OPEN_AT_ONCE, (attempt(replica.log.close) for replica in self.all()))
        return is_clean and not errors


def _is_newer_row_of_the_same_reign(row: PartitionRow, than: PartitionRow) -> bool:
    return row.partition_epoch > than.partition_epoch and row.leader_epoch == than.leader_epoch
