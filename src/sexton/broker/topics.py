"""Topic creation: by CreateTopics, by auto-creation, or for an internal topic.

What a new topic looks like is decided in `sexton.metadata.topics`; here it is written to the metastore and waited for.
"""

from __future__ import annotations

import logging
import random
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sexton.broker.admin import METADATA_TOPIC, before_deadline, is_serving, make_change
from sexton.cloud.ownership import unmarked
from sexton.metadata.incarnations import new_id
from sexton.metadata.topics import (
    INTERNAL_TOPICS,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    check_topic_name,
    new_topic_rows,
)
from sexton.ports.cloud import CLOUD, STORAGE_MODE
from sexton.ports.metastore import AlreadyExistsError, MetastoreUnavailableError, PartitionRow, Storage, TopicRow
from sexton.ports.object_names import claim_store, is_claimed
from sexton.ports.objects import StoreRefusedError, StoreUnavailableError
from sexton.protocol.errors import ErrorCode, KafkaError
from sexton.settings.checks import MIN_INSYNC, check_min_insync, check_topic
from sexton.settings.layers import with_overrides
from sexton.settings.schema import BadSettingError

if TYPE_CHECKING:
    from sexton.broker.broker import Broker
    from sexton.settings.broker_config import BrokerConfig

logger = logging.getLogger(__name__)

USE_DEFAULT = -1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create. USE_DEFAULT leaves a number to the broker's configs; `assignments`, if any, replaces both
    numbers."""

    name: str
    partitions_count: int = USE_DEFAULT
    replication_factor: int = USE_DEFAULT
    assignments: Mapping[int, Sequence[int]] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)


async def create_topic(
    broker: Broker, wanted: NewTopic, *, validate_only: bool = False
) -> tuple[TopicRow, Sequence[PartitionRow]]:
    """Creates the topic, and returns when this broker sees it. With `validate_only`, returns what would have been
    created."""
    wanted = with_storage_mode(broker, wanted)

    async def attempt() -> tuple[TopicRow, Sequence[PartitionRow]]:
        topic, rows = await _planned(broker, wanted)
        if not validate_only:
            if is_cloud(wanted):
                await mark_store(broker)
            try:
                await broker.metastore.create_topic(topic, rows, wanted.settings)
            except AlreadyExistsError as error:
                await broker.catch_up()
                raise _already_exists(wanted.name) from error
        return topic, rows

    if validate_only:
        return await attempt()
    if wanted.settings.get("compaction.coordination") == "independent":
        logger.warning(
            "topic %s is compacted without coordination: a replica that was away can bring deleted keys and aborted "
            "records back. It is for comparison only",
            wanted.name,
        )
    return await make_change(broker, attempt, ErrorCode.not_controller)


async def _planned(broker: Broker, wanted: NewTopic) -> tuple[TopicRow, Sequence[PartitionRow]]:
    """If there are too few brokers, catches up and plans again: one that has just started may be in the metastore, and
    not in this broker's view yet."""
    try:
        return plan_topic(broker, wanted)
    except KafkaError as error:
        if error.code is not ErrorCode.invalid_replication_factor:
            raise
        with suppress(MetastoreUnavailableError):
            await broker.catch_up()
        return plan_topic(broker, wanted)


async def ensure_topic(broker: Broker, name: str) -> None:
    """Creates a topic that a client or the broker itself needs, with default configs. It may exist already."""
    wanted = NewTopic(name)
    if name == OFFSETS_TOPIC:
        wanted = offsets_topic(broker)
    elif name == TRANSACTIONS_TOPIC:
        wanted = transactions_topic(broker)
    try:
        await create_topic(broker, wanted)
    except KafkaError as error:
        if error.code is ErrorCode.topic_already_exists:
            return
        if error.code is ErrorCode.not_controller:  # retriable, with an error that consumers and producers know
            raise KafkaError(ErrorCode.leader_not_available, error.message) from error
        raise


def offsets_topic(broker: Broker) -> NewTopic:
    """The internal topic that holds committed offsets, with Kafka's configs."""
    return NewTopic(
        OFFSETS_TOPIC,
        broker.config.offsets_topic_num_partitions,
        broker.config.offsets_topic_replication_factor,
        settings={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(broker.config.offsets_topic_segment_bytes),
        },
    )


def transactions_topic(broker: Broker) -> NewTopic:
    """The internal topic that holds the state of transactions, with Kafka's configs."""
    replication_factor = broker.config.transaction_state_log_replication_factor
    return NewTopic(
        TRANSACTIONS_TOPIC,
        broker.config.transaction_state_log_num_partitions,
        replication_factor,
        settings={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "unclean.leader.election.enable": "false",
            MIN_INSYNC: str(min(broker.config.transaction_state_log_min_isr, replication_factor)),
            "segment.bytes": str(broker.config.transaction_state_log_segment_bytes),
        },
    )


def plan_topic(broker: Broker, wanted: NewTopic) -> tuple[TopicRow, list[PartitionRow]]:
    """Returns the rows to write. Checks in Kafka's order: name, existence, configs, numbers, brokers."""
    existing = list(broker.view.topic_names())
    check_topic_name(wanted.name, existing)
    if wanted.name == METADATA_TOPIC:
        raise KafkaError(ErrorCode.invalid_request, f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    if broker.view.topic(wanted.name) is not None:
        raise _already_exists(wanted.name)
    with _settings_checked():
        check_topic(broker.view, broker.config.static, broker.config.node_id, wanted.settings)
    partitions_count, replication_factor = _numbers(broker.config, wanted)
    topic, rows = new_topic_rows(
        wanted.name,
        partitions_count,
        replication_factor,
        broker.view.brokers,
        broker.rng,
        assignments=wanted.assignments,
        existing=existing,
        is_internal=wanted.name in INTERNAL_TOPICS,
    )
    if is_cloud(wanted):
        return topic, [in_cloud(row) for row in rows]
    with _settings_checked():
        check_min_insync(wanted.settings, min(len(row.replicas) for row in rows))
    return topic, rows


# ---- cloud topics ----


def in_cloud(row: PartitionRow) -> PartitionRow:
    """Every broker can lead it: none of them holds anything."""
    return replace(row, isr=row.replicas, storage=Storage.CLOUD)


def is_cloud(wanted: NewTopic) -> bool:
    return wanted.settings.get(STORAGE_MODE) == CLOUD


def with_storage_mode(broker: Broker, wanted: NewTopic) -> NewTopic:
    """Where a topic's data is, is decided now: the default may change. Internal topics are never cloud: their
    coordinators must not wait for a store."""
    if wanted.name in INTERNAL_TOPICS and not is_cloud(wanted):
        return wanted
    if STORAGE_MODE not in wanted.settings:
        default = with_overrides(broker.view, broker.config.static, broker.config.node_id, {}).storage_mode
        if default == CLOUD:
            wanted = replace(wanted, settings={**wanted.settings, STORAGE_MODE: CLOUD})
    if is_cloud(wanted):
        check_may_move(broker, wanted.name)
    return wanted


def check_may_move(broker: Broker, topic: str) -> None:
    """Raises KafkaError if a topic of this name cannot be a cloud topic."""
    if topic in INTERNAL_TOPICS:
        raise KafkaError(ErrorCode.invalid_config, f"{topic} is an internal topic, which is always local")
    if broker.objects is None:
        raise KafkaError(
            ErrorCode.invalid_config,
            f"{STORAGE_MODE}={CLOUD} needs an object store, and this broker has none: set cloud.store.url",
        )


async def mark_store(broker: Broker) -> None:
    """Before the first cloud topic is made the store is marked as this cluster's. Later ones must find the mark."""
    assert broker.objects is not None
    try:
        if not any(row.storage is not Storage.LOCAL for row in broker.view.partitions()):
            await claim_store(broker.objects, broker.cluster_id)
        elif not await is_claimed(broker.objects, broker.cluster_id):
            raise unmarked(broker.objects.place)
    except StoreUnavailableError as error:
        raise KafkaError(ErrorCode.request_timed_out, f"the object store does not answer: {error}") from error
    except StoreRefusedError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from error


def with_incarnations(row: PartitionRow, rng: random.Random) -> PartitionRow:
    """Gives an incarnation to every replica that has none: those that are new."""
    missing = {id_: new_id(rng) for id_ in row.replicas if id_ not in row.incarnations}
    return replace(row, incarnations={**row.incarnations, **missing}) if missing else row


async def wait_for_leaders(broker: Broker, topic_id: uuid.UUID, timeout_ms: int) -> None:
    """Waits until every partition has a leader that serves, as this broker sees it, or the topic has been deleted."""

    def have_leaders() -> bool:
        rows = broker.view.partitions_of(topic_id)
        return all(is_serving(broker.view.broker(row.leader)) for row in rows)

    if not await before_deadline(broker, have_leaders, timeout_ms):
        raise KafkaError(ErrorCode.request_timed_out, "The topic exists, but not all partitions have a leader yet.")


@contextmanager
def _settings_checked() -> Iterator[None]:
    try:
        yield
    except BadSettingError as error:
        raise KafkaError(ErrorCode.invalid_config, str(error)) from error


def _numbers(config: BrokerConfig, wanted: NewTopic) -> tuple[int, int]:
    """Returns the number of partitions and the replication factor. Both must be -1 if replicas are assigned by hand."""
    count, factor = wanted.partitions_count, wanted.replication_factor
    if wanted.assignments:
        for value, what in ((factor, "replication factor"), (count, "numPartitions")):
            if value != USE_DEFAULT:
                what = f"A manual partition assignment was specified, but {what} was not set to -1."
                raise KafkaError(ErrorCode.invalid_request, what)
        return count, factor
    if factor == 0 or factor < USE_DEFAULT:
        what = "Replication factor must be larger than 0, or -1 to use the default value."
        raise KafkaError(ErrorCode.invalid_replication_factor, what)
    if count == 0 or count < USE_DEFAULT:
        what = "Number of partitions was set to an invalid non-positive value."
        raise KafkaError(ErrorCode.invalid_partitions, what)
    return (
        config.num_partitions if count == USE_DEFAULT else count,
        config.default_replication_factor if factor == USE_DEFAULT else factor,
    )


def _already_exists(name: str) -> KafkaError:
    return KafkaError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
