"""One broker: creates its parts, registers it in the cluster, and runs its background loops.

Start: lock the log directory, open the admin endpoint, read the cluster's id, listen, register, reconcile the
metastore's rows of this broker's replicas with the logs on its disk, open the logs, become leader or follower of each
partition, become ACTIVE, notify the other brokers. From then on a few loops run until `stop`: the lease, the poll of
the metastore, the controller's steps (on the broker that is the controller), ISR changes, retention. A metastore that
is unreachable is waited for, at startup and later (rule 12).
"""

from __future__ import annotations

import asyncio
import logging
import random
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar

from sexton.broker.cloud import CloudPart
from sexton.broker.compaction.cloud_topics import CloudTopics
from sexton.broker.compaction.loops import CompactionLoops
from sexton.broker.compaction.requests import Requests as CompactionRequests
from sexton.broker.compaction.service import CompactionService
from sexton.broker.fetch.sessions import FetchSessions
from sexton.broker.lifecycle import folder as folders
from sexton.broker.lifecycle import handover
from sexton.broker.lifecycle.control import Control
from sexton.broker.lifecycle.declining import Declining
from sexton.broker.lifecycle.folder import Folder
from sexton.broker.lifecycle.handover import begin_anew, lead_again, leave_unkept, reconcile, resolve_doubts, retreat
from sexton.broker.lifecycle.news import News
from sexton.broker.lifecycle.registration import Registration
from sexton.broker.network.dispatch import Dispatch
from sexton.broker.network.request import PrivateHandler
from sexton.broker.observe.pages import AdminPages
from sexton.broker.observe.stored import Stored
from sexton.broker.produce.refused import RefusedBatches
from sexton.broker.produce.unpacking import Unpacking
from sexton.broker.topics import ensure_topic
from sexton.broker.transactions.coordinator_log import CoordinatorLog
from sexton.broker.transactions.producer_ids import ProducerIds
from sexton.broker.transactions.transactions import Transactions
from sexton.coordinators.groups.service import GroupService
from sexton.coordinators.groups.view_topics import ViewTopics
from sexton.metadata.topics import OFFSETS_TOPIC
from sexton.metadata.view import ClusterView
from sexton.ports.clock import Clock
from sexton.ports.disk import Disk
from sexton.ports.metastore import (
    BrokerRow,
    BrokerStatus,
    Changes,
    ConfigScope,
    LeaseLostError,
    Metastore,
    MetastoreUnavailableError,
    StaleError,
)
from sexton.ports.network import Listener, Network
from sexton.ports.objects import ObjectStore
from sexton.protocol.errors import KafkaError
from sexton.protocol.private import PrivateApi
from sexton.replication.fetcher import FetchLimits
from sexton.replication.local_replica import LocalReplica
from sexton.replication.replicas import HIGH_WATERMARK_CHECKPOINT_MS, Replicas, ReplicationSettings
from sexton.replication.throttle import Throttle, Throttles
from sexton.settings.broker_config import BrokerConfig
from sexton.settings.group import GroupConfig
from sexton.settings.layers import group_config, topic_config
from sexton.settings.topic import TopicConfig
from sexton.supervision import Supervisor
from sexton.types import NO_EPOCH

logger = logging.getLogger(__name__)

T = TypeVar("T")

APPLY_AGAIN_MS = 5000
"""Interval between two attempts to open or lead a partition whose disk did not allow it."""

RETREAT_MS = 500
"""How often this broker checks whether it has failed or damaged logs, so that other replicas should lead."""

METASTORE_RETRY_MS = 250
"""Interval between two attempts to reach the metastore."""


class Broker:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        disk: Disk,
        network: Network,
        metastore: Metastore,
        rng: random.Random,
        objects: ObjectStore | None = None,
    ) -> None:
        """Without `objects` it leads no partition of a cloud topic, and makes none."""
        self.config = config
        self.clock = clock
        self.disk = disk
        self.network = network
        self.metastore = metastore
        self.objects = objects
        self.rng = rng
        self.view = ClusterView()
        self.cluster_id = uuid.UUID(int=0)
        self.supervisor = Supervisor(self._fail)
        lease_ms, renew_ms = config.broker_lease_ms, config.broker_lease_renew_ms
        self.registration = Registration(config.node_id, metastore, clock, lease_ms=lease_ms, renew_ms=renew_ms)
        self.cloud = None if objects is None else CloudPart(self, objects)
        cloud_replicas = None if self.cloud is None else self.cloud.replicas
        self.replicas = Replicas(self, self._replication_settings(), cloud_replicas)
        self._declining = Declining(self)
        self.compaction = CompactionService(self)
        self._compaction_loops = CompactionLoops(self, self.compaction)
        cloud_topics = CloudTopics(cloud_replicas, metastore, clock)
        self.compaction_requests = CompactionRequests(self.compaction, self, cloud_topics)
        self.news = News(self)
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, rng, clock)
        self.producer_ids: ProducerIds = ProducerIds(metastore)
        self.dispatch = Dispatch(self, self._private_handlers())
        self.groups = GroupService(self, config, ViewTopics(self.view))
        self.transactions = Transactions(self)
        self.refused = RefusedBatches(clock)
        self.unpacking = Unpacking(self)
        self.stored = Stored(self)
        self.admin = AdminPages(self)
        self._locks = ExitStack()
        self._answering: dict[int, int] = {}
        """The other brokers that this one can leave its partitions to when it stops, with their epochs. Empty until
        `_drain` has asked them."""
        self._listener: Listener | None = None
        self._catching_up = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._topic_configs: dict[str, TopicConfig] = {}
        self._topic_configs_version = -1
        self.has_joined = False
        """Whether it has been ACTIVE once. Before that the admin endpoint serves only a few pages."""
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets an exception if one of the loops fails: the caller that runs the broker should end it then."""

    # What API modules use

    @property
    def identity(self) -> tuple[int, int]:
        """Broker id, and the broker epoch of this process."""
        return self.registration.identity

    def adopts_compactions(self) -> bool:
        return self.config.compaction_share and self.config.log_cleaner_enable

    def lease_is_valid(self) -> bool:
        return self.registration.is_valid()

    def is_elected(self, topic: str, partition: int) -> bool:
        row = self.view.partition(topic, partition)
        return row is not None and row.leader == self.config.node_id

    def partitions_count(self, topic: str) -> int:
        return self.view.partitions_count(topic)

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    def topic_config(self, topic: str) -> TopicConfig:
        """Cached until anything in the view changes: all partitions of a topic ask for the same config one after the
        other."""
        if self._topic_configs_version != self.view.version:
            self._topic_configs, self._topic_configs_version = {}, self.view.version
        found = self._topic_configs.get(topic)
        if found is None:
            found = topic_config(self.view, self.config.static, self.config.node_id, topic)
            self._topic_configs[topic] = found
        return found

    def group_config(self, group: str) -> GroupConfig:
        return group_config(self.view, self.config.static, self.config.node_id, group)

    async def catch_up(self) -> None:
        """When this returns, this broker has read and applied every change that was made before the call."""
        async with self._catching_up:
            asked_ms = self.clock.monotonic_ms()
            changes = await self.metastore.read_changes(self.view.revision)
            applying = asyncio.ensure_future(self._apply(changes, asked_ms))
            try:
                await asyncio.shield(applying)
            except asyncio.CancelledError:
                # A request that timed out stops waiting, but these changes must be applied to the end: they are not
                # read again.
                await asyncio.wait([applying])
                raise

    async def _apply(self, changes: Changes, asked_ms: int) -> None:
        delta = self.view.apply(changes)
        self.groups.topics_deleted([topic.name for topic in delta.deleted])
        if delta.starts_over:
            logger.error(
                "the metastore is an older one than before (revision %d): logs that it does not know are set aside",
                self.view.revision,
            )
            await self.replicas.remove_unplaced()
        await self.replicas.apply(delta.partitions, delta.deleted_topics)
        self._reconfigure(delta.configs)
        if self.replicas.cloud is not None:
            self.replicas.cloud.note_leveled(asked_ms, changes.cloud_partitions)

    async def ensure_internal_topic(self, name: str) -> None:
        await ensure_topic(self, name)

    # Starting and stopping

    async def start(self) -> None:
        folder_path = self.config.log_dir
        await folders.make_folder(self.disk, folder_path)
        self._locks.enter_context(self.disk.lock(folder_path))
        if self.config.admin_endpoint is not None:
            await self.admin.start(*self.config.admin_endpoint)  # a broker that waits for the metastore is alive, too
        proposed = uuid.UUID(int=self.rng.getrandbits(128), version=4)
        self.cluster_id = await self._patiently(lambda: self.metastore.open_cluster(proposed))
        folder = await folders.open_folder(self.disk, folder_path, self.config.node_id, self.cluster_id, self.rng)
        self.dispatch.hold()
        self._listener = await self.network.listen(*self.config.listener, self.dispatch.accept)
        self.replicas.folder.read(folder.stopped_cleanly)
        await self._join(self._proposed_row(folder), folder)
        self.dispatch.release()
        self.has_joined = True
        self._spawn(self._keep_lease())
        self._spawn(self._poll())
        self._spawn(self.replicas.membership.run())
        self._spawn(Control(self).run())
        self._spawn(self._every(self.config.log_retention_check_interval_ms, self.replicas.run_retention))
        self._spawn(self._every(HIGH_WATERMARK_CHECKPOINT_MS, self.replicas.write_checkpoints))
        self._spawn(self._every(APPLY_AGAIN_MS, self.apply_failed))
        self._spawn(self._keep_retreating())
        for loop in (*self._compaction_loops.all(), *(() if self.cloud is None else self.cloud.loops())):
            self._spawn(loop)
        await self.news.tell()  # so that the other brokers include this one in their next Metadata responses
        logger.info("broker %d serves at %s:%d", self.config.node_id, self.config.advertised.host, self.port)

    async def stop(self) -> None:
        """Hands leaderships over, then stops. All acknowledged records are on disk then, and the log directory is
        marked as cleanly stopped."""
        self.supervisor.is_stopping = True
        try:
            async with asyncio.timeout(self.config.broker_lease_ms / 1000):
                await self._drain()
        except (TimeoutError, MetastoreUnavailableError, LeaseLostError) as error:
            logger.warning("stopping without having handed leadership over: %s", error)
        if self._listener is not None:
            self._listener.close()
        self.admin.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._compaction_loops.close()
        await self.groups.close()
        await self.transactions.close()
        self.news.close()
        await self.dispatch.stop()
        self.unpacking.close()
        if self.cloud is not None:
            await self.cloud.collector.stop()
        is_registered = self.identity[1] != NO_EPOCH
        if await self.replicas.stop() and is_registered:
            await self._mark_clean()
        if is_registered and not handover.is_needed(self, self._answering):
            with suppress(MetastoreUnavailableError, LeaseLostError):  # if it fails, the lease expires by itself
                await self.registration.set_status(BrokerStatus.FENCED)
        await self.metastore.close()
        self._locks.close()

    async def _mark_clean(self) -> None:
        try:
            await folders.mark_clean(self.disk, self.config.log_dir, self.registration.row.epoch)
        except OSError as error:
            logger.error("cannot mark the data directory as cleanly stopped: %s. The next start takes longer", error)

    def _proposed_row(self, folder: Folder) -> BrokerRow:
        advertised = self.config.advertised
        return BrokerRow(
            broker_id=self.config.node_id,
            epoch=NO_EPOCH,
            host=advertised.host,
            port=advertised.port or self.port,
            rack=self.config.broker_rack,
            data_id=folder.data_id,
            lease_ms=self.config.broker_lease_ms,
            renewals_count=0,
            status=BrokerStatus.STARTING,
        )

    async def _join(self, proposed: BrokerRow, folder: Folder) -> None:
        """Registers, reconciles the metastore's rows with the logs, opens the logs, becomes ACTIVE. Starts over after a
        lost lease."""
        while True:
            announce = partial(self._announce, folder)
            former = await self._patiently(partial(self.registration.register, proposed, announce))
            renewing = asyncio.ensure_future(self.registration.keep_renewing())  # opening logs may outlast the lease
            try:
                await self._patiently(partial(self._take_place, former, folder, renewing))
                break
            except LeaseLostError:
                logger.warning("broker %d was fenced while it was starting", self.config.node_id)
            finally:
                renewing.cancel()
                await asyncio.gather(renewing, return_exceptions=True)
        logger.info("broker %d is active", self.config.node_id)

    async def _take_place(self, former: BrokerRow | None, folder: Folder, renewing: asyncio.Task[None]) -> None:
        """A fenced broker must not continue: every write it makes would fail as stale. So an error of `renewing` is
        raised here."""
        if renewing.done():
            renewing.result()
        async with self._catching_up:
            delta = self.view.start_over(await self.metastore.read_changes(0))
            self.groups.topics_deleted([topic.name for topic in delta.deleted])
            await self.replicas.remove_unplaced()  # replicas that were removed while this process was fenced
            self._reconfigure(delta.configs)
            await reconcile(self, former, folder)
            await self._mark_epoch(folder)
            await self.replicas.apply(self.view.replicas_on(self.config.node_id))
            await resolve_doubts(self)
            await begin_anew(self, is_starting=True)
            await leave_unkept(self)
            self.replicas.folder.stopped_cleanly = False
            self.replicas.set_strays_aside()
        await self.registration.set_status(BrokerStatus.ACTIVE)
        await self.catch_up()  # so that this broker is in its own Metadata responses before it sends the first

    async def _announce(self, folder: Folder, former: BrokerRow | None) -> str | None:
        former_epoch = folders.NOBODY if former is None else former.epoch
        start = folders.Start(f"{self.rng.getrandbits(128):032x}", folder.past(former), former_epoch)
        try:
            await folders.mark_start(self.disk, folder.path, start)
        except OSError as error:
            logger.error("%s: cannot record this start: %s", folder.path, error)
            return None
        return start.id

    async def _mark_epoch(self, folder: Folder) -> None:
        try:
            await folders.mark_epoch(self.disk, folder.path, self.registration.row.epoch)
        except OSError as error:
            if folder.broker_epoch == folders.NOBODY:
                raise  # without the epoch, the logs in this directory would count as lost at the next start
            logger.error(
                "%s: cannot record the broker epoch: %s. The next start may take this directory for an old copy",
                folder.path,
                error,
            )

    async def _keep_lease(self) -> None:
        while True:
            try:
                await self.registration.keep_renewing()
            except LeaseLostError as error:
                logger.warning("broker %d lost its lease (%s). Registering again", self.config.node_id, error)
                await self._rejoin()

    async def _keep_retreating(self) -> None:
        while True:
            await asyncio.sleep(RETREAT_MS / 1000)
            try:
                await retreat(self)
                async with self._catching_up:
                    await begin_anew(self)
            except (MetastoreUnavailableError, StaleError, LeaseLostError) as error:
                logger.debug("cannot leave partitions to other replicas: %s", error)

    async def _poll(self) -> None:
        was_away = False
        while True:
            await asyncio.sleep(self.config.metadata_poll_ms / 1000)
            try:
                await self.catch_up()
            except MetastoreUnavailableError as error:
                if not was_away:
                    logger.warning("the metastore is unreachable: %s", error)
                was_away = True
                continue
            if was_away:
                logger.info("the metastore is reachable again")
                was_away = False

    async def _rejoin(self) -> None:
        self.registration.lose()
        row = self.registration.row
        await self._join(row, Folder(self.config.log_dir, row.data_id, stopped_cleanly=True, is_in_use=True))

    async def _drain(self) -> None:
        await self.registration.set_status(BrokerStatus.DRAINING)
        await self.catch_up()
        self._answering = await handover.answering(self)
        if self.config.controlled_shutdown_enable:
            await handover.hand_over(self, self._answering)

    async def role_changed(self, replica: LocalReplica) -> None:
        self.transactions.role_changed(replica)
        if replica.topic == OFFSETS_TOPIC:
            if replica.is_leader:
                self.groups.load(replica.partition, CoordinatorLog(replica))
            else:
                self.groups.unload(replica.partition)

    def _reconfigure(self, configs: Sequence[tuple[ConfigScope, str]]) -> None:
        topics: dict[str, None] = {}
        for scope, name in configs:
            if scope is ConfigScope.TOPIC:
                topics[name] = None
            elif scope is ConfigScope.BROKER:
                self.config = self.config.effective(self.view)
                self.groups.reconfigure(self.config)
                self.transactions.reconfigure()
                topics.update((replica.topic, None) for replica in self.replicas.all())
                if self.replicas.cloud is not None:
                    topics.update((replica.topic, None) for replica in self.replicas.cloud.all())
        for topic in topics:
            self.replicas.reconfigure(topic)

    def _private_handlers(self) -> dict[int, PrivateHandler]:
        return {
            PrivateApi.REPLICA_FETCH: self.replicas.replica_fetch,
            PrivateApi.NEWS: self.news.receive,
            **self.compaction_requests.handlers(),
        }

    def _replication_settings(self) -> ReplicationSettings:
        config = self.config
        return ReplicationSettings(
            folder=config.log_dir,
            limits=FetchLimits(
                config.replica_fetch_wait_max_ms,
                config.replica_fetch_response_max_bytes,
                config.replica_fetch_max_bytes,
                config.request_timeout_ms,
            ),
            lag_max_ms=config.replica_lag_time_max_ms,
            producer_expiry_ms=config.producer_id_expiration_ms,
            throttles=Throttles(
                Throttle(lambda: self.config.leader_replication_throttled_rate, self.clock),
                Throttle(lambda: self.config.follower_replication_throttled_rate, self.clock),
            ),
        )

    async def _patiently(self, step: Callable[[], Awaitable[T]]) -> T:
        """Retries until the metastore answers. Every step is compare-and-set, so retrying is safe."""
        was_away = False
        while True:
            try:
                return await step()
            except (MetastoreUnavailableError, StaleError) as error:
                if not was_away:
                    logger.warning("waiting for the metastore: %s", error)
                was_away = True
                await asyncio.sleep(METASTORE_RETRY_MS / 1000)

    async def apply_failed(self) -> None:
        async with self._catching_up:
            await self.replicas.apply_failed()
            with suppress(MetastoreUnavailableError, StaleError, LeaseLostError):  # retried after APPLY_AGAIN_MS
                await lead_again(self)
                await self._declining.step()

    async def _every(self, interval_ms: int, step: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms / 1000)
            try:
                await step()
            except (OSError, KafkaError) as error:
                logger.error("%s failed: %s. Check the disk", getattr(step, "__name__", step), error)

    def _spawn(self, loop: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self.supervisor.loop(loop, getattr(loop, "__qualname__", "a loop of the broker")))

    def _fail(self, error: BaseException) -> None:
        """Called when a loop ends by itself. That is a bug, and a broker cannot work without its loops."""
        if not self.failed.done():
            self.failed.set_exception(error)
